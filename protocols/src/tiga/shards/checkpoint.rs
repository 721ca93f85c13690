//! The checkpoint of a node as one of several shards.
//!
//! ```text
//!   cells:   .. | retained for others | checkpoint | run, not published | to be run ..
//!               ^ kept by all                      | rows received      |
//! ```
//!
//! In addition to the rows of the tables it contains what the cells up to it have left: the rows
//! that replicas of other shards still need, and the outcomes for which clients wait there. A
//! restart runs the later cells again. The rows for them that this node has told to need no more
//! are in it, too, or in later records of the log.
//!
//! A replica that takes a peer's checkpoint retains from then on what the peer does. It does not
//! begin a cell that the checkpoint would not contain, and its subscribers subscribe again.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::ordered::{ShardOutcome, Sharded};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::super::Tiga;
use super::super::done::Done;
use super::super::log::{Log, Position};
use super::super::messages::Message;
use super::super::state::State;
use super::Shards;
use super::execution::encode_received;
use super::retained::Retained;
use crate::inputs::outcome_unknown;
use crate::remote_results::RemoteResult;
use crate::replica::INTACT;
use crate::streams::number;

/// What a node retains for other shards, of the cells up to a version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct ForOthers {
    /// For each other shard, the rows retained for it.
    rows: BTreeMap<ShardId, Retained>,
    /// Outcomes for which clients wait on other shards, with their cells.
    outcomes: BTreeMap<TxnId, (SnapshotVersion, ShardOutcome)>,
}

impl ForOthers {
    /// Encodes it. [`ForOthers::decode`] is the inverse.
    pub(in super::super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_varint(self.rows.len() as u64);
        for (shard, retained) in &self.rows {
            out.put_u16(shard.0);
            retained.encode(&mut out);
        }
        out.put_varint(self.outcomes.len() as u64);
        for (txn, (version, outcome)) in &self.outcomes {
            out.put_varint(version.0);
            RemoteResult::Outcome(*txn, outcome.clone()).encode(&mut out);
        }
        out.into()
    }

    /// Decodes what [`ForOthers::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(in super::super) fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        const WHAT: &str = "data for other shards";
        let from = &mut Reader::new(bytes);
        let mut all = Self::default();
        for _ in 0..from.count(WHAT)? {
            let shard = ShardId(from.u16(WHAT)?);
            all.rows.insert(shard, Retained::decode(from, bytes)?);
        }
        for _ in 0..from.count(WHAT)? {
            let version = SnapshotVersion(number(from, WHAT)?);
            let RemoteResult::Outcome(txn, outcome) = RemoteResult::decode(from)? else {
                return Err(DecodeError::new(WHAT));
            };
            all.outcomes.insert(txn, (version, outcome));
        }
        if from.is_empty() { Ok(all) } else { Err(DecodeError::new(WHAT)) }
    }

    /// Whether a replica of the shard of `shards` can have retained this at a version.
    fn is_sound(&self, shards: &Shards, upto: SnapshotVersion) -> bool {
        self.rows.keys().eq(shards.streams.keys())
            && self.rows.values().all(|retained| retained.is_sound(upto))
            && self.outcomes.values().all(|(version, _)| *version <= upto)
    }
}

impl State {
    /// What this node retains for other shards, of the cells up to a version.
    pub(in super::super) fn for_others(&self, upto: SnapshotVersion) -> ForOthers {
        let Some(shards) = &self.shards else { return ForOthers::default() };
        let rows = shards.streams.iter().map(|(shard, stream)| {
            let retained = stream.retained.upto(upto);
            (*shard, mutate!(RetainedForgotten: retained => Retained::default()))
        });
        let outcomes = shards.outcomes.iter().filter(|(_, (version, _))| *version <= upto);
        let outcomes = outcomes.map(|(txn, outcome)| (*txn, outcome.clone()));
        let outcomes = mutate!(OutcomesForgotten: outcomes.collect() => BTreeMap::new());
        ForOthers { rows: rows.collect(), outcomes }
    }

    /// The rows of other shards for later cells that this node has told to need no more, or has
    /// used, as a record.
    pub(in super::super) fn rows_used(&self) -> Bytes {
        let Some(shards) = &self.shards else { return Bytes::new() };
        let upto = shards.kept.max(self.executed_version());
        // A restart has those of earlier records.
        let kept = shards.received.range(..=upto).map(|(version, rows)| (*version, rows.clone()));
        let mut used = shards.used.clone();
        mutate!(UsedForgotten: used.extend(kept) => used.clear());
        encode_received(Position(0), upto, &used).into()
    }

    /// Continues after a checkpoint of this node.
    pub(in super::super) fn restore_shards(
        &mut self,
        version: SnapshotVersion,
        (for_others, used): (&Bytes, &Bytes),
    ) {
        let State { shards: Some(shards), log, .. } = self else { return };
        shards.move_to(log);
        shards.need_only_after(version);
        shards.logged = version;
        shards.retain(ForOthers::decode(for_others).expect(INTACT));
        Tiga::restore_received(self, used);
    }

    /// The data for other shards that a peer has handed on with a checkpoint of a version.
    pub(in super::super) fn read_for_others(
        &self,
        bytes: &Bytes,
        version: SnapshotVersion,
    ) -> Option<ForOthers> {
        let all = ForOthers::decode(bytes).ok()?;
        let is_sound = match &self.shards {
            Some(shards) => all.is_sound(shards, version),
            None => all == ForOthers::default(),
        };
        is_sound.then_some(all)
    }
}

impl Shards {
    /// All cells up to the base of the log are published here, and the executor has run none after
    /// it.
    fn move_to(&mut self, log: &Log) {
        let (position, later) = (log.base(), log.version_at(log.base()).next());
        (self.scheduled, self.told_position) = (position, position);
        self.sharded = Sharded::new(self.partitions.clone(), self.own);
        self.cells = self.cells.split_off(&later);
        self.received = self.received.split_off(&later);
        self.forget_sizes(log.version_at(position));
        let lists = self.streams.values_mut().map(|stream| &mut stream.lists);
        lists.for_each(|lists| lists.skip_to(log.version_at(position)));
        self.used = self.used.split_off(&later);
    }

    /// Forgets what no other shard needs, and what is more than `most` bytes for one of them.
    pub(in super::super) fn collect(&mut self, done: &Done, most: u64) {
        for stream in self.streams.values_mut() {
            let mut kept: Vec<SnapshotVersion> = stream.kept.values().copied().collect();
            kept.sort_unstable();
            let all = kept.first().copied().unwrap_or_default();
            stream.retained.drop_upto(all);
            // Any majority has one of those that have the rows. Others without a vote take a
            // checkpoint, too.
            let votes = |node: &NodeId| stream.replicas.contains(node);
            let votes = |node: &NodeId| mutate!(RetainedByAny: votes(node) => true);
            let of_voters = stream.kept.iter().filter(|(node, _)| votes(node));
            let mut of_voters: Vec<_> = of_voters.map(|(_, kept)| *kept).collect();
            of_voters.sort_unstable();
            let majority = of_voters[(of_voters.len() - 1) / 2];
            stream.retained.shrink(majority, most);
        }
        self.outcomes.retain(|txn, _| txn.sequence() >= done.below_of(txn.node()));
        self.shrink_outcomes(most);
    }

    /// Forgets the first outcomes if they are larger than `most` bytes. Their clients are told that
    /// the outcomes are unknown.
    fn shrink_outcomes(&mut self, most: u64) {
        let weight = |outcome: &ShardOutcome| match outcome {
            ShardOutcome::Ran(Ok(result)) => result.len() as u64,
            _ => 0,
        };
        let mut bytes: u64 = self.outcomes.values().map(|(_, outcome)| weight(outcome)).sum();
        if bytes <= most {
            return;
        }
        let mut all: Vec<_> = self.outcomes.values_mut().collect();
        all.sort_by_key(|(version, _)| *version);
        for (_, outcome) in all {
            if bytes <= most {
                break;
            }
            bytes -= weight(outcome);
            *outcome = ShardOutcome::Ran(Err(outcome_unknown()));
        }
    }

    /// Retains this, and nothing else.
    fn retain(&mut self, for_others: ForOthers) {
        self.outcomes = for_others.outcomes;
        for (shard, retained) in for_others.rows {
            self.streams.get_mut(&shard).expect("it was checked").retained = retained;
        }
    }
}

impl Tiga {
    /// A peer's checkpoint replaces the state of this node.
    pub(in super::super) fn move_shards(&mut self, cx: &mut Cx<'_, Self>, for_others: ForOthers) {
        let State { shards: Some(shards), log, .. } = &mut self.state else { return };
        assert!(shards.scheduled <= log.base(), "a checkpoint contains all cells that are begun");
        shards.move_to(log);
        shards.logged = shards.logged.max(log.version_at(log.base()));
        shards.retain(for_others);
        // They need the rows of the skipped cells.
        let subscribers = shards.streams.values_mut();
        for node in subscribers.flat_map(|stream| std::mem::take(&mut stream.subscribers)) {
            cx.send(node, Message::Resubscribe { has: SnapshotVersion::ZERO });
        }
    }
}

#[cfg(test)]
mod tests {
    use pangea_core::partition::{Partitions, Rule};
    use pangea_core::time::Span;
    use pangea_core::topology::Topology;

    use super::*;

    #[test]
    fn data_for_other_shards_survives_its_encoding() {
        let txn = TxnId::new(NodeId(1), 7);
        let mut retained = Retained::default();
        retained.push(SnapshotVersion(5), Bytes::from_static(b"rows"));
        let outcome = (SnapshotVersion(4), ShardOutcome::FootprintViolated);
        let all = ForOthers {
            rows: BTreeMap::from([(ShardId(1), retained)]),
            outcomes: BTreeMap::from([(txn, outcome)]),
        };
        let bytes = all.encode();
        assert_eq!(ForOthers::decode(&bytes), Ok(all));
        for len in 0..bytes.len() {
            assert!(ForOthers::decode(&bytes.slice(..len)).is_err(), "{len} bytes");
        }
    }

    /// The first cells whose rows are retained for a shard of three voting replicas and two others:
    /// one of the former needs no more up to cell 5, and both of the latter.
    fn retained() -> Vec<SnapshotVersion> {
        let regions = ["a", "b", "c", "d", "e"];
        let whole = Topology::one_node_per_region("t", &regions, Span::from_ms(1));
        let divided = whole.divided(Partitions::new(2, Rule::Everywhere));
        // The last four nodes are those of the last two regions.
        let topology = Topology { non_voting: 4, ..divided };
        let mut shards = Shards::of(&topology, NodeId(0)).expect("there are two shards");
        let stream = shards.streams.get_mut(&ShardId(1)).expect("there is one for each shard");
        for version in [4, 5, 6] {
            stream.retained.push(SnapshotVersion(version), Bytes::from_static(b"rows"));
        }
        for node in [3, 7, 9] {
            stream.kept.insert(NodeId(node), SnapshotVersion(5));
        }
        shards.collect(&Done::new(10), 0);
        let retained = &shards.streams[&ShardId(1)].retained;
        retained.after(SnapshotVersion::ZERO).map(|(version, _)| version).collect()
    }

    #[test]
    fn rows_are_retained_until_a_majority_of_those_with_a_vote_has_them() {
        assert_eq!(retained(), [4, 5, 6].map(SnapshotVersion));
    }

    #[cfg(feature = "planted")]
    #[test]
    fn replicas_without_a_vote_would_make_up_a_majority() {
        use pangea_core::planted::{Bug, Planted};

        let _planted = Planted::new(Some(Bug::RetainedByAny));
        assert_eq!(retained(), [SnapshotVersion(6)]);
    }
}
