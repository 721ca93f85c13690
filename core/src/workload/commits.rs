//! Checks whether a workload's data match the transactions that have committed.
//!
//! A client knows for each of its calls that it committed, that it aborted, or nothing, for example
//! because its node was killed. The number of commits that the data show therefore has bounds: at
//! least the known ones, and at most those plus the unknown ones. If all outcomes are known, the
//! bounds are equal.
//!
//! ```text
//!   Call --Watch--> Written --,
//!   Outcome ------------------+--> Ledger --commits()--> Commits --check_commits(rows)--> verdict
//! ```
//!
//! A blind write leaves no count. For some rows ([`Watch`]), a ledger therefore records the writes
//! that may be the current value of the row. These are the writes that were not acknowledged before
//! the newest acknowledged one began. Strict serializability rules out all others.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{Call, tpcc, ycsb};

/// The clients' knowledge of commits since the load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commits {
    /// The number of committed transactions by label.
    pub committed: BTreeMap<String, u64>,
    /// The number of transactions with unknown outcome by label.
    pub unknown: BTreeMap<String, u64>,
    /// The number of rows that committed YCSB transactions have written. A row written twice by a
    /// transaction counts twice.
    pub rows_written: u64,
    /// The same for transactions with unknown outcome.
    pub rows_unknown: u64,
    /// The number of orders that the results of TPC-C's Deliveries report as delivered.
    pub delivered: u64,
    /// The possible values of the watched rows that were written.
    pub newest: Vec<Newest>,
}

/// The possible values of a YCSB row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    /// The row.
    pub row: u64,
    /// The possible prefixes of its value: see [`ycsb::mark`].
    pub marks: Vec<u64>,
}

impl Commits {
    /// Bounds on the number of committed transactions of a label.
    pub fn bounds(&self, label: &str) -> RangeInclusive<i64> {
        self.sum(|it| i64::from(it == label))
    }

    /// Bounds on the sum over all committed transactions, to which each adds `adds(label)`.
    pub fn sum(&self, adds: impl Fn(&str) -> i64) -> RangeInclusive<i64> {
        let all = |counts: &BTreeMap<String, u64>, of: fn(i64) -> i64| -> i64 {
            counts.iter().map(|(label, count)| of(adds(label)) * *count as i64).sum()
        };
        let known = all(&self.committed, |adds| adds);
        let least = known + all(&self.unknown, |adds| adds.min(0));
        least..=known + all(&self.unknown, |adds| adds.max(0))
    }

    /// Bounds on the number of rows that YCSB has written.
    pub(super) fn rows(&self) -> RangeInclusive<i64> {
        let known = self.rows_written as i64;
        known..=known + self.rows_unknown as i64
    }
}

/// Adds `more` to both bounds.
pub(super) fn plus(bounds: RangeInclusive<i64>, more: i64) -> RangeInclusive<i64> {
    bounds.start() + more..=bounds.end() + more
}

/// The knowledge of a call's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call committed, and its client learned so at this time.
    Committed {
        /// The time, in the same unit as the call's begin.
        at: u64,
    },
    /// The outcome is unknown.
    Unknown,
}

/// The facts to record about a workload's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Whether to count written rows.
    pub(super) counts: bool,
    /// Rows whose number is divisible by this are watched; no rows if it is 0.
    pub(super) step: u64,
}

/// The recorded facts about the writes of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of written rows.
    pub(super) rows: u64,
    /// The watched rows, each once, with the prefixes of their values.
    pub(super) watched: Vec<(u64, u64)>,
}

impl Watch {
    /// The recorded facts about the writes of a call.
    pub fn written(&self, call: &Call) -> Written {
        match self.counts && !call.is_read_only {
            true => ycsb::written(&call.args, self.step),
            false => Written::default(),
        }
    }
}

/// The writes that may be the current value of one row.
#[derive(Clone, Debug)]
struct Last {
    /// The time at which the newest acknowledged write began.
    began: u64,
    /// The mark of each write, and the time at which its client learned of the commit.
    may_hold: Vec<(u64, u64)>,
}

impl Last {
    /// The loaded value.
    const LOADED: (u64, u64) = (0, 0);

    fn add(&mut self, mark: u64, began: u64, fate: CallOutcome) {
        match fate {
            CallOutcome::Committed { at } => {
                self.began = self.began.max(began);
                self.may_hold.push((mark, at));
            }
            // It may still commit, after any other write.
            CallOutcome::Unknown => self.may_hold.push((mark, u64::MAX)),
        }
        self.may_hold.retain(|(_, ended)| *ended >= self.began);
    }
}

/// Counts the outcomes of calls.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    committed: BTreeMap<&'static str, u64>,
    unknown: BTreeMap<&'static str, u64>,
    rows_written: u64,
    rows_unknown: u64,
    delivered: u64,
    newest: BTreeMap<u64, Last>,
}

impl Ledger {
    /// Records a call that began at this time and may have committed.
    ///
    /// # Panics
    /// If it ended before it began.
    pub fn add(&mut self, label: &'static str, written: &Written, began: u64, fate: CallOutcome) {
        let (calls, rows) = match fate {
            CallOutcome::Committed { at } => {
                assert!(at >= began, "a call that began at {began} ended at {at}");
                (&mut self.committed, &mut self.rows_written)
            }
            CallOutcome::Unknown => (&mut self.unknown, &mut self.rows_unknown),
        };
        *calls.entry(label).or_default() += 1;
        *rows += written.rows;
        for (row, mark) in &written.watched {
            let loaded = || Last { began: 0, may_hold: vec![Last::LOADED] };
            self.newest.entry(*row).or_insert_with(loaded).add(*mark, began, fate);
        }
    }

    /// Records the result of a committed call.
    pub fn add_result(&mut self, label: &'static str, result: &[u8]) {
        self.delivered += tpcc::delivered(label, result);
    }

    /// The present knowledge.
    pub fn commits(&self) -> Commits {
        let named = |counts: &BTreeMap<&'static str, u64>| {
            counts.iter().map(|(label, count)| ((*label).to_owned(), *count)).collect()
        };
        let newest = self.newest.iter().map(|(row, last)| {
            let marks = last.may_hold.iter().map(|(mark, _)| *mark).collect();
            Newest { row: *row, marks }
        });
        Commits {
            committed: named(&self.committed),
            unknown: named(&self.unknown),
            rows_written: self.rows_written,
            rows_unknown: self.rows_unknown,
            delivered: self.delivered,
            newest: newest.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
