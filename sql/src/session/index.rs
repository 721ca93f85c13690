//! CREATE INDEX on a large table, while other transactions write to it.

use std::ops::ControlFlow;
use std::pin::pin;

use futures_util::stream::{self, StreamExt};
use pangea_core::ids::TableId;
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{Context, Outcome, Scan};
use sqlparser::ast;

use super::Session;
use super::interrupt::Interruptible;
use super::local::LocalContext;
use crate::catalog::{self, QualifiedName, Relation};
use crate::concurrent_index::{INDEX, IndexTarget, Step, encode};
use crate::error::SqlError;
use crate::plan::Planned;
use crate::remote_rows::Snapshot;
use crate::syntax::Parsed;

/// A table with at least this number of rows is not indexed in one transaction.
const ROWS_MIN: usize = 2_000;
/// The maximum rows and bytes that one step adds to the index.
const STEP_ROWS: usize = 2_000;
const STEP_BYTES: usize = 1 << 20;
/// The number of steps in flight.
const STEPS_AT_ONCE: usize = 8;

/// An index to be created.
#[derive(Clone, Debug)]
pub(super) struct NewIndex {
    table: TableId,
    name: QualifiedName,
}

/// Whether a statement is CREATE INDEX CONCURRENTLY.
pub(super) fn is_concurrent(parsed: &Parsed) -> bool {
    matches!(&*parsed.ast, ast::Statement::CreateIndex(create) if create.concurrently)
}

impl Session {
    /// Returns the index that a statement creates, if its table stays writable in the meantime.
    pub(super) fn index_online(
        &self,
        parsed: &Parsed,
        planned: &Planned,
        cx: &LocalContext,
    ) -> Option<NewIndex> {
        if !matches!(&*parsed.ast, ast::Statement::CreateIndex(_)) {
            return None;
        }
        let change = planned.plan.as_utility()?.change()?;
        let table = change.before.id;
        let is_large = cx.estimate(table).is_some_and(|rows| rows >= ROWS_MIN);
        if !is_large && !is_concurrent(parsed) {
            return None;
        }
        let known = &change.before.indexes;
        let is_new = |name: &String| known.iter().all(|index| index.name != *name);
        let mut names = change.after.indexes.iter().map(|index| index.name.clone());
        let name = names.find(is_new)?;
        Some(NewIndex { table, name: change.before.name.beside(&name) })
    }

    /// Fills an index whose record was just created, and marks it ready. On failure the index is
    /// dropped.
    pub(super) async fn fill_online(&mut self, new: &NewIndex) -> Result<(), SqlError> {
        let Err(error) = self.fill_and_finish(new).await else { return Ok(()) };
        // The interruption of the statement does not apply to the cleanup.
        self.engine.begin_statement(None);
        let gone = match self.target(new) {
            Ok(Some(target)) => self.index_step(&target, &Step::Drop).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        gone.map_err(|_| {
            let name = &new.name;
            let detail = format!("The unfinished index \"{name}\" remains and is not used.");
            let hint = format!("Drop it with DROP INDEX {name}.");
            error.clone().with_detail(detail).with_hint(hint)
        })?;
        Err(error)
    }

    async fn fill_and_finish(&self, new: &NewIndex) -> Result<(), SqlError> {
        self.wait_fresh().await?;
        let Some(target) = self.target(new)? else { return Ok(()) };
        self.fill(&target, new.table).await?;
        self.index_step(&target, &Step::Ready).await
    }

    /// Returns the index that was just created; `None` if it has been dropped since.
    fn target(&self, new: &NewIndex) -> Result<Option<IndexTarget>, SqlError> {
        let mut cx = LocalContext::snapshot(self.engine.store().pin());
        let Some(Relation::Index { table }) = catalog::find(&new.name, &mut cx)? else {
            return Ok(None);
        };
        let Some(Relation::Table(table)) = catalog::find(&table, &mut cx)? else {
            return Ok(None);
        };
        let found =
            table.indexes.iter().find(|index| index.name == new.name.name() && !index.is_ready);
        Ok(found.map(|index| IndexTarget { table: table.name.clone(), index: index.id.0 }))
    }

    /// Adds all rows to the index. Writes from now on maintain it themselves.
    async fn fill(&self, target: &IndexTarget, table: TableId) -> Result<(), SqlError> {
        let ranges = self.ranges(table).await?;
        let steps = stream::iter(ranges).map(|range| {
            let step = Step::Fill(range);
            async move { self.index_step(target, &step).await }
        });
        let mut steps = pin!(steps.buffer_unordered(STEPS_AT_ONCE));
        let mut result = Ok(());
        while let Some(done) = steps.next().await {
            if done.is_err() {
                result = done;
                break;
            }
        }
        result
    }

    async fn index_step(&self, target: &IndexTarget, step: &Step) -> Result<(), SqlError> {
        let program = self.program(INDEX, encode(target, step))?;
        match self.commit_aside(program).await? {
            Outcome::Committed { .. } => Ok(()),
            Outcome::Aborted(abort) => Err(abort.into()),
        }
    }

    /// Splits the keys of a table into ranges, each with a limited number of rows.
    async fn ranges(&self, table: TableId) -> Result<Vec<KeyRange>, SqlError> {
        let pin = self.engine.store().pin();
        let remote = self.remote_rows(pin.version()).await?;
        let mut cx = LocalContext::snapshot(Snapshot { pin, remote });
        let mut cx = Interruptible::new(&mut cx, &self.engine);
        let mut cuts: Vec<Key> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        let scan = Scan { table, range: KeyRange::all(), direction: Direction::Forward };
        cx.scan(&scan, &mut |key, row| {
            if rows >= STEP_ROWS || bytes >= STEP_BYTES {
                cuts.push(Key::from(key));
                (rows, bytes) = (0, 0);
            }
            rows += 1;
            bytes += key.len() + row.len();
            ControlFlow::Continue(())
        })
        .map_err(crate::error::Failure::from)?;
        let starts = std::iter::once(Vec::new()).chain(cuts.iter().map(|key| key.to_vec()));
        let ends = cuts.iter().map(|key| Some(key.to_vec())).chain([None]);
        Ok(starts.zip(ends).map(|(start, end)| KeyRange { start, end }).collect())
    }
}
