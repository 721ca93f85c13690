//! Reads: snapshots on every replica, and strict reads without leases (§8).
//!
//! ```text
//!   replica                        leader
//!     | FreshRequest ------------> |  makes an entry
//!     | <------- FreshReply 3.71   |
//!     waits until 3.71 is published here, in epoch 3
//! ```
//!
//! An entry that was made after the question is committed after everything that was acknowledged
//! before it. A leader that was replaced may make entries, too, but they are never committed. If
//! another epoch has published something first, the question is repeated: the answer may be that of
//! a leader that was replaced before.

use pangea_core::exec::{Overlay, optimistic};
use pangea_core::ids::{NodeId, SnapshotVersion, Ticket, TxnId};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;
use pangea_core::txn::{Outcome, Program};

use super::Mako;
use super::messages::Message;
use super::options::Reads;
use super::state::{Role, State};
use super::versions::{Epoch, epoch_of};

/// A request is repeated after this number of the longest round trips, besides the time after which
/// a leader is suspected.
const PATIENCE_ROUND_TRIPS: u64 = 4;

/// Strict reads that wait.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    waiting: Vec<FreshRead>,
    /// The last request, until it is answered: reads that arrive meanwhile need another one.
    asked: Option<Request>,
}

/// A request to the leader.
#[derive(Debug)]
struct Request {
    token: u64,
    epoch: Epoch,
    at: Timestamp,
}

/// A strict read.
#[derive(Debug)]
struct FreshRead {
    ticket: Ticket,
    /// Whether the last request was sent after the read arrived.
    is_asked: bool,
    /// The version that it waits for.
    version: Option<SnapshotVersion>,
}

impl Fresh {
    /// Whether no strict read waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A request may be lost.
    pub(super) fn ask_anew(&mut self) {
        self.asked = None;
    }
}

impl Mako {
    /// Runs a transaction that only reads at the last published version, if the settings say so.
    /// Returns whether it did.
    pub(super) fn read_snapshot(
        &self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        program: &Program,
    ) -> bool {
        let State { options, registry, node, shards, .. } = &self.state;
        let Program::Call { procedure, args } = program else { return false };
        let code = registry.procedure(*procedure);
        let is_read_only = code.is_some_and(|code| code.is_read_only(args));
        // After a restart, clients may have seen later versions than those that are published.
        let is_allowed = options.reads == Reads::Snapshot && shards.is_none();
        if !is_allowed || !is_read_only || self.state.is_restarting() {
            return false;
        }
        cx.mark("mako.snapshot_read");
        let (at, nothing) = (cx.store.published(), Overlay::new());
        let run = optimistic::run(registry, program, cx.store, at, &nothing);
        // It takes no place in the order, so it has no name.
        let txn = TxnId::new(*node, 0);
        let outcome = match run.result {
            Ok(result) => Outcome::Committed { txn, version: at, result },
            Err(abort) => Outcome::Aborted(abort),
        };
        cx.reply(ticket, outcome);
        true
    }

    /// A strict read arrives.
    pub(super) fn await_fresh(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket) {
        cx.mark("mako.strict_read");
        self.state.fresh.waiting.push(FreshRead { ticket, is_asked: false, version: None });
    }

    /// Asks the leader for the strict reads that have arrived, unless a request is under way.
    pub(super) fn ask_for_new_reads(&mut self, cx: &mut Cx<'_, Self>) {
        let State { fresh, epochs, replica, role, .. } = &mut self.state;
        let number = epochs.current.number;
        // A leader of another epoch does not answer.
        fresh.asked.take_if(|asked| asked.epoch != number);
        let is_waiting = |read: &FreshRead| read.version.is_none();
        if fresh.asked.is_none() {
            fresh.waiting.iter_mut().filter(|read| is_waiting(read)).for_each(|read| {
                read.is_asked = false;
            });
        }
        if fresh.asked.is_some() || !fresh.waiting.iter().any(is_waiting) {
            return;
        }
        let leader = epochs.current.leader;
        let token = replica.next_token();
        if leader == replica.me {
            let Role::Leading(leading) = role else { return };
            leading.fresh.push((leader, token));
        } else {
            let told = &epochs.told[leader.index()];
            let leads = told.flags.leads && told.leadership.number == number && number > Epoch(0);
            if !leads || !replica.is_up[leader.index()] {
                return;
            }
            replica.send(cx, leader, Message::FreshRequest { token });
        }
        fresh.asked = Some(Request { token, epoch: number, at: cx.now.at });
        fresh.waiting.iter_mut().for_each(|read| read.is_asked = true);
    }

    /// Asks again if a reply may have been lost.
    pub(super) fn ask_again(&mut self, cx: &mut Cx<'_, Self>) {
        let round_trip = self.state.replica.topology.round_trip_max();
        let patience =
            self.state.options.failure(round_trip).us + PATIENCE_ROUND_TRIPS * round_trip.us;
        let is_late = |asked: &mut Request| cx.now.at.since(asked.at).us > patience;
        if self.state.fresh.asked.take_if(is_late).is_some() {
            cx.mark("mako.strict_read_asks_again");
        }
    }

    /// A node asks for a version that is not older than now.
    pub(super) fn on_fresh_request(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, token: u64) {
        match &mut self.state.role {
            Role::Leading(leading) => leading.fresh.push((from, token)),
            Role::Following | Role::Closing(_) => cx.mark("mako.forwarded_to_another"),
        }
    }

    /// Tells those who have asked the last version of this leader, which nobody has been sent yet.
    pub(super) fn answer_fresh_requests(&mut self, cx: &mut Cx<'_, Self>) {
        let published = self.state.commit.published;
        let Role::Leading(leading) = &mut self.state.role else { return };
        let version = mutate!(MakoFreshWithoutEntry: leading.last => published);
        for (node, token) in std::mem::take(&mut leading.fresh) {
            if node == self.state.replica.me {
                self.on_fresh_reply(node, (token, version));
            } else {
                self.state.replica.send(cx, node, Message::FreshReply { token, version });
            }
        }
    }

    pub(super) fn on_fresh_reply(
        &mut self,
        from: NodeId,
        (token, version): (u64, SnapshotVersion),
    ) {
        let leader = self.state.leader();
        let State { fresh, epochs, .. } = &mut self.state;
        let is_it = |asked: &mut Request| {
            asked.token == token && asked.epoch == epochs.current.number && leader == Some(from)
        };
        if fresh.asked.take_if(is_it).is_some() {
            for read in fresh.waiting.iter_mut().filter(|read| read.is_asked) {
                read.version.get_or_insert(version);
            }
        }
    }

    /// Answers the strict reads whose versions are published.
    pub(super) fn answer_fresh(&mut self, cx: &mut Cx<'_, Self>) {
        let published = self.state.commit.published;
        let mut is_repeated = false;
        self.state.fresh.waiting.retain_mut(|read| {
            let Some(version) = read.version.filter(|version| *version <= published) else {
                return true;
            };
            let is_of_epoch = epoch_of(version) == epoch_of(published);
            if is_of_epoch {
                cx.fresh(read.ticket, published);
                return false;
            }
            (read.version, read.is_asked, is_repeated) = (None, false, true);
            true
        });
        if is_repeated {
            cx.mark("mako.strict_read_of_epoch");
        }
    }
}
