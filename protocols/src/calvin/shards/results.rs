//! What became of the requests that clients wait for here.
//!
//! One is known by the name that its sequencer gave it, from the moment that a cut of the group
//! names it. It may have run on other shards alone; then one of these tells how it ended.
//!
//! | whose | how it ended | told |
//! |---|---|---|
//! | in a batch of this node | it ran | when its epoch was run here, early or not |
//! | in a batch of this node | it left its footprint | when that is confirmed: then it is taken again |
//! | in the master's batch, forwarded | either | when that is confirmed: it can't be lost |

use pangea_core::exec::ordered::{Ended, Went};
use pangea_core::ids::{ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::partition::ShardSet;
use pangea_core::planted::{Bug, is_planted};
use pangea_core::protocol::{Cx, FirstRun};
use pangea_core::txn::Outcome;

use super::super::Calvin;
use super::super::batch::Request;
use super::super::scheduler::Whose;
use super::super::state::Again;
use super::items::{Item, Items};
use super::slice::Line;
use crate::inputs::outcome_unknown;

/// A request of this node that a cut has named.
pub(in super::super) struct Mine {
    pub whose: Whose,
    pub epoch: SnapshotVersion,
    /// The shards that it concerns: one of them tells how it ended.
    pub shards: ShardSet,
    /// The line that its epoch was confirmed with, since it was. Its result has not come then.
    pub confirmed: Option<Line>,
}

impl Mine {
    pub fn new(whose: Whose, epoch: SnapshotVersion, shards: ShardSet) -> Self {
        Self { whose, epoch, shards, confirmed: None }
    }
}

impl Calvin {
    /// Whether somebody waits here for a request of a batch of the group, and why.
    pub(super) fn whose(&self, request: &Request) -> Option<Whose> {
        let me = self.state.inputs.me;
        match request.origin {
            _ if request.txn.node() == me => Some(Whose::Sequenced),
            Some((replica, token)) if replica == me => {
                let is_awaited = self.state.forwarding.awaits(token);
                is_awaited.then_some(Whose::Forwarded(token))
            }
            _ => None,
        }
    }

    /// Transactions have ended here.
    pub(super) fn note_ended(&mut self, cx: &mut Cx<'_, Self>, ended: Vec<Ended>) {
        self.keep_of_others(cx, &ended);
        for Ended { txn, went, .. } in ended {
            match went {
                Went::Ran(_) => self.state.counters.txns_committed += 1,
                Went::Left => cx.mark("calvin.left"),
                Went::Served => continue,
            }
            let shards = self.shards();
            if shards.mine.contains_key(&txn) {
                shards.results.insert(txn, went);
            }
        }
    }

    /// What another shard has sent for an epoch.
    pub(super) fn take_items(&mut self, cx: &mut Cx<'_, Self>, shard: ShardId, items: &Items) {
        let Items { epoch, line, .. } = *items;
        let (applied, confirmed) = (self.state.inputs.cut.applied, self.confirmed());
        let me = self.state.inputs.node(self.state.inputs.me);
        let shards = self.shards();
        let is_run = epoch > confirmed && epoch <= shards.given;
        let fits =
            is_run && (shards.line_of(epoch) == Some(line) || is_planted(Bug::VoidItemsUsed));
        if is_run && !fits {
            cx.mark("calvin.items_of_another_line");
        }
        for item in items.read().expect("it was read when it came") {
            let (Item::Part(txn, _) | Item::Result(txn, _)) = item;
            if epoch > confirmed {
                let received = &mut self.shards().received;
                let received = received.entry(epoch).or_default().entry(line).or_default();
                received.insert((shard, txn), item.clone());
            }
            if let Item::Result(txn, went) = &item
                && self.is_frozen()
                && txn.node() == me
            {
                self.tell_early(cx, epoch, txn.sequence(), went);
            }
            match item {
                Item::Part(txn, part) if fits && epoch > applied => {
                    self.shards().sharded.receive(txn, shard, part);
                }
                Item::Part(..) if epoch <= applied => cx.mark("calvin.served_late"),
                Item::Result(txn, went) if fits || epoch <= confirmed => {
                    self.note_result(cx, (epoch, line), (txn, went));
                }
                Item::Part(..) | Item::Result(..) => {}
            }
        }
    }

    /// An epoch is given to the executor: takes what has come for it.
    pub(super) fn take_received_before(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion) {
        let shards = self.shards();
        let line = shards.line_of(epoch).expect("it is given");
        let lines = shards.received.get(&epoch).into_iter().flatten();
        let fits = |of: &Line| *of == line || is_planted(Bug::VoidItemsUsed);
        let received = lines.filter(|(of, _)| fits(of)).flat_map(|(_, items)| items.clone());
        for ((shard, _), item) in received.collect::<Vec<_>>() {
            match item {
                Item::Part(txn, part) => self.shards().sharded.receive(txn, shard, part),
                Item::Result(txn, went) => self.note_result(cx, (epoch, line), (txn, went)),
            }
        }
    }

    /// A shard that ran a transaction of this node tells how it ended.
    fn note_result(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (epoch, line): (SnapshotVersion, Line),
        (txn, went): (TxnId, Went),
    ) {
        let applied = self.state.inputs.cut.applied;
        // All replicas of the shard are told.
        let Some(mine) = self.shards().mine.get(&txn) else { return };
        let is_of_line = mine.confirmed.is_none_or(|confirmed| confirmed == line);
        if mine.epoch != epoch || !is_of_line {
            return cx.mark("calvin.result_of_another");
        }
        let is_told = mine.confirmed.is_some();
        self.shards().results.insert(txn, went);
        if is_told {
            self.settle_mine(cx, epoch, txn);
        } else if epoch <= applied {
            self.answer_if_ran(cx, epoch, txn);
        }
    }

    /// An epoch was run: answers who need not wait for more.
    pub(super) fn answer_early(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion) {
        for txn in self.shards().own[&epoch].mine.clone() {
            self.answer_if_ran(cx, epoch, txn);
        }
    }

    fn answer_if_ran(&mut self, cx: &mut Cx<'_, Self>, epoch: SnapshotVersion, txn: TxnId) {
        let shards = self.shards();
        let is_own = shards.mine.get(&txn).is_some_and(|mine| mine.whose == Whose::Sequenced);
        if is_own && matches!(shards.results.get(&txn), Some(Went::Ran(_))) {
            self.settle_mine(cx, epoch, txn);
        }
    }

    /// An epoch is confirmed: its requests are settled, or wait for their results.
    pub(super) fn settle_confirmed(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (epoch, line): (SnapshotVersion, Line),
        mine: Vec<TxnId>,
    ) {
        // Whoever ran them may not tell any more.
        let streams = self.shards().streams.iter();
        let missed = streams.filter(|(_, stream)| stream.missed >= epoch).map(|(shard, _)| *shard);
        let missed: ShardSet = missed.collect();
        for txn in mine {
            // Those of an earlier life are for nobody.
            let Some(Mine { whose, shards, .. }) = self.shards().mine.get(&txn) else { continue };
            let (whose, may_be_lost) = (*whose, shards.without(missed) != *shards);
            if self.shards().results.contains_key(&txn) {
                self.settle_mine(cx, epoch, txn);
            } else if may_be_lost {
                self.lose_result(cx, txn);
            } else if self.is_awaited(txn, whose) {
                cx.mark("calvin.result_later");
                let mine = self.shards().mine.get_mut(&txn).expect("looked at above");
                mine.confirmed = Some(line);
            } else {
                self.take_mine(txn);
            }
        }
    }

    /// Nobody will tell how a transaction of this node ended.
    pub(super) fn lose_result(&mut self, cx: &mut Cx<'_, Self>, txn: TxnId) {
        if let Some((ticket, _)) = self.take_mine(txn) {
            cx.mark("calvin.outcome_unknown");
            cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
        }
    }

    /// A request of this node is over: who waits for it, and the program where it may be taken
    /// again.
    fn take_mine(&mut self, txn: TxnId) -> Option<(Ticket, Option<Again>)> {
        self.shards().results.remove(&txn);
        match self.shards().mine.remove(&txn)?.whose {
            Whose::Sequenced => self.take_in_flight(txn.sequence()).flatten(),
            Whose::Forwarded(token) => self.state.forwarding.take(token),
        }
    }

    /// Answers the client of a request that was run, or takes it again.
    fn settle_mine(&mut self, cx: &mut Cx<'_, Self>, version: SnapshotVersion, txn: TxnId) {
        let went = self.shards().results.remove(&txn).expect("it has come");
        // Nobody waits for one of an earlier life.
        let Some((ticket, again)) = self.take_mine(txn) else { return };
        let outcome = match went {
            Went::Ran(Ok(result)) => Outcome::Committed { txn, version, result },
            Went::Ran(Err(abort)) => {
                self.state.counters.txns_aborted += 1;
                Outcome::Aborted(abort)
            }
            Went::Left if is_planted(Bug::LeftIsDone) => {
                Outcome::Committed { txn, version, result: Vec::new() }
            }
            Went::Left | Went::Served => {
                // §3.2.1: what the reconnaissance found is not so any more.
                cx.mark("calvin.restarted");
                self.state.counters.txns_restarted += 1;
                let Some(Again { program, tries }) = again else {
                    // One that brings what it read and writes leaves nothing.
                    return cx.reply(ticket, Outcome::Aborted(outcome_unknown()));
                };
                return self.look_up(cx, ticket, program, tries + 1);
            }
        };
        cx.reply_of_run(ticket, outcome, FirstRun::Absent);
    }

    /// Whether somebody waits for a request of this node.
    fn is_awaited(&self, txn: TxnId, whose: Whose) -> bool {
        let in_flight = &self.state.sequencer.in_flight;
        match whose {
            Whose::Forwarded(token) => self.state.forwarding.awaits(token),
            Whose::Sequenced => {
                let found = in_flight.binary_search_by_key(&txn.sequence(), |it| it.txn.sequence());
                found.is_ok_and(|at| in_flight[at].ticket.is_some())
            }
        }
    }
}
