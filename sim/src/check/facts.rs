//! What a history says for certain: who gave which value, who took place, who read which version.
//!
//! Each read is taken apart on its own here, which finds what needs no cycle: values that nobody
//! gave, or one that aborted did (G1a), or that were given and replaced by one transaction (G1b),
//! and transactions that did not see what they had themselves written (internal).
//!
//! One whose outcome is unknown took place if one that took place saw what it gave. Else it may as
//! well not have: that never explains less, but where it deleted rows. For those there is
//! [`Assumed`].

use std::collections::BTreeMap;

use pangea_core::hash::{HashMap, HashSet};

use super::model::Model;
use super::objects::{Fork, Object, ObjectRead, Saw, Version};
use super::{Violation, explain};
use crate::record::{Class, Name, Op, Outcome, Recorded, Seen};

/// Who gave a value to a key.
#[derive(Clone, Copy, Debug)]
pub struct Author {
    /// The transaction.
    pub txn: u32,
    /// How often it had changed the key before.
    pub before: u32,
    /// Whether it did not change the key again.
    pub is_last: bool,
}

/// What a history says.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The history.
    pub recorded: &'a Recorded,
    /// The checker that stories come from.
    pub checker: &'static str,
    /// Who gave which value to which key.
    pub authors: HashMap<(Name, Name), Author>,
    /// Whether each transaction took place.
    pub is_present: Vec<bool>,
    /// All keys that were changed.
    pub objects: Vec<Object>,
    /// Two that replaced one version, if there are such and the model has an opinion on them.
    pub fork: Option<Fork>,
    object_of: HashMap<Name, u32>,
    /// The keys of which finding nothing says nothing.
    blurred: HashSet<Name>,
}

/// What is taken for granted of transactions that deleted, and of which nobody knows whether they
/// took place: a delete leaves no value by which it could be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumed<'s> {
    /// These took place and no others.
    Present(&'s [u32]),
    /// Nothing, so that finding nothing where they deleted says nothing. What is wrong even then is
    /// wrong in any case.
    Nothing,
}

/// What a transaction has itself made of a key so far.
pub enum Own {
    /// Values that it appended.
    List(Vec<Name>),
    /// The value that it wrote, or none where it deleted.
    Row(Option<Name>),
}

impl<'a> Facts<'a> {
    /// Who gave which value, and who took place.
    pub fn new(recorded: &'a Recorded, checker: &'static str, assumed: Assumed<'_>) -> Self {
        let mut facts = Self {
            recorded,
            checker,
            authors: HashMap::default(),
            is_present: Vec::new(),
            objects: Vec::new(),
            fork: None,
            object_of: HashMap::default(),
            blurred: HashSet::default(),
        };
        facts.find_authors();
        match assumed {
            Assumed::Present(chosen) => facts.find_present(chosen),
            Assumed::Nothing => {
                facts.find_present(&[]);
                facts.blurred = (facts.deleters().iter())
                    .flat_map(|txn| &recorded.txns[*txn as usize].ops)
                    .filter_map(|op| change(op).map(|(key, _)| key))
                    .collect();
            }
        }
        facts
    }

    /// Takes all reads apart, and puts versions into an order as far as it is known.
    ///
    /// # Errors
    /// The first anomaly that a single read shows.
    pub fn arrange(&mut self, model: Model) -> Result<(), Violation> {
        self.find_versions();
        let lists = self.take_reads()?;
        self.arrange_lists(lists, model)?;
        self.arrange_registers(model)
    }

    /// A violation that this checker found.
    pub fn violation(&self, anomaly: &'static str, story: String) -> Violation {
        Violation::new(self.checker, anomaly, story)
    }

    /// A transaction in words.
    pub fn name(&self, txn: u32) -> String {
        explain::txn(self.recorded, txn)
    }

    /// The object of a key, if anybody changed it.
    pub fn object(&self, key: Name) -> Option<&Object> {
        self.object_of.get(&key).map(|at| &self.objects[*at as usize])
    }

    /// What a key is. One that nobody changed is a register.
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
                    assert!(other.is_none(), "T{}: a value is given twice", txn.id);
                }
                *count += 1;
                *last = value;
            }
            for (key, (_, value)) in changed {
                let Some(value) = value else { continue };
                let author = self.authors.get_mut(&(key, value)).expect("just inserted");
                author.is_last = true;
            }
        }
    }

    /// Transactions that deleted, of which nobody knows whether they took place.
    pub fn deleters(&self) -> Vec<u32> {
        let deletes = |txn: &u32| {
            let ops = &self.recorded.txns[*txn as usize].ops;
            ops.iter().any(|op| matches!(op, Op::Delete { .. }))
        };
        let is_open = |txn: &u32| {
            let outcome = self.recorded.txns[*txn as usize].outcome;
            outcome == Outcome::Unknown && !self.is_present[*txn as usize]
        };
        (0..self.recorded.txns.len() as u32).filter(is_open).filter(deletes).collect()
    }

    fn find_present(&mut self, chosen: &[u32]) {
        let txns = &self.recorded.txns;
        self.is_present = txns.iter().map(|txn| txn.outcome == Outcome::Committed).collect();
        chosen.iter().for_each(|txn| self.is_present[*txn as usize] = true);
        let all = 0..txns.len() as u32;
        let mut reached: Vec<u32> = all.filter(|txn| self.is_present[*txn as usize]).collect();
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

    /// The transactions that took place.
    pub fn present(&self) -> impl Iterator<Item = u32> {
        let all = 0..self.recorded.txns.len() as u32;
        all.filter(|txn| self.is_present[*txn as usize])
    }

    fn find_versions(&mut self) {
        let (mut objects, mut object_of) = (Vec::new(), HashMap::default());
        for txn in self.present() {
            for op in &self.recorded.txns[txn as usize].ops {
                let Some((key, value)) = change(op) else { continue };
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

    /// Takes each read apart. Registers' reads become their objects', lists' are returned.
    fn take_reads(&mut self) -> Result<Vec<ListRead<'a>>, Violation> {
        let recorded = self.recorded;
        let keys = self.rows_in_order();
        let (mut lists, mut found) = (Vec::new(), Vec::new());
        // The final state first: what is wrong with it, others have only seen.
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
                            Own::Row(_) => unreachable!("a key is of one class"),
                        }
                    }
                    Op::Write { key, value } => drop(own.insert(*key, Own::Row(Some(*value)))),
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

    /// Notes what a read of a register or row saw of others.
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
            let story = format!("{} found {seen}, and it had itself left {written}", place());
            return Err(self.violation("internal", story));
        }
        let saw = match value {
            None if self.blurred.contains(&key) => return Ok(()),
            None => Saw::Nothing,
            Some(value) => {
                let author = self.author(key, value, &place)?;
                if author.txn == txn {
                    let seen = in_words(Some(value));
                    let story = format!("{} found {seen}, which it wrote only later", place());
                    return Err(self.violation("internal", story));
                }
                if !author.is_last {
                    let (seen, name) = (in_words(Some(value)), self.name(author.txn));
                    let story = format!("{} found {seen}, which {name} replaced itself", place());
                    return Err(self.violation("G1b", story));
                }
                let object = self.object(key).expect("it has a writer that took place");
                Saw::Version(object.version_of(author.txn).expect("a writer has a version"))
            }
        };
        if let Some(&object) = self.object_of.get(&key) {
            found.push((object, ObjectRead { reader: txn, saw, is_predicate: is_scan }));
        }
        Ok(())
    }

    /// Who gave a value that was read, if that is a transaction that may have committed.
    pub fn author(
        &self,
        key: Name,
        value: Name,
        place: &dyn Fn() -> String,
    ) -> Result<Author, Violation> {
        let in_words = self.recorded.names.atom(value);
        let Some(author) = self.authors.get(&(key, value)) else {
            let story = format!("{in_words} is in {}, and nobody put it there", place());
            return Err(self.violation("garbage", story));
        };
        if self.recorded.txns[author.txn as usize].outcome == Outcome::Aborted {
            let name = self.name(author.txn);
            let story =
                format!("{in_words} is in {}; {name}, which aborted, put it there", place());
            return Err(self.violation("G1a", story));
        }
        Ok(*author)
    }
}

/// What a transaction saw of a list that others had appended.
#[derive(Clone, Copy, Debug)]
pub struct ListRead<'a> {
    /// Who read.
    pub reader: u32,
    /// Which list.
    pub key: Name,
    /// The values without its own at the end.
    pub seen: &'a [Name],
}

/// What an operation makes of a key: a value, or nothing where it deletes.
fn change(op: &Op) -> Option<(Name, Option<Name>)> {
    match op {
        Op::Append { key, value } | Op::Write { key, value } => Some((*key, Some(*value))),
        Op::Delete { key } => Some((*key, None)),
        Op::Read { .. } | Op::Scan { .. } => None,
    }
}

/// Every value that an operation returned, with its key.
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
