//! Whether a workload's data are what comes of the transactions that have committed.
//!
//! A client knows of each of its calls that it committed, that it aborted, or nothing at all, as
//! when its node was killed meanwhile. So what the data must tell of so many commits has bounds:
//! all that are known are in it, and no more than those and the unknown ones. Where every outcome
//! is known, the bounds are one number.
//!
//! ```text
//!   Call --Watch--> Written --,
//!   Outcome ------------------+--> Ledger --commits()--> Commits --check_commits(rows)--> verdict
//! ```
//!
//! A blind write leaves no count. Of some rows ([`Watch`]) a ledger keeps which writes may be what
//! the row holds: those of which none was acknowledged before the newest acknowledged one began.
//! That is what strict serializability leaves.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::check::{Report, Rows, Rule, Violation};
use super::{Call, Workload, counters, smallbank, tpcc, ycsb};

/// What clients know of what has committed since the load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commits {
    /// How many transactions of each label have committed.
    pub committed: BTreeMap<String, u64>,
    /// How many of each label may have: nobody knows their outcome.
    pub unknown: BTreeMap<String, u64>,
    /// How many rows YCSB's transactions have written, of those that committed. A row that one of
    /// them writes twice counts twice.
    pub rows_written: u64,
    /// The same of those of which nobody knows.
    pub rows_unknown: u64,
    /// How many orders TPC-C's Deliveries said that they have delivered.
    pub delivered: u64,
    /// What rows may hold, of those that are watched and were written.
    pub newest: Vec<Newest>,
}

/// What a row of YCSB may hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    /// Which row.
    pub row: u64,
    /// What its value may begin with, as [`ycsb::mark`] tells it.
    pub marks: Vec<u64>,
}

impl Commits {
    /// How many transactions of a label are known to have committed, and how many may have.
    pub fn bounds(&self, label: &str) -> RangeInclusive<i64> {
        self.sum(|it| i64::from(it == label))
    }

    /// What all transactions add up to, where each of a label adds so much.
    pub fn sum(&self, adds: impl Fn(&str) -> i64) -> RangeInclusive<i64> {
        let all = |counts: &BTreeMap<String, u64>, of: fn(i64) -> i64| -> i64 {
            counts.iter().map(|(label, count)| of(adds(label)) * *count as i64).sum()
        };
        let known = all(&self.committed, |adds| adds);
        let least = known + all(&self.unknown, |adds| adds.min(0));
        least..=known + all(&self.unknown, |adds| adds.max(0))
    }

    /// How many rows were written, of YCSB.
    pub(super) fn rows(&self) -> RangeInclusive<i64> {
        let known = self.rows_written as i64;
        known..=known + self.rows_unknown as i64
    }
}

/// Both bounds and so much.
pub(super) fn plus(bounds: RangeInclusive<i64>, more: i64) -> RangeInclusive<i64> {
    bounds.start() + more..=bounds.end() + more
}

/// How the outcome of a call is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It committed, as its client learned at this time.
    Committed {
        /// In a unit of the caller's, as when it began.
        at: u64,
    },
    /// Nobody knows.
    Unknown,
}

/// What is noted of a workload's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Whether rows that are written are counted.
    pub(super) counts: bool,
    /// Every row whose number this divides is watched; none if it is 0.
    pub(super) step: u64,
}

/// What a call writes, of what is noted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// How many rows.
    pub(super) rows: u64,
    /// Rows that are watched, each once, and what their values begin with.
    pub(super) watched: Vec<(u64, u64)>,
}

impl Watch {
    /// What a call writes, of what is noted.
    pub fn written(&self, call: &Call) -> Written {
        match self.counts && !call.is_read_only {
            true => ycsb::written(&call.args, self.step),
            false => Written::default(),
        }
    }
}

/// The writes of one row that may be what it holds.
#[derive(Clone, Debug)]
struct Last {
    /// When the newest acknowledged one began.
    began: u64,
    /// Each one's mark, and when its client knew that it has committed.
    may_hold: Vec<(u64, u64)>,
}

impl Last {
    /// As it was loaded.
    const LOADED: (u64, u64) = (0, 0);

    fn add(&mut self, mark: u64, began: u64, fate: Fate) {
        match fate {
            Fate::Committed { at } => {
                self.began = self.began.max(began);
                self.may_hold.push((mark, at));
            }
            // It may yet commit, after any other.
            Fate::Unknown => self.may_hold.push((mark, u64::MAX)),
        }
        self.may_hold.retain(|(_, ended)| *ended >= self.began);
    }
}

/// Counts what becomes of calls.
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
    /// Notes a call that began at a time and may have committed.
    ///
    /// # Panics
    /// When it ended before it began.
    pub fn add(&mut self, label: &'static str, written: &Written, began: u64, fate: Fate) {
        let (calls, rows) = match fate {
            Fate::Committed { at } => {
                assert!(at >= began, "a call that began at {began} ended at {at}");
                (&mut self.committed, &mut self.rows_written)
            }
            Fate::Unknown => (&mut self.unknown, &mut self.rows_unknown),
        };
        *calls.entry(label).or_default() += 1;
        *rows += written.rows;
        for (row, mark) in &written.watched {
            let loaded = || Last { began: 0, may_hold: vec![Last::LOADED] };
            self.newest.entry(*row).or_insert_with(loaded).add(*mark, began, fate);
        }
    }

    /// Notes what a call returned that committed.
    pub fn add_result(&mut self, label: &'static str, result: &[u8]) {
        self.delivered += tpcc::delivered(label, result);
    }

    /// What is known now.
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

impl Workload {
    /// What is to be noted of its calls, for [`Self::check_commits`].
    pub fn watch(&self) -> Watch {
        match self {
            Self::Ycsb(ycsb) => ycsb.watch(),
            Self::Tpcc(_)
            | Self::ListAppend(_)
            | Self::Bank(_)
            | Self::Registers(_)
            | Self::Catalog(_)
            | Self::Counters(_)
            | Self::SmallBank(_) => Watch::default(),
        }
    }

    /// Whether what a check has counted in `rows` is what comes of the transactions that have
    /// committed since the load. A lost or a doubled one shows here in those workloads whose data
    /// tell: not in histories for Elle, and transfers of the bank leave no trace.
    ///
    /// # Errors
    /// The rule that is broken, and both of its numbers.
    pub fn check_commits(
        &self,
        report: &Report,
        rows: &dyn Rows,
        commits: &Commits,
    ) -> Result<(), Violation> {
        let fact = |name: &str| report.facts.get(name).copied().unwrap_or(0);
        let rule = Rule { rule: "all that committed", place: &self.name() };
        match self {
            Self::Ycsb(ycsb) => ycsb.check_commits(&rule, &fact, rows, commits),
            Self::Tpcc(tpcc) => tpcc.check_commits(&rule, &fact, commits),
            Self::Counters(counters) => {
                let increments = commits.sum(|label| counters.increments_of(label));
                let found = ("the sum of all counters", fact(counters::INCREMENTS));
                rule.within(found, "increments committed", increments)
            }
            Self::SmallBank(bank) => {
                let expected = bank.total(commits, fact(smallbank::PENALTIES_TAKEN));
                let found = ("what all accounts hold", fact(smallbank::CENTS));
                rule.within(found, "what was paid in and not out", expected)
            }
            Self::ListAppend(_) | Self::Bank(_) | Self::Registers(_) | Self::Catalog(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
