//! Checkpoints that freeze a replica (§5, the first mode). Its clients notice nothing, because its
//! peers send their outcomes.
//!
//! ```text
//!   client        frozen replica                peer of its group
//!     | submit ---> | == Batch, cuts as ever ===> |
//!     |             | OutcomesRequest(after) ---> |  runs the epochs
//!     | <-- outcome | <== Outcomes(epoch) ======= |
//!     |             |  goes on, runs them itself, and answers who was not answered
//! ```
//!
//! A frozen replica sequences, acknowledges and votes as usual, but begins no epoch. The checkpoint
//! turn is in the cuts (`checkpoint_turns.rs`), so all its peers retain the outcomes of its
//! requests in those epochs. It requests them from the nearest peer, and from another one if that
//! is lost. Clients for whom no outcome arrived are answered when it has caught up. Every outcome
//! is the result of some replica's run of the epoch, and the client gets the first one.
//!
//! Reads on this replica wait for it: a strict read for its cut, and a read-only program until the
//! replica has run all transactions whose clients were answered. Nodes of other shards that are
//! subscribed to a frozen replica switch to another replica of its shard.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::exec::ordered::ShardOutcome;
use pangea_core::ids::{NodeId, SnapshotVersion, Ticket, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, FirstRun};
use pangea_core::txn::{Outcome, Program};

use super::shards::remote_results::{RemoteResult, RemoteResults};
use super::shards::slice::Lineage;
use super::{Calvin, Message};
use crate::inputs::IN_FLIGHT_MAX;

/// The maximum bytes of outcomes retained for a frozen replica. At 200 bytes each, these are
/// 300,000 outcomes that it has not acknowledged. It answers older ones itself, later.
const RETAINED_BYTES_MAX: usize = 64 << 20;

/// The maximum size of an outcome that is retained, because it must fit in a frame. A longer one is
/// answered later, as above.
const OUTCOME_BYTES_MAX: usize = 24 << 20;

/// Outcomes of requests that other replicas have run.
#[derive(Default)]
pub(super) struct Outcomes {
    /// The outcomes of the requests of the replica that has the turn.
    retained: BTreeMap<SnapshotVersion, Vec<RemoteResults>>,
    retained_bytes: usize,
    /// That replica.
    of: Option<NodeId>,
    /// The peers that have requested new outcomes.
    requested_by: BTreeSet<NodeId>,
    /// The peer that this replica requests outcomes from.
    requested_from: Option<NodeId>,
    /// The last epoch for which a peer has sent outcomes.
    have: SnapshotVersion,
    /// The last epoch of which a client was answered before this replica has run it.
    pub answered_upto: SnapshotVersion,
    /// The number of requests in flight whose clients were answered.
    pub answered: usize,
    /// Read-only programs that wait until this replica has caught up.
    reads: Vec<(Ticket, Program)>,
}

impl Outcomes {
    /// Drops the outcomes of epochs up to `have`, which the replica has received.
    fn drop_upto(&mut self, have: SnapshotVersion) {
        let retained = self.retained.split_off(&have.next());
        let gone = std::mem::replace(&mut self.retained, retained);
        self.retained_bytes -= gone.values().flatten().map(RemoteResults::len).sum::<usize>();
    }

    fn retain(&mut self, epoch: SnapshotVersion, results: Vec<RemoteResults>) {
        self.retained_bytes += results.iter().map(RemoteResults::len).sum::<usize>();
        self.retained.entry(epoch).or_default().extend(results);
        while self.retained_bytes > RETAINED_BYTES_MAX
            && let Some((oldest, _)) = self.retained.first_key_value()
        {
            self.drop_upto(*oldest);
        }
    }
}

impl Calvin {
    /// Whether this replica is frozen: it begins no epoch.
    pub(super) fn is_frozen(&self) -> bool {
        self.state.inputs.extension.turns.frozen().is_some()
    }

    /// The replica for whose requests outcomes must be retained in an epoch with this turn, because
    /// it may be frozen.
    pub(super) fn outcomes_retained_for(&self, turn: Option<NodeId>) -> Option<NodeId> {
        turn.filter(|replica| *replica != self.state.inputs.replica.me)
    }

    /// Retains and sends outcomes of requests of the replica that has the turn.
    pub(super) fn retain_outcomes(
        &mut self,
        cx: &mut Cx<'_, Self>,
        replica: NodeId,
        (epoch, results): (SnapshotVersion, &[(u64, ShardOutcome)]),
    ) {
        let node = self.state.inputs.node(replica);
        let outcomes = &mut self.state.outcomes;
        if outcomes.of != Some(replica) {
            outcomes.drop_upto(SnapshotVersion(u64::MAX - 1));
            outcomes.of = Some(replica);
        }
        let item = |(sequence, outcome): &(u64, ShardOutcome)| {
            RemoteResult::Outcome(TxnId::new(node, *sequence), outcome.clone())
        };
        let is_short = |item: &RemoteResult| item.weight() <= OUTCOME_BYTES_MAX;
        let entries: Vec<RemoteResult> = results.iter().map(item).filter(is_short).collect();
        if entries.is_empty() {
            return;
        }
        let all =
            RemoteResults::split((epoch, Lineage::default()), &entries, self.state.message_bytes);
        if outcomes.requested_by.contains(&replica) {
            all.iter()
                .for_each(|entries| cx.send(node, Message::Outcomes { outcomes: entries.clone() }));
        }
        outcomes.retain(epoch, all);
    }

    /// While this replica has the turn, acknowledges the outcomes received so far to its peers, and
    /// requests further ones from one of them.
    pub(super) fn request_outcomes(&mut self, cx: &mut Cx<'_, Self>) {
        let inputs = &self.state.inputs;
        let is_up = |replica: &NodeId| inputs.replica.is_up[replica.index()];
        let outcomes = &mut self.state.outcomes;
        if !inputs.has_turn() {
            // The peer that was asked learns of this from the cuts.
            outcomes.requested_from = None;
            return;
        }
        let applied = inputs.cut.applied;
        outcomes.have = outcomes.have.max(applied);
        let distance =
            |peer: &NodeId| inputs.replica.topology.one_way_between(inputs.replica.me, *peer);
        let peers = || inputs.replica.topology.peers_of(inputs.replica.me).filter(is_up);
        outcomes.requested_from = outcomes.requested_from.or_else(|| peers().min_by_key(distance));
        for peer in peers() {
            let is_wanted = outcomes.requested_from == Some(peer);
            let after = outcomes.have;
            cx.send(inputs.node(peer), Message::OutcomesRequest { after, is_wanted });
        }
    }

    /// Handles the request of a peer that has the turn for outcomes of its requests after this
    /// epoch, or its report that it receives them from another replica.
    pub(super) fn on_outcomes_request(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        after: SnapshotVersion,
        is_wanted: bool,
    ) {
        let Some(replica) = self.state.inputs.replica.group.member(from) else { return };
        let outcomes = &mut self.state.outcomes;
        if outcomes.of == Some(replica) {
            outcomes.drop_upto(after);
        }
        if !is_wanted {
            outcomes.requested_by.remove(&replica);
            return;
        }
        if outcomes.requested_by.insert(replica) && outcomes.of == Some(replica) {
            let retained = outcomes.retained.values().flatten();
            retained
                .for_each(|results| cx.send(from, Message::Outcomes { outcomes: results.clone() }));
        }
    }

    /// Handles the loss of the connection to a peer, and of the messages in flight.
    pub(super) fn forget_outcome_requests(&mut self, cx: &mut Cx<'_, Self>, replica: NodeId) {
        let outcomes = &mut self.state.outcomes;
        outcomes.requested_by.remove(&replica);
        if outcomes.requested_from.take_if(|peer| *peer == replica).is_some() {
            cx.mark("calvin.outcomes_asked_again");
        }
    }

    /// Handles outcomes of this replica's requests from a peer.
    pub(super) fn on_outcomes(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        results: &RemoteResults,
    ) {
        if self.state.inputs.replica.group.member(from).is_none() {
            return cx.mark("calvin.not_of_the_group");
        }
        let me = self.state.inputs.node(self.state.inputs.replica.me);
        self.state.outcomes.have = self.state.outcomes.have.max(results.epoch);
        for item in results.read().expect("the message was checked on arrival") {
            if let RemoteResult::Outcome(txn, outcome) = item
                && txn.node() == me
            {
                self.answer_from_peer(cx, results.epoch, txn.sequence(), &outcome);
            }
        }
    }

    /// Answers the client of a request that another replica has run and this one has not.
    pub(super) fn answer_from_peer(
        &mut self,
        cx: &mut Cx<'_, Self>,
        version: SnapshotVersion,
        sequence: u64,
        outcome: &ShardOutcome,
    ) {
        // A request that left its footprint is sequenced again after it has run on this replica.
        let ShardOutcome::Ran(result) = outcome else { return };
        let in_flight = &mut self.state.sequencer.in_flight;
        let Ok(at) = in_flight.binary_search_by_key(&sequence, |it| it.txn.sequence()) else {
            return cx.mark("calvin.outcome_late");
        };
        let Some(ticket) = in_flight[at].ticket.take() else {
            return cx.mark("calvin.outcome_late");
        };
        in_flight[at].is_answered = true;
        cx.mark("calvin.answered_for");
        let txn = TxnId::new(self.state.inputs.node(self.state.inputs.replica.me), sequence);
        let outcomes = &mut self.state.outcomes;
        outcomes.answered += 1;
        outcomes.answered_upto = outcomes.answered_upto.max(version);
        self.state.counters.txns_answered_for += 1;
        let outcome = match result.clone() {
            Ok(result) => Outcome::Committed { txn, version, result },
            Err(abort) => {
                self.state.counters.txns_aborted += 1;
                Outcome::Aborted(abort)
            }
        };
        cx.reply_of_run(ticket, outcome, FirstRun::Absent);
    }

    /// Announces a new freeze of this replica, and requests outcomes at once.
    pub(super) fn note_frozen(&mut self, cx: &mut Cx<'_, Self>, before: Option<SnapshotVersion>) {
        let frozen = self.state.inputs.extension.turns.frozen();
        let Some(version) = frozen.filter(|_| frozen != before) else { return };
        self.request_outcomes(cx);
        self.send_frozen(cx);
        mutate!(OutcomesInvented: () => outcomes_invented(self, cx, version));
    }

    /// Whether a read of the local state would miss transactions whose clients were answered.
    pub(super) fn must_wait(&self) -> bool {
        self.state.outcomes.answered_upto > self.state.inputs.cut.applied
    }

    /// Queues read-only programs until this replica has run all transactions whose clients were
    /// answered.
    pub(super) fn queue_reads(&mut self, cx: &mut Cx<'_, Self>, reads: Vec<(Ticket, Program)>) {
        cx.mark("calvin.read_waits");
        for read in reads {
            if self.state.outcomes.reads.len() < IN_FLIGHT_MAX {
                self.state.outcomes.reads.push(read);
            } else {
                cx.reply(read.0, Outcome::Aborted(self.too_many_in_flight()));
            }
        }
    }

    /// Takes the programs that need not wait any more.
    pub(super) fn take_waiting_reads(&mut self) -> Vec<(Ticket, Program)> {
        match self.must_wait() {
            true => Vec::new(),
            false => std::mem::take(&mut self.state.outcomes.reads),
        }
    }
}

fn outcomes_invented(calvin: &mut Calvin, cx: &mut Cx<'_, Calvin>, version: SnapshotVersion) {
    let sequences: Vec<u64> =
        calvin.state.sequencer.in_flight.iter().map(|it| it.txn.sequence()).collect();
    let outcome = ShardOutcome::Ran(Ok(Vec::new()));
    sequences.into_iter().for_each(|it| calvin.answer_from_peer(cx, version, it, &outcome));
}
