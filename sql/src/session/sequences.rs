//! Sequence numbers for the statements of a session.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use pangea_core::ids::TableId;

use pangea_core::txn::{Outcome, SqlState};

use super::Session;
use super::copy_in::is_short;
use super::local::LocalContext;
use crate::catalog::sequence::{SEQUENCES, Sequence, State};
use crate::catalog::{CATALOG, relation_key};
use crate::error::SqlError;
use crate::expr::Env;
use crate::plan::Planned;
use crate::sequence::{RESERVE, SequenceValues, Used, reserve_args, reserved};

/// The maximum number of values of one sequence for a statement.
pub(super) const NUMBERS_MAX: u64 = 1 << 20;
/// The factor by which the numbers of a statement grow after each run that had too few.
const GROWTH: u64 = 8;
/// The maximum number of runs of a statement. [`NUMBERS_MAX`] is reached before.
pub(super) const TRIES_MAX: u32 = 8;

/// The numbers that a session drew last.
#[derive(Debug, Default)]
pub(super) struct LastNumbers {
    /// From each sequence (`currval`).
    current: BTreeMap<u32, i64>,
    /// From any sequence (`lastval`).
    pub last: Option<i64>,
}

/// Numbers shared by the node's sessions, lent to a statement.
#[derive(Debug, Default)]
pub(super) struct CachedValues(Vec<(u32, u64, Vec<i64>)>);

impl Session {
    /// Draws the numbers for a statement, or for `rows` rows of a COPY. After runs with too few
    /// numbers (`tries`) it draws more.
    pub(super) async fn draw(
        &mut self,
        planned: &Planned,
        rows: u64,
        tries: u32,
    ) -> Result<(Vec<SequenceValues>, CachedValues), SqlError> {
        let mut all = Vec::with_capacity(planned.sequences.len());
        let mut borrowed = CachedValues::default();
        for (at, used) in planned.sequences.iter().enumerate() {
            let wanted = planned.draws(at).saturating_mul(rows);
            let wanted = wanted.saturating_mul(GROWTH.saturating_pow(tries)).min(NUMBERS_MAX);
            let values = match self.own_sequence(used) {
                true => self.draw_own(used, wanted)?,
                false => self.draw_shared(used, wanted, &mut borrowed).await?,
            };
            let id = used.sequence.id;
            all.push(SequenceValues {
                name: used.name.clone(),
                id,
                values: RefCell::new(values.into()),
                current: Cell::new(self.last_numbers.current.get(&id).copied()),
            });
        }
        Ok((all, borrowed))
    }

    /// Returns the numbers that a statement did not use: all after the last one used.
    pub(super) fn give_back(&self, borrowed: &CachedValues, current: &[(u32, i64)]) {
        for (id, generation, numbers) in &borrowed.0 {
            let last = current.iter().find(|(of, _)| of == id).map(|(_, last)| last);
            let taken = last.and_then(|last| numbers.iter().position(|number| number == last));
            let rest = &numbers[taken.map_or(0, |at| at + 1)..];
            self.shared.blocks.give_back(*id, *generation, rest);
        }
    }

    /// Returns the unused numbers of a statement that ran on this node. A failed statement does not
    /// return the numbers that it used, as in PostgreSQL: a conflicting number would conflict
    /// again.
    pub(super) fn give_back_of<T>(
        &self,
        borrowed: &CachedValues,
        done: &Result<T, SqlError>,
        current: &[(u32, i64)],
    ) {
        match done {
            Err(error) if is_to_be_tried_again(error) => self.give_back(borrowed, &[]),
            _ => self.give_back(borrowed, current),
        }
    }

    /// Returns all numbers of a failed program if it will be retried. The numbers that each replica
    /// used are not known.
    pub(super) fn give_back_after(&self, borrowed: &CachedValues, error: SqlError) -> SqlError {
        if is_to_be_tried_again(&error) {
            self.give_back(borrowed, &[]);
        }
        error
    }

    /// Records the numbers that a statement drew as those of the session.
    pub(super) fn note_drawn(&mut self, current: Vec<(u32, i64)>, last_number: Option<i64>) {
        self.last_numbers.current.extend(current);
        self.last_numbers.last = last_number;
    }

    pub(super) fn note_env(&mut self, env: &Env) {
        self.note_drawn(env.current(), env.last_number.get());
        self.asked_settings.extend(env.set_settings.take());
    }

    /// Applies the settings that the last statement requested.
    pub(super) fn apply_settings(&mut self) -> Result<(), SqlError> {
        let asked = std::mem::take(&mut self.asked_settings);
        asked.iter().try_for_each(|(name, value, is_local)| {
            self.set(name, Some(value), *is_local).map(|_| ())
        })
    }

    /// Whether the transaction created or set the sequence, so that no other transaction can draw
    /// from it.
    fn own_sequence(&self, used: &Used) -> bool {
        let cx = self.transaction.as_ref().and_then(|open| open.cx.as_ref());
        cx.is_some_and(|cx| {
            cx.has_written(CATALOG, &relation_key(&used.name))
                || cx.has_written(SEQUENCES, &used.sequence.key())
        })
    }

    fn draw_own(&mut self, used: &Used, wanted: u64) -> Result<Vec<i64>, SqlError> {
        let transaction = self.transaction.as_mut().expect("the caller has looked");
        // The sequence is written outside of a statement, so a replay cannot repeat it.
        transaction.done.breaks();
        let cx = transaction.cx.as_mut().expect("the caller has looked");
        let mut values = Vec::new();
        while (values.len() as u64) < wanted {
            let wanted = wanted - values.len() as u64;
            let block = used.sequence.take(&used.name, wanted, cx)?;
            values.extend((0..block.count).map(|at| block.first + at as i64 * block.increment));
        }
        Ok(values)
    }

    async fn draw_shared(
        &mut self,
        used: &Used,
        wanted: u64,
        borrowed: &mut CachedValues,
    ) -> Result<Vec<i64>, SqlError> {
        let Used { name, sequence, .. } = used;
        let wanted = usize::try_from(wanted).expect("within the most");
        let mut values: VecDeque<i64> = VecDeque::new();
        if wanted > 0 && self.is_behind() {
            // This session may have repositioned the sequence with `setval`.
            self.wait_fresh().await?;
        }
        let mut generation = self.generation(sequence)?;
        while values.len() < wanted {
            let missing = wanted - values.len();
            values.extend(self.shared.blocks.take(sequence.id, generation, missing));
            if values.len() < wanted {
                let count = self.shared.blocks.wanted(sequence.id, wanted - values.len());
                let args = reserve_args(name, sequence.id, count);
                let program = self.program(RESERVE, args)?;
                match self.commit_aside(program).await? {
                    Outcome::Aborted(abort) => return Err(abort.into()),
                    Outcome::Committed { result, .. } => {
                        let block = reserved(&result)?;
                        generation = block.generation;
                        self.shared.blocks.keep(sequence.id, block);
                    }
                }
            }
        }
        let values = Vec::from(values);
        borrowed.0.push((sequence.id, generation, values.clone()));
        Ok(values)
    }

    /// Returns the generation of numbers to hand out: blocks reserved before a `setval` are
    /// excluded.
    fn generation(&self, sequence: &Sequence) -> Result<u64, SqlError> {
        let store = self.engine.store();
        let state = store.read(SEQUENCES, &sequence.key(), store.published());
        let bytes = state.and_then(|version| version.value);
        Ok(bytes.map(|bytes| State::decode(&bytes)).transpose()?.map_or(0, |it| it.generation))
    }
}

/// Whether a failed statement will run again, so that its numbers may be reused.
fn is_to_be_tried_again(error: &SqlError) -> bool {
    is_short(error) || error.code == SqlState::SERIALIZATION_FAILURE
}

impl LocalContext {
    /// Whether the transaction has written a row.
    pub(super) fn has_written(&self, table: TableId, key: &[u8]) -> bool {
        self.own_write(table, key).is_some()
    }
}
