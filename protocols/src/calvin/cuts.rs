//! The rules that Calvin adds to the cuts of the input log: mastership and checkpoint turns.

use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::batch::Batch;
use super::checkpoint_turns::{CheckpointSchedule, CheckpointTurns};
use super::mastership::{Mastership, NUMBERS_SKIPPED};
use super::options::Rules;
use super::{Calvin, Cut, Timer};
use crate::inputs::{self, Configuration, Host, Inputs, ProtocolRecord, RejoinState};
use crate::streams::Batch as _;
use crate::{presence, streams, transfer};

/// The state of these rules.
pub(crate) struct Extension {
    pub mastery: Mastership,
    pub turns: CheckpointTurns,
    /// Whether tables are partitioned. Other shards then determine, too, which program runs an
    /// epoch.
    pub is_divided: bool,
}

impl Extension {
    pub(super) fn new(
        node_count: usize,
        master: Option<NodeId>,
        schedule: CheckpointSchedule,
        is_divided: bool,
    ) -> Self {
        let turns = CheckpointTurns::new(node_count, schedule);
        Self { mastery: Mastership::new(master), turns, is_divided }
    }
}

impl From<inputs::Timer> for Timer {
    fn from(timer: inputs::Timer) -> Self {
        Self::Inputs(timer)
    }
}

impl From<streams::FetchTimer> for Timer {
    fn from(timer: streams::FetchTimer) -> Self {
        Self::Inputs(timer.into())
    }
}

impl From<presence::RejoinTimer> for Timer {
    fn from(timer: presence::RejoinTimer) -> Self {
        Self::Inputs(timer.into())
    }
}

impl streams::Host for Calvin {
    type Batch = Batch;
}

impl presence::Host for Calvin {
    type Memory = RejoinState<Rules>;
}

impl transfer::Host for Calvin {
    type Configuration = Configuration;
}

impl Host for Calvin {
    type Rules = Rules;
    type Extension = Extension;

    fn is_in(cut: &Cut, batch: &Batch) -> bool {
        match cut.master_term {
            // A master's batch that no cut of its master term contains is void.
            None => !batch.is_of_master,
            Some(master_term) => {
                let is_of_it = batch.source() == cut.name.proposer
                    && batch.first_sequence() >= master_term.first;
                mutate!(VoidRunLater: is_of_it => true)
            }
        }
    }

    /// With partitioned tables a node that stopped would end without a checkpoint of the epochs
    /// that it has run. The program of the refused epoch could not continue from there.
    fn is_alone(log: &Inputs<Self>) -> bool {
        log.replica.topology.node_count() == 1 && !log.extension.is_divided
    }

    fn preferred_master(log: &Inputs<Self>) -> Option<NodeId> {
        log.extension.mastery.preferred()
    }

    fn has_master(log: &Inputs<Self>) -> bool {
        log.is_asynchronous()
    }

    fn yield_mastership(log: &mut Inputs<Self>, cx: &Cx<'_, Self>, heir: Option<NodeId>) {
        log.yield_mastership(cx, heir);
    }

    fn has_early_cuts(log: &Inputs<Self>) -> bool {
        !log.extension.mastery.early.is_empty()
    }

    fn lead(log: &mut Inputs<Self>, cx: &mut Cx<'_, Self>) {
        log.fix_and_propose(cx, true);
    }

    fn last_early(log: &Inputs<Self>) -> Option<SnapshotVersion> {
        log.extension.mastery.last_fixed()
    }

    fn last_acknowledged(log: &Inputs<Self>) -> Option<SnapshotVersion> {
        log.extension.mastery.last_acknowledged()
    }

    fn early_cut(log: &mut Inputs<Self>, epoch: SnapshotVersion) -> Option<Cut> {
        log.early_of(epoch)
    }

    fn is_decided_early(
        log: &mut Inputs<Self>,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: &Cut,
    ) -> bool {
        log.confirm_or_discard(cx, epoch, cut)
    }

    fn on_skipped(log: &mut Inputs<Self>, cx: &mut Cx<'_, Self>) {
        log.discard_undecided(cx);
    }

    fn first_needed(log: &Inputs<Self>) -> Option<LogPosition> {
        log.extension.mastery.first_needed()
    }

    fn numbers_skipped(log: &Inputs<Self>) -> u64 {
        // Clients may have been answered for transactions that no other replica knows.
        if log.is_asynchronous() { NUMBERS_SKIPPED } else { 0 }
    }

    fn on_started(log: &mut Inputs<Self>, cx: &mut Cx<'_, Self>, found: Vec<ProtocolRecord>) {
        log.restore_early(cx, found);
    }

    fn on_tick(log: &mut Inputs<Self>, cx: &mut Cx<'_, Self>) {
        log.request_mastership(cx);
    }

    fn on_progress_sent(log: &mut Inputs<Self>, cx: &mut Cx<'_, Self>) {
        log.send_checkpoint_turn(cx);
    }

    fn on_peer_up(log: &mut Inputs<Self>, peer: NodeId) {
        log.extension.turns.forget_reported(peer);
    }

    fn on_decided(
        log: &mut Inputs<Self>,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: &Cut,
    ) {
        log.note_turn(cx, epoch, cut.turn);
    }

    fn on_applied(
        log: &mut Inputs<Self>,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: &Cut,
    ) {
        log.extension.turns.apply(cut.turn);
        log.note_master_term(cx, epoch, cut);
    }

    fn on_confirmed(
        log: &mut Inputs<Self>,
        cx: &mut Cx<'_, Self>,
        epoch: SnapshotVersion,
        cut: &Cut,
    ) {
        log.note_confirmed(cx, epoch, cut);
    }

    fn on_installed(log: &mut Inputs<Self>, cx: &mut Cx<'_, Self>) {
        log.skip_early(log.cut.applied);
        log.release_held();
        log.forget_master_term(cx);
    }

    fn next_turn(log: &mut Inputs<Self>, cx: &mut Cx<'_, Self>) -> Option<NodeId> {
        log.next_turn(cx)
    }

    fn is_turn_news(log: &Inputs<Self>, turn: Option<NodeId>) -> bool {
        log.is_turn_news(turn)
    }

    fn on_turn_proposed(log: &mut Inputs<Self>, turn: Option<NodeId>) {
        log.note_turn_proposed(turn);
    }

    fn may_checkpoint(log: &Inputs<Self>, cx: &mut Cx<'_, Self>) -> bool {
        log.may_checkpoint(cx)
    }

    fn on_checkpoint_begun(log: &mut Inputs<Self>, cx: &mut Cx<'_, Self>) {
        log.freeze(cx);
    }

    fn on_checkpoint_ended(log: &mut Inputs<Self>) {
        log.thaw();
    }

    fn check_extension(log: &Inputs<Self>) {
        log.early_invariants();
    }
}
