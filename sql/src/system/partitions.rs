//! `pangea.partitions`: the partitioning rules of tables, as CREATE TABLE has declared them.
//!
//! PostgreSQL's own catalog does not show them. There a partitioned table has no rows itself, and
//! tools would look for its partitions.

use super::tables::{Rows, text};
use super::{Kind, SystemCatalog};
use crate::catalog::{Partition, PartitionBy, Ranges, Table};
use crate::expr::Env;
use crate::keys;
use crate::syntax::quoted_ident;
use crate::types::datum::Datum;
use crate::types::text::format as format_value;

impl SystemCatalog {
    pub(super) fn partitions(&self, mut rows: Rows, env: &Env) -> Rows {
        for entry in self.relations.values() {
            let Kind::Table(table) = &entry.kind else { continue };
            let name = [
                ("schema_name", text(table.name.schema())),
                ("table_name", text(table.name.name())),
            ];
            match &table.partition {
                Some(partition) => {
                    rows.add(&[&name[..], &of_partition(table, partition, env)].concat());
                }
                None if table.is_everywhere() => {
                    let all = [
                        ("strategy", text("replicated")),
                        ("definition", text("WITH (replicated = true)")),
                    ];
                    rows.add(&[&name[..], &all].concat());
                }
                None => {}
            }
        }
        rows
    }
}

fn of_partition(table: &Table, partition: &Partition, env: &Env) -> [(&'static str, Datum); 4] {
    let columns = partition.columns.iter().map(|&at| &table.columns[at].name);
    let (strategy, starts, split) = match &partition.by {
        PartitionBy::Hash => ("hash", Datum::Null, String::new()),
        PartitionBy::Range(ranges) => {
            let starts = starts(table, partition, ranges, env);
            let split = format!(" SPLIT AT VALUES ({})", starts.join(", "));
            ("range", texts(starts), split)
        }
    };
    let quoted: Vec<String> = columns.clone().map(|name| quoted_ident(name)).collect();
    let by = strategy.to_uppercase();
    let definition = format!("PARTITION BY {by} ({}){split}", quoted.join(", "));
    [
        ("strategy", text(strategy)),
        ("columns", texts(columns.cloned().collect())),
        ("starts", starts),
        ("definition", Datum::Text(definition)),
    ]
}

fn texts(all: Vec<String>) -> Datum {
    Datum::array(all.into_iter().map(Datum::Text).collect())
}

/// Returns the first keys of ranges, in SQL syntax.
fn starts(table: &Table, partition: &Partition, ranges: &Ranges, env: &Env) -> Vec<String> {
    let types = || partition.columns.iter().map(|&at| table.columns[at].ty.base);
    let shown = |start: &Vec<u8>| {
        let values = table.known_values(types(), keys::decode(types(), start));
        let values = types().zip(&values).map(|(base, value)| {
            let shown = format_value(base, value, &env.zone);
            match value {
                Datum::Int(_) => shown,
                _ => format!("'{}'", shown.replace('\'', "''")),
            }
        });
        format!("({})", values.collect::<Vec<_>>().join(", "))
    };
    ranges.starts.iter().map(shown).collect()
}
