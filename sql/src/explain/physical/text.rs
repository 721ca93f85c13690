//! DataFusion expressions in PostgreSQL's syntax.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal, NotExpr,
};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, ScalarFunctionExpr};

use super::Shower;
use crate::explain::expression::constant;
use crate::explain::statement::in_parentheses;
use crate::relational::{Computed, Folded, KeyOf, datum};
use crate::types::SqlType;

type Physical = Arc<dyn PhysicalExpr>;

impl Shower<'_> {
    /// Displays an expression.
    #[recursive::recursive]
    pub(super) fn text(&self, expr: &Physical) -> String {
        if let Some(column) = expr.downcast_ref::<Column>() {
            let known = self.known.get(column.name());
            return known.map_or_else(|| column.name().to_owned(), |(shown, _)| shown.clone());
        }
        if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
            return self.binary(binary);
        }
        if let Some(literal) = expr.downcast_ref::<Literal>() {
            return self.literal(literal.value(), None);
        }
        if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
            return self.call(call);
        }
        if let Some(not) = expr.downcast_ref::<NotExpr>() {
            return format!("(NOT {})", self.text(not.arg()));
        }
        if let Some(test) = expr.downcast_ref::<IsNullExpr>() {
            return format!("({} IS NULL)", self.text(test.arg()));
        }
        if let Some(test) = expr.downcast_ref::<IsNotNullExpr>() {
            return format!("({} IS NOT NULL)", self.text(test.arg()));
        }
        if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            return self.text(cast.expr());
        }
        if let Some(list) = expr.downcast_ref::<InListExpr>() {
            let base = self.type_of(list.expr());
            let items: Vec<String> =
                list.list().iter().map(|item| self.text_of(item, base)).collect();
            let (sign, which) = if list.negated() { ("<>", "ALL") } else { ("=", "ANY") };
            let operand = self.text(list.expr());
            return format!("({operand} {sign} {which} (ARRAY[{}]))", items.join(", "));
        }
        if let Some(case) = expr.downcast_ref::<CaseExpr>() {
            return self.case(case);
        }
        expr.to_string()
    }

    fn case(&self, case: &CaseExpr) -> String {
        let mut shown = "CASE".to_owned();
        if let Some(operand) = case.expr() {
            shown.push_str(&format!(" {}", self.text(operand)));
        }
        for (when, then) in case.when_then_expr() {
            shown.push_str(&format!(" WHEN {} THEN {}", self.text(when), self.text(then)));
        }
        if let Some(otherwise) = case.else_expr() {
            shown.push_str(&format!(" ELSE {}", self.text(otherwise)));
        }
        shown + " END"
    }

    /// Displays an expression of a type, if the type is known.
    fn text_of(&self, expr: &Physical, base: Option<SqlType>) -> String {
        match expr.downcast_ref::<Literal>() {
            Some(literal) => self.literal(literal.value(), base),
            None => self.text(expr),
        }
    }

    fn literal(&self, value: &ScalarValue, base: Option<SqlType>) -> String {
        let as_it_is = match value {
            ScalarValue::Boolean(_) => SqlType::Bool,
            ScalarValue::Int64(_) => SqlType::Int8,
            ScalarValue::Float64(_) => SqlType::Float8,
            ScalarValue::Utf8(_) => SqlType::Text,
            ScalarValue::Binary(_) => SqlType::Bytea,
            other => return other.to_string(),
        };
        let of = |base| datum(base, value).map(|datum| constant(&datum, Some(base), self.zone));
        base.and_then(of).or_else(|| of(as_it_is)).unwrap_or_else(|| value.to_string())
    }

    fn binary(&self, binary: &BinaryExpr) -> String {
        let (left, right) = (binary.left(), binary.right());
        let op = *binary.op();
        let sign = match op {
            Operator::NotEq => "<>".to_owned(),
            op => op.to_string(),
        };
        if matches!(op, Operator::And | Operator::Or) {
            let mut parts = Vec::new();
            let mut rest = vec![right, left];
            while let Some(part) = rest.pop() {
                match part.downcast_ref::<BinaryExpr>().filter(|inner| *inner.op() == op) {
                    Some(inner) => rest.extend([inner.right(), inner.left()]),
                    None => parts.push(self.text(part)),
                }
            }
            return format!("({})", parts.join(&format!(" {sign} ")));
        }
        let base = self.type_of(left).or_else(|| self.type_of(right));
        format!("({} {sign} {})", self.text_of(left, base), self.text_of(right, base))
    }

    fn call(&self, call: &ScalarFunctionExpr) -> String {
        let function = call.fun().inner();
        // The comparison key of a value is displayed as the value.
        if function.downcast_ref::<KeyOf>().is_some()
            && let Some(value) = call.args().first()
        {
            return self.text(value);
        }
        let Some(computed) = function.downcast_ref::<Computed>() else {
            return call.name().to_owned();
        };
        let args = call.args().iter().zip(&computed.args);
        let columns = args.map(|(arg, base)| self.text_of(arg, Some(*base))).collect();
        self.names(columns).shown(&computed.expr, Some(computed.base))
    }

    /// Returns the type of an expression if it is known.
    pub(super) fn type_of(&self, expr: &Physical) -> Option<SqlType> {
        if let Some(column) = expr.downcast_ref::<Column>() {
            return self.known.get(column.name()).and_then(|(_, base)| *base);
        }
        let call = expr.downcast_ref::<ScalarFunctionExpr>()?.fun().inner();
        let computed = call.downcast_ref::<Computed>().map(|computed| computed.base);
        computed.or_else(|| call.downcast_ref::<KeyOf>().map(|key| key.base))
    }

    /// Displays the sort keys.
    pub(super) fn sort_keys(&self, ordering: &LexOrdering) -> Vec<String> {
        ordering
            .iter()
            .map(|key| {
                let shown = in_parentheses(&self.text(&key.expr));
                let (is_descending, is_first) = (key.options.descending, key.options.nulls_first);
                match (is_descending, is_first) {
                    (false, false) => shown,
                    (true, true) => format!("{shown} DESC"),
                    (false, true) => format!("{shown} NULLS FIRST"),
                    (true, false) => format!("{shown} DESC NULLS LAST"),
                }
            })
            .collect()
    }

    /// Displays the call of an aggregate.
    pub(super) fn called(
        &self,
        function: &AggregateFunctionExpr,
        filter: Option<&Physical>,
    ) -> String {
        let args: Vec<String> = function.expressions().iter().map(|arg| self.text(arg)).collect();
        let filter = filter.map(|filter| format!(" FILTER (WHERE {})", self.text(filter)));
        let filter = filter.unwrap_or_default();
        if let Some(folded) = function.fun().inner().downcast_ref::<Folded>() {
            return self.names(args).aggregate(&folded.aggregate) + &filter;
        }
        let is_row = function.expressions().iter().any(|arg| arg.is::<Literal>());
        let args = if is_row { "*".to_owned() } else { args.join(", ") };
        let distinct = if function.is_distinct() { "DISTINCT " } else { "" };
        format!("{}({distinct}{args}){filter}", function.fun().name())
    }

    /// Displays the call of a window function.
    pub(super) fn window(&self, window: &dyn WindowExpr) -> String {
        let args: Vec<String> = window.expressions().iter().map(|arg| self.text(arg)).collect();
        let name = window.name();
        let name = name.split_once('(').map_or(name, |(name, _)| name);
        format!("{name}({})", args.join(", "))
    }
}
