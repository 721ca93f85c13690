//! Recorded histories: what clients of any database did and were told, in one form.
//!
//! The simulator's histories become these, and files of them can be read and written
//! ([`read`](self::read::read), [`write`](self::write::write)). Keys and values are numbers or
//! texts. Each has one [`Name`] in a history, so that checkers compare and look up small numbers.
//! `docs/HISTORY.md` describes the form in files.

pub mod read;
pub mod write;

use std::collections::BTreeMap;
use std::fmt;

use pangea_core::hash::{HashMap, HashSet};

/// A key or a value, as the database has it. Numbers come before texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// A whole number.
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

/// Stands for a key or a value within one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(u32);

impl Name {
    /// Its place among the names of its history.
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
    /// The name of a key or value.
    pub fn name(&mut self, atom: Atom) -> Name {
        if let Some(&name) = self.ids.get(&atom) {
            return name;
        }
        let name = Name(u32::try_from(self.atoms.len()).expect("fewer than four billion names"));
        self.atoms.push(atom.clone());
        self.ids.insert(atom, name);
        name
    }

    /// What a name stands for.
    pub fn atom(&self, name: Name) -> &Atom {
        &self.atoms[name.index()]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.atoms.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.atoms.is_empty()
    }
}

/// What a read of one key found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing: no row, a register that was never written, an empty list.
    Nothing,
    /// A value.
    Value(Name),
    /// A list.
    List(Vec<Name>),
}

/// The keys from one to another, the latter not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first key, if there is a bound.
    pub from: Option<Name>,
    /// The key after the last, if there is a bound.
    pub to: Option<Name>,
}

impl Range {
    /// Whether a key is in it.
    pub fn contains(&self, names: &Names, key: Name) -> bool {
        let key = names.atom(key);
        self.from.is_none_or(|from| names.atom(from) <= key)
            && self.to.is_none_or(|to| key < names.atom(to))
    }
}

/// One thing that a transaction did, with what it returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// It appended a value to a list.
    Append {
        /// The list.
        key: Name,
        /// The value, which nobody else appends to it.
        value: Name,
    },
    /// It wrote a register, or inserted or updated a row.
    Write {
        /// The register or row.
        key: Name,
        /// The value, which nobody else writes to it.
        value: Name,
    },
    /// It deleted a row.
    Delete {
        /// The row.
        key: Name,
    },
    /// It read a list, a register or a row.
    Read {
        /// Which.
        key: Name,
        /// What it found.
        seen: Seen,
    },
    /// It read all rows in a range.
    Scan {
        /// Where.
        range: Range,
        /// The rows that it found, by key.
        rows: Vec<(Name, Name)>,
    },
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its client was told that it committed.
    Committed,
    /// Its client was told that it did not.
    Aborted,
    /// Nobody knows.
    Unknown,
}

/// One transaction of a recorded history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// Its number, by which stories name it: its line.
    pub id: usize,
    /// Whose.
    pub client: Atom,
    /// When its client asked, by a clock that all clients share.
    pub begin: i64,
    /// When its client was told, by the same clock.
    pub end: Option<i64>,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether strict serializability holds it to real time. False for a read that asked for a
    /// snapshot that may be old.
    pub is_held: bool,
    /// Whether it read the final state: all others were over, and nothing came after it.
    pub is_final: bool,
    /// Where in the order of all transactions the database says that it took place, if it says so.
    /// Proves nothing: it is where a checker begins to look for an order that reads leave open.
    pub at: Option<i64>,
    /// What else a story should tell.
    pub note: Option<Box<str>>,
    /// What it did, in its order. Of one that is not known to have committed, what is known.
    pub ops: Vec<Op>,
}

/// Every transaction, and the names of what they read and wrote.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The transactions.
    pub txns: Vec<Txn>,
    /// Keys and values.
    pub names: Names,
}

/// What is wrong with a record, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong and what was expected.
    pub what: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for Malformed {}

/// What a key is, as its operations have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A list, which is appended to.
    List,
    /// A register or a row, which is written and deleted.
    Register,
}

/// Holds each transaction, as it is added, to what every history must be.
#[derive(Debug, Default)]
pub struct Rules {
    /// Who gave a value to a key.
    writers: HashMap<(Name, Name), usize>,
    /// What each key is, and the line that first tells.
    classes: BTreeMap<Name, (Class, usize)>,
}

impl Rules {
    /// Checks the next transaction.
    ///
    /// # Errors
    /// When it contradicts itself or an earlier one: it ends before it begins, gives a key a value
    /// that the key was given before, or takes a list for a register.
    pub fn check(&mut self, names: &Names, txn: &Txn) -> Result<(), Malformed> {
        let line = txn.id;
        let malformed = |what: String| Err(Malformed { line, what });
        if let Some(end) = txn.end.filter(|end| *end < txn.begin) {
            let begin = txn.begin;
            return malformed(format!("it ends at {end}, before its begin at {begin}"));
        }
        if txn.end.is_none() && txn.outcome != Outcome::Unknown {
            return malformed(
                "it has no end; only one whose outcome is unknown may lack it".into(),
            );
        }
        let writes = txn.ops.iter().any(|op| !matches!(op, Op::Read { .. } | Op::Scan { .. }));
        if txn.is_final && (writes || txn.outcome != Outcome::Committed) {
            return malformed("a final transaction must only read, and be committed".into());
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
                        "duplicate {verb} of {value} to {key}, which line {before} has already; \
                         each value must be given to a key once"
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
                format!("the scan found row {}, which is not in its range", names.atom(key))
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
        let what = format!("key {key} is {now}; in line {before} it is {known}");
        Err(Malformed { line, what })
    }
}

#[cfg(test)]
mod tests;
