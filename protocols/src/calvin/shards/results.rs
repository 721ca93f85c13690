//! The outcomes of requests whose clients wait on this node.
//!
//! A request is known by the name that its sequencer gave it, from the moment that a cut of the
//! group contains it. It may run only on other shards; then one of these sends its outcome.
//!
//! | request | outcome | answered |
//! |---|---|---|
//! | in a batch of this node | it ran | when its epoch has run on this node, early or not |
//! | in a batch of this node | it left its footprint, or the epoch has cuts of two programs | when the epoch is confirmed: then it is sequenced again |
//! | in the master's batch, forwarded | either | when the epoch is confirmed: it can't be lost |

use pangea_core::exec::ordered::{Ended, ShardOutcome};
use pangea_core::ids::{ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::mutate;
use pangea_core::partition::ShardSet;
use pangea_core::protocol::{Cx, FirstRun};
use pangea_core::txn::{Abort, Outcome, SqlState};

use super::super::Calvin;
use super::super::batch::Request;
use super::super::scheduler::RequestOrigin;
use super::super::state::RetryableRequest;
use super::remote_results::{RemoteResult, RemoteResults};
use super::slice::Lineage;
use crate::inputs::outcome_unknown;

/// A request of this node that a cut contains.
pub(in super::super) struct LocalRequest {
    pub origin: RequestOrigin,
    pub epoch: SnapshotVersion,
    /// The participating shards, one of which sends the outcome.
    pub shards: ShardSet,
    /// The lineage with which its epoch was confirmed; set if its outcome had not arrived then.
    pub confirmed: Option<Lineage>,
}

impl LocalRequest {
    pub fn new(origin: RequestOrigin, epoch: SnapshotVersion, shards: ShardSet) -> Self {
        Self { origin, epoch, shards, confirmed: None }
    }
}

impl Calvin {
    /// Whether and why a client waits on this node for a request in a batch of the group.
    pub(super) fn origin_of(&self, request: &Request) -> Option<RequestOrigin> {
        let me = self.state.inputs.replica.me;
        match request.origin {
            _ if request.txn.node() == me => Some(RequestOrigin::Sequenced),
            Some((replica, token)) if replica == me => {
                let is_awaited = self.state.forwarding.awaits(token);
                is_awaited.then_some(RequestOrigin::Forwarded(token))
            }
            _ => None,
        }
    }

    /// Records the outcomes of transactions that have ended on this node.
    pub(super) fn note_ended(&mut self, cx: &mut Cx<'_, Self>, ended: Vec<Ended>) {
        self.retain_for_peer(cx, &ended);
        for Ended { txn, outcome, .. } in ended {
            match outcome {
                ShardOutcome::Ran(_) => self.state.counters.txns_committed += 1,
                ShardOutcome::FootprintViolated => cx.mark("calvin.left"),
                ShardOutcome::Served | ShardOutcome::Void => continue,
            }
            let shards = self.shards();
            if shards.local_requests.contains_key(&txn) {
                shards.results.insert(txn, outcome);
            }
        }
    }

    /// Handles rows and outcomes that another shard has sent for an epoch.
    pub(super) fn apply_results(
        &mut self,
        cx: &mut Cx<'_, Self>,
        shard: ShardId,
        results: &RemoteResults,
    ) {
        let RemoteResults { epoch, line, .. } = *results;
        let (applied, confirmed) = (self.state.inputs.cut.applied, self.confirmed());
        let me = self.state.inputs.node(self.state.inputs.replica.me);
        let shards = self.shards();
        let is_run = epoch > confirmed && epoch <= shards.scheduled_upto;
        let fits = is_run && mutate!(VoidItemsUsed: shards.line_of(epoch) == Some(line) => true);
        if is_run && !fits {
            cx.mark("calvin.items_of_another_line");
        }
        for item in results.read().expect("the message was checked on arrival") {
            let (RemoteResult::Reads(txn, _) | RemoteResult::Outcome(txn, _)) = item;
            if epoch > confirmed {
                let received = &mut self.shards().received;
                let received = received.entry(epoch).or_default().entry(line).or_default();
                received.insert((shard, txn), item.clone());
            }
            if let RemoteResult::Outcome(txn, outcome) = &item
                && self.is_frozen()
                && txn.node() == me
            {
                self.answer_from_peer(cx, epoch, txn.sequence(), outcome);
            }
            match item {
                RemoteResult::Reads(txn, part) if fits && epoch > applied => {
                    self.shards().sharded.receive(txn, shard, part);
                }
                RemoteResult::Reads(..) if epoch <= applied => cx.mark("calvin.served_late"),
                RemoteResult::Outcome(txn, outcome) if fits || epoch <= confirmed => {
                    self.note_result(cx, (epoch, line), (txn, outcome));
                }
                RemoteResult::Reads(..) | RemoteResult::Outcome(..) => {}
            }
        }
    }

    /// Uses the rows and outcomes that arrived before their epoch was passed to the executor.
    pub(super) fn take_received_before(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion) {
        let shards = self.shards();
        let line = shards.line_of(epoch).expect("the epoch was started");
        let lines = shards.received.get(&epoch).into_iter().flatten();
        let fits = |of: &Lineage| mutate!(VoidItemsUsed: *of == line => true);
        let received = lines.filter(|(of, _)| fits(of)).flat_map(|(_, results)| results.clone());
        for ((shard, _), item) in received.collect::<Vec<_>>() {
            match item {
                RemoteResult::Reads(txn, part) => self.shards().sharded.receive(txn, shard, part),
                RemoteResult::Outcome(txn, outcome) => {
                    self.note_result(cx, (epoch, line), (txn, outcome))
                }
            }
        }
    }

    /// Records the outcome of a local transaction, sent by a shard that ran it.
    fn note_result(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (epoch, line): (SnapshotVersion, Lineage),
        (txn, outcome): (TxnId, ShardOutcome),
    ) {
        let applied = self.state.inputs.cut.applied;
        // All replicas of the shard receive it.
        let Some(local) = self.shards().local_requests.get(&txn) else { return };
        let is_of_line = local.confirmed.is_none_or(|confirmed| confirmed == line);
        if local.epoch != epoch || !is_of_line {
            return cx.mark("calvin.result_of_another");
        }
        let is_confirmed = local.confirmed.is_some();
        self.shards().results.insert(txn, outcome);
        if is_confirmed {
            self.settle_local_request(cx, epoch, txn);
        } else if epoch <= applied {
            self.answer_if_ran(cx, epoch, txn);
        }
    }

    /// Answers the clients that need not wait longer, after an epoch has run.
    pub(super) fn answer_early(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion) {
        for txn in self.shards().own[&epoch].local_requests.clone() {
            self.answer_if_ran(cx, epoch, txn);
        }
    }

    fn answer_if_ran(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion, txn: TxnId) {
        let shards = self.shards();
        let is_own = shards
            .local_requests
            .get(&txn)
            .is_some_and(|local| local.origin == RequestOrigin::Sequenced);
        if is_own && matches!(shards.results.get(&txn), Some(ShardOutcome::Ran(_))) {
            self.settle_local_request(cx, epoch, txn);
        }
    }

    /// Answers the requests of a confirmed epoch, or marks them as waiting for their outcomes.
    pub(super) fn settle_confirmed(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (epoch, line): (SnapshotVersion, Lineage),
        local_requests: Vec<TxnId>,
    ) {
        // The shards that ran them may no longer have the outcomes.
        let streams = self.shards().streams.iter();
        let truncated = streams
            .filter(|(_, stream)| stream.inbound.truncated >= epoch)
            .map(|(shard, _)| *shard);
        let truncated: ShardSet = truncated.collect();
        for txn in local_requests {
            // No client waits for those from before a restart.
            let Some(LocalRequest { origin, shards, .. }) = self.shards().local_requests.get(&txn)
            else {
                continue;
            };
            let (origin, may_be_lost) = (*origin, shards.without(truncated) != *shards);
            if self.shards().results.contains_key(&txn) {
                self.settle_local_request(cx, epoch, txn);
            } else if may_be_lost {
                self.lose_result(cx, txn);
            } else if self.is_awaited(txn, origin) {
                cx.mark("calvin.result_later");
                let local = self
                    .shards()
                    .local_requests
                    .get_mut(&txn)
                    .expect("the transaction was found above");
                local.confirmed = Some(line);
            } else {
                self.remove_local_request(txn);
            }
        }
    }

    /// Answers a client whose outcome no shard will send any more.
    pub(super) fn lose_result(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId) {
        if let Some((ticket, _)) = self.remove_local_request(txn) {
            cx.mark("calvin.outcome_unknown");
            cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
        }
    }

    /// Removes a finished local request. Returns the waiting client, and the program if it may have
    /// to be sequenced again.
    fn remove_local_request(&mut self, txn: TxnId) -> Option<(Ticket, Option<RetryableRequest>)> {
        self.shards().results.remove(&txn);
        match self.shards().local_requests.remove(&txn)?.origin {
            RequestOrigin::Sequenced => self.take_in_flight(txn.sequence()).flatten(),
            RequestOrigin::Forwarded(token) => self.state.forwarding.take(token),
        }
    }

    /// Answers the client of a request that has run, or sequences the request again.
    fn settle_local_request(
        &mut self,
        cx: &mut Cx<'_, Self>,
        version: SnapshotVersion,
        txn: TxnId,
    ) {
        let shard_outcome = self.shards().results.remove(&txn).expect("the result has arrived");
        let shard_outcome = mutate!(LeftIsDone: shard_outcome => left_is_done(shard_outcome));
        // No client waits for one from before a restart.
        let Some((ticket, retryable)) = self.remove_local_request(txn) else { return };
        let outcome = match shard_outcome {
            ShardOutcome::Ran(Ok(result)) => Outcome::Committed { txn, version, result },
            ShardOutcome::Ran(Err(abort)) => {
                self.state.counters.txns_aborted += 1;
                Outcome::Aborted(abort)
            }
            ShardOutcome::FootprintViolated | ShardOutcome::Served | ShardOutcome::Void => {
                // §3.2.1: the footprint that the reconnaissance found is no longer valid.
                cx.mark("calvin.restarted");
                self.state.counters.txns_restarted += 1;
                let Some(RetryableRequest { program, tries }) = retryable else {
                    // A certified transaction can't leave its footprint, but its epoch may have run
                    // nothing.
                    return cx.reply(ticket, Outcome::Aborted(passed_over()));
                };
                return self.look_up(cx, ticket, program, tries + 1);
            }
        };
        cx.reply_of_run(ticket, outcome, FirstRun::Absent);
    }

    /// Whether a client waits for a request of this node.
    fn is_awaited(&self, txn: TxnId, origin: RequestOrigin) -> bool {
        let in_flight = &self.state.sequencer.in_flight;
        match origin {
            RequestOrigin::Forwarded(token) => self.state.forwarding.awaits(token),
            RequestOrigin::Sequenced => {
                let found = in_flight.binary_search_by_key(&txn.sequence(), |it| it.txn.sequence());
                found.is_ok_and(|at| in_flight[at].ticket.is_some())
            }
        }
    }
}

/// The error of an interactive transaction in an epoch that no program runs.
fn passed_over() -> Abort {
    Abort::new(
        SqlState::SERIALIZATION_FAILURE,
        "could not serialize access: the nodes were started with another program",
    )
    .with_hint("The transaction might succeed if retried.")
}

fn left_is_done(shard_outcome: ShardOutcome) -> ShardOutcome {
    if matches!(shard_outcome, ShardOutcome::FootprintViolated) {
        ShardOutcome::Ran(Ok(Vec::new()))
    } else {
        shard_outcome
    }
}
