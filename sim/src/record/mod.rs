//! Recorded histories: the operations of clients of any database and their results, in one form.
//!
//! The simulator's histories are converted to this form, and its files can be read and written
//! ([`read`](self::read::read), [`write`](self::write::write)). Keys and values are numbers or
//! texts. Each has one [`Name`] in a history, so that checkers compare and look up small numbers.
//! `docs/HISTORY.md` describes the form in files.

pub mod read;
pub mod write;

use std::collections::BTreeMap;
use std::fmt;

use pangea_core::guarantee::Isolation;
use pangea_core::hash::{HashMap, HashSet};

/// A key or a value, as in the database. Numbers sort before texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// An integer.
    Number(i64),
    /// A text.
    Text(Box<str>),
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// Identifies a key or a value within one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(u32);

impl Name {
    /// Its index among the names of its history.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The keys and values of a history.
#[derive(Clone, Debug, Default)]
pub struct Names {
    atoms: Vec<Atom>,
    ids: HashMap<Atom, Name>,
}

impl Names {
    /// Returns the name of a key or value, which is added if it is new.
    pub fn name(&mut self, atom: Atom) -> Name {
        if let Some(&name) = self.ids.get(&atom) {
            return name;
        }
        let name =
            Name(u32::try_from(self.atoms.len()).expect("the number of names is below 2^32"));
        self.atoms.push(atom.clone());
        self.ids.insert(atom, name);
        name
    }

    /// Returns the key or value of a name.
    pub fn atom(&self, name: Name) -> &Atom {
        &self.atoms[name.index()]
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.atoms.len()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.atoms.is_empty()
    }
}

/// The result of a read of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No value: no row, a register that was never written, or an empty list.
    Nothing,
    /// A value.
    Value(Name),
    /// A list.
    List(Vec<Name>),
}

/// The keys from one (included) to another (excluded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first key, or `None` without a bound.
    pub from: Option<Name>,
    /// The key after the last, or `None` without a bound.
    pub to: Option<Name>,
}

impl Range {
    /// Whether the range contains a key.
    pub fn contains(&self, names: &Names, key: Name) -> bool {
        let key = names.atom(key);
        self.from.is_none_or(|from| names.atom(from) <= key)
            && self.to.is_none_or(|to| key < names.atom(to))
    }
}

/// One operation of a transaction, with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// An append of a value to a list.
    Append {
        /// The list.
        key: Name,
        /// The value, which no other operation appends to it.
        value: Name,
    },
    /// A write of a register, or an insert or update of a row.
    Write {
        /// The register or row.
        key: Name,
        /// The value, which no other operation writes to it.
        value: Name,
    },
    /// A delete of a row.
    Delete {
        /// The row.
        key: Name,
    },
    /// A read of a list, a register or a row.
    Read {
        /// The key.
        key: Name,
        /// The result.
        seen: Seen,
    },
    /// A read of all rows in a range.
    Scan {
        /// The range.
        range: Range,
        /// The rows found, by key.
        rows: Vec<(Name, Name)>,
    },
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its client was notified that it committed.
    Committed,
    /// Its client was notified that it aborted.
    Aborted,
    /// The outcome is not known.
    Unknown,
}

/// One transaction of a recorded history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// Its number, which is its line; violations refer to it.
    pub id: usize,
    /// The client.
    pub client: Atom,
    /// The time at which its client sent it, by a clock that all clients share.
    pub begin: i64,
    /// The time at which its client received the outcome, by the same clock.
    pub end: Option<i64>,
    /// The outcome.
    pub outcome: Outcome,
    /// Whether strict serializability applies real-time order to it. False for a read that
    /// requested a possibly old snapshot.
    pub is_held: bool,
    /// Whether it read the final state: all other transactions had ended before, and none followed.
    pub is_final: bool,
    /// Its position in the order of all transactions as reported by the database, if known. It is
    /// no proof: a checker starts from it to search for an order that reads leave open.
    pub at: Option<i64>,
    /// Its isolation level, if it names one. Counts only under the model of mixed levels.
    pub level: Option<Isolation>,
    /// Additional information for violations.
    pub note: Option<Box<str>>,
    /// Its operations in their order. If it is not known to have committed, only the known ones.
    pub ops: Vec<Op>,
}

/// All transactions, and the names of their keys and values.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The transactions.
    pub txns: Vec<Txn>,
    /// Keys and values.
    pub names: Names,
}

/// An error in a history, with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line, counted from 1.
    pub line: usize,
    /// The error and the expected input.
    pub what: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for Malformed {}

/// The class of a key, which its operations determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A list, which is appended to.
    List,
    /// A register or a row, which is written and deleted.
    Register,
}

/// Validates each transaction as it is added.
#[derive(Debug, Default)]
pub struct Rules {
    /// The line that wrote each value of each key.
    writers: HashMap<(Name, Name), usize>,
    /// The class of each key, and the line that first shows it.
    classes: BTreeMap<Name, (Class, usize)>,
}

impl Rules {
    /// Checks the next transaction.
    ///
    /// # Errors
    /// If it contradicts itself or an earlier one: it ends before it begins, writes a value to a
    /// key twice, or uses a list as a register.
    pub fn check(&mut self, names: &Names, txn: &Txn) -> Result<(), Malformed> {
        let line = txn.id;
        let malformed = |what: String| Err(Malformed { line, what });
        if let Some(end) = txn.end.filter(|end| *end < txn.begin) {
            let begin = txn.begin;
            return malformed(format!(
                "the transaction ends at {end}, before its begin at {begin}"
            ));
        }
        if txn.end.is_none() && txn.outcome != Outcome::Unknown {
            return malformed(
                "the transaction has no end, which is only allowed if its outcome is unknown"
                    .into(),
            );
        }
        let writes = txn.ops.iter().any(|op| !matches!(op, Op::Read { .. } | Op::Scan { .. }));
        if txn.is_final && (writes || txn.outcome != Outcome::Committed) {
            return malformed("a final transaction must be committed and only read".into());
        }
        txn.ops.iter().try_for_each(|op| self.check_op(names, line, op))
    }

    fn check_op(&mut self, names: &Names, line: usize, op: &Op) -> Result<(), Malformed> {
        let malformed = |what: String| Err(Malformed { line, what });
        let class = match op {
            Op::Append { key, value } | Op::Write { key, value } => {
                let is_append = matches!(op, Op::Append { .. });
                if let Some(before) = self.writers.insert((*key, *value), line) {
                    let (key, value) = (names.atom(*key), names.atom(*value));
                    let verb = if is_append { "append" } else { "write" };
                    return malformed(format!(
                        "duplicate {verb} of {value} to {key}, already in line {before}; each \
                         value must be written to a key only once"
                    ));
                }
                Some((*key, if is_append { Class::List } else { Class::Register }))
            }
            Op::Delete { key } | Op::Read { key, seen: Seen::Value(_) } => {
                Some((*key, Class::Register))
            }
            Op::Read { key, seen: Seen::List(_) } => Some((*key, Class::List)),
            Op::Read { seen: Seen::Nothing, .. } => None,
            Op::Scan { range, rows } => return self.check_scan(names, line, *range, rows),
        };
        class.map_or(Ok(()), |(key, class)| self.check_class(names, line, key, class))
    }

    fn check_scan(
        &mut self,
        names: &Names,
        line: usize,
        range: Range,
        rows: &[(Name, Name)],
    ) -> Result<(), Malformed> {
        let mut found = HashSet::default();
        for &(key, _) in rows {
            let what = if !range.contains(names, key) {
                format!("the scan found row {}, which is outside its range", names.atom(key))
            } else if !found.insert(key) {
                format!("the scan found row {} twice", names.atom(key))
            } else {
                self.check_class(names, line, key, Class::Register)?;
                continue;
            };
            return Err(Malformed { line, what });
        }
        Ok(())
    }

    fn check_class(
        &mut self,
        names: &Names,
        line: usize,
        key: Name,
        class: Class,
    ) -> Result<(), Malformed> {
        let (known, before) = *self.classes.entry(key).or_insert((class, line));
        if known == class {
            return Ok(());
        }
        let words = |class| match class {
            Class::List => "a list, which is appended to",
            Class::Register => "a register or row, which is written",
        };
        let (key, known, now) = (names.atom(key), words(known), words(class));
        let what = format!("key {key} is {now}, but in line {before} it is {known}");
        Err(Malformed { line, what })
    }
}

#[cfg(test)]
mod tests;
