//! Rows for which transactions compete.
//!
//! Only one optimistic transaction that checks a row commits in the time from its snapshot to the
//! merge. A program that would check a row at which others have just lost is therefore run by every
//! replica at once, in order, and not only after it has lost itself. If it has declared its
//! footprint, its source need not run it to find out.
//!
//! A row is hot for a second after a loss. If another loss follows soon after that time, it is hot
//! for twice as long.

use pangea_core::hash::HashMap;
use pangea_core::ids::TableId;
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::{Footprint, LockMode};

use super::deletions::hash_row;
use super::isolation::Checks;

/// How long a row is hot after its first loss.
const SHORTEST: Span = Span::from_ms(1_000);

/// The longest time for which a row is hot after a loss.
const LONGEST: Span = Span::from_ms(32_000);

/// The hot rows of a replica. A row is known by its hash: another one with the same hash is hot,
/// too, which costs nothing but time.
#[derive(Debug, Default)]
pub(super) struct HotRows {
    rows: HashMap<u64, Heat>,
}

#[derive(Clone, Copy, Debug)]
struct Heat {
    until: Timestamp,
    length: Span,
}

impl HotRows {
    /// A transaction has lost at this row.
    pub(super) fn note_loss(&mut self, table: TableId, key: &[u8], now: Timestamp) {
        let heat = self.rows.entry(hash_row(table, key));
        heat.and_modify(|heat| {
            if heat.until < now {
                heat.length = Span::from_us(2 * heat.length.us).min(LONGEST);
            }
            heat.until = now + heat.length;
        })
        .or_insert(Heat { until: now + SHORTEST, length: SHORTEST });
    }

    /// Whether no row is hot.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether a transaction with these checks would probably lose.
    pub(super) fn has_any(&self, checks: &Checks, now: Timestamp) -> bool {
        let mut writes = checks.writes.iter().filter(|it| it.is_checked).map(|it| &it.write);
        writes.any(|write| self.is_hot(write.table, &write.key, now))
            || checks.reads.points.iter().any(|read| self.is_hot(read.table, &read.key, now))
    }

    /// Whether a program with this declared footprint would probably lose at each level: it reads a
    /// hot row and changes it.
    pub(super) fn has_locked(&self, footprint: &Footprint, now: Timestamp) -> bool {
        let mut changed = footprint.points.iter().filter(|it| it.mode == LockMode::Exclusive);
        changed.any(|it| self.is_hot(it.table, &it.key, now))
    }

    fn is_hot(&self, table: TableId, key: &[u8], now: Timestamp) -> bool {
        self.rows.get(&hash_row(table, key)).is_some_and(|heat| now <= heat.until)
    }

    /// Forgets rows that have been cold for as long as they were hot.
    pub(super) fn forget_cold(&mut self, now: Timestamp) {
        self.rows.retain(|_, heat| now <= heat.until + heat.length);
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::key::Key;
    use pangea_core::txn::{PointLock, Write};

    use super::super::isolation::CheckedWrite;
    use super::*;

    const TABLE: TableId = TableId(1);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(ms * 1_000)
    }

    fn writing(key: &[u8], is_checked: bool) -> Checks {
        let write = Write { table: TABLE, key: Key::from(key), value: None };
        Checks { writes: vec![CheckedWrite { write, is_checked }], ..Checks::default() }
    }

    #[test]
    fn a_program_that_declares_to_change_a_hot_row_would_lose() {
        let mut hot = HotRows::default();
        hot.note_loss(TABLE, b"a", at(0));
        let locks = |key: &[u8], mode, ms| {
            let lock = PointLock { table: TABLE, key: Key::from(key), mode };
            hot.has_locked(&Footprint::new(vec![lock], Vec::new()), at(ms))
        };
        assert!(locks(b"a", LockMode::Exclusive, 500));
        assert!(!locks(b"a", LockMode::Exclusive, 1_500), "it is not hot any more");
        assert!(!locks(b"b", LockMode::Exclusive, 500), "another row");
        assert!(!locks(b"a", LockMode::Shared, 500) && !locks(b"a", LockMode::Write, 500));
    }

    #[test]
    fn a_row_is_hot_after_a_loss_and_longer_after_the_next_one() {
        let mut hot = HotRows::default();
        hot.note_loss(TABLE, b"a", at(0));
        let is_hot = |hot: &HotRows, ms| hot.has_any(&writing(b"a", true), at(ms));
        assert!(is_hot(&hot, 1_000) && !is_hot(&hot, 1_001));
        assert!(!hot.has_any(&writing(b"b", true), at(0)), "another row");
        assert!(!hot.has_any(&writing(b"a", false), at(0)), "a blind write loses to nobody");
        hot.note_loss(TABLE, b"a", at(1_500));
        assert!(is_hot(&hot, 3_500) && !is_hot(&hot, 3_501), "twice as long");
        hot.note_loss(TABLE, b"a", at(2_000));
        assert!(is_hot(&hot, 4_000) && !is_hot(&hot, 4_001), "it was hot all the time");
        hot.forget_cold(at(6_000));
        assert_eq!(hot.rows.len(), 1);
        hot.forget_cold(at(6_001));
        assert!(hot.rows.is_empty());
    }
}
