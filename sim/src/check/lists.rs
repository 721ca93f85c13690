//! The order of versions of lists follows from reads (Kingsbury and Alvaro, "Elle", 2020).
//!
//! Every value is appended once, so each read of a list returns all earlier appends in their order.
//! The longest read of a list, or its final state if that was read, orders all appends that were
//! observed. The reads are checked for: duplicate values, reads that disagree (incompatible
//! orders), reads that end within a transaction (G1b), appends of one transaction that are not
//! adjacent (G0), own appends that a transaction did not see (internal), and acknowledged appends
//! that are missing in the final list (lost append).

use std::collections::BTreeMap;

use pangea_core::hash::HashSet;

use super::facts::{Author, Facts, ListRead, Own};
use super::model::Model;
use super::objects::{INITIAL, ObjectRead, ReadVersion};
use super::{Violation, explain};
use crate::record::{Class, Name, Op, Seen};

/// The reads of one list.
#[derive(Default)]
struct Reads<'a> {
    all: Vec<ListRead<'a>>,
    /// The longest read, or the final one.
    longest: Option<ListRead<'a>>,
    is_final: bool,
}

impl<'a> Facts<'a> {
    /// Analyses a read of a list, and removes the reader's own appends.
    pub fn list_read(
        &self,
        txn: u32,
        key: Name,
        seen: &'a Seen,
        own: Option<&Own>,
    ) -> Result<ListRead<'a>, Violation> {
        let values: &[Name] = match seen {
            Seen::List(values) => values,
            Seen::Nothing => &[],
            Seen::Value(_) => unreachable!("a list is not read as a register"),
        };
        let own: &[Name] = match own {
            Some(Own::List(own)) => own,
            Some(Own::Row(_)) => unreachable!("the key has one class"),
            None => &[],
        };
        let place = || self.list_place(txn, key);
        let in_words = |values: &[Name]| explain::values(self.recorded, values);
        let Some(seen) = values.strip_suffix(own) else {
            let (all, own) = (in_words(values), in_words(own));
            let story = format!("{} is {all}, without its own appends {own} at the end", place());
            return Err(self.violation("internal", story));
        };
        for &value in seen {
            let author = self.author(key, value, &place)?;
            if author.txn == txn {
                let value = self.recorded.names.atom(value);
                let all = in_words(values);
                let story =
                    format!("{} is {all}, with its own append {value} in another place", place());
                return Err(self.violation("internal", story));
            }
        }
        Ok(ListRead { reader: txn, key, seen })
    }

    fn list_place(&self, txn: u32, key: Name) -> String {
        let key = self.recorded.names.atom(key);
        if self.recorded.txns[txn as usize].is_final {
            return format!("the final list {key}");
        }
        format!("list {key} as {} read it", self.name(txn))
    }

    /// Orders the versions of lists by their reads.
    pub fn arrange_lists(
        &mut self,
        reads: Vec<ListRead<'a>>,
        model: Model,
    ) -> Result<(), Violation> {
        let mut by_list: BTreeMap<Name, Reads<'a>> = BTreeMap::new();
        for read in reads {
            let list = by_list.entry(read.key).or_default();
            list.all.push(read);
            let is_final = self.recorded.txns[read.reader as usize].is_final;
            let is_longer = list.longest.is_none_or(|known| read.seen.len() > known.seen.len());
            if is_final || (is_longer && !list.is_final) {
                list.longest = Some(read);
                list.is_final = is_final;
            }
        }
        for list in by_list.values() {
            self.check_longest(&list.longest.expect("each of these lists was read"))?;
        }
        self.check_kept(&by_list)?;
        for list in by_list.values() {
            let longest = list.longest.expect("each of these lists was read");
            list.all.iter().try_for_each(|read| self.check_prefix(read, &longest))?;
        }
        for at in 0..self.objects.len() {
            if self.objects[at].class == Class::List {
                let reads = by_list.get(&self.objects[at].key);
                self.arrange_list(at, reads.map_or(&[], |list| &list.all), reads, model);
            }
        }
        Ok(())
    }

    /// Checks that no value is in a list twice, and that the appends of one transaction are
    /// adjacent and in their order.
    fn check_longest(&self, read: &ListRead<'_>) -> Result<(), Violation> {
        let mut values = HashSet::default();
        let place = || self.list_place(read.reader, read.key);
        let key = self.recorded.names.atom(read.key);
        let mut open: Option<Author> = None;
        for value in read.seen {
            let next = self.authors[&(read.key, *value)];
            let name = self.name(next.txn);
            let in_words = self.recorded.names.atom(*value);
            if !values.insert(*value) {
                let story = format!("{in_words}, appended by {name}, is twice in {}", place());
                return Err(self.violation("duplicated append", story));
            }
            let story = match open {
                Some(before) if before.txn != next.txn => format!(
                    "{name} appended {in_words} to list {key} between two appends of {}",
                    self.name(before.txn)
                ),
                _ if open.map_or(0, |before| before.before + 1) != next.before => {
                    format!("{in_words} in list {key} is not in the order of {name}'s appends")
                }
                _ => {
                    open = Some(next).filter(|author| !author.is_last);
                    continue;
                }
            };
            return Err(self.violation("G0", story));
        }
        Ok(())
    }

    /// Checks that the final lists contain all appends of all transactions that took place.
    fn check_kept(&self, lists: &BTreeMap<Name, Reads<'a>>) -> Result<(), Violation> {
        let finals = || lists.values().filter(|list| list.is_final).filter_map(|list| list.longest);
        let ended: HashSet<Name> = finals().map(|read| read.key).collect();
        let kept: HashSet<(Name, Name)> =
            finals().flat_map(|read| read.seen.iter().map(move |v| (read.key, *v))).collect();
        for txn in self.present() {
            let found = &self.recorded.txns[txn as usize];
            for op in &found.ops {
                let Op::Append { key, value } = op else { continue };
                if !ended.contains(key) || kept.contains(&(*key, *value)) {
                    continue;
                }
                let names = &self.recorded.names;
                let story = format!(
                    "{} was {}, but its append of {} to list {} is lost",
                    self.name(txn),
                    explain::outcome(found.outcome),
                    names.atom(*value),
                    names.atom(*key)
                );
                return Err(self.violation("lost append", story));
            }
        }
        Ok(())
    }

    /// Checks that a read is a prefix of the longest one, and ends between two transactions.
    fn check_prefix(&self, read: &ListRead<'_>, longest: &ListRead<'_>) -> Result<(), Violation> {
        let ListRead { reader, key, seen } = *read;
        let place = self.list_place(reader, key);
        let in_words = |values: &[Name]| explain::values(self.recorded, values);
        if !longest.seen.starts_with(seen) {
            let other = self.list_place(longest.reader, key);
            let (seen, all) = (in_words(seen), in_words(longest.seen));
            let story = format!("{place} is {seen}, but {other} is {all}");
            return Err(self.violation("incompatible orders", story));
        }
        let last = seen.last().map(|value| self.authors[&(key, *value)]);
        if let Some(author) = last.filter(|author| !author.is_last) {
            let name = self.name(author.txn);
            let seen = in_words(seen);
            let story = format!("{place} is {seen}, which ends within the appends of {name}");
            return Err(self.violation("G1b", story));
        }
        Ok(())
    }

    fn arrange_list(
        &mut self,
        at: usize,
        reads: &[ListRead<'a>],
        list: Option<&Reads<'a>>,
        model: Model,
    ) {
        let (authors, txns) = (&self.authors, &self.recorded.txns);
        let object = &mut self.objects[at];
        let version = |object: &super::objects::Object, value: &Name| {
            let author = authors[&(object.key, *value)];
            object.version_of(author.txn).expect("a transaction that was read took effect")
        };
        let mut known = vec![INITIAL];
        let longest = list.and_then(|list| list.longest);
        known.extend(longest.iter().flat_map(|read| read.seen).map(|v| version(object, v)));
        known.dedup();
        for read in reads {
            let seen = read.seen.last().map_or(INITIAL, |value| version(object, value));
            let saw = ReadVersion::Version(seen);
            object.reads.push(ObjectRead { reader: read.reader, saw, is_predicate: false });
        }
        let end = *known.last().expect("the initial version comes first");
        let is_direct = |read: &ObjectRead| {
            let model = model.for_level(txns[read.reader as usize].level);
            model != Model::ReadCommitted && read.saw == ReadVersion::Version(end)
        };
        let fork = object.arrange(&known, is_direct);
        self.fork = self.fork.or(fork);
    }
}
