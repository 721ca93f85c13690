//! Whole rows as arguments: `row_to_json(t)`, where `t` is a table, a subquery or a WITH query.
//!
//! Rows have no composite type here. If a function makes JSON of a row, an object built from its
//! columns and their names replaces the argument.

use sqlparser::ast;
use sqlparser::ast::helpers::attached_token::AttachedToken;

use super::bind::{Binder, ScopeColumn};
use crate::error::SqlError;
use crate::syntax;

/// Functions that convert a row to JSON, and the function that builds the object of the row.
const FUNCTIONS: [(&str, &str); 5] = [
    ("row_to_json", ROW),
    ("to_json", ROW),
    ("json_agg", ROW),
    ("to_jsonb", "jsonb_build_object"),
    ("jsonb_agg", "jsonb_build_object"),
];

/// Internal function that builds the object of a row, without blanks. The parentheses in its name
/// keep it apart from ordinary functions.
pub(super) const ROW: &str = "row_to_json()";

impl Binder<'_> {
    /// Returns the call with an object in place of a whole row among its arguments; `None` if no
    /// argument is a whole row.
    pub(super) fn with_whole_row(
        &self,
        name: &str,
        function: &ast::Function,
        args: &[ast::FunctionArg],
    ) -> Result<Option<ast::Function>, SqlError> {
        let Some((_, maker)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
            return Ok(None);
        };
        let [ast::FunctionArg::Unnamed(first), ..] = args else { return Ok(None) };
        let object = match first {
            ast::FunctionArgExpr::Expr(ast::Expr::Identifier(ident)) => {
                let is_column = self.scope.columns.iter().any(|column| {
                    column.name == syntax::name(ident) && !column.is_hidden && !column.is_merged
                });
                if is_column { None } else { self.object(maker, ident)? }
            }
            ast::FunctionArgExpr::QualifiedWildcard(name) => match &name.0[..] {
                [ast::ObjectNamePart::Identifier(ident)] => self.object(maker, ident)?,
                _ => None,
            },
            _ => None,
        };
        Ok(object.map(|object| {
            let mut function = function.clone();
            if let ast::FunctionArguments::List(list) = &mut function.args {
                list.args[0] = ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(object));
            }
            function
        }))
    }

    /// Returns an object of all columns of a relation of the query; `None` if no relation has the
    /// name.
    ///
    /// # Errors
    /// If the relation has no key column and the query joins others: a row that an outer join left
    /// out could not be recognized.
    fn object(&self, maker: &str, relation: &ast::Ident) -> Result<Option<ast::Expr>, SqlError> {
        let table = syntax::name(relation);
        let is_of = |column: &&ScopeColumn| column.table == table && !column.is_hidden;
        let all: Vec<&ScopeColumn> = self.scope.columns.iter().filter(is_of).collect();
        if all.is_empty() {
            return Ok(None);
        }
        let column = |name: &str| {
            let parts = vec![relation.clone(), ast::Ident::with_quote('"', name)];
            ast::Expr::CompoundIdentifier(parts)
        };
        let pair = |name: &String| {
            let key = ast::Value::SingleQuotedString(name.clone());
            [ast::Expr::Value(key.into()), column(name)]
        };
        let shown = all.iter().filter(|column| !column.is_unlisted);
        let object = call(maker, shown.flat_map(|column| pair(&column.name)));
        if self.scope.columns.iter().all(|column| column.table == table) {
            return Ok(Some(object));
        }
        let Some(key) = all.iter().find(|column| column.is_key) else {
            return Err(SqlError::unsupported("a whole row of a relation without a key in a join"));
        };
        Ok(Some(ast::Expr::Case {
            case_token: AttachedToken::empty(),
            end_token: AttachedToken::empty(),
            operand: None,
            conditions: vec![ast::CaseWhen {
                condition: ast::Expr::IsNotNull(Box::new(column(&key.name))),
                result: object,
            }],
            else_result: None,
        }))
    }
}

/// Returns a call of a function by name.
fn call(name: &str, args: impl Iterator<Item = ast::Expr>) -> ast::Expr {
    let arg = |expr| ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr));
    let list = ast::FunctionArgumentList {
        duplicate_treatment: None,
        args: args.map(arg).collect(),
        clauses: Vec::new(),
    };
    ast::Expr::Function(ast::Function {
        name: ast::ObjectName::from(vec![ast::Ident::with_quote('"', name)]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(list),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}
