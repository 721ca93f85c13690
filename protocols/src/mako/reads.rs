//! Reads: snapshots on every replica, and strict reads without leases (§8).
//!
//! ```text
//!   replica                        leader
//!     | FreshRequest ------------> |  makes an entry
//!     | <------- FreshReply 3.71   |
//!     waits until 3.71 is published here, in epoch 3
//! ```
//!
//! With several shards, the leaders of all of them are asked, and the latest version counts.
//!
//! An entry that was made after the question is committed after everything that was acknowledged
//! before it. A leader that was replaced may make entries, too, but they are never committed. If
//! another epoch has published something first, the question is repeated: the answer may be that of
//! a leader that was replaced before.

use std::collections::BTreeSet;

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

/// A request to the leaders of all shards.
#[derive(Debug)]
struct Request {
    token: u64,
    epoch: Epoch,
    at: Timestamp,
    /// Those that have not replied.
    missing: BTreeSet<NodeId>,
    /// The greatest version of the others.
    version: SnapshotVersion,
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

impl State {
    /// The nodes that lead the shards, if all of them execute transactions in this epoch.
    fn leaders(&self) -> Option<BTreeSet<NodeId>> {
        let own = match (&self.role, self.is_leader()) {
            (Role::Leading(_), _) => self.node,
            (_, true) => return None,
            (_, false) => self.heard_leader()?,
        };
        let Some(shards) = &self.shards else { return Some([own].into()) };
        let others = shards.ids().filter(|shard| *shard != shards.own);
        let others = others.map(|shard| shards.leading(shard)).collect::<Option<Vec<_>>>()?;
        Some(others.into_iter().chain([own]).collect())
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
        let number = self.state.epoch();
        let fresh = &mut self.state.fresh;
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
        let Some(missing) = self.state.leaders() else { return };
        let State { fresh, replica, role, node, .. } = &mut self.state;
        let token = replica.next_token();
        for leader in &missing {
            match role {
                Role::Leading(leading) if leader == node => leading.fresh.push((*node, token)),
                _ => cx.send(*leader, Message::FreshRequest { token }),
            }
        }
        let (at, version) = (cx.now.at, SnapshotVersion::ZERO);
        fresh.asked = Some(Request { token, epoch: number, at, missing, version });
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
            if node == self.state.node {
                self.on_fresh_reply(cx, node, (token, version));
            } else {
                cx.send(node, Message::FreshReply { token, version });
            }
        }
    }

    pub(super) fn on_fresh_reply(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (token, version): (u64, SnapshotVersion),
    ) {
        let number = self.state.epoch();
        let fresh = &mut self.state.fresh;
        let is_it = |asked: &Request| asked.token == token && asked.epoch == number;
        if fresh.asked.as_ref().is_some_and(is_it) {
            let asked = fresh.asked.as_mut().expect("it was found just now");
            let is_first = asked.version == SnapshotVersion::ZERO;
            if !is_first && epoch_of(asked.version) != epoch_of(version) {
                // The leader of the earlier epoch may have been replaced before it was asked.
                cx.mark("mako.strict_read_of_epoch");
                return fresh.ask_anew();
            }
        }
        let is_whole = |asked: &mut Request| {
            let is_it =
                asked.token == token && asked.epoch == number && asked.missing.remove(&from);
            if is_it {
                asked.version = asked.version.max(version);
            }
            is_it && asked.missing.is_empty()
        };
        if let Some(Request { version, .. }) = fresh.asked.take_if(is_whole) {
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
