//! Routing: the leader that coordinates a transaction, and the outcome on its way back (§4.1).
//!
//! The node of the client chooses the shard with most of the rows that the program declares, and
//! its own if it declares none. Ranges decide only between shards with as many rows: of them a
//! program mostly reads a few rows, and they are rarely those that everybody writes.
//!
//! The choice is kept: the outcome is in that shard's log, so a transaction that is sent again
//! after a failure is executed once. The leader tells the node of the client when the transaction
//! is settled.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::exec::declared_footprint;
use pangea_core::exec::ordered::concerned;
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::txn::{Abort, Certified, Footprint, Program, Registry};

use super::super::Mako;
use super::super::forwarding::{encode_all, request_of};
use super::super::log::decode_abort;
use super::super::messages::Message;
use super::super::state::Role;
use super::super::versions::Epoch;
use super::Shards;
use crate::request::Request;

fn declared(registry: &Registry, program: &Program) -> Option<Footprint> {
    match program {
        Program::Call { procedure, args } => declared_footprint(registry, *procedure, args),
        Program::Certified(Certified { reads, writes, .. }) => {
            Some(Footprint::of_run(reads, writes))
        }
    }
}

impl Shards {
    /// The shards of the rows that a program declares; `None` if it declares none.
    pub(super) fn shards_of(&self, registry: &Registry, program: &Program) -> Option<ShardSet> {
        let declared = declared(registry, program)?;
        Some(concerned(&self.partitions, &declared, self.own))
    }

    /// Whether a program declares rows of slots that move.
    pub(super) fn bars_program(&self, registry: &Registry, program: &Program) -> bool {
        declared(registry, program).is_some_and(|Footprint { points, ranges }| {
            points.iter().any(|lock| self.bars(lock.table, &lock.key))
                || ranges.iter().any(|lock| self.bars_range(lock.table, &lock.range))
        })
    }

    /// The shard that coordinates a program.
    pub(in super::super) fn home_of(&self, registry: &Registry, program: &Program) -> ShardId {
        let Some(Footprint { points, ranges }) = declared(registry, program) else {
            return self.own;
        };
        let mut counts: BTreeMap<ShardId, (usize, usize)> = BTreeMap::new();
        let points =
            points.iter().filter_map(|lock| self.partitions.shard_of(lock.table, &lock.key));
        let ranges = ranges
            .iter()
            .filter_map(|lock| self.partitions.shards_of(lock.table, &lock.range)?.iter().next());
        points.for_each(|shard| counts.entry(shard).or_default().0 += 1);
        ranges.for_each(|shard| counts.entry(shard).or_default().1 += 1);
        let best = counts
            .into_iter()
            .max_by_key(|(shard, count)| (*count, *shard == self.own, std::cmp::Reverse(*shard)));
        best.map_or(self.own, |(shard, _)| shard)
    }
}

impl Mako {
    /// Hands the transactions of clients to the leaders of their shards.
    pub(in super::super) fn send_forwards_by_shard(&mut self, cx: &mut Cx<'_, Self>) {
        let number = self.state.epochs.current.number;
        let shards = self.shards();
        if shards.since(shards.own) != number {
            return;
        }
        for shard in self.shards().ids() {
            self.send_forwards_to(cx, shard);
        }
    }

    fn send_forwards_to(&mut self, cx: &mut Cx<'_, Self>, shard: ShardId) {
        let me = self.state.node;
        let own_leader = self.state.leader();
        let shards = self.shards();
        let is_own = shard == shards.own;
        let node = match is_own {
            true => self.state.heard_leader(),
            false => shards.leading(shard),
        };
        let leads_here = is_own && own_leader == Some(self.state.replica.me);
        let node = if leads_here { Some(me) } else { node };
        let Some(node) = node else { return };
        if leads_here && !matches!(self.state.role, Role::Leading(_)) {
            return;
        }
        let origin = &mut self.state.origin;
        let is_of_it = |txn: &TxnId| origin.in_flight.get(txn).is_none_or(|own| own.home == shard);
        let (unsent, others): (Vec<TxnId>, Vec<TxnId>) =
            std::mem::take(&mut origin.unsent).into_iter().partition(is_of_it);
        origin.unsent = others;
        let Some(shards) = &mut self.state.shards else { return };
        let number = shards.since(shard);
        let begun = match leads_here {
            true => shards.config.begun,
            false => shards.told.get(&node).map_or(Epoch(0), |told| told.begun),
        };
        let key = (number, begun);
        let is_new = shards.sent_to.insert(shard, key) != Some(key);
        let origin = &self.state.origin;
        let txns: Vec<TxnId> = match is_new {
            true => {
                let all = origin.in_flight.iter().filter(|(_, own)| own.home == shard);
                all.map(|(txn, _)| *txn).collect()
            }
            false => unsent,
        };
        let requests = txns
            .iter()
            .filter_map(|txn| Some(request_of(*txn, origin.in_flight.get(txn)?.program.clone())));
        let requests: Vec<Request> = requests.collect();
        // The replicas of this shard must know which names were used, if the disk is lost.
        let is_greeting = is_own && is_new;
        if requests.is_empty() && !is_greeting {
            return;
        }
        if is_new && !requests.is_empty() {
            cx.mark("mako.forwarded_again");
        }
        if leads_here {
            return self.take_all(cx, requests);
        }
        let (below, record) = (self.state.origin.below(), self.state.origin.record);
        let batch_bytes = self.state.options.batch_bytes;
        let mut rest = &requests[..];
        loop {
            let mut bytes = 0;
            let is_small = |request: &&Request| {
                bytes += request.weight();
                bytes <= batch_bytes
            };
            let count = rest.iter().take_while(is_small).count().max(usize::from(!rest.is_empty()));
            let requests = encode_all(&rest[..count]);
            cx.send_after(record, node, Message::Forward { epoch: number.0, below, requests });
            rest = &rest[count..];
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Everything is sent again to the leader of a node's shard: messages may be lost.
    pub(in super::super) fn forward_again(&mut self, node: NodeId) {
        let Some(shards) = &mut self.state.shards else { return };
        if let Some(shard) = shards.shard_of(node)
            && shards.leader_of(shard) == Some(node)
        {
            shards.sent_to.remove(&shard);
        }
    }

    /// A transaction of this node's client has ended.
    pub(in super::super) fn on_ended(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (txn, version): (TxnId, SnapshotVersion),
        committed: u64,
        result: &Bytes,
    ) {
        let outcome = match (committed, decode_abort(result)) {
            (1, _) => Ok(result.to_vec()),
            (0, Ok(abort)) => Err(abort),
            _ => return cx.mark("mako.malformed_transactions"),
        };
        self.answer(cx, txn, version, outcome);
    }

    /// A transaction that was sent again may have ended before.
    pub(in super::super) fn tell_again(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId) {
        let Role::Leading(leading) = &self.state.role else { return };
        let known = leading.over.told.get(&txn).or_else(|| self.state.outcomes.of(txn));
        if let Some((version, outcome)) = known.cloned() {
            self.tell(cx, txn, version, outcome);
        }
    }

    /// A transaction was not executed, and will not be.
    pub(super) fn refuse(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId, abort: Abort) {
        self.remember_refused(txn, &abort);
        if let Role::Leading(leading) = &mut self.state.role {
            leading.taken.remove(&txn);
        }
        if txn.node() == self.state.node {
            self.answer_refused(cx, txn, abort);
        } else {
            self.send_refused(cx, txn, &abort);
        }
    }
}
