//! Syntax within statements that PostgreSQL has and Pangea does not, reported by its name. Also the
//! statements that PostgreSQL refuses directly after parsing.
//!
//! The parser knows other databases' grammars. If it fails, or reads a keyword as a name, its error
//! does not name the feature. Therefore these features are detected before parsing, by the words
//! around them.

use sqlparser::ast;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::{name, table_name};
use crate::error::{SqlError, byte_offset, code};

/// Columns that every table of PostgreSQL has in addition to its own.
const SYSTEM_COLUMNS: [&str; 6] = ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"];

/// Tables and views of PostgreSQL's catalog that clients read without naming a schema.
#[rustfmt::skip]
const CATALOG: &[&str] = &[
    "pg_aggregate", "pg_am", "pg_attrdef", "pg_attribute", "pg_auth_members", "pg_authid",
    "pg_available_extensions", "pg_cast", "pg_class", "pg_collation", "pg_constraint",
    "pg_conversion", "pg_cursors", "pg_database", "pg_depend", "pg_description", "pg_enum",
    "pg_event_trigger", "pg_extension", "pg_foreign_server", "pg_foreign_table", "pg_group",
    "pg_index", "pg_indexes", "pg_inherits", "pg_language", "pg_locks", "pg_matviews",
    "pg_namespace", "pg_opclass", "pg_operator", "pg_opfamily", "pg_partitioned_table",
    "pg_policies", "pg_policy", "pg_prepared_statements", "pg_prepared_xacts", "pg_proc",
    "pg_publication", "pg_range", "pg_replication_slots", "pg_rewrite", "pg_roles", "pg_rules",
    "pg_seclabel", "pg_sequence", "pg_sequences", "pg_settings", "pg_shadow", "pg_shdepend",
    "pg_shdescription", "pg_stat_activity", "pg_stat_all_tables", "pg_stat_bgwriter",
    "pg_stat_database", "pg_stat_replication", "pg_stat_statements", "pg_stat_user_indexes",
    "pg_stat_user_tables", "pg_statio_user_tables", "pg_statistic", "pg_stats", "pg_subscription",
    "pg_tables", "pg_tablespace", "pg_timezone_names", "pg_trigger", "pg_ts_config", "pg_ts_dict",
    "pg_type", "pg_user", "pg_views",
];

/// Words that precede a new name.
const BEFORE_NAMES: [&str; 2] = ["AS", "INTO"];

/// Returns whether a table name without a schema is one of PostgreSQL's catalog.
pub(super) fn is_of_catalog(table: &str) -> bool {
    CATALOG.binary_search(&table).is_ok()
}

/// Returns the error for a missing column that every table of PostgreSQL has.
pub(crate) fn system_column(column: &str) -> Option<SqlError> {
    let is_one = SYSTEM_COLUMNS.contains(&column);
    is_one.then(|| SqlError::unsupported(format!("the system column {column}")))
}

/// Refuses syntax that the parser would misread, by its tokens without blanks.
///
/// # Errors
/// 0A000 with the name of the feature.
pub(super) fn check_tokens<'a>(
    source: &str,
    tokens: impl Iterator<Item = &'a TokenWithSpan>,
) -> Result<(), SqlError> {
    let tokens: Vec<&TokenWithSpan> = tokens.collect();
    let nothing = Token::EOF;
    let token = |at: usize| tokens.get(at).map_or(&nothing, |token| &token.token);
    for (at, begin) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map_or(&nothing, token);
        if let Some(feature) = feature(before, &begin.token, token(at + 1)) {
            return Err(SqlError::unsupported(feature).at(source, begin.span.start));
        }
    }
    Ok(())
}

/// Returns the unsupported feature that begins at a token.
fn feature(before: &Token, token: &Token, after: &Token) -> Option<&'static str> {
    let Token::Word(word) = token else { return None };
    let is_at_name = *before == Token::Period || BEFORE_NAMES.iter().any(|it| is(before, it));
    if word.quote_style.is_some() || is_at_name {
        None
    } else if is(token, "USING") && is_operator(after) {
        Some("ORDER BY .. USING")
    } else {
        None
    }
}

fn is(token: &Token, keyword: &str) -> bool {
    matches!(token, Token::Word(word)
        if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(keyword))
}

fn is_operator(token: &Token) -> bool {
    let is_sign =
        matches!(token, Token::Lt | Token::Gt | Token::LtEq | Token::GtEq | Token::Eq | Token::Neq);
    is_sign || is(token, "OPERATOR")
}

/// Replaces hexadecimal numbers by decimal ones, because the parser reads them as bit strings.
///
/// # Errors
/// 0A000 for a number that no integer type can represent.
pub(super) fn read_numbers(source: &str, tokens: &mut [TokenWithSpan]) -> Result<(), SqlError> {
    for token in tokens {
        let Token::HexStringLiteral(digits) = &token.token else { continue };
        let text = &source[byte_offset(source, token.span.start)..];
        if !text.starts_with("0x") && !text.starts_with("0X") {
            continue;
        }
        let number = i64::from_str_radix(digits, 16).map_err(|_| {
            SqlError::unsupported("a hexadecimal number beyond bigint").at(source, token.span.start)
        })?;
        token.token = Token::Number(number.to_string(), false);
    }
    Ok(())
}

/// Refuses statements that PostgreSQL refuses directly after parsing, and clauses that Pangea would
/// ignore.
///
/// # Errors
/// 0A000 for SKIP LOCKED, and PostgreSQL's errors for invalid column definitions.
pub(super) fn check_statement(source: &str, statement: &ast::Statement) -> Result<(), SqlError> {
    match statement {
        ast::Statement::Query(query) => check_locks(query),
        ast::Statement::CreateTable(table) => {
            let mut columns = table.columns.iter();
            columns.try_for_each(|column| check_column(source, &table.name, column))
        }
        ast::Statement::AlterTable(alter) => {
            alter.operations.iter().try_for_each(|operation| match operation {
                ast::AlterTableOperation::AddColumn { column_def, .. } => {
                    check_column(source, &alter.name, column_def)
                }
                ast::AlterTableOperation::RenameColumn { new_column_name, .. } => {
                    check_column_name(source, new_column_name)
                }
                _ => Ok(()),
            })
        }
        _ => Ok(()),
    }
}

/// Refuses the locks of a query that mean something else here. Queries within it are not checked.
///
/// A SELECT takes no locks, so there is nothing to skip. SKIP LOCKED is used to take jobs from a
/// queue, and each client would take the same jobs. NOWAIT is accepted because a SELECT never
/// waits.
///
/// # Errors
/// 0A000 for SKIP LOCKED.
pub(crate) fn check_locks(query: &ast::Query) -> Result<(), SqlError> {
    let is_skipping = |it: &ast::LockClause| it.nonblock == Some(ast::NonBlock::SkipLocked);
    if !query.locks.iter().any(is_skipping) {
        return Ok(());
    }
    let error = SqlError::unsupported("SKIP LOCKED");
    Err(error.with_hint(
        "Rows are not locked. To take a job from a queue, mark it with UPDATE .. RETURNING: if \
         another session took it first, the statement is run again.",
    ))
}

fn check_column_name(source: &str, column: &ast::Ident) -> Result<(), SqlError> {
    let column_name = name(column);
    if !SYSTEM_COLUMNS.contains(&&*column_name) {
        return Ok(());
    }
    let message = format!("column name \"{column_name}\" conflicts with a system column name");
    Err(SqlError::new(code::DUPLICATE_COLUMN, message).at(source, column.span.start))
}

fn check_column(
    source: &str,
    table: &ast::ObjectName,
    column: &ast::ColumnDef,
) -> Result<(), SqlError> {
    check_column_name(source, &column.name)?;
    let column_name = name(&column.name);
    let has = |option: &ast::ColumnOption| column.options.iter().any(|it| it.option == *option);
    if has(&ast::ColumnOption::Null) && has(&ast::ColumnOption::NotNull) {
        let message = format!(
            "conflicting NULL/NOT NULL declarations for column \"{column_name}\" of table \"{}\"",
            table_name(table)?
        );
        return Err(SqlError::new(code::SYNTAX, message).at(source, column.name.span.start));
    }
    Ok(())
}
