//! The version chain of one key.

use std::collections::VecDeque;

use super::Version;
use super::zigzag::NeededVersions;
use crate::ids::SnapshotVersion;
use crate::value::Value;

/// One or more versions of a key. The newest is stored inline, because most keys have no other.
#[derive(Debug)]
pub(super) struct Chain {
    newest: Version,
    older: Option<Box<Older>>,
}

/// The versions before the newest. Usually there is only one, which then needs one allocation.
#[derive(Debug)]
struct Older {
    newest: Version,
    /// Oldest first: versions are removed from the front.
    rest: VecDeque<Version>,
}

/// The effect of [`Chain::push`] on the existing versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushOutcome {
    /// The newest version became an older one.
    Superseded,
    /// The newest version became an older one and replaced others, which took this many bytes.
    Overwrote { bytes: usize },
}

/// The versions that [`Chain::truncate`] removed, so that the caller can free them outside of the
/// lock.
#[derive(Debug)]
pub(super) struct Truncated {
    /// All versions except the newest, if all of them were removed.
    all: Option<Box<Older>>,
    /// The oldest versions, if others were retained.
    oldest: Vec<Version>,
}

/// The version that [`Chain::expunge`] found.
#[derive(Debug)]
pub(super) enum Expunged {
    /// The only version.
    Only(Version),
    /// The newest of several.
    Newest(Version),
    /// One of those before the newest.
    Older(Version),
}

impl Expunged {
    pub(super) fn version(&self) -> &Version {
        match self {
            Self::Only(version) | Self::Newest(version) | Self::Older(version) => version,
        }
    }
}

impl Truncated {
    fn versions(&self) -> impl Iterator<Item = &Version> {
        let all = self.all.iter().flat_map(|older| older.rest.iter().chain([&older.newest]));
        all.chain(&self.oldest)
    }

    /// The number of removed versions.
    pub(super) fn len(&self) -> usize {
        self.oldest.len() + self.all.as_ref().map_or(0, |older| older.rest.len() + 1)
    }

    /// The removed versions of which the cold store has a copy.
    pub(super) fn copied(&self) -> impl Iterator<Item = SnapshotVersion> {
        self.versions().filter(|it| it.has_copy()).map(|it| it.version)
    }

    /// An estimate of the memory that the removed versions took.
    pub(super) fn bytes(&self) -> usize {
        let all = self.all.as_ref().map_or(0, |older| {
            older.newest.older_bytes() + older.rest.iter().map(Version::older_bytes).sum::<usize>()
        });
        all + self.oldest.iter().map(Version::older_bytes).sum::<usize>()
    }
}

impl Chain {
    pub(super) fn new(first: Version) -> Self {
        Self { newest: first, older: None }
    }

    /// The newest version.
    pub(super) fn newest(&self) -> &Version {
        &self.newest
    }

    /// The second newest version.
    pub(super) fn older(&self) -> Option<&Version> {
        self.older.as_ref().map(|older| &older.newest)
    }

    /// The newest version that a reader at `at` sees.
    pub(super) fn visible(&self, at: SnapshotVersion) -> Option<&Version> {
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

    /// The version with this number.
    pub(super) fn version(&self, number: SnapshotVersion) -> Option<&Version> {
        self.visible(number).filter(|found| found.version == number)
    }

    /// Replaces the value of the newest version by another value or a placeholder.
    pub(super) fn replace_value(&mut self, value: Value) {
        assert!(self.newest.value.is_some(), "a deletion has no value");
        self.newest.value = Some(value);
    }

    /// Replaces the newest version by another one of the same number, and returns the replaced one.
    pub(super) fn replace(&mut self, version: Version) -> Version {
        assert_eq!(
            self.newest.version, version.version,
            "a version is replaced by one of the same number"
        );
        std::mem::replace(&mut self.newest, version)
    }

    /// Removes the newest version, so that the version before it becomes the newest. Returns `None`
    /// if there is no other.
    pub(super) fn pop(&mut self) -> Option<Version> {
        let mut older = self.older.take()?;
        let before = match older.rest.pop_back() {
            Some(next) => {
                let before = std::mem::replace(&mut older.newest, next);
                self.older = Some(older);
                before
            }
            None => older.newest,
        };
        Some(std::mem::replace(&mut self.newest, before))
    }

    /// Adds a version.
    #[expect(clippy::inline_always, reason = "a call would copy the version again")]
    #[inline(always)]
    pub(super) fn push(&mut self, version: Version) -> PushOutcome {
        let newest = self.newest.version;
        assert!(newest < version.version, "{newest} was written before {}", version.version);
        let before = std::mem::replace(&mut self.newest, version);
        match &mut self.older {
            Some(older) => older.rest.push_back(std::mem::replace(&mut older.newest, before)),
            None => self.older = Some(Box::new(Older { newest: before, rest: VecDeque::new() })),
        }
        PushOutcome::Superseded
    }

    /// Adds a version as [`Chain::push`] does, and removes versions that are not needed. Appends
    /// the removed ones of which the cold store has a copy to `copied`.
    #[inline(never)]
    pub(super) fn overwrite(
        &mut self,
        version: Version,
        needed: NeededVersions,
        copied: &mut Vec<SnapshotVersion>,
    ) -> PushOutcome {
        let before = self.newest.version;
        if before > needed.floor {
            return self.push(version);
        }
        let Some(older) = self.older.as_deref_mut() else { return self.push(version) };
        assert!(before < version.version, "{before} was written before {}", version.version);
        let newest = std::mem::replace(&mut self.newest, version);
        older.rest.push_back(std::mem::replace(&mut older.newest, newest));
        // Among all these, at most one is needed, by a reader at the point.
        let seen = match needed.point {
            Some(point) if before > point => {
                older.rest.partition_point(|version| version.version <= point)
            }
            _ => 0,
        };
        let stays = seen.checked_sub(1);
        let mut bytes = 0;
        let (mut at, rest) = (0, &mut older.rest);
        rest.retain(|version| {
            let is_needed = Some(at) == stays;
            at += 1;
            if !is_needed {
                bytes += version.older_bytes();
                copied.extend(version.has_copy().then_some(version.version));
            }
            is_needed
        });
        PushOutcome::Overwrote { bytes }
    }

    /// Whether there are more versions than the newest, the one before it, and one retained for the
    /// point.
    pub(super) fn has_more(&self, needed: NeededVersions) -> bool {
        let Some(older) = self.older.as_deref() else { return false };
        let of_point = |version: &Version| Some(version.version) <= needed.point;
        older.rest.len() > usize::from(older.rest.front().is_some_and(of_point))
    }

    /// Removes the versions that no reader sees, neither at the floor or later nor at the point.
    pub(super) fn truncate(&mut self, needed: NeededVersions) -> Truncated {
        match needed.point {
            Some(point) if self.newest.version > point => self.truncate_around(needed.floor, point),
            _ => self.truncate_to(needed.floor),
        }
    }

    fn truncate_around(&mut self, floor: SnapshotVersion, point: SnapshotVersion) -> Truncated {
        let Some(older) = self.older.take() else {
            return Truncated { all: None, oldest: Vec::new() };
        };
        let Older { newest, rest } = *older;
        let mut needed = VecDeque::new();
        let mut oldest = Vec::new();
        let mut next = self.newest.version;
        // Newest first: a version is visible until the next one.
        for version in std::iter::once(newest).chain(rest.into_iter().rev()) {
            let number = version.version;
            let is_seen = next > floor || (number <= point && next > point);
            if is_seen {
                needed.push_front(version)
            } else {
                oldest.push(version)
            }
            next = number;
        }
        self.older = needed.pop_back().map(|newest| Box::new(Older { newest, rest: needed }));
        Truncated { all: None, oldest }
    }

    fn truncate_to(&mut self, floor: SnapshotVersion) -> Truncated {
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

    /// Removes the versions after this one. Returns an estimate of their memory and those of which
    /// the cold store has a copy. If no other version exists, the oldest of them stays, and the
    /// caller must remove it.
    pub(super) fn retreat_to(&mut self, version: SnapshotVersion) -> (usize, Vec<SnapshotVersion>) {
        let (mut bytes, mut copied) = (0, Vec::new());
        while self.newest.version > version {
            if self.newest.has_copy() {
                copied.push(self.newest.version);
            }
            let Some(popped) = self.pop() else {
                return (bytes + self.newest.value_bytes(), copied);
            };
            bytes += popped.older_bytes();
        }
        (bytes, copied)
    }

    /// Removes the version with this number, wherever it is. `None` if there is none. If it is the
    /// only version, it stays, and the caller must remove the row.
    pub(super) fn expunge(&mut self, number: SnapshotVersion) -> Option<Expunged> {
        if self.newest.version == number {
            return Some(match self.pop() {
                Some(newest) => Expunged::Newest(newest),
                None => Expunged::Only(self.newest.clone()),
            });
        }
        let mut older = self.older.take()?;
        if older.newest.version == number {
            let removed = match older.rest.pop_back() {
                Some(next) => {
                    let removed = std::mem::replace(&mut older.newest, next);
                    self.older = Some(older);
                    removed
                }
                None => older.newest,
            };
            return Some(Expunged::Older(removed));
        }
        let found = older.rest.binary_search_by_key(&number, |version| version.version);
        let removed = found.ok().and_then(|place| older.rest.remove(place));
        self.older = Some(older);
        removed.map(Expunged::Older)
    }

    /// Whether the only version is a deletion that every reader at `floor` or later sees.
    pub(super) fn is_gone(&self, floor: SnapshotVersion) -> bool {
        self.older.is_none() && self.newest.value.is_none() && self.newest.version <= floor
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::version;
    use super::*;

    fn chain(versions: &[u64]) -> Chain {
        let mut chain = Chain::new(version(versions[0], Some(b"v")));
        for &number in &versions[1..] {
            assert_eq!(chain.push(version(number, Some(b"v"))), PushOutcome::Superseded);
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
            let needed = NeededVersions { floor: SnapshotVersion(floor), point: None };
            assert_eq!(chain.truncate(needed).len(), gone, "floor {floor}");
            assert_eq!(chain.visible(SnapshotVersion(floor)).cloned(), before);
        }
    }

    #[test]
    fn an_overwritten_chain_has_two_versions_and_one_for_the_point() {
        let numbers = |chain: &Chain| -> Vec<u64> {
            let seen = (0..=20).filter_map(|at| chain.visible(SnapshotVersion(at)));
            let mut all: Vec<u64> = seen.map(|version| version.version.0).collect();
            all.dedup();
            all
        };
        let needed = |floor, point: Option<u64>| NeededVersions {
            floor: SnapshotVersion(floor),
            point: point.map(SnapshotVersion),
        };
        let put = |chain: &mut Chain, number, needed| {
            chain.overwrite(version(number, Some(b"v")), needed, &mut Vec::new())
        };
        let mut chain = chain(&[2]);
        assert_eq!(put(&mut chain, 3, needed(2, None)), PushOutcome::Superseded);
        assert!(matches!(put(&mut chain, 4, needed(3, None)), PushOutcome::Overwrote { .. }));
        assert_eq!(numbers(&chain), [3, 4]);
        // A reader has pinned version 3.
        assert_eq!(put(&mut chain, 5, needed(3, None)), PushOutcome::Superseded);
        assert_eq!(numbers(&chain), [3, 4, 5]);
        assert!(chain.has_more(needed(3, None)));
        // The reader has ended, and 5 is a point.
        for number in 6..10 {
            put(&mut chain, number, needed(number - 1, Some(5)));
            assert!(!chain.has_more(needed(number - 1, Some(5))));
        }
        assert_eq!(numbers(&chain), [5, 8, 9]);
        assert_eq!(chain.truncate(needed(9, Some(5))).len(), 1);
        assert_eq!(numbers(&chain), [5, 9]);
        assert_eq!(chain.truncate(needed(9, None)).len(), 1);
        assert_eq!(numbers(&chain), [9]);
    }

    proptest::proptest! {
        /// For all writes, floors and points: readers at a floor or later, and at the point, keep
        /// seeing the same versions.
        #[test]
        fn what_is_kept_is_seen(
            steps in proptest::collection::vec((1_u64..4, 0_u64..6, 0_u64..9, 0_u8..3), 1..40)
        ) {
            let mut all = vec![1];
            let mut chain = chain(&[1]);
            let (mut floor, mut point) = (1, None);
            for (further, up, place, what) in steps {
                let last = *all.last().unwrap();
                floor = (floor + up).min(last);
                if what == 2 {
                    // A point is at or above the floor when it is chosen, and does not move.
                    point = match point {
                        None => Some(floor + place % (last - floor + 1)),
                        Some(_) => None,
                    };
                }
                let needed = NeededVersions {
                    floor: SnapshotVersion(floor),
                    point: point.map(SnapshotVersion),
                };
                if what == 0 {
                    chain.truncate(needed);
                } else {
                    all.push(last + further);
                    let version = version(last + further, Some(b"v"));
                    chain.overwrite(version, needed, &mut Vec::new());
                }
                for at in (floor..=last + further).chain(point) {
                    let seen = chain.visible(SnapshotVersion(at)).map(|it| it.version.0);
                    let expected = all.iter().rev().find(|number| **number <= at).copied();
                    proptest::prop_assert_eq!(seen, expected, "at {}", at);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "v9 was written before v8")]
    fn a_version_before_the_newest_is_a_bug() {
        chain(&[9]).push(version(8, None));
    }
}
