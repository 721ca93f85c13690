//! Queries of more than one table, executed by DataFusion.
//!
//! ```text
//!   syntax tree --plan--> Block: names, types and expressions are ours
//!                           | logical_plan.rs, joins.rs, grouping.rs, windows.rs
//!                           v
//!                         LogicalPlan of DataFusion's, cached with the statement
//!                           | run.rs: optimized, made physical, and polled here
//!                           v
//!      leaf.rs <--asks-- physical plan --rows--> the statement
//!         | answers, from the context of the statement
//! ```
//!
//! DataFusion does the work of a query engine: it orders joins, pushes conditions down,
//! decorrelates subqueries, joins, sorts and groups. SQL semantics stay ours: expressions that
//! DataFusion would compute differently from PostgreSQL are functions over our own ([`function`]),
//! and so are aggregates ([`aggregate`]). All reads go through the context of the statement
//! ([`leaf`]), so that a transaction sees its own writes and records its reads.
//!
//! This module starts no threads. A plan has one partition and is polled until it waits for rows,
//! which are then read and passed to it.
//!
//! A build without the cargo feature `relational` has `absent.rs` in place of this file.

mod aggregate;
mod apply;
mod aside;
mod block;
mod chunk;
mod cooperative_yield;
mod error;
mod filter;
mod function;
mod grouping;
mod init_plan;
mod instrumented;
mod joins;
mod leaf;
mod logical_plan;
mod parts;
mod pool;
mod project_set;
mod run;
mod sequential_partitions;
mod subquery_output;
mod unary;
mod unordered_scan;
mod values;
mod volatile;
mod windows;

pub(crate) use aggregate::Folded;
pub(crate) use apply::joins_rows;
pub(crate) use block::{
    Block, Distinct, From, GroupBy, JoinKind, Numbers, RELATIONS_MAX, SetOperation,
};
pub(crate) use function::{Computed, KeyOf};
pub(crate) use init_plan::{INIT_SEQUENCE_FIRST, init_plan_of};
pub(crate) use instrumented::actual;
pub(crate) use joins::{combined, join, lateral};
pub(crate) use leaf::{Leaf, Scan};
pub(crate) use logical_plan::lower;
pub(crate) use parts::{
    answered, expand, filtered, given, names_outer, recursive, renamed, sequence_scan, system_scan,
    with_columns, work_table,
};
pub(crate) use run::{Running, physical, run};
pub(crate) use values::datum;
