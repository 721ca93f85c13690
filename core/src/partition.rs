//! Partitioning rules: the shard that stores a row (Calvin §3: tables are partitioned over the
//! nodes of a region).
//!
//! A table is partitioned by a prefix of its keys, so that rows with the same prefix are on one
//! shard. The rule uses either the hash of the prefix or its order. A small table that is seldom
//! written may instead be on all shards. The rules are part of the cluster's configuration: the
//! shard of a row never depends on the node that computes it.
//!
//! A rule maps a key to one of [`SLOTS`] slots, and the [`Placement`] maps slots to shards. At
//! first, slot n is on shard n modulo the number of shards.
//!
//! A table's number may contain its rule ([`Rule::number`]), so that the rule of a new table need
//! not be distributed. A rule configured for a table takes precedence over its number, and the
//! number over the default.
//!
//! ```
//! use pangea_core::ids::{ShardId, TableId};
//! use pangea_core::partition::{Partitions, Rule};
//!
//! let halves = Rule::Ranges { starts: vec![vec![128]] };
//! let partitions = Partitions::new(2, Rule::Hash { prefix_bytes: 4 })
//!     .with(TableId(1), halves)
//!     .with(TableId(2), Rule::Everywhere);
//! assert_eq!(partitions.shard_of(TableId(1), &[127, 9]), Some(ShardId(0)));
//! assert_eq!(partitions.shard_of(TableId(1), &[128]), Some(ShardId(1)));
//! assert_eq!(partitions.shard_of(TableId(2), &[128]), None);
//! ```

mod hexadecimal;
mod placement;
mod shard_set;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::ids::{ShardId, TableId};
use crate::key::KeyRange;
pub use placement::{Placement, SLOTS, Slot, SlotSet};
pub use shard_set::ShardSet;

/// The maximum number of shards.
pub const SHARDS_MAX: u16 = 128;

/// The partitioning rule of a table.
///
/// In a configuration file it is a table: `{ by = "hash", prefix_bytes = 4 }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Rule {
    /// Each shard has all rows. A write is applied on every shard.
    Everywhere,
    /// By a hash of the first bytes of the key. A shorter key is hashed completely.
    Hash {
        /// The number of these bytes.
        prefix_bytes: usize,
    },
    /// By the big-endian number at the start of the key: consecutive numbers are in consecutive
    /// slots. A shorter key is in slot 0.
    Number {
        /// The size of the number in bytes, from 1 to 8.
        bytes: usize,
        /// The number that is in slot 0.
        first: u64,
    },
    /// By key order: slot 0 has the keys below the first start, and so on. Unless slots have moved,
    /// each of the first shards has one of the ranges, and the last ones have no rows of the table
    /// if there are more shards than ranges.
    Ranges {
        /// The first key of each range except the first one, in ascending order. Hexadecimal in
        /// configuration files.
        #[serde(with = "hexadecimal")]
        starts: Vec<Vec<u8>>,
    },
}

/// The number of low bits of a table's number that name it. The bits above contain its rule, if it
/// has one.
const NUMBER_BITS: u32 = 24;
/// The longest prefix that a table's number can contain.
pub const PREFIX_BYTES_MAX: usize = 125;

/// The rules by their code in table numbers.
static SAID: LazyLock<Vec<Option<Rule>>> = LazyLock::new(|| {
    let hash = |prefix_bytes| Rule::Hash { prefix_bytes };
    let all = [Rule::Everywhere, Rule::OF_WHOLE_KEY].into_iter();
    let all = all.chain((1..=PREFIX_BYTES_MAX).map(hash)).chain([Rule::OF_FIRST_BYTE]);
    std::iter::once(None).chain(all.map(Some)).collect()
});

/// Splits a table's number into its rule and its name.
pub fn said_by(table: TableId) -> (Option<&'static Rule>, TableId) {
    let (code, name) = (table.0 >> NUMBER_BITS, table.0 & ((1 << NUMBER_BITS) - 1));
    // Most numbers have no rule; those need no lookup.
    let rule = if code == 0 { None } else { SAID.get(code as usize).and_then(Option::as_ref) };
    (rule, TableId(name))
}

/// The reason why a rule is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRule(String);

impl fmt::Display for InvalidRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidRule {}

impl Rule {
    /// By a hash of the whole key.
    pub const OF_WHOLE_KEY: Self = Self::Hash { prefix_bytes: u16::MAX as usize };
    /// The first byte of the key is the number of its shard, chosen by the caller.
    pub const OF_FIRST_BYTE: Self = Self::Number { bytes: 1, first: 0 };

    /// Checks whether the rule can partition tables over `shards` shards.
    ///
    /// # Errors
    /// If there are more ranges than shards, ranges are not in order, or the length of a prefix or
    /// number is out of range.
    pub fn check(&self, shards: u16) -> Result<(), InvalidRule> {
        let wrong = |why: String| Err(InvalidRule(why));
        match self {
            Self::Ranges { starts } if starts.len() >= usize::from(shards) => {
                wrong(format!("{} starts need more than {shards} shards", starts.len()))
            }
            Self::Ranges { starts } if !starts.is_sorted_by(|a, b| a < b) => {
                wrong("starts must be in ascending order".to_owned())
            }
            Self::Number { bytes, .. } if !(1..=8).contains(bytes) => {
                wrong(format!("bytes = {bytes}: must be from 1 to 8"))
            }
            Self::Hash { prefix_bytes: 0 } => {
                // All keys have the same empty prefix, so one shard would have all rows.
                wrong("prefix_bytes = 0: must be 1 or more".to_owned())
            }
            Self::Everywhere | Self::Hash { .. } | Self::Number { .. } | Self::Ranges { .. } => {
                Ok(())
            }
        }
    }

    /// The number of a table that is named `number` and has this rule. `None` if table numbers
    /// cannot contain this rule.
    ///
    /// # Panics
    /// If `number` already contains a rule.
    pub fn number(&self, number: TableId) -> Option<TableId> {
        assert!(
            number.0 < 1 << NUMBER_BITS,
            "table numbers with a rule must be below {}",
            1 << NUMBER_BITS
        );
        let code = match self {
            Self::Everywhere => 1,
            _ if *self == Self::OF_WHOLE_KEY => 2,
            Self::Hash { prefix_bytes: bytes @ 1..=PREFIX_BYTES_MAX } => 2 + *bytes as u32,
            _ if *self == Self::OF_FIRST_BYTE => 3 + PREFIX_BYTES_MAX as u32,
            Self::Hash { .. } | Self::Number { .. } | Self::Ranges { .. } => return None,
        };
        Some(TableId(code << NUMBER_BITS | number.0))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everywhere => f.write_str("everywhere"),
            _ if *self == Self::OF_WHOLE_KEY => f.write_str("by hash of the key"),
            Self::Hash { prefix_bytes } => write!(f, "by hash of {prefix_bytes} bytes"),
            Self::Number { bytes, first } => write!(f, "by number of {bytes} bytes from {first}"),
            Self::Ranges { starts } => {
                f.write_str("by ranges from")?;
                starts.iter().try_for_each(|start| write!(f, " {}", hexadecimal::of(start)))
            }
        }
    }
}

/// The partitioning of all tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    shards: u16,
    default: Rule,
    tables: BTreeMap<TableId, Rule>,
    placement: Placement,
    /// Whether slots were moved, so that a shard's store may have rows of other shards.
    has_strays: bool,
}

impl Default for Partitions {
    /// One shard with all rows.
    fn default() -> Self {
        Self::new(1, Rule::Everywhere)
    }
}

impl Partitions {
    /// Partitions tables over `shards` shards, by `default` unless they have their own rule.
    ///
    /// # Panics
    /// If `shards` is 0 or more than [`SHARDS_MAX`], or the rule is invalid.
    pub fn new(shards: u16, default: Rule) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shards), "there must be from 1 to {SHARDS_MAX} shards");
        default.check(shards).expect("the default rule is valid");
        let placement = Placement::initial(shards);
        Self { shards, default, tables: BTreeMap::new(), placement, has_strays: false }
    }

    /// Adds a rule for a table.
    ///
    /// # Panics
    /// If the rule is invalid.
    #[must_use]
    pub fn with(mut self, table: TableId, rule: Rule) -> Self {
        rule.check(self.shards).expect("the rule is valid");
        self.tables.insert(table, rule);
        self
    }

    /// The same rules with another placement of slots. A shard's store may still have rows of slots
    /// that were moved away.
    ///
    /// # Panics
    /// If a slot is on a shard that does not exist.
    #[must_use]
    pub fn placed(&self, placement: Placement) -> Self {
        let are_known = placement.owners().without(ShardSet::all(self.shards)).is_empty();
        assert!(are_known, "slots are on shards that exist");
        Self { placement, has_strays: true, ..self.clone() }
    }

    /// The number of shards.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// The shard of each slot.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The rule of tables without a rule of their own.
    pub fn default_rule(&self) -> &Rule {
        &self.default
    }

    /// The tables with rules of their own.
    pub fn tables(&self) -> &BTreeMap<TableId, Rule> {
        &self.tables
    }

    /// The slot of a row, or `None` if all shards store it.
    #[inline]
    pub fn slot_of(&self, table: TableId, key: &[u8]) -> Option<Slot> {
        match self.rule(table) {
            Rule::Everywhere => None,
            Rule::Hash { prefix_bytes } => Some(by_hash(key, *prefix_bytes, self.shards)),
            Rule::Number { bytes, first } => Some(by_number(key, (*bytes, *first), self.shards)),
            Rule::Ranges { starts } => Some(by_order(starts, key)),
        }
    }

    /// The shard that stores a row, or `None` if all shards do.
    pub fn shard_of(&self, table: TableId, key: &[u8]) -> Option<ShardId> {
        self.slot_of(table, key).map(|slot| self.placement.owner(slot))
    }

    /// The slots that may have rows of a range, or `None` if all shards have all of them.
    pub fn slots_of(&self, table: TableId, range: &KeyRange) -> Option<SlotSet> {
        match self.rule(table) {
            Rule::Everywhere => None,
            _ if range.is_empty() => Some(SlotSet::default()),
            Rule::Number { bytes, first } => Some(by_numbers(range, (*bytes, *first), self.shards)),
            Rule::Hash { prefix_bytes } => Some(match one_prefix(range, *prefix_bytes) {
                Some(prefix) => SlotSet::one(by_hash(prefix, *prefix_bytes, self.shards)),
                None => SlotSet::all(),
            }),
            Rule::Ranges { starts } => {
                let first = by_order(starts, &range.start).0;
                let end = match &range.end {
                    Some(end) => starts.partition_point(|start| start < end) as u16,
                    None => starts.len() as u16,
                };
                Some((first..=end).map(Slot).collect())
            }
        }
    }

    /// The shards that may have rows of a range, or `None` if all shards have all of them.
    pub fn shards_of(&self, table: TableId, range: &KeyRange) -> Option<ShardSet> {
        if let Rule::Hash { prefix_bytes } = self.rule(table) {
            // Without a set of slots, which takes more time than the rest.
            return Some(match one_prefix(range, *prefix_bytes) {
                _ if range.is_empty() => ShardSet::default(),
                Some(prefix) => {
                    ShardSet::one(self.placement.owner(by_hash(prefix, *prefix_bytes, self.shards)))
                }
                None => self.placement.owners(),
            });
        }
        self.slots_of(table, range).map(|slots| self.placement.owners_of(&slots))
    }

    /// Whether a shard stores a row.
    pub fn holds(&self, shard: ShardId, table: TableId, key: &[u8]) -> bool {
        self.shard_of(table, key).is_none_or(|of| of == shard)
    }

    /// Whether a row of a shard's store counts: it may be one of another shard only if slots were
    /// moved. Cheaper than [`Partitions::holds`] as long as none was.
    #[inline]
    pub fn counts(&self, shard: ShardId, table: TableId, key: &[u8]) -> bool {
        !self.has_strays || self.holds(shard, table, key)
    }

    fn rule(&self, table: TableId) -> &Rule {
        let given = self.tables.get(&table);
        given.or_else(|| said_by(table).0).unwrap_or(&self.default)
    }
}

impl fmt::Display for Partitions {
    /// Writes the whole partitioning in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shards, {}", self.shards, self.default)?;
        self.tables.iter().try_for_each(|(table, rule)| write!(f, ", {table} {rule}"))
    }
}

fn number_of(prefix: &[u8]) -> u64 {
    prefix.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
}

/// The number at the start of a key, padded with zeros.
fn padded_number(key: &[u8], bytes: usize) -> u64 {
    let known = key.len().min(bytes);
    let missing_bits = 8 * (bytes - known) as u32;
    number_of(&key[..known]).checked_shl(missing_bits).unwrap_or(0)
}

fn by_order(starts: &[Vec<u8>], key: &[u8]) -> Slot {
    Slot(starts.partition_point(|start| &start[..] <= key) as u16)
}

fn by_number(key: &[u8], (bytes, first): (usize, u64), shards: u16) -> Slot {
    key.get(..bytes).map_or(Slot(0), |prefix| of_number(number_of(prefix), first, shards))
}

/// Consecutive numbers are on consecutive shards at first, however many there are.
fn of_number(number: u64, first: u64, shards: u16) -> Slot {
    let (distance, of_one) = (number.wrapping_sub(first), u64::from(SLOTS / shards));
    let shards = u64::from(shards);
    Slot((distance % shards + shards * (distance / shards % of_one)) as u16)
}

/// The slots of a range that is not empty.
fn by_numbers(range: &KeyRange, (bytes, first): (usize, u64), shards: u16) -> SlotSet {
    let least = padded_number(&range.start, bytes);
    let greatest = match &range.end {
        None => Some(u64::MAX >> (64 - 8 * bytes)),
        Some(end) if end.len() > bytes => Some(number_of(&end[..bytes])),
        // All keys with the number of the end are after the range.
        Some(end) => padded_number(end, bytes).checked_sub(1),
    };
    // Keys that are too short for a number are in slot 0.
    let is_one = greatest == Some(least) && range.start.len() >= bytes;
    let has_short = range.start.is_empty() || bytes > 1 && !is_one;
    let short = has_short.then_some(Slot(0)).into_iter();
    match greatest.and_then(|greatest| greatest.checked_sub(least)) {
        None => short.collect(),
        Some(more) if more >= u64::from(SLOTS) => SlotSet::all(),
        Some(more) => {
            short.chain((0..=more).map(|more| of_number(least + more, first, shards))).collect()
        }
    }
}

/// The prefix that all keys of a range have, if its hash is that of all of them.
fn one_prefix(range: &KeyRange, prefix_bytes: usize) -> Option<&[u8]> {
    let prefix = range.start.get(..prefix_bytes)?;
    let is_within = match (&range.end, KeyRange::prefix(prefix).end) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(end), Some(end_of_prefix)) => *end <= end_of_prefix,
    };
    is_within.then_some(prefix)
}

/// The slot of a hash is one of those that are at first on the shard of the hash.
fn by_hash(key: &[u8], prefix_bytes: usize, shards: u16) -> Slot {
    // The hash must be the same for all builds and machines, because it determines where stored
    // rows are. The high half of the product distributes hashes evenly over any number of shards.
    let hash = xxh3_64(&key[..key.len().min(prefix_bytes)]);
    let shard = ((u128::from(hash) * u128::from(shards)) >> 64) as u16;
    let more = (hash % u64::from(SLOTS / shards)) as u16;
    Slot(shard + shards * more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: TableId = TableId(1);

    fn rule() -> impl Strategy<Value = Rule> {
        let start = prop::collection::vec(any::<u8>(), 1..3);
        prop_oneof![
            Just(Rule::Everywhere),
            (1usize..4).prop_map(|prefix_bytes| Rule::Hash { prefix_bytes }),
            (1usize..3, 0u64..9).prop_map(|(bytes, first)| Rule::Number { bytes, first }),
            prop::collection::btree_set(start, 0..4)
                .prop_map(|starts| Rule::Ranges { starts: starts.into_iter().collect() }),
        ]
    }

    proptest! {
        #[test]
        fn the_shards_of_a_range_have_all_its_rows(
            shards in 4u16..9,
            rule in rule(),
            start in prop::collection::vec(any::<u8>(), 0..3),
            end in prop::option::of(prop::collection::vec(any::<u8>(), 0..3)),
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..40),
            moves in prop::collection::vec((0..SLOTS, 0_u16..4), 0..9),
        ) {
            let partitions = Partitions::new(shards, Rule::Everywhere).with(TABLE, rule);
            let moves = moves.into_iter().map(|(slot, shard)| (Slot(slot), ShardId(shard)));
            let partitions = partitions.placed(partitions.placement().with(moves));
            let range = KeyRange { start, end };
            let found = partitions.shards_of(TABLE, &range);
            for key in keys.iter().filter(|key| range.contains(key)) {
                let shard = partitions.shard_of(TABLE, key);
                prop_assert_eq!(shard.is_none(), found.is_none());
                prop_assert!(shard.is_none_or(|shard| found.unwrap().contains(shard)));
                prop_assert!(shard.is_none_or(|shard| shard.0 < shards));
                let slot = partitions.slot_of(TABLE, key);
                let slots = partitions.slots_of(TABLE, &range);
                prop_assert!(slot.is_none_or(|slot| slots.unwrap().contains(slot)));
                prop_assert_eq!(shard, slot.map(|slot| partitions.placement().owner(slot)));
            }
        }
    }

    #[test]
    fn a_range_within_one_prefix_is_on_one_shard_and_a_wider_one_on_all() {
        let partitions = Partitions::new(5, Rule::Hash { prefix_bytes: 2 });
        let of = |start: &[u8], end: Option<&[u8]>| {
            let range = KeyRange { start: start.to_vec(), end: end.map(<[u8]>::to_vec) };
            partitions.shards_of(TABLE, &range).unwrap()
        };
        let one = ShardSet::one(partitions.shard_of(TABLE, &[1, 2, 9]).unwrap());
        assert_eq!(of(&[1, 2], Some(&[1, 3])), one);
        assert_eq!(of(&[1, 2, 7], Some(&[1, 2, 8])), one);
        assert_eq!(of(&[1, 2], Some(&[1, 3, 0])), ShardSet::all(5));
        assert_eq!(of(&[1], Some(&[1, 3])), ShardSet::all(5));
        assert_eq!(of(&[1, 2], None), ShardSet::all(5));
        assert_eq!(of(&[255, 255], None).len(), 1, "no prefix follows");
        assert!(of(&[3], Some(&[3])).is_empty());
    }

    #[test]
    fn numbers_are_dealt_over_the_shards_in_turn() {
        let partitions = Partitions::new(3, Rule::Number { bytes: 4, first: 1 });
        let of = |number: u32| partitions.shard_of(TABLE, &number.to_be_bytes()).unwrap().0;
        assert_eq!((1..=7).map(of).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(partitions.shard_of(TABLE, &[7]), Some(ShardId(0)));
    }

    #[test]
    fn rows_of_a_slot_that_is_moved_are_on_its_shard() {
        let before = Partitions::new(3, Rule::Number { bytes: 4, first: 1 });
        let after = before.placed(before.placement().with([(Slot(1), ShardId(0))]));
        let of = |number: u32| after.shard_of(TABLE, &number.to_be_bytes()).unwrap().0;
        assert_eq!([1, 2, 3, 1_025, 1_026].map(of), [0, 0, 2, 0, 2]);
        let range = |first: u32, end: u32| KeyRange {
            start: first.to_be_bytes().to_vec(),
            end: Some(end.to_be_bytes().to_vec()),
        };
        assert_eq!(before.shards_of(TABLE, &range(1, 3)).unwrap().len(), 2);
        assert_eq!(after.shards_of(TABLE, &range(1, 3)), Some(ShardSet::one(ShardId(0))));
        let drained = after.placement().slots_of(ShardId(1));
        let drained = after.placement().with(drained.iter().map(|slot| (slot, ShardId(2))));
        let drained = after.placed(drained);
        let all = drained.shards_of(TABLE, &KeyRange { start: Vec::new(), end: None }).unwrap();
        assert_eq!(all.iter().collect::<Vec<_>>(), [ShardId(0), ShardId(2)]);
    }

    #[test]
    fn a_range_of_numbers_is_on_their_shards() {
        let of = |bytes, start: &[u8], end: Option<&[u8]>| -> Vec<u16> {
            let partitions = Partitions::new(4, Rule::Number { bytes, first: 0 });
            let range = KeyRange { start: start.to_vec(), end: end.map(<[u8]>::to_vec) };
            partitions.shards_of(TABLE, &range).unwrap().iter().map(|shard| shard.0).collect()
        };
        assert_eq!(of(1, &[1], Some(&[3])), [1, 2]);
        assert_eq!(of(1, &[1, 9], Some(&[2, 0])), [1, 2]);
        assert_eq!(of(1, &[1, 9], Some(&[1, 10])), [1]);
        assert_eq!(of(1, &[3], Some(&[5])), [0, 3]);
        assert_eq!(of(1, &[2], None), [0, 1, 2, 3]);
        assert_eq!(of(1, &[255], None), [3]);
        assert_eq!(of(1, &[], Some(&[0])), [0], "the empty key is too short for a number");
        assert_eq!(of(4, &[0, 0, 0, 7], Some(&[0, 0, 0, 8])), [3]);
        assert_eq!(of(4, &[0, 0, 0, 6], Some(&[0, 0, 0, 8])), [0, 2, 3], "short keys are included");
        assert_eq!(of(8, &[255; 8], None), [3]);
    }

    #[test]
    fn a_rule_that_cant_be_says_why() {
        let starts =
            |starts: &[u8]| Rule::Ranges { starts: starts.iter().map(|&it| vec![it]).collect() };
        for (rule, word) in [
            (starts(&[1, 2, 3]), "need more than"),
            (starts(&[2, 1]), "ascending"),
            (Rule::Number { bytes: 9, first: 0 }, "from 1 to 8"),
            (Rule::Hash { prefix_bytes: 0 }, "1 or more"),
        ] {
            let error = rule.check(3).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        starts(&[1, 2]).check(3).unwrap();
    }

    #[test]
    fn a_table_s_number_can_say_its_rule() {
        let number = TableId(1_234);
        for rule in [
            Rule::Everywhere,
            Rule::OF_WHOLE_KEY,
            Rule::Hash { prefix_bytes: 1 },
            Rule::Hash { prefix_bytes: PREFIX_BYTES_MAX },
            Rule::OF_FIRST_BYTE,
        ] {
            let said = rule.number(number).unwrap();
            assert_eq!(said_by(said), (Some(&rule), number));
            let partitions = Partitions::new(3, Rule::Hash { prefix_bytes: 2 });
            let as_given = partitions.clone().with(number, rule.clone());
            let key = b"a key that is long enough";
            assert_eq!(partitions.shard_of(said, key), as_given.shard_of(number, key));
            let otherwise = partitions.with(said, Rule::Number { bytes: 1, first: 1 });
            assert_eq!(
                otherwise.shard_of(said, &[2]),
                Some(ShardId(1)),
                "an explicit rule takes precedence"
            );
        }
        assert_eq!(said_by(number), (None, number));
        assert_eq!(Rule::Hash { prefix_bytes: 126 }.number(number), None);
        assert_eq!(Rule::Ranges { starts: Vec::new() }.number(number), None);
        assert_eq!(said_by(TableId(u32::MAX)).0, None);
    }

    #[test]
    fn rules_are_told_in_a_line() {
        let partitions = Partitions::new(2, Rule::Hash { prefix_bytes: 4 })
            .with(TableId(7), Rule::Everywhere)
            .with(TableId(9), Rule::Ranges { starts: vec![vec![0, 171]] });
        let expected = "2 shards, by hash of 4 bytes, t7 everywhere, t9 by ranges from 00ab";
        assert_eq!(partitions.to_string(), expected);
    }

    #[test]
    fn hashes_spread_rows_evenly_and_are_those_of_every_build() {
        let partitions = Partitions::new(7, Rule::Hash { prefix_bytes: 4 });
        let mut counts = [0; 7];
        for key in 0u32..7_000 {
            counts[usize::from(partitions.shard_of(TABLE, &key.to_be_bytes()).unwrap().0)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        let first: Vec<u16> = (0u32..8)
            .map(|key| partitions.shard_of(TABLE, &key.to_be_bytes()).unwrap().0)
            .collect();
        assert_eq!(first, FIRST, "existing data would be assigned to other shards");
    }

    /// The shards of keys 0 to 7, which must never change.
    const FIRST: [u16; 8] = [1, 0, 4, 6, 1, 0, 1, 4];
}
