//! Certification: checks whether the reads of a certified transaction are still current.
//!
//! A deletion older than the version being written may be reclaimed on one replica and not yet on
//! another, so it must never influence the result. It counts as absent and has no known writer. It
//! also equals any deletion that was read as [`ReadVersion::LocalDeleted`], regardless of the
//! writer.

use std::ops::ControlFlow;

use crate::ids::{NodeId, TableId, TxnId};
use crate::key::{Key, KeyRange};
use crate::mutate;
use crate::store::Version;
use crate::txn::{Abort, ReadSet, ReadVersion, SqlState};

/// Longer keys are truncated in messages. In bytes.
const KEY_SHOWN_MAX: usize = 256;
/// Marks a truncated key in a message.
const CUT: &str = "...";

/// The state of a key as a reader would find it now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CurrentVersion {
    /// The read that would be recorded.
    pub seen: ReadVersion,
    /// The writer of that version, if a replica can be sure that all other replicas know it too.
    pub writer: Option<TxnId>,
    /// Whether local readers saw this version: the transaction that wrote it was not executed again
    /// since.
    pub is_as_executed: bool,
}

impl CurrentVersion {
    /// No row, and no known deletion.
    pub const ABSENT: Self = Self { seen: ReadVersion::Absent, writer: None, is_as_executed: true };

    /// The state given by a version of the store.
    pub fn of(found: &Version) -> Self {
        let is_live = found.value.is_some();
        Self {
            seen: if is_live { ReadVersion::At(found.version) } else { ReadVersion::Absent },
            writer: Some(found.header.writer()),
            is_as_executed: !found.header.is_flagged(),
        }
    }
}

/// A function that is called with a key and its state.
pub(super) type VisitState<'a> = dyn FnMut(&Key, CurrentVersion) -> ControlFlow<()> + 'a;

/// The database at the place in the order at which a transaction is checked.
pub(super) trait CurrentState {
    /// The state of a key.
    fn point(&self, table: TableId, key: &[u8]) -> CurrentVersion;
    /// Visits the state of each key of a range, in ascending order, until `visit` breaks. May
    /// include absent keys.
    fn range(&self, table: TableId, range: &KeyRange, visit: &mut VisitState<'_>);
}

/// A read that is no longer current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The table.
    pub table: TableId,
    /// The key of the row that was inserted, deleted or changed.
    pub key: Key,
    /// The transaction that changed it. `None` for a deleted row, because replicas may have
    /// reclaimed the deletion.
    pub winner: Option<TxnId>,
}

impl Change {
    /// The abort that reports this change to a client. [`Change::from_detail`] parses its detail.
    pub fn into_abort(self) -> Abort {
        let shown = &self.key[..self.key.len().min(KEY_SHOWN_MAX)];
        let cut = if self.key.len() > KEY_SHOWN_MAX { CUT } else { "" };
        let row = format!("Key \"{}{cut}\" of table {}", shown.escape_ascii(), self.table);
        let detail = match self.winner {
            Some(winner) => format!("{row} was changed by transaction {winner}."),
            None => format!("{row} was deleted."),
        };
        let message = "could not serialize access due to concurrent update";
        Abort::new(SqlState::SERIALIZATION_FAILURE, message)
            .with_detail(detail)
            .with_hint("The transaction might succeed if retried.")
    }

    /// Parses a change from an abort's detail, for callers that know the meaning of the key's
    /// bytes. Returns `None` if the detail reports something else. A truncated key yields its first
    /// bytes.
    pub fn from_detail(detail: &str) -> Option<Self> {
        let rest = detail.strip_prefix("Key \"")?;
        let (key, rest) = unescape(rest)?;
        let (table, rest) = rest.strip_prefix(" of table t")?.split_once(' ')?;
        let winner = match rest {
            "was deleted." => None,
            _ => {
                let winner = rest.strip_prefix("was changed by transaction ")?.strip_suffix('.')?;
                let (node, sequence) = winner.split_once('.')?;
                Some(TxnId::new(NodeId(node.parse().ok()?), sequence.parse().ok()?))
            }
        };
        let is_cut = key.len() > KEY_SHOWN_MAX;
        let key = if is_cut { &key[..KEY_SHOWN_MAX] } else { &key[..] };
        Some(Self { table: TableId(table.parse().ok()?), key: Key::from(key), winner })
    }
}

fn ascii(c: char) -> Option<u8> {
    u8::try_from(c).ok().filter(u8::is_ascii)
}

/// Decodes bytes that `escape_ascii` wrote, up to the closing quote. Returns them with the rest of
/// the text.
fn unescape(text: &str) -> Option<(Vec<u8>, &str)> {
    let mut bytes = Vec::new();
    let mut chars = text.chars();
    loop {
        let byte = match chars.next()? {
            '"' => return Some((bytes, chars.as_str())),
            '\\' => match chars.next()? {
                'x' => {
                    let digits = chars.as_str().get(..2)?;
                    chars = chars.as_str()[2..].chars();
                    u8::from_str_radix(digits, 16).ok()?
                }
                't' => b'\t',
                'r' => b'\r',
                'n' => b'\n',
                other => ascii(other)?,
            },
            other => ascii(other)?,
        };
        bytes.push(byte);
    }
}

/// The first read that is not current; points are checked before ranges.
pub(super) fn first_change(reads: &ReadSet, now: &dyn CurrentState) -> Option<Change> {
    let stale_point = reads.points.iter().find_map(|read| {
        let standing = now.point(read.table, &read.key);
        let is_current = is_same(read.seen, standing);
        (!is_current).then(|| Change {
            table: read.table,
            key: read.key.clone(),
            winner: standing.writer,
        })
    });
    mutate!(CertifiedPointsOnly: () => return stale_point);
    stale_point.or_else(|| {
        reads.ranges.iter().find_map(|read| {
            let mut rows = RowChanges::new(&read.rows);
            now.range(read.table, &read.range, &mut |key, standing| rows.visit(key, standing));
            let (key, winner) = rows.first()?;
            Some(Change { table: read.table, key, winner })
        })
    })
}

/// Finds the first key that differs between two reads of one range. Nothing after it is read, where
/// others may have inserted many rows.
struct RowChanges<'a> {
    then: std::iter::Peekable<std::slice::Iter<'a, (Key, ReadVersion)>>,
    first: Option<(Key, Option<TxnId>)>,
}

impl<'a> RowChanges<'a> {
    fn new(then: &'a [(Key, ReadVersion)]) -> Self {
        Self { then: then.iter().peekable(), first: None }
    }

    fn visit(&mut self, key: &Key, standing: CurrentVersion) -> ControlFlow<()> {
        if let Some((gone, _)) = self.then.next_if(|(seen_key, _)| seen_key < key) {
            self.first = Some((gone.clone(), None));
            return ControlFlow::Break(());
        }
        let same = self.then.next_if(|(seen_key, _)| seen_key == key);
        let seen = same.map_or(ReadVersion::Absent, |row| row.1);
        if is_same(seen, standing) {
            return ControlFlow::Continue(());
        }
        self.first = Some((key.clone(), standing.writer));
        ControlFlow::Break(())
    }

    fn first(mut self) -> Option<(Key, Option<TxnId>)> {
        let gone = |(gone, _): &(Key, ReadVersion)| (gone.clone(), None);
        self.first.or_else(|| self.then.next().map(gone))
    }
}

fn is_same(then: ReadVersion, standing: CurrentVersion) -> bool {
    match then {
        ReadVersion::Absent | ReadVersion::At(_) => standing.seen == then,
        ReadVersion::Present => {
            !matches!(standing.seen, ReadVersion::Absent | ReadVersion::LocalDeleted(_))
        }
        // Only clients of the native protocol could read so. Sessions of SQL read snapshots.
        ReadVersion::Local(txn) => standing.writer == Some(txn) && standing.is_as_executed,
        ReadVersion::LocalDeleted(_) => {
            standing.seen == then || standing.seen == ReadVersion::Absent
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SnapshotVersion;

    fn first_row_change(
        then: &[(Key, ReadVersion)],
        found: &[(Key, CurrentVersion)],
    ) -> Option<(Key, Option<TxnId>)> {
        let mut rows = RowChanges::new(then);
        let mut found = found.iter();
        while let Some((key, standing)) = found.next()
            && rows.visit(key, *standing).is_continue()
        {}
        rows.first()
    }

    #[test]
    fn an_abort_names_the_table_the_key_and_the_winner() {
        let key = Key::from(&b"\x80\x00abc"[..]);
        let winner = Some(TxnId::new(NodeId(2), 9));
        let abort = Change { table: TableId(4), key: key.clone(), winner }.into_abort();
        assert_eq!(abort.code.as_str(), "40001");
        let detail = "Key \"\\x80\\x00abc\" of table t4 was changed by transaction 2.9.";
        assert_eq!(abort.detail.as_deref(), Some(detail));
        let abort = Change { table: TableId(4), key, winner: None }.into_abort();
        assert!(abort.detail.is_some_and(|detail| detail.ends_with("was deleted.")));
    }

    #[test]
    fn what_an_abort_tells_of_can_be_read_again() {
        let all: Vec<u8> = (0..=255).collect();
        let winners = [None, Some(TxnId::new(NodeId(2), 9))];
        for key in [&b""[..], b"a\"b\\x41", &all, b"..."] {
            for winner in winners {
                let change = Change { table: TableId(1_004), key: Key::from(key), winner };
                let detail = change.clone().into_abort().detail.unwrap();
                assert_eq!(Change::from_detail(&detail), Some(change), "{detail}");
                for len in 0..detail.len() {
                    assert_eq!(Change::from_detail(&detail[..len]), None, "truncated to {len}");
                }
            }
        }
        let long = vec![7; KEY_SHOWN_MAX + 1];
        let change = Change { table: TableId(4), key: Key::from(&long[..]), winner: None };
        let change = Change::from_detail(&change.into_abort().detail.unwrap()).unwrap();
        assert_eq!(change.key.as_bytes(), &long[..KEY_SHOWN_MAX]);
        assert_eq!(Change::from_detail("Key \"é\" of table t1 was deleted."), None);
    }

    #[test]
    fn rows_that_came_went_or_changed_are_each_noticed() {
        let at = |version| ReadVersion::At(SnapshotVersion(version));
        let key = |k: u8| Key::from(&[k][..]);
        let standing = |seen| CurrentVersion {
            seen,
            writer: Some(TxnId::new(NodeId(0), 1)),
            is_as_executed: true,
        };
        let then = [(key(1), at(1)), (key(3), at(1))];
        let first = |found: &[(u8, ReadVersion)]| {
            let found: Vec<_> = found.iter().map(|&(k, seen)| (key(k), standing(seen))).collect();
            first_row_change(&then, &found).map(|(key, winner)| (key[0], winner.is_some()))
        };
        assert_eq!(first(&[(1, at(1)), (3, at(1))]), None);
        assert_eq!(first(&[(1, at(1)), (2, ReadVersion::Absent), (3, at(1))]), None);
        assert_eq!(
            first(&[(1, at(1)), (2, at(1)), (3, at(1))]),
            Some((2, true)),
            "was ordered in between"
        );
        assert_eq!(
            first(&[(1, at(1)), (3, at(1)), (4, at(1))]),
            Some((4, true)),
            "was ordered after"
        );
        assert_eq!(first(&[(3, at(1))]), Some((1, false)), "was ordered before");
        assert_eq!(first(&[(1, at(1))]), Some((3, false)), "was ordered after");
        assert_eq!(first(&[(1, at(1)), (3, ReadVersion::Absent)]), Some((3, true)), "deleted");
        assert_eq!(first(&[(1, at(1)), (3, at(2))]), Some((3, true)), "changed");
        let own = [(key(1), ReadVersion::Local(TxnId::new(NodeId(0), 1)))];
        assert_eq!(first_row_change(&own, &[(key(1), standing(at(5)))]), None);
        let again = CurrentVersion { is_as_executed: false, ..standing(at(5)) };
        assert!(first_row_change(&own, &[(key(1), again)]).is_some(), "was re-executed");
    }
}
