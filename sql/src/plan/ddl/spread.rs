//! Planning where the rows of a table are, in a cluster that divides tables (Calvin §3).
//!
//! ```sql
//! CREATE TABLE orders (shop int, id int, .., PRIMARY KEY (shop, id)) PARTITION BY HASH (shop);
//! CREATE TABLE rates (currency text PRIMARY KEY, ..) WITH (replicated = true);
//! ```
//!
//! Rows with the same values in the columns of HASH are on one shard: a transaction that touches
//! those alone is one shard's. A table that says nothing is spread by its whole key. A cluster that
//! has all rows on each node takes the same statements, and nothing follows from them there.

use pangea_core::ids::TableId;
use pangea_core::partition::{PREFIX_BYTES_MAX, Rule};
use sqlparser::ast;
use sqlparser::ast::{CreateTableOptions, FunctionArg, FunctionArgExpr, FunctionArguments};

use super::super::Planner;
use crate::catalog::{Index, Table};
use crate::error::{Failure, SqlError, code};
use crate::syntax;
use crate::types::SqlType;

/// The storage parameter of tables that are on every node.
const REPLICATED: &str = "replicated";

impl Planner<'_> {
    /// Notes in a new table's number, and those of its indexes, where its rows are to be.
    pub(super) fn spread(
        &self,
        create: &ast::CreateTable,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let is_replicated = is_replicated(&create.table_options)?;
        let rule = match &create.partition_by {
            Some(_) if is_replicated => {
                let message = "a table that is replicated can't be partitioned";
                return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message).into());
            }
            Some(by) => by_hash(by, table)?,
            None if is_replicated => Rule::Everywhere,
            None => return Ok(()),
        };
        let is_everywhere = rule == Rule::Everywhere;
        table.id = rule.number(TableId(0)).expect("a rule that a number can say");
        if is_everywhere {
            table.indexes.iter_mut().for_each(|index| index.id = Index::NEW_EVERYWHERE);
        }
        Ok(())
    }
}

/// Whether `WITH (replicated)` says so. Other parameters are passed over.
fn is_replicated(options: &CreateTableOptions) -> Result<bool, SqlError> {
    let CreateTableOptions::With(options) = options else { return Ok(false) };
    for option in options {
        let (key, value) = match option {
            ast::SqlOption::Ident(key) => (key, None),
            ast::SqlOption::KeyValue { key, value } => (key, Some(value.to_string())),
            _ => continue,
        };
        if syntax::name(key) == REPLICATED {
            let value = value.unwrap_or_else(|| "true".to_owned()).to_lowercase();
            return match value.trim_matches('\'') {
                "true" | "on" | "yes" | "1" => Ok(true),
                "false" | "off" | "no" | "0" => Ok(false),
                _ => {
                    let message =
                        format!("invalid value for boolean option \"replicated\": {value}");
                    Err(SqlError::new(code::INVALID_PARAMETER, message))
                }
            };
        }
    }
    Ok(false)
}

/// `PARTITION BY HASH (columns)`.
fn by_hash(by: &ast::Expr, table: &Table) -> Result<Rule, SqlError> {
    let ast::Expr::Function(function) = by else {
        return Err(SqlError::unsupported("this form of PARTITION BY"));
    };
    let strategy = function.name.to_string().to_uppercase();
    match strategy.as_str() {
        "HASH" => {}
        "RANGE" | "LIST" => {
            return Err(SqlError::unsupported(format!("PARTITION BY {strategy}")));
        }
        _ => {
            let message = format!("unrecognized partitioning strategy \"{}\"", function.name);
            return Err(SqlError::new(code::SYNTAX, message));
        }
    }
    let columns = columns_of(function, table)?;
    if table.primary_key.is_empty() {
        let message = "PARTITION BY HASH needs a primary key, whose first columns it names";
        return Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message));
    }
    if let Some(missing) = columns.iter().find(|column| !table.primary_key.contains(column)) {
        let message =
            "unique constraint on partitioned table must include all partitioning columns";
        return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).with_detail(format!(
            "PRIMARY KEY constraint on table \"{}\" lacks column \"{}\" which is part of the \
             partition key.",
            table.name, table.columns[*missing].name
        )));
    }
    if !table.primary_key.starts_with(&columns) {
        let names: Vec<&str> =
            table.primary_key.iter().map(|&at| table.columns[at].name.as_str()).collect();
        let message = "PARTITION BY HASH of columns that are not the first of the primary key";
        return Err(SqlError::unsupported(message)
            .with_hint(format!("The primary key is ({}).", names.join(", "))));
    }
    if columns.len() == table.primary_key.len() {
        return Ok(Rule::OF_WHOLE_KEY);
    }
    let widths = columns.iter().map(|&at| key_bytes(table.columns[at].ty.base));
    match widths.sum::<Option<usize>>().filter(|bytes| *bytes <= PREFIX_BYTES_MAX) {
        Some(prefix_bytes) => Ok(Rule::Hash { prefix_bytes }),
        None => {
            let message = "PARTITION BY HASH of a part of the key whose size varies";
            Err(SqlError::unsupported(message).with_hint(
                "Name all columns of the primary key, or such that are numbers, dates, times or \
                 uuids.",
            ))
        }
    }
}

/// The columns that a partitioning names, by position.
fn columns_of(function: &ast::Function, table: &Table) -> Result<Vec<usize>, SqlError> {
    let FunctionArguments::List(arguments) = &function.args else {
        return Err(SqlError::new(code::SYNTAX, "PARTITION BY HASH needs columns"));
    };
    let mut columns = Vec::new();
    for argument in &arguments.args {
        let FunctionArg::Unnamed(FunctionArgExpr::Expr(ast::Expr::Identifier(ident))) = argument
        else {
            return Err(SqlError::unsupported("PARTITION BY HASH of an expression"));
        };
        let name = syntax::name(ident);
        let column = table.position(&name).ok_or_else(|| {
            let message = format!("column \"{name}\" named in partition key does not exist");
            SqlError::new(code::UNDEFINED_COLUMN, message)
        })?;
        columns.push(column);
    }
    match columns.is_empty() {
        true => Err(SqlError::new(code::SYNTAX, "PARTITION BY HASH needs columns")),
        false => Ok(columns),
    }
}

/// How many bytes a column takes in a key, where that does not depend on its value.
fn key_bytes(ty: SqlType) -> Option<usize> {
    match ty {
        SqlType::Bool => Some(1),
        SqlType::Int2 => Some(2),
        SqlType::Int4 | SqlType::Date => Some(4),
        // A real is a double precision in keys.
        SqlType::Int8
        | SqlType::Float4
        | SqlType::Float8
        | SqlType::Time
        | SqlType::Timestamp
        | SqlType::Timestamptz => Some(8),
        SqlType::Uuid => Some(16),
        _ => None,
    }
}
