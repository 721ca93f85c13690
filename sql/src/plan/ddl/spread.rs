//! Planning of the placement of a table's rows, in a cluster that partitions tables (Calvin §3).
//!
//! ```sql
//! CREATE TABLE orders (shop int, id int, .., PRIMARY KEY (shop, id)) PARTITION BY HASH (shop);
//! CREATE TABLE readings (at timestamp, id int, .., PRIMARY KEY (at, id))
//!     PARTITION BY RANGE (at) SPLIT AT VALUES (('2026-01-01'), ('2027-01-01'));
//! CREATE TABLE rates (currency text PRIMARY KEY, ..) WITH (replicated = true);
//! ```
//!
//! Rows with the same values in the columns of HASH are on one shard: a transaction that touches
//! only those rows involves one shard. Rows of one range are on one shard too: the first range is
//! on shard 0, the next on shard 1, and so on. A table without a clause is hashed by its whole
//! primary key. A cluster in which each node has all rows accepts the same statements; they have no
//! effect there.

use std::fmt;

use pangea_core::ids::TableId;
use pangea_core::partition::{PREFIX_BYTES_MAX, Rule, SHARDS_MAX};
use sqlparser::ast;
use sqlparser::ast::{CreateTableOptions, FunctionArg, FunctionArgExpr, FunctionArguments};

use super::super::Planner;
use crate::access::text;
use crate::catalog::{Index, Partition, PartitionBy, Ranges, Table};
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::syntax;
use crate::types::SqlType;

/// The storage parameter of tables that are stored on every node.
const REPLICATED: &str = "replicated";
/// PostgreSQL's other storage parameters of tables, except those of autovacuum. They have no effect
/// here.
const STORAGE_PARAMETERS: &[&str] = &[
    "fillfactor",
    "oids",
    "parallel_workers",
    "toast_tuple_target",
    "user_catalog_table",
    "vacuum_index_cleanup",
    "vacuum_truncate",
];

impl Planner<'_> {
    /// Sets the partitioning rule of a new table, and of the numbers of its indexes. Returns the
    /// start of each range of its primary key except the first; empty if the table has no ranges.
    pub(super) fn spread(
        &mut self,
        create: &ast::CreateTable,
        table: &mut Table,
    ) -> Result<Vec<Vec<Expr>>, Failure> {
        let is_replicated = is_replicated(&create.table_options)?;
        match &create.partition_by {
            Some(_) if is_replicated => {
                let message = "a replicated table cannot be partitioned";
                Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message).into())
            }
            Some(by) => self.partition(by, table),
            None => {
                if is_replicated {
                    table.id = number_of(&Rule::Everywhere);
                    table.indexes.iter_mut().for_each(|index| index.id = Index::NEW_EVERYWHERE);
                }
                Ok(Vec::new())
            }
        }
    }

    fn partition(&mut self, by: &ast::Expr, table: &mut Table) -> Result<Vec<Vec<Expr>>, Failure> {
        let (strategy, function) = Strategy::of(by)?;
        let columns = key_columns(strategy, function, table)?;
        let (rule, by, starts) = match strategy {
            Strategy::Hash => (by_hash(&columns, table)?, PartitionBy::Hash, Vec::new()),
            Strategy::Range(starts) => {
                let starts = self.starts(starts, &columns, table)?;
                (Ranges::RULE, PartitionBy::Range(Ranges::default()), starts)
            }
        };
        table.id = number_of(&rule);
        table.partition = Some(Partition { columns, by });
        Ok(starts)
    }

    /// Binds the starts of ranges as values of the columns.
    fn starts(
        &mut self,
        starts: &[ast::Expr],
        columns: &[usize],
        table: &Table,
    ) -> Result<Vec<Vec<Expr>>, Failure> {
        if starts.len() >= usize::from(SHARDS_MAX) {
            let message = format!("tables can have at most {SHARDS_MAX} ranges");
            return Err(SqlError::new(code::LIMIT_EXCEEDED, message).into());
        }
        let mut all = Vec::with_capacity(starts.len());
        for start in starts {
            let values = values_of(start, columns.len())
                .map_err(|error| self.error_at(error, syntax::expr_location(start)))?;
            let mut bound = Vec::with_capacity(values.len());
            for (value, &at) in values.iter().zip(columns) {
                let kept = self.kept_text(value)?;
                let start = text::range_start(&kept, &table.columns[at], &self.params.enums)
                    .map_err(|error| self.error_at(error, syntax::expr_location(value)))?;
                bound.push(start);
            }
            all.push(bound);
        }
        Ok(all)
    }
}

/// Returns the number that encodes the rule of a table until the table is stored.
fn number_of(rule: &Rule) -> TableId {
    rule.number(TableId(0)).expect("a rule that a number can say")
}

/// Whether `WITH (replicated)` is set. PostgreSQL's own parameters are ignored.
fn is_replicated(options: &CreateTableOptions) -> Result<bool, SqlError> {
    let CreateTableOptions::With(options) = options else { return Ok(false) };
    let mut is_replicated = false;
    for option in options {
        let (key, value) = match option {
            ast::SqlOption::Ident(key) => (key, None),
            ast::SqlOption::KeyValue { key, value } => (key, Some(value.to_string())),
            _ => continue,
        };
        let name = syntax::name(key);
        if name == REPLICATED {
            let value = value.unwrap_or_else(|| "true".to_owned()).to_lowercase();
            is_replicated = match value.trim_matches('\'') {
                "true" | "on" | "yes" | "1" => true,
                "false" | "off" | "no" | "0" => false,
                _ => {
                    let message =
                        format!("invalid value for boolean option \"{REPLICATED}\": {value}");
                    return Err(SqlError::new(code::INVALID_PARAMETER, message));
                }
            };
        } else if !STORAGE_PARAMETERS.contains(&name.as_str()) && !name.contains("autovacuum") {
            let message = format!("unrecognized parameter \"{name}\"");
            return Err(SqlError::new(code::INVALID_PARAMETER, message));
        }
    }
    Ok(is_replicated)
}

/// The partitioning method of PARTITION BY.
#[derive(Clone, Copy)]
enum Strategy<'a> {
    Hash,
    /// The starts of all ranges except the first.
    Range(&'a [ast::Expr]),
}

impl fmt::Display for Strategy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hash => "PARTITION BY HASH",
            Self::Range(_) => "PARTITION BY RANGE",
        })
    }
}

impl<'a> Strategy<'a> {
    /// Returns the method, and the columns as the arguments of a function call.
    fn of(by: &'a ast::Expr) -> Result<(Self, &'a ast::Function), SqlError> {
        let other = || SqlError::unsupported("this form of PARTITION BY");
        // The form of SPLIT AT VALUES in the syntax tree: see `syntax::ranges`.
        let (called, starts) = match by {
            ast::Expr::InList { expr, list, negated: false } => (&**expr, Some(&list[..])),
            by => (by, None),
        };
        let ast::Expr::Function(function) = called else { return Err(other()) };
        let name = function.name.to_string();
        match (name.to_uppercase().as_str(), starts) {
            ("HASH", None) => Ok((Self::Hash, function)),
            ("RANGE", Some(starts)) => Ok((Self::Range(starts), function)),
            ("RANGE", None) => {
                let error = SqlError::unsupported("PARTITION BY RANGE without SPLIT AT VALUES");
                Err(error.with_hint(format!(
                    "Specify where each range except the first begins: PARTITION BY RANGE {} SPLIT \
                     AT VALUES ((..), ..).",
                    function.args
                )))
            }
            ("LIST", None) => Err(SqlError::unsupported("PARTITION BY LIST")),
            (_, Some(_)) => Err(other()),
            (_, None) => {
                let message = format!("unrecognized partitioning strategy \"{name}\"");
                Err(SqlError::new(code::SYNTAX, message))
            }
        }
    }
}

/// Returns the rule of PARTITION BY HASH.
fn by_hash(columns: &[usize], table: &Table) -> Result<Rule, SqlError> {
    if columns.len() == table.primary_key.len() {
        return Ok(Rule::OF_WHOLE_KEY);
    }
    let widths = columns.iter().map(|&at| key_bytes(table.columns[at].ty.base));
    match widths.sum::<Option<usize>>().filter(|bytes| *bytes <= PREFIX_BYTES_MAX) {
        Some(prefix_bytes) => Ok(Rule::Hash { prefix_bytes }),
        None => {
            let message = "PARTITION BY HASH of a variable-length part of the primary key";
            Err(SqlError::unsupported(message).with_hint(
                "Name all columns of the primary key, or only columns of numbers, dates, times or \
                 uuids.",
            ))
        }
    }
}

/// Returns the positions of the partition columns, which must be the first columns of the primary
/// key.
fn key_columns(
    by: Strategy<'_>,
    function: &ast::Function,
    table: &Table,
) -> Result<Vec<usize>, SqlError> {
    let columns = columns_of(by, function, table)?;
    if table.primary_key.is_empty() {
        let message = format!("{by} requires a primary key that begins with its columns");
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
        let message = format!("{by} of columns that are not the first columns of the primary key");
        return Err(SqlError::unsupported(message)
            .with_hint(format!("The primary key is ({}).", names.join(", "))));
    }
    Ok(columns)
}

/// Returns the positions of the partition columns, without checks.
fn columns_of(
    by: Strategy<'_>,
    function: &ast::Function,
    table: &Table,
) -> Result<Vec<usize>, SqlError> {
    let no_columns = || SqlError::new(code::SYNTAX, format!("{by} requires columns"));
    let FunctionArguments::List(arguments) = &function.args else { return Err(no_columns()) };
    let mut columns = Vec::new();
    for argument in &arguments.args {
        let FunctionArg::Unnamed(FunctionArgExpr::Expr(ast::Expr::Identifier(ident))) = argument
        else {
            return Err(SqlError::unsupported(format!("{by} of an expression")));
        };
        let name = syntax::name(ident);
        let column = table.position(&name).ok_or_else(|| {
            let message = format!("column \"{name}\" named in partition key does not exist");
            SqlError::new(code::UNDEFINED_COLUMN, message)
        })?;
        columns.push(column);
    }
    if columns.is_empty() { Err(no_columns()) } else { Ok(columns) }
}

/// Returns the values of one start in SPLIT AT VALUES, which must be one for each column.
fn values_of(start: &ast::Expr, width: usize) -> Result<&[ast::Expr], SqlError> {
    let mut inner = start;
    while let ast::Expr::Nested(nested) = inner {
        inner = nested;
    }
    let values = match inner {
        ast::Expr::Tuple(values) => &values[..],
        value => std::slice::from_ref(value),
    };
    match values.len() == width {
        true => Ok(values),
        false => {
            let message = "SPLIT AT VALUES must specify exactly one value per partitioning column";
            Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message))
        }
    }
}

/// Fails if the column is part of the partition key, which must not change.
pub(in super::super) fn check_column(
    table: &Table,
    at: usize,
    change: &str,
) -> Result<(), SqlError> {
    match &table.partition {
        Some(partition) if partition.columns.contains(&at) => {
            let message = format!(
                "cannot {change} column \"{}\" because it is part of the partition key of \
                 relation \"{}\"",
                table.columns[at].name, table.name
            );
            Err(SqlError::new(code::INVALID_TABLE_DEFINITION, message))
        }
        _ => Ok(()),
    }
}

/// Fails if the primary key is partitioned by range, and must not change.
pub(in super::super) fn check_key(table: &Table) -> Result<(), SqlError> {
    match table.ranges() {
        Some(_) => {
            let message = "DROP of the primary key of a table that is partitioned by range";
            Err(SqlError::unsupported(message))
        }
        None => Ok(()),
    }
}

/// Returns the number of bytes of a column in a key; `None` if it depends on the value.
fn key_bytes(ty: SqlType) -> Option<usize> {
    match ty {
        SqlType::Bool => Some(1),
        SqlType::Int2 => Some(2),
        SqlType::Int4 | SqlType::Date => Some(4),
        // A real is encoded as a double precision.
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
