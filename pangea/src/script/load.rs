//! Loads a file's schema and rows.
//!
//! Rows are loaded by multi-row INSERTs over several sessions. The random values of a row depend
//! only on its number, so that the rows are the same whichever session inserts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pangea_core::workload::rng::WorkloadRng;
use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config};

use super::draw::Draw;
use super::session::connect;
use super::value::{Bound, Value};
use super::{ClientIdentity, Rows, Script, Step, in_words};
use crate::failure::Failure;

/// The maximum number of rows of one INSERT.
const ROWS_PER_INSERT: u64 = 500;
/// The maximum number of parameters of one statement; PostgreSQL's protocol allows 65,535.
const PARAMETERS_PER_INSERT: u64 = 30_000;
/// The interval at which the progress is updated.
const LOOK: Duration = Duration::from_millis(100);
/// Concurrent sessions for each server.
const SESSIONS_PER_SERVER: usize = 2;

/// Creates the tables and procedures.
///
/// # Errors
/// The statement that the server rejects, with its line of the file.
pub async fn schema(script: &Script, config: &Config, region: &str) -> Result<(), Failure> {
    let client = connect(config, region).await.map_err(Failure::Failed)?;
    for statement in &script.schema {
        let done = client.batch_execute(&statement.text).await;
        done.map_err(|error| {
            Failure::Failed(script.at(statement.line_of(&error), in_words(&error)))
        })?;
    }
    Ok(())
}

/// Loads the rows, one table after the other. `progress` receives the number of loaded rows and the
/// total.
///
/// # Errors
/// The statement that the server rejects, or the expression that cannot be computed, with its line
/// of the file.
pub async fn rows(
    script: &Arc<Script>,
    servers: &[(Config, ClientIdentity)],
    seed: u64,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), Failure> {
    let all: u64 = script.rows.iter().map(|rows| rows.count).sum();
    let mut before = 0;
    progress(0, all);
    for section in 0..script.rows.len() {
        let next = Arc::new(AtomicU64::new(0));
        let mut loading = JoinSet::new();
        for (config, identity) in servers {
            for _ in 0..SESSIONS_PER_SERVER {
                let (script, config, next) = (script.clone(), config.clone(), next.clone());
                // All sessions use the same seat, so that the session does not affect the row.
                let (region, identity) = (identity.region.clone(), servers[0].1.clone());
                loading.spawn(async move {
                    let client = connect(&config, &region).await?;
                    let loader =
                        Loader { script: &script, section, client, identity, seed, next: &next };
                    loader.load().await
                });
            }
        }
        while !loading.is_empty() {
            if let Ok(Some(loaded)) = tokio::time::timeout(LOOK, loading.join_next()).await {
                loaded.expect("a load does not panic").map_err(Failure::Failed)?;
            }
            let done = next.load(Ordering::Relaxed).min(script.rows[section].count);
            progress(before + done, all);
        }
        before += script.rows[section].count;
    }
    Ok(())
}

/// One loading session.
struct Loader<'a> {
    script: &'a Script,
    section: usize,
    client: Client,
    identity: ClientIdentity,
    seed: u64,
    /// The next row to be inserted by any session, from 0.
    next: &'a AtomicU64,
}

impl Loader<'_> {
    async fn load(&self) -> Result<(), String> {
        let rows = &self.script.rows[self.section];
        let each = rows.insert.holes.len().max(1) as u64;
        let batch = ROWS_PER_INSERT.min(PARAMETERS_PER_INSERT / each).max(1);
        let wrong = |error: tokio_postgres::Error| {
            let message = format!("rows of {}: {}", rows.table, in_words(&error));
            self.script.at(rows.insert.line, message)
        };
        let mut prepared = None;
        loop {
            let first = self.next.fetch_add(batch, Ordering::Relaxed);
            if first >= rows.count {
                return Ok(());
            }
            let count = batch.min(rows.count - first);
            let handle = match prepared.take() {
                Some((size, handle)) if size == count => handle,
                _ => self.client.prepare(&rows.statement(count)).await.map_err(wrong)?,
            };
            let mut values = Vec::with_capacity((count * each) as usize);
            for row in first..first + count {
                self.row(rows, row, &mut values)?;
            }
            let bound: Vec<Bound<'_>> = values.iter().map(Bound).collect();
            let params: Vec<&(dyn ToSql + Sync)> =
                bound.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
            self.client.execute(&handle, &params).await.map_err(wrong)?;
            prepared = Some((count, handle));
        }
    }

    /// Appends the parameters of a row.
    fn row(&self, rows: &Rows, row: u64, out: &mut Vec<Value>) -> Result<(), String> {
        let mut values = self.script.constants(&self.identity);
        values.resize(rows.names.len(), Value::Null);
        values[rows.row_slot] = Value::Int(row as i64 + 1);
        let seed = WorkloadRng::of(self.seed, &[self.section as u64, row]).bits();
        let mut draw = Draw::new(values, seed, row as i64 + 1, 0);
        for step in &rows.steps {
            let Step::Set(line, slot, value) = step else {
                unreachable!("a rows section has only `\\set` steps")
            };
            let value = value.evaluate(&mut draw);
            draw.values[*slot] = value.map_err(|error| self.script.at(*line, error))?;
        }
        let holes = rows.insert.holes.iter();
        out.extend(holes.map(|(_, slot)| draw.values[*slot].clone()));
        Ok(())
    }
}

impl Rows {
    /// Returns the INSERT for this number of rows.
    fn statement(&self, count: u64) -> String {
        let mut text = self.insert.text[..self.values.start].to_owned();
        for row in 0..count as usize {
            if row > 0 {
                text.push_str(", ");
            }
            self.insert.render(self.values.clone(), row * self.insert.holes.len(), &mut text);
        }
        text.push_str(&self.insert.text[self.values.end..]);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insert_has_its_row_as_often_as_there_are_rows() {
        let text = "-- transaction t\nselect 1;\n-- rows t 9\n\\set x random(1, 9)\n\
                    insert into t (a, b, c) values (:row, 'x', :x) on conflict do nothing;";
        let script = Script::parse("s.sql".as_ref(), text, &[]).unwrap();
        let expected = "insert into t (a, b, c) values ($1, 'x', $2), ($3, 'x', $4) \
                        on conflict do nothing";
        assert_eq!(script.rows[0].statement(2), expected);
    }
}
