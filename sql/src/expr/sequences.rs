//! Binding of sequence functions.

use sqlparser::ast;
use sqlparser::tokenizer::Location;

use super::bind::{Binder, Bound, SequenceName};
use super::{Expr, SequenceCall};
use crate::catalog::role::Privileges;
use crate::error::{SqlError, code};
use crate::syntax::{self, Written};
use crate::types::SqlType;

impl SequenceName {
    /// Resolves the name for an expression that the catalog stores, independently of `search_path`.
    fn of_public(self) -> Self {
        match self {
            Self::Known(name) => Self::Known(name),
            Self::Named(written) => Self::Known(written.kept()),
            Self::OfColumn { table, column } => {
                Self::OfColumn { table: Written::whole(&table.kept()), column }
            }
        }
    }
}

impl Binder<'_> {
    /// Binds a call of `nextval`, `currval`, `lastval` or `setval`; `None` for any other name.
    pub(super) fn sequence_call(
        &mut self,
        name: &str,
        args: &[ast::FunctionArg],
        location: Location,
    ) -> Result<Option<Bound>, SqlError> {
        let (call, counts) = match name {
            "nextval" => (SequenceCall::Next, 1..=1),
            "currval" => (SequenceCall::Current, 1..=1),
            "setval" => (SequenceCall::Set, 2..=3),
            "lastval" => (SequenceCall::Last, 0..=0),
            _ => return Ok(None),
        };
        let exprs: Option<Vec<&ast::Expr>> = args.iter().map(plain).collect();
        let Some(exprs) = exprs.filter(|exprs| counts.contains(&exprs.len())) else {
            let message = format!("function {name} does not exist with these arguments");
            let error = SqlError::new(code::UNDEFINED_FUNCTION, message);
            return Err(self.error_at(error, location));
        };
        let mut list = Vec::new();
        let mut at = 0;
        if let [sequence, rest @ ..] = &exprs[..] {
            let sequence = sequence_name(sequence).map_err(|e| self.error_at(e, location))?;
            let sequence = if self.params.is_kept { sequence.of_public() } else { sequence };
            let wanted = [SqlType::Int8, SqlType::Bool];
            for (expr, base) in rest.iter().zip(wanted) {
                let bound = self.bind(expr)?;
                list.push(self.coerce(bound, base)?.expr);
            }
            self.params.sets_sequences |= call == SequenceCall::Set;
            let needs = match call {
                SequenceCall::Next => Privileges::USAGE.and(Privileges::UPDATE),
                SequenceCall::Set => Privileges::UPDATE,
                SequenceCall::Current | SequenceCall::Last => {
                    Privileges::USAGE.and(Privileges::SELECT)
                }
            };
            self.params.needs.push((sequence.clone(), needs));
            at = self.params.sequence(sequence, call == SequenceCall::Next);
        }
        Ok(Some(Bound::new(Expr::Sequence(call, at, list), SqlType::Int8, location)))
    }
}

fn plain(arg: &ast::FunctionArg) -> Option<&ast::Expr> {
    match arg {
        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    }
}

/// Returns the sequence that an argument names. It must be a constant, because the sequence must be
/// known before the statement runs.
fn sequence_name(expr: &ast::Expr) -> Result<SequenceName, SqlError> {
    let literal = |expr: &ast::Expr| match expr {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::SingleQuotedString(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    };
    let unknown = || SqlError::unsupported("a sequence name that is not a constant");
    match expr {
        ast::Expr::Nested(inner) => sequence_name(inner),
        ast::Expr::Cast { expr, data_type, .. }
            if ["regclass", "text"].contains(&data_type.to_string().to_lowercase().as_str()) =>
        {
            sequence_name(expr)
        }
        ast::Expr::Function(function)
            if syntax::name_parts(&function.name)?.last().map(String::as_str)
                == Some("pg_get_serial_sequence") =>
        {
            let ast::FunctionArguments::List(list) = &function.args else { return Err(unknown()) };
            let args: Vec<String> =
                list.args.iter().filter_map(plain).filter_map(literal).collect();
            let [table, column] = &args[..] else { return Err(unknown()) };
            let table = syntax::name_from_text(table)?;
            Ok(SequenceName::OfColumn { table, column: column.clone() })
        }
        other => {
            let text = literal(other).ok_or_else(unknown)?;
            Ok(SequenceName::Named(syntax::name_from_text(&text)?))
        }
    }
}

/// Returns the number of a sequence option.
pub(crate) fn option_number(expr: &ast::Expr) -> Result<i64, SqlError> {
    let text = expr.to_string().replace(' ', "");
    text.parse().map_err(|_| {
        let message = format!("value \"{text}\" is out of range for type bigint");
        SqlError::new(code::NUMERIC_OUT_OF_RANGE, message)
    })
}
