//! Running CREATE TABLE, DROP TABLE and TRUNCATE.

use std::ops::ControlFlow;
use std::sync::Arc;

use pangea_core::codec::DecodeError;
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Scan};

use super::Executed;
use crate::catalog::{self, CATALOG, Table, table_key};
use crate::error::{Failure, SqlError, code};
use crate::plan::{CreateTable, DropTables};
use crate::types::datum::Datum;

pub(super) fn create_table(
    create: &CreateTable,
    cx: &mut dyn Context,
) -> Result<Executed, Failure> {
    let name = &create.table.name;
    if cx.get(CATALOG, &table_key(name))?.is_some() {
        let message = format!("relation \"{name}\" already exists");
        if create.if_not_exists {
            let notice = Some(format!("{message}, skipping"));
            return Ok(Executed { notice, ..Executed::default() });
        }
        return Err(SqlError::new(code::DUPLICATE_TABLE, message).into());
    }
    let id = catalog::next_table_id(cx)?;
    catalog::create(&Table { id, ..create.table.clone() }, cx)?;
    Ok(Executed::default())
}

pub(super) fn drop_tables(drop: &DropTables, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut notice = None;
    for name in &drop.names {
        let Some(record) = cx.get(CATALOG, &table_key(name))? else {
            let message = format!("table \"{name}\" does not exist");
            if drop.if_exists {
                notice = Some(format!("{message}, skipping"));
                continue;
            }
            return Err(SqlError::new(code::UNDEFINED_TABLE, message).into());
        };
        delete_rows(&Table::decode(&record)?, cx)?;
        catalog::drop(name, cx)?;
    }
    Ok(Executed { notice, ..Executed::default() })
}

pub(super) fn truncate(tables: &[Arc<Table>], cx: &mut dyn Context) -> Result<Executed, Failure> {
    for table in tables {
        delete_rows(table, cx)?;
    }
    Ok(Executed::default())
}

pub(super) fn show_tables(cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut tables = Vec::new();
    let range = catalog::table_keys();
    let scan = Scan { table: CATALOG, range, direction: Direction::Forward };
    cx.scan(&scan, &mut |_, record| {
        tables.push(Table::decode(record));
        ControlFlow::Continue(())
    })?;
    let row = |table: Result<Table, DecodeError>| Ok(vec![Datum::Text(table?.name)]);
    let rows = tables.into_iter().map(row).collect::<Result<Vec<_>, Failure>>()?;
    Ok(Executed { count: rows.len() as u64, rows, notice: None })
}

fn delete_rows(table: &Table, cx: &mut dyn Context) -> Result<(), Failure> {
    let mut keys = Vec::new();
    let scan = Scan { table: table.id, range: KeyRange::all(), direction: Direction::Forward };
    cx.scan(&scan, &mut |key, _| {
        keys.push(Key::from(key));
        ControlFlow::Continue(())
    })?;
    for key in keys {
        cx.delete(table.id, key)?;
    }
    Ok(())
}
