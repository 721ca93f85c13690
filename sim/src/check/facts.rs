//! Certain facts of a history: the writer of each value, the transactions that took place, and the
//! version that each read returned.
//!
//! Each read is also checked on its own, which finds anomalies without cycles: values without a
//! writer, values of an aborted transaction (G1a), values that their own transaction replaced
//! (G1b), and transactions that did not see their own writes (internal).
//!
//! A transaction of unknown outcome took place if a transaction that took place read one of its
//! values. Otherwise it is taken as not having happened. That never explains fewer histories,
//! unless the transaction deleted rows. If it took place, its delete of a row may have found none:
//! then it is a read. There is [`Assumed`] for both.

use std::collections::BTreeMap;

use pangea_core::hash::{HashMap, HashSet};

use super::model::Model;
use super::objects::{LostUpdate, Object, ObjectRead, ReadVersion, Version};
use super::{Violation, explain};
use crate::record::{Class, Name, Op, Outcome, Recorded, Seen};

/// The writer of a value of a key.
#[derive(Clone, Copy, Debug)]
pub struct Author {
    /// The transaction.
    pub txn: u32,
    /// The number of changes that it had made to the key before.
    pub before: u32,
    /// Whether this was its last change of the key.
    pub is_last: bool,
}

/// The facts of a history.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The history.
    pub recorded: &'a Recorded,
    /// The checker that violations name.
    pub checker: &'static str,
    /// The writer of each value of each key.
    pub authors: HashMap<(Name, Name), Author>,
    /// Whether each transaction took place.
    pub is_present: Vec<bool>,
    /// All keys that were changed.
    pub objects: Vec<Object>,
    /// Two transactions that replaced the same version, if the model rules that out.
    pub fork: Option<LostUpdate>,
    object_of: HashMap<Name, u32>,
    /// The deletes that have left no trace.
    open: Vec<OpenDelete>,
    /// Those of them that found no row, in the transactions that took place.
    without_row: HashSet<OpenDelete>,
    /// The keys for which a read that found no value implies nothing.
    blurred: HashSet<Name>,
}

/// A delete of a row by a transaction of unknown outcome. It leaves no value that could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenDelete {
    /// The transaction.
    txn: u32,
    /// The row.
    key: Name,
}

/// The assumption about open deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumed<'s> {
    /// Transactions took place only if their values were read, and their deletes found rows.
    Usual,
    /// Only these found rows, and their transactions took place.
    Only(&'s [OpenDelete]),
    /// No assumption: a read of a key that they delete implies nothing if it found no value. A
    /// violation under this assumption is one in any case.
    Nothing,
}

/// A transaction's own changes of a key so far.
pub enum Own {
    /// The values that it appended.
    List(Vec<Name>),
    /// The value that it wrote, or `None` if it deleted.
    Row(Option<Name>),
}

impl<'a> Facts<'a> {
    /// Finds the writers of values and the transactions that took place.
    pub fn new(
        recorded: &'a Recorded,
        model: Model,
        checker: &'static str,
        assumed: Assumed<'_>,
    ) -> Self {
        let mut facts = Self {
            recorded,
            checker,
            authors: HashMap::default(),
            is_present: Vec::new(),
            objects: Vec::new(),
            fork: None,
            object_of: HashMap::default(),
            open: Vec::new(),
            without_row: HashSet::default(),
            blurred: HashSet::default(),
        };
        facts.find_authors();
        facts.find_present();
        facts.find_open_deletes(model);
        facts.assume(assumed);
        facts
    }

    /// Analyses all reads, and orders versions as far as their order is known.
    ///
    /// # Errors
    /// The first anomaly that a single read shows.
    pub fn arrange(&mut self, model: Model) -> Result<(), Violation> {
        self.find_versions();
        let lists = self.take_reads()?;
        self.arrange_lists(lists, model)?;
        self.arrange_registers(model)
    }

    /// Creates a violation of this checker.
    pub fn violation(&self, anomaly: &'static str, story: String) -> Violation {
        Violation::new(self.checker, anomaly, story)
    }

    /// Describes a transaction.
    pub fn name(&self, txn: u32) -> String {
        explain::txn(self.recorded, txn)
    }

    /// Returns the object of a key, if any transaction changed it.
    pub fn object(&self, key: Name) -> Option<&Object> {
        self.object_of.get(&key).map(|at| &self.objects[*at as usize])
    }

    /// Returns the class of a key. A key that was never changed is a register.
    pub fn class(&self, key: Name) -> Class {
        self.object(key).map_or(Class::Register, |object| object.class)
    }

    fn find_authors(&mut self) {
        for (txn, found) in self.recorded.txns.iter().zip(0u32..) {
            let mut changed: BTreeMap<Name, (u32, Option<Name>)> = BTreeMap::new();
            for op in &txn.ops {
                let Some((key, value)) = change(op) else { continue };
                let (count, last) = changed.entry(key).or_default();
                if let Some(value) = value {
                    let author = Author { txn: found, before: *count, is_last: false };
                    let other = self.authors.insert((key, value), author);
                    assert!(other.is_none(), "T{}: a value is written twice", txn.id);
                }
                *count += 1;
                *last = value;
            }
            for (key, (_, value)) in changed {
                let Some(value) = value else { continue };
                let author =
                    self.authors.get_mut(&(key, value)).expect("the author was just inserted");
                author.is_last = true;
            }
        }
    }

    /// Returns the deletes for which there is more than one assumption.
    pub fn open_deletes(&self) -> &[OpenDelete] {
        &self.open
    }

    fn find_open_deletes(&mut self, model: Model) {
        for (txn, it) in (0..).zip(&self.recorded.txns) {
            let is_present = self.is_present[txn as usize];
            // In an order of all transactions, one that finds no row may as well delete it.
            if it.outcome != Outcome::Unknown || is_present && model.orders_items() {
                continue;
            }
            // Whether the first and the last change of each key are deletes.
            let mut changed: BTreeMap<Name, (bool, bool)> = BTreeMap::new();
            for (key, value) in it.ops.iter().filter_map(change) {
                changed.entry(key).or_insert((value.is_none(), false)).1 = value.is_none();
            }
            let is_open =
                |&(_, &(first, last)): &(&Name, &(bool, bool))| last && (first || !is_present);
            let open = changed.iter().filter(is_open).map(|(key, _)| OpenDelete { txn, key: *key });
            self.open.extend(open);
        }
    }

    fn assume(&mut self, assumed: Assumed<'_>) {
        match assumed {
            Assumed::Usual => {}
            Assumed::Only(found) => {
                found.iter().for_each(|it| self.is_present[it.txn as usize] = true);
                self.follow_reads(found.iter().map(|it| it.txn).collect());
                self.without_row =
                    self.open.iter().filter(|it| !found.contains(it)).copied().collect();
            }
            Assumed::Nothing => {
                self.without_row = self.open.iter().copied().collect();
                self.blurred = self.open.iter().map(|it| it.key).collect();
            }
        }
    }

    fn find_present(&mut self) {
        let txns = &self.recorded.txns;
        self.is_present = txns.iter().map(|txn| txn.outcome == Outcome::Committed).collect();
        self.follow_reads(self.present().collect());
    }

    /// Finds the transactions whose values were read by these, or by others that are found so.
    fn follow_reads(&mut self, mut reached: Vec<u32>) {
        let txns = &self.recorded.txns;
        while let Some(reader) = reached.pop() {
            for op in &txns[reader as usize].ops {
                each_seen(op, |key, value| {
                    let Some(author) = self.authors.get(&(key, value)) else { return };
                    let writer = author.txn as usize;
                    if txns[writer].outcome == Outcome::Unknown && !self.is_present[writer] {
                        self.is_present[writer] = true;
                        reached.push(author.txn);
                    }
                });
            }
        }
    }

    /// Whether a delete found no row, unless its transaction had changed the row before.
    fn found_no_row(&self, txn: u32, key: Name) -> bool {
        self.without_row.contains(&OpenDelete { txn, key })
    }

    /// Returns the transactions that took place.
    pub fn present(&self) -> impl Iterator<Item = u32> {
        let all = 0..self.recorded.txns.len() as u32;
        all.filter(|txn| self.is_present[*txn as usize])
    }

    fn find_versions(&mut self) {
        let (mut objects, mut object_of) = (Vec::new(), HashMap::default());
        for txn in self.present() {
            for op in &self.recorded.txns[txn as usize].ops {
                let Some((key, value)) = change(op) else { continue };
                let object = object_of.get(&key).map(|at: &u32| &objects[*at as usize]);
                let last = object.and_then(|it: &Object| it.versions.last());
                let has_changed = last.is_some_and(|version| version.writer == txn);
                if value.is_none() && !has_changed && self.found_no_row(txn, key) {
                    continue;
                }
                let at = *object_of.entry(key).or_insert_with(|| {
                    let is_list = matches!(op, Op::Append { .. });
                    let class = if is_list { Class::List } else { Class::Register };
                    objects.push(Object::new(key, class));
                    objects.len() as u32 - 1
                });
                let versions = &mut objects[at as usize].versions;
                match versions.last_mut().filter(|version| version.writer == txn) {
                    Some(version) => version.value = value,
                    None => versions.push(Version { writer: txn, value }),
                }
            }
        }
        for object in &mut objects {
            let versions = object.versions.iter().zip(0..).skip(1);
            let deletes = versions.filter(|(version, _)| version.value.is_none());
            object.deletes = deletes.map(|(_, at)| at).collect();
        }
        (self.objects, self.object_of) = (objects, object_of);
    }

    /// Analyses each read. Adds reads of registers to their objects, and returns reads of lists.
    fn take_reads(&mut self) -> Result<Vec<ListRead<'a>>, Violation> {
        let recorded = self.recorded;
        let keys = self.rows_in_order();
        let (mut lists, mut found) = (Vec::new(), Vec::new());
        // The final state comes first: readers only observed the errors that it shows.
        let is_final = |txn: &u32| recorded.txns[*txn as usize].is_final;
        let order =
            (self.present().filter(is_final)).chain(self.present().filter(|txn| !is_final(txn)));
        for txn in order {
            let mut own: BTreeMap<Name, Own> = BTreeMap::new();
            for op in &recorded.txns[txn as usize].ops {
                match op {
                    Op::Append { key, value } => {
                        match own.entry(*key).or_insert_with(|| Own::List(Vec::new())) {
                            Own::List(values) => values.push(*value),
                            Own::Row(_) => unreachable!("the key has one class"),
                        }
                    }
                    Op::Write { key, value } => drop(own.insert(*key, Own::Row(Some(*value)))),
                    Op::Delete { key }
                        if !own.contains_key(key) && self.found_no_row(txn, *key) =>
                    {
                        self.row_read(txn, *key, None, &own, false, &mut found)?;
                    }
                    Op::Delete { key } => drop(own.insert(*key, Own::Row(None))),
                    Op::Read { key, seen } => match (self.class(*key), seen) {
                        (Class::List, Seen::Nothing) | (_, Seen::List(_)) => {
                            lists.push(self.list_read(txn, *key, seen, own.get(key))?);
                        }
                        (_, Seen::Value(value)) => {
                            self.row_read(txn, *key, Some(*value), &own, false, &mut found)?;
                        }
                        (_, Seen::Nothing) => {
                            self.row_read(txn, *key, None, &own, false, &mut found)?;
                        }
                    },
                    Op::Scan { range, rows } => {
                        let rows: BTreeMap<Name, Name> = rows.iter().copied().collect();
                        let inside = self.keys_within(&keys, *range);
                        for key in inside.iter().filter(|key| !rows.contains_key(key)) {
                            self.row_read(txn, *key, None, &own, true, &mut found)?;
                        }
                        for (&key, &value) in &rows {
                            self.row_read(txn, key, Some(value), &own, false, &mut found)?;
                        }
                    }
                }
            }
        }
        for (object, read) in found {
            self.objects[object as usize].reads.push(read);
        }
        Ok(lists)
    }

    /// Records the version of a register or row that a read returned, unless it is the reader's
    /// own.
    fn row_read(
        &self,
        txn: u32,
        key: Name,
        value: Option<Name>,
        own: &BTreeMap<Name, Own>,
        is_scan: bool,
        found: &mut Vec<(u32, ObjectRead)>,
    ) -> Result<(), Violation> {
        let place = || {
            let key = self.recorded.names.atom(key);
            let what = if is_scan { "a scan" } else { "a read" };
            format!("{what} of {key} by {}", self.name(txn))
        };
        let in_words = |value: Option<Name>| {
            value.map_or("nothing".to_owned(), |v| self.recorded.names.atom(v).to_string())
        };
        if let Some(Own::Row(written)) = own.get(&key) {
            if *written == value {
                return Ok(());
            }
            let (seen, written) = (in_words(value), in_words(*written));
            let story = format!("{} found {seen}, although it had left {written} there", place());
            return Err(self.violation("internal", story));
        }
        let saw = match value {
            None if self.blurred.contains(&key) => return Ok(()),
            None => ReadVersion::Nothing,
            Some(value) => {
                let author = self.author(key, value, &place)?;
                if author.txn == txn {
                    let seen = in_words(Some(value));
                    let story = format!("{} found {seen}, which it only wrote later", place());
                    return Err(self.violation("internal", story));
                }
                if !author.is_last {
                    let (seen, name) = (in_words(Some(value)), self.name(author.txn));
                    let story = format!("{} found {seen}, which {name} itself replaced", place());
                    return Err(self.violation("G1b", story));
                }
                let object = self.object(key).expect("the object has a committed writer");
                ReadVersion::Version(object.version_of(author.txn).expect("a writer has a version"))
            }
        };
        if let Some(&object) = self.object_of.get(&key) {
            found.push((object, ObjectRead { reader: txn, saw, is_predicate: is_scan }));
        }
        Ok(())
    }

    /// Returns the writer of a value that was read.
    ///
    /// # Errors
    /// If there is no writer or it aborted.
    pub fn author(
        &self,
        key: Name,
        value: Name,
        place: &dyn Fn() -> String,
    ) -> Result<Author, Violation> {
        let in_words = self.recorded.names.atom(value);
        let Some(author) = self.authors.get(&(key, value)) else {
            let story = format!("{in_words} is in {}, but no transaction wrote it", place());
            return Err(self.violation("garbage", story));
        };
        if self.recorded.txns[author.txn as usize].outcome == Outcome::Aborted {
            let name = self.name(author.txn);
            let story = format!("{in_words} is in {}; {name}, which aborted, wrote it", place());
            return Err(self.violation("G1a", story));
        }
        Ok(*author)
    }
}

/// A transaction's read of a list, without its own appends.
#[derive(Clone, Copy, Debug)]
pub struct ListRead<'a> {
    /// The reader.
    pub reader: u32,
    /// The list.
    pub key: Name,
    /// The values, without the reader's own at the end.
    pub seen: &'a [Name],
}

/// Returns the key that an operation changes, with its value, or `None` for a delete.
fn change(op: &Op) -> Option<(Name, Option<Name>)> {
    match op {
        Op::Append { key, value } | Op::Write { key, value } => Some((*key, Some(*value))),
        Op::Delete { key } => Some((*key, None)),
        Op::Read { .. } | Op::Scan { .. } => None,
    }
}

/// Visits every value that an operation returned, with its key.
fn each_seen(op: &Op, mut visit: impl FnMut(Name, Name)) {
    match op {
        Op::Read { key, seen: Seen::Value(value) } => visit(*key, *value),
        Op::Read { key, seen: Seen::List(values) } => {
            values.iter().for_each(|value| visit(*key, *value));
        }
        Op::Scan { rows, .. } => rows.iter().for_each(|(key, value)| visit(*key, *value)),
        _ => {}
    }
}
