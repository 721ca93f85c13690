//! The versions of one key.

use std::collections::VecDeque;

use super::{Header, Version};
use crate::ids::SnapshotVersion;

/// One or more versions of a key. The newest is held in place, because most keys have no other.
#[derive(Debug)]
pub(super) struct Chain<H> {
    newest: Version<H>,
    older: Option<Box<Older<H>>>,
}

/// Versions before the newest. Most often there is only one, which then needs one allocation.
#[derive(Debug)]
struct Older<H> {
    newest: Version<H>,
    /// Oldest first: they go from there.
    rest: VecDeque<Version<H>>,
}

/// What [`Chain::push`] did with what was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// The newest version became an older one.
    Superseded,
    /// The newest version had the same number, and its value of this many bytes is gone.
    Replaced { value_bytes: usize },
}

/// What [`Chain::truncate`] took away, so that the caller can free it where nobody waits.
#[derive(Debug)]
pub(super) struct Truncated<H> {
    /// Every version but the newest, if all of them went.
    all: Option<Box<Older<H>>>,
    /// The oldest versions, if others were kept.
    oldest: Vec<Version<H>>,
}

impl<H: Header> Truncated<H> {
    fn versions(&self) -> impl Iterator<Item = &Version<H>> {
        let all = self.all.iter().flat_map(|older| older.rest.iter().chain([&older.newest]));
        all.chain(&self.oldest)
    }

    /// How many versions went.
    pub(super) fn len(&self) -> usize {
        self.versions().count()
    }

    /// An estimate of the memory that they took.
    pub(super) fn bytes(&self) -> usize {
        self.versions().map(Version::older_bytes).sum()
    }
}

impl<H: Header> Chain<H> {
    pub(super) fn new(first: Version<H>) -> Self {
        Self { newest: first, older: None }
    }

    /// The newest version of all.
    pub(super) fn newest(&self) -> &Version<H> {
        &self.newest
    }

    /// The newest version but one.
    pub(super) fn older(&self) -> Option<&Version<H>> {
        self.older.as_ref().map(|older| &older.newest)
    }

    /// The newest version that a reader at `at` sees.
    pub(super) fn visible(&self, at: SnapshotVersion) -> Option<&Version<H>> {
        if self.newest.version <= at {
            return Some(&self.newest);
        }
        let older = self.older.as_deref()?;
        if older.newest.version <= at {
            return Some(&older.newest);
        }
        let seen = older.rest.partition_point(|version| version.version <= at);
        older.rest.get(seen.checked_sub(1)?)
    }

    /// Adds a version, which replaces the newest if it has the same number.
    pub(super) fn push(&mut self, version: Version<H>) -> Pushed {
        let newest = self.newest.version;
        assert!(newest <= version.version, "{newest} was written before {}", version.version);
        let before = std::mem::replace(&mut self.newest, version);
        if before.version == self.newest.version {
            return Pushed::Replaced { value_bytes: before.value_bytes() };
        }
        match &mut self.older {
            Some(older) => older.rest.push_back(std::mem::replace(&mut older.newest, before)),
            None => self.older = Some(Box::new(Older { newest: before, rest: VecDeque::new() })),
        }
        Pushed::Superseded
    }

    /// Takes away the versions that no reader at `floor` or later sees.
    pub(super) fn truncate(&mut self, floor: SnapshotVersion) -> Truncated<H> {
        if self.newest.version <= floor {
            return Truncated { all: self.older.take(), oldest: Vec::new() };
        }
        let Some(older) = self.older.as_deref_mut() else {
            return Truncated { all: None, oldest: Vec::new() };
        };
        let gone = if older.newest.version <= floor {
            older.rest.len()
        } else {
            older.rest.partition_point(|version| version.version <= floor).saturating_sub(1)
        };
        Truncated { all: None, oldest: older.rest.drain(..gone).collect() }
    }

    /// Whether all that is left is a deletion that every reader at `floor` or later sees.
    pub(super) fn is_gone(&self, floor: SnapshotVersion) -> bool {
        self.older.is_none() && self.newest.value.is_none() && self.newest.version <= floor
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TestHeader, version};
    use super::*;

    fn chain(versions: &[u64]) -> Chain<TestHeader> {
        let mut chain = Chain::new(version(versions[0], Some(b"v")));
        for &number in &versions[1..] {
            assert_eq!(chain.push(version(number, Some(b"v"))), Pushed::Superseded);
        }
        chain
    }

    #[test]
    fn a_reader_sees_the_newest_version_that_is_not_after_it() {
        let chain = chain(&[2, 5, 9]);
        let sees = |at| chain.visible(SnapshotVersion(at)).map(|version| version.version.0);
        for (at, version) in [(1, None), (2, Some(2)), (4, Some(2)), (5, Some(5)), (9, Some(9))] {
            assert_eq!(sees(at), version, "at {at}");
        }
        assert_eq!(sees(u64::MAX), Some(9));
    }

    #[test]
    fn truncation_keeps_what_a_reader_at_the_floor_sees() {
        for (floor, gone) in [(1, 0), (2, 0), (4, 0), (5, 1), (8, 1), (9, 2), (10, 2)] {
            let mut chain = chain(&[2, 5, 9]);
            let before = chain.visible(SnapshotVersion(floor)).cloned();
            assert_eq!(chain.truncate(SnapshotVersion(floor)).len(), gone, "floor {floor}");
            assert_eq!(chain.visible(SnapshotVersion(floor)).cloned(), before);
        }
    }

    #[test]
    #[should_panic(expected = "v9 was written before v8")]
    fn a_version_before_the_newest_is_a_bug() {
        chain(&[9]).push(version(8, None));
    }
}
