//! Default names of result columns.

use sqlparser::ast;

use crate::catalog::Enums;
use crate::expr::bind::column_type;
use crate::syntax;

/// Returns the name that PostgreSQL gives a column without an alias.
pub(super) fn column_name(expr: &ast::Expr) -> String {
    use ast::Expr as A;
    let name = match expr {
        A::Identifier(ident) => syntax::name(ident),
        A::CompoundIdentifier(idents) => idents.last().map(syntax::name).unwrap_or_default(),
        A::Nested(inner) => return column_name(inner),
        A::Array(_) => "array".to_owned(),
        A::CompoundFieldAccess { root, access_chain } => {
            return syntax::accessed_name(access_chain).unwrap_or_else(|| column_name(root));
        }
        A::Interval(_) => "interval".to_owned(),
        A::Exists { .. } => "exists".to_owned(),
        A::Subquery(query) => match &*query.body {
            ast::SetExpr::Select(select) => match select.projection.first() {
                Some(ast::SelectItem::UnnamedExpr(expr)) => return column_name(expr),
                Some(ast::SelectItem::ExprWithAlias { alias, .. }) => syntax::name(alias),
                _ => String::new(),
            },
            ast::SetExpr::Values(_) => "column1".to_owned(),
            _ => String::new(),
        },
        A::Function(function) => {
            let parts = syntax::name_parts(&function.name).unwrap_or_default();
            parts.last().cloned().unwrap_or_default()
        }
        A::Cast { expr, data_type, .. } => {
            let inner = column_name(expr);
            if has_no_name(expr) { type_name(data_type) } else { inner }
        }
        A::TypedString(typed) => type_name(&typed.data_type),
        A::Case { .. } => "case".to_owned(),
        A::Extract { .. } => "extract".to_owned(),
        A::Position { .. } => "position".to_owned(),
        A::Substring { .. } => "substring".to_owned(),
        A::Trim { trim_where, .. } => match trim_where {
            Some(ast::TrimWhereField::Leading) => "ltrim".to_owned(),
            Some(ast::TrimWhereField::Trailing) => "rtrim".to_owned(),
            _ => "btrim".to_owned(),
        },
        A::Ceil { .. } => "ceil".to_owned(),
        A::Floor { .. } => "floor".to_owned(),
        A::AtTimeZone { .. } => "timezone".to_owned(),
        A::Value(value) if matches!(value.value, ast::Value::Boolean(_)) => "bool".to_owned(),
        _ => "?column?".to_owned(),
    };
    if name.is_empty() { "?column?".to_owned() } else { name }
}

/// Whether a cast of the expression is named after its type, because the expression has no name
/// except that of its kind.
fn has_no_name(expr: &ast::Expr) -> bool {
    match expr {
        ast::Expr::Nested(inner) => has_no_name(inner),
        ast::Expr::Cast { expr, .. } => has_no_name(expr),
        ast::Expr::Case { .. } => true,
        expr => column_name(expr) == "?column?",
    }
}

/// Returns the internal name of a type, which names the column of a cast.
fn type_name(data_type: &ast::DataType) -> String {
    match column_type(data_type, &Enums::default()) {
        Ok(ty) => ty.base.internal_name().into_owned(),
        // An enum's internal name is its own.
        Err(error) => error.missing_type().unwrap_or("?column?").to_owned(),
    }
}
