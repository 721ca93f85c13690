//! The state of a replica, grouped by phase.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pangea_core::exec::Overlay;
use pangea_core::guarantee::Isolation;
use pangea_core::hash::hash_bytes;
use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, Ticket, TxnId};
use pangea_core::protocol::{ListedEpoch, Setup, Status};
use pangea_core::time::Timestamp;
use pangea_core::txn::{Program, Registry};

use super::GeoGauss;
use super::batch::TxnRecord;
use super::caches::Caches;
use super::caught_up::CaughtUp;
use super::clock::EpochClock;
use super::deletions::Deletions;
use super::early::Early;
use super::hot::HotRows;
use super::lineage::Lineages;
use super::membership::Membership;
use super::options::Options;
use super::reads::Fresh;
use super::relays::Hearing;
use super::rules::Rules;
use super::stop::Stops;
use super::views::ViewNumber;
use super::waits::Waits;
use crate::checkpoints::{Checkpoints, turn_of};
use crate::digests::Digests;
use crate::inputs::{Skips, Target};
use crate::presence::Presence;
use crate::replica::Replica;
use crate::streams::{Bid, Heads, Streams, encode_heads};
use crate::transfer::Transfer;

/// A replica.
pub(super) struct State {
    pub registry: Arc<Registry>,
    pub options: Options,
    pub rules: Rules,
    pub replica: Replica,
    pub streams: Streams<GeoGauss>,
    pub presence: Presence<GeoGauss>,
    pub transfer: Transfer<GeoGauss>,
    pub checkpoints: Checkpoints,
    /// `Some` while a replica that lost its disk is recovering its data.
    pub target: Option<Target>,
    pub epochs: Epochs,
    pub execution: Execution,
    pub applied: Applied,
    /// `Some` if epochs are merged before they are confirmed.
    pub early: Option<Early>,
    pub membership: Membership,
    pub caches: Caches,
    pub digests: Digests,
    pub stops: Stops,
    pub waits: Waits,
    /// The last epoch that this replica could not merge because its rules differ from those of a
    /// batch, and the rules of that. Irrelevant once this epoch is merged.
    pub refused: Option<(SnapshotVersion, Rules)>,
    /// The skipped epochs that the log names.
    pub skips: Skips,
    /// The listed epochs that this run has met.
    pub listed: Vec<ListedEpoch>,
    /// Whether an epoch could not be merged. The replica then merges no more, and stops.
    pub has_failed: bool,
    /// Strict reads.
    pub fresh: Fresh,
    pub counters: Counters,
}

/// §3, §4.1: epochs by physical time.
pub(super) struct Epochs {
    pub clock: EpochClock,
    /// The epoch to which this replica adds transactions. It adds none to earlier ones.
    pub open: SnapshotVersion,
    /// The last epoch that it has reached. If it is idle, it has ended later ones.
    pub reached: SnapshotVersion,
    /// The last epoch with transactions of it.
    pub busy: SnapshotVersion,
    /// Whether it has added any to the open epoch.
    pub has_txns: bool,
    /// When the first one was added.
    pub opened_at: Timestamp,
    /// The last end of an epoch that each replica has sent apart from its batches.
    pub ends: Vec<End>,
    /// The last epoch that each replica has told this one itself that it ended, since it lost its
    /// disk.
    pub own_ends: Vec<SnapshotVersion>,
    /// What the replicas hear of each other.
    pub hearing: Hearing,
    /// The last epoch that this replica may end, as far as that is durable.
    pub reserved: SnapshotVersion,
    /// Later reservations, with their log positions.
    pub reserving: VecDeque<(SnapshotVersion, LogPosition)>,
}

impl Epochs {
    /// Moves to an epoch, if it is later than the open one, without adding to those before it.
    pub(super) fn skip_to(&mut self, epoch: SnapshotVersion) {
        if epoch > self.open {
            (self.open, self.reached) = (epoch, SnapshotVersion(epoch.0 - 1));
        }
    }
}

/// The end of an epoch of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    /// The last epoch.
    pub through: SnapshotVersion,
    /// The last one of them that it has reached.
    pub reached: SnapshotVersion,
    /// The last batch of these epochs.
    pub last: Bid,
    /// The view of the replica then.
    pub view: ViewNumber,
}

/// §4.1.1: execution, before the merge.
#[derive(Default)]
pub(super) struct Execution {
    /// Transactions that wait to be run.
    pub queue: VecDeque<Job>,
    /// Transactions that were added to an epoch and are not decided, in the order of their numbers.
    pub in_flight: VecDeque<InFlight>,
    /// The number of the first transaction of the last step that ran programs.
    pub last_run_from: u64,
    /// Whether batches may be created since the last start.
    pub caught_up: CaughtUp,
    /// The current batch.
    pub current: Vec<TxnRecord>,
    /// Its approximate size in bytes.
    pub current_bytes: usize,
    /// Rows at which transactions have lost.
    pub hot: HotRows,
    /// The writes of transactions in flight, for those that read them.
    pub overlay: Overlay,
}

/// A transaction of a local client.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub ticket: Ticket,
    pub program: Program,
    pub level: Isolation,
    /// How often it has lost.
    pub attempt: u8,
    /// Whether its run may have made this replica late.
    pub is_slow: bool,
    /// The epoch in which it arrived, or in which it has lost.
    pub since: SnapshotVersion,
}

/// A transaction that was added to an epoch.
pub(super) struct InFlight {
    pub txn: TxnId,
    /// Its epoch.
    pub epoch: SnapshotVersion,
    /// How often it had lost, and when it began.
    pub attempt: u8,
    pub start: SnapshotVersion,
    pub job: Job,
    /// The result of its run, if it was run.
    pub result: Vec<u8>,
    /// The lineage of the early epoch in which its client was told of its commit, if it was.
    pub answered: Option<u64>,
}

/// The epochs that were merged.
#[derive(Clone)]
pub(super) struct Applied {
    /// The last epoch with transactions.
    pub epoch: SnapshotVersion,
    /// The batches of the epochs up to it.
    pub heads: Heads,
    pub deletions: Deletions,
    pub lineages: Lineages,
}

/// What an epoch that was merged adds to the state.
#[derive(Clone)]
pub(super) struct Merged {
    pub epoch: SnapshotVersion,
    /// The batches of the epochs up to it.
    pub heads: Heads,
    /// The hashes of the rows that it has deleted.
    pub deleted: Vec<u64>,
    /// Deletions up to this epoch are forgotten.
    pub horizon: SnapshotVersion,
}

impl Applied {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            epoch: SnapshotVersion::ZERO,
            heads: vec![Bid(0); node_count],
            deletions: Deletions::default(),
            lineages: Lineages::default(),
        }
    }

    /// Adds an epoch, and the hashes of the rows that it has deleted.
    pub(super) fn advance(&mut self, merged: Merged) {
        let Merged { epoch, heads, deleted, horizon } = merged;
        self.deletions.note(epoch, deleted, horizon);
        self.lineages.note(epoch, &heads, horizon);
        (self.epoch, self.heads) = (epoch, heads);
    }
}

/// Counters for operators and reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub epochs: u64,
    pub txns_local: u64,
    pub txns_committed: u64,
    pub txns_lost: u64,
    pub txns_retried: u64,
    pub txns_ordered: u64,
    pub txns_aborted: u64,
    pub acknowledged_lost: u64,
    pub checkpoints_failed: u64,
    pub checkpoints_installed: u64,
    pub rejoins: u64,
}

impl State {
    pub(super) fn new(setup: Setup<GeoGauss>) -> Self {
        let mut replica = Replica::new(setup.me, setup.topology.group(ShardId(0)));
        let n = replica.topology.node_count();
        replica.bytes_since_checkpoint = turn_of(replica.me, n, setup.options.checkpoint_bytes);
        let first = SnapshotVersion(1);
        Self {
            streams: Streams::new(n, true),
            presence: Presence::new(n),
            transfer: Transfer::new(setup.options.chunk_bytes),
            checkpoints: Checkpoints::default(),
            target: None,
            epochs: Epochs {
                clock: EpochClock::new(setup.options.epoch(), first, Timestamp::default()),
                open: first,
                reached: SnapshotVersion::ZERO,
                busy: SnapshotVersion::ZERO,
                has_txns: false,
                opened_at: Timestamp::default(),
                ends: vec![End::default(); n],
                own_ends: vec![SnapshotVersion::ZERO; n],
                hearing: Hearing::new(n),
                reserved: SnapshotVersion::ZERO,
                reserving: VecDeque::new(),
            },
            execution: Execution::default(),
            applied: Applied::new(n),
            early: Early::new(n, &setup.options),
            membership: Membership::new(n),
            caches: Caches::new(setup.topology.caches_of(setup.me)),
            digests: Digests::new(n),
            stops: Stops::new(n),
            waits: Waits::default(),
            refused: None,
            skips: Skips::default(),
            listed: Vec::new(),
            has_failed: false,
            fresh: Fresh::default(),
            counters: Counters::default(),
            rules: setup.options.rules(setup.registry.code()),
            registry: setup.registry,
            options: setup.options,
            replica,
        }
    }

    pub(super) fn me(&self) -> NodeId {
        self.replica.me
    }

    pub(super) fn status(&self) -> Status {
        let (c, streams) = (&self.counters, &self.streams.counters);
        let counters = [
            ("epochs", c.epochs),
            ("batches_sent", streams.batches_sent),
            ("batch_bytes", streams.batch_bytes),
            ("batches_fetched", streams.batches_fetched),
            ("batch_bytes_held", self.streams.bytes_buffered()),
            ("checkpoints_failed", c.checkpoints_failed),
            ("checkpoints_sent", self.transfer.sent),
            ("checkpoints_installed", c.checkpoints_installed),
            ("rejoins", c.rejoins),
            ("checkpoint_writing", u64::from(self.checkpoints.is_writing())),
            ("replicas_differing", self.digests.differing_nodes().len() as u64),
            ("txns_local", c.txns_local),
            ("txns_committed", c.txns_committed),
            ("txns_lost", c.txns_lost),
            ("txns_retried", c.txns_retried),
            ("txns_ordered", c.txns_ordered),
            ("txns_aborted", c.txns_aborted),
            ("acknowledged_lost", c.acknowledged_lost),
            ("caches_connected", u64::from(self.caches.is_connected())),
            ("epochs_early", self.early.as_ref().map_or(0, |early| early.epochs.len() as u64)),
            ("txns_in_flight", self.execution.in_flight.len() as u64),
            ("deletions_remembered", self.applied.deletions.len() as u64),
        ];
        let mut counters: BTreeMap<String, u64> =
            counters.map(|(name, value)| (name.to_owned(), value)).into();
        for peer in self.replica.peers() {
            let (progress, node) = (self.membership.progress_of(peer), self.replica.node(peer).0);
            counters.insert(format!("peer_applied_{node}"), progress.applied.0);
            counters.insert(format!("peer_durable_{node}"), progress.durable.0);
        }
        let rejoin = self.rejoining();
        Status {
            version: self.applied.epoch,
            coordinator: self.membership.driver.leader(),
            members: self.membership.view.members().collect(),
            first_start: self.presence.first_start(&self.replica).filter(|_| rejoin.is_none()),
            rejoin,
            refused: self.refused(),
            is_restarting: false,
            waits_for: self.waits.late.clone(),
            differing: self.digests.differing_nodes(),
            strangers: self.presence.strangers().collect(),
            counters,
        }
    }

    /// The confirmed epoch, and a digest of the rest of its state, in which all replicas agree.
    pub(super) fn agreed(&self) -> (SnapshotVersion, u64) {
        let Applied { epoch, heads, deletions, lineages } = self.confirmed();
        let mut bytes = Vec::new();
        encode_heads(heads, &mut bytes);
        deletions.encode(&mut bytes);
        lineages.encode(&mut bytes);
        (*epoch, hash_bytes(&bytes))
    }

    /// Asserts the invariants that hold between any two steps.
    pub(super) fn invariants(&self) {
        self.streams.invariants(&self.replica);
        let (epochs, execution) = (&self.epochs, &self.execution);
        assert!(self.applied.epoch < epochs.open, "only closed epochs are merged");
        assert!(epochs.reached < epochs.open, "a replica ends all epochs that it has reached");
        assert!(
            epochs.has_txns || execution.current.is_empty(),
            "the transactions of a batch are in the open epoch"
        );
        let numbers = execution.in_flight.iter().map(|it| it.txn.sequence());
        assert!(numbers.is_sorted_by(|a, b| a < b), "local transactions are in order");
        let has_skipped = self.checkpoints.installed.is_some();
        assert_eq!(self.streams.has_skipped, has_skipped, "only an installed checkpoint skips");
        let confirmed = self.confirmed();
        assert!(confirmed.epoch <= self.applied.epoch, "confirmed epochs are merged");
        let logs = self.streams.logs.iter().zip(&self.applied.heads);
        for ((log, head), confirmed) in logs.zip(&confirmed.heads) {
            assert!(*head <= log.received, "merged batches were received");
            assert!(log.collected <= *confirmed, "collected batches were merged");
            let epochs = log.slots.values().map(|slot| (slot.batch.epoch, slot.batch.is_last));
            let is_before = |a: &(SnapshotVersion, bool), b: &(SnapshotVersion, bool)| {
                a.0 < b.0 || a.0 == b.0 && !a.1
            };
            assert!(epochs.is_sorted_by(is_before), "nothing is added to an epoch after its end");
        }
    }
}
