//! GeoGauss: multi-master optimistic concurrency control with a merge for each epoch.
//!
//! From "GeoGauss: A Multi-Master Geo-Replicated NewSQL Database". Every replica executes
//! transactions at once on its newest snapshot, and streams their write sets to its peers. Time is
//! divided into epochs of some milliseconds. When a replica has the write sets of an epoch from all
//! replicas, it merges them: a rule that depends on nothing else decides who commits. No agreement
//! is needed for an epoch, so a commit takes a single round trip.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | execution | §4.1.1, Algorithm 1 | `execution.rs` | | the read set and write set of a run |
//! | isolation | §4.1.5 | `isolation.rs` | | the rows to check |
//! | replication | §5.1 | [`crate::streams`] | Batch, Ack, Fetch, Gone | f + 1 replicas have the batch |
//! | epochs | §3, §4.1 | `epochs.rs`, `clock.rs` | Batch, Eof | all transactions of an epoch |
//! | order | §4.1.2, §4.3 | `rank.rs` | | the order within an epoch |
//! | merge | §4.1.2, Algorithm 2 | `merge.rs`, `deletions.rs` | | who commits |
//! | commit | §4.1.3, Algorithm 3 | `commit.rs` | | every outcome |
//! | membership | §5.2 | `membership.rs`, `views.rs` | Agreement, Report, Progress | who has to end an epoch, and which batches of the others count |
//! | restart | | `recovery.rs` | | the epochs that are merged, or that have ended |
//! | strict reads | | `reads.rs` | MembershipRequest, Membership | a snapshot with everything acknowledged |
//!
//! # Invariants
//!
//! - A replica adds nothing to an epoch that it has ended, and numbers of epochs only grow.
//! - The state after an epoch depends only on the state before it and the batches of the epoch.

pub mod batch;
pub mod clock;
mod commit;
pub mod deletions;
mod epochs;
mod execution;
pub mod isolation;
mod marks;
mod membership;
pub mod merge;
mod messages;
mod options;
pub mod rank;
mod reads;
mod recovery;
mod state;
pub mod views;

use pangea_core::guarantee::{Guarantee, Isolations};
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::{Cx, Input, Mark, Protocol, Setup, Status};

use crate::streams::{self, FetchTimer};
use batch::Batch;
pub use merge::MergeRule;
pub use messages::Message;
pub use options::{Conflicts, Options};
use state::{End, State};
use views::ViewNumber;

/// A replica.
pub struct GeoGauss {
    state: State,
}

/// The timers of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The current batch is old enough to be sent.
    Batch,
    /// The time of the open epoch is over.
    Epoch,
    /// The clock of agreement ticks.
    Tick,
    /// The replica reports its progress to its peers.
    Progress,
    /// The replica looks for missing batches.
    Fetch,
}

impl From<FetchTimer> for Timer {
    fn from(_: FetchTimer) -> Self {
        Self::Fetch
    }
}

impl streams::Host for GeoGauss {
    type Batch = Batch;
}

impl Protocol for GeoGauss {
    const NAME: &'static str = "geogauss";
    const MARKS: &'static [Mark] = marks::ALL;

    type Message = Message;
    type Timer = Timer;
    type Options = Options;

    fn isolations(options: &Options) -> Isolations {
        options.isolations()
    }

    fn guarantee(options: &Options) -> Guarantee {
        options.guarantee()
    }

    fn drawn_options(rng: &mut fastrand::Rng) -> Options {
        Options::drawn(rng)
    }

    fn new(setup: Setup<Self>) -> Self {
        Self { state: State::new(setup) }
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        match input {
            Input::Restart(durable) => self.on_restart(cx, durable),
            Input::Submit(submissions) => self.on_submit(cx, submissions),
            Input::Message { from, message } => self.on_message(cx, from, message),
            Input::Timer(Timer::Batch) => self.start_broadcast(cx, false),
            Input::Timer(Timer::Epoch) => self.on_epoch_timeout(cx),
            Input::Timer(Timer::Fetch) => {
                self.state.streams.on_fetch_timeout(cx, &self.state.replica);
            }
            Input::Timer(Timer::Tick) => self.on_tick(cx),
            Input::Timer(Timer::Progress) => self.on_progress_timeout(cx),
            Input::Durable(position) => self.on_durable(cx, position),
            Input::PeerUp(peer) => self.on_peer_up(cx, peer),
            Input::PeerDown(peer) => self.state.replica.is_up[peer.index()] = false,
            Input::Resume => self.run_queue(cx),
            Input::Checkpointed(_) | Input::CheckpointFailed(_) | Input::Stop => {}
            Input::Prefetched { .. } => unreachable!("GeoGauss fetches no rows"),
        }
        self.settle_agreement(cx);
        self.follow_peers(cx);
        self.end_epoch_alone(cx);
        self.merge_ready(cx);
        self.run_queue(cx);
    }

    fn status(&self) -> Status {
        self.state.status()
    }

    fn invariants(&self) {
        self.state.invariants();
    }
}

impl GeoGauss {
    fn on_message(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, message: Message) {
        if let Err(refused) = message.check(self.state.replica.topology.node_count()) {
            return cx.mark(refused);
        }
        self.note_heard(cx, from);
        let State { streams, replica, .. } = &mut self.state;
        match message {
            Message::Streams(message) => match streams.on_message(cx, replica, from, message) {
                Some(streams::Event::Gone { source, first }) => {
                    streams.fetch_elsewhere(cx, replica, source, first);
                }
                Some(streams::Event::OwnBatch(_)) | None => {}
            },
            Message::Eof { through, last, view } => {
                self.on_eof(cx, from, End { through, last, view: ViewNumber(view) });
            }
            Message::Agreement { bytes } => self.on_agreement(cx, from, &bytes),
            Message::Report { seal, report } => self.on_report(cx, from, seal, &report),
            Message::Progress { merged, view } => {
                self.on_progress(from, (merged, ViewNumber(view)));
            }
            Message::MembershipRequest { token, joined } => {
                self.on_membership_request(cx, from, (token, ViewNumber(joined)));
            }
            Message::Membership { token, is_member } => {
                self.on_membership(cx, from, (token, is_member));
            }
        }
    }

    /// The log is durable up to `position`.
    fn on_durable(&mut self, cx: &mut Cx<'_, Self>, position: LogPosition) {
        self.state.note_reserved(position);
        self.state.streams.acknowledge(cx, &self.state.replica, position);
    }

    /// Both lanes to a peer are connected: messages sent earlier may be lost.
    fn on_peer_up(&mut self, cx: &mut Cx<'_, Self>, peer: NodeId) {
        let State { streams, replica, .. } = &mut self.state;
        replica.is_up[peer.index()] = true;
        streams.resend(cx, replica, peer);
        self.state.membership.driver.agreement_mut().on_peer_up(peer);
        self.send_eof(cx, peer);
    }
}
