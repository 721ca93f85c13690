//! Strict reads: a snapshot with everything that was acknowledged anywhere before.
//!
//! ```text
//!   replica                        peers
//!     | FreshRequest ------------> |
//!     | <--- FreshReply(cell 71)   |   from f of them
//!     waits until cell 71 is published here
//! ```
//!
//! An acknowledged transaction is in the logs of f + 1 replicas, so any f + 1 replicas have one
//! that contains it. If it was acknowledged on the fast path, they have one that has replied. Some
//! may have cells that are never committed, because their leader was replaced. So the question is
//! repeated when that has taken long.

use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, Ticket};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;

use super::Tiga;
use super::cells::cell_of;
use super::messages::Message;
use super::state::State;

/// A request is repeated after this number of round trips.
const PATIENCE_ROUND_TRIPS: u64 = 4;

/// Strict reads that wait.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    waiting: Vec<FreshRead>,
    /// The last request, until it is answered: reads that arrive meanwhile need another one.
    asked: Option<Request>,
}

/// A request to all peers.
#[derive(Debug)]
struct Request {
    token: u64,
    at: Timestamp,
    /// The last cell of those that have answered.
    version: SnapshotVersion,
    answered: Vec<NodeId>,
}

/// A strict read.
#[derive(Debug)]
struct FreshRead {
    ticket: Ticket,
    /// Whether the last request was sent after the read arrived.
    is_asked: bool,
    /// The cell that it waits for, and since when.
    cell: Option<(SnapshotVersion, Timestamp)>,
}

impl Fresh {
    /// Whether no strict read waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl State {
    /// The last cell that may have a transaction of which a client was told.
    fn last_told(&self) -> SnapshotVersion {
        let logged = self.log.last_version();
        // The log of a view has all that was told in earlier ones.
        let may_have_told = self.has_fast_path && (self.is_fast_view() || !self.is_normal());
        if may_have_told { logged.max(cell_of(self.fast.told())) } else { logged }
    }
}

impl Tiga {
    /// A strict read arrives.
    pub(super) fn await_fresh(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket) {
        cx.mark("tiga.strict_read");
        let read = FreshRead { ticket, is_asked: false, cell: None };
        self.state.fresh.waiting.push(read);
    }

    /// Asks the peers for the strict reads that have arrived, unless a request is under way.
    pub(super) fn ask_for_new_reads(&mut self, cx: &mut Cx<'_, Self>) {
        let is_new = self.state.fresh.waiting.iter().any(|read| !read.is_asked);
        if is_new && self.state.fresh.asked.is_none() {
            self.ask_for_cells(cx);
        }
    }

    /// Asks again if a reply may have been lost, or if a cell may never be committed.
    pub(super) fn ask_again(&mut self, cx: &mut Cx<'_, Self>) {
        let patience = PATIENCE_ROUND_TRIPS * self.state.cluster.round_trip_max().us;
        let is_late = |at: Timestamp| cx.now.at.since(at).us > patience;
        let fresh = &mut self.state.fresh;
        for read in &mut fresh.waiting {
            if read.cell.is_some_and(|(_, since)| is_late(since)) {
                (read.cell, read.is_asked) = (None, false);
            }
        }
        if fresh.asked.as_ref().is_some_and(|it| is_late(it.at)) {
            fresh.asked = None;
            fresh.waiting.iter_mut().for_each(|read| read.is_asked = read.cell.is_some());
        }
        if fresh.waiting.iter().any(|read| !read.is_asked) && fresh.asked.is_none() {
            cx.mark("tiga.strict_read_asks_again");
            self.ask_for_cells(cx);
        }
    }

    fn ask_for_cells(&mut self, cx: &mut Cx<'_, Self>) {
        let token = self.state.replica.next_token();
        let version = match self.state.replica.votes() {
            true => self.state.last_told(),
            false => SnapshotVersion::ZERO,
        };
        self.state.raised_at = self.state.clock_us(cx);
        let fresh = &mut self.state.fresh;
        fresh.asked = Some(Request { token, at: cx.now.at, version, answered: Vec::new() });
        fresh.waiting.iter_mut().for_each(|read| read.is_asked = true);
        for node in self.state.cluster.peers_of(self.state.node) {
            cx.send(node, Message::FreshRequest { token });
        }
        self.end_request(cx);
    }

    pub(super) fn on_fresh_request(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, token: u64) {
        if !self.state.is_whole() || !self.state.replica.votes() {
            // It may have lost cells that it had told, or have some that were never committed.
            return;
        }
        // A leader with a fast path closes the cell in the end, if it has no transactions.
        self.state.raised_at = self.state.clock_us(cx);
        let version = self.state.last_told();
        cx.send(from, Message::FreshReply { token, version });
    }

    pub(super) fn on_fresh_reply(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (token, version): (u64, SnapshotVersion),
    ) {
        let asked = self.state.fresh.asked.as_mut().filter(|it| it.token == token);
        let Some(request) = asked else { return };
        if !request.answered.contains(&from) {
            request.answered.push(from);
            request.version = request.version.max(version);
            self.end_request(cx);
        }
    }

    /// Lets the reads wait only for a cell, if f + 1 replicas have answered.
    fn end_request(&mut self, cx: &mut Cx<'_, Self>) {
        let is_whole = self.state.is_whole();
        let State { fresh, cluster, node, .. } = &mut self.state;
        let is_enough = |request: &mut Request| {
            let has_answered = |of: &NodeId| {
                let is_told = of == node && is_whole || request.answered.contains(of);
                is_told && mutate!(NonVotingCounts: cluster.votes(*of) => true)
            };
            (0..cluster.partitions.shards()).map(ShardId).all(|shard| {
                let group = cluster.group(shard);
                let answered = group.nodes().iter().filter(|it| has_answered(it)).count();
                mutate!(FreshWithoutAsking: answered >= group.topology.majority() => true)
            })
        };
        let Some(request) = fresh.asked.take_if(is_enough) else { return };
        for read in fresh.waiting.iter_mut().filter(|read| read.is_asked) {
            read.cell.get_or_insert((request.version, cx.now.at));
        }
        if self.state.is_divided() && self.state.is_fast_view() {
            // A replica may have replied to what is in no log.
            self.ask_all_to_close(cx, request.version);
        }
        self.ask_for_new_reads(cx);
    }

    /// Answers the strict reads whose cells are published.
    pub(super) fn answer_fresh(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.fresh.waiting.is_empty() {
            return;
        }
        let version = cx.store.published();
        self.state.fresh.waiting.retain(|read| {
            let is_there = |cell| mutate!(FreshUnmerged: cell <= version => true);
            let is_done = read.cell.is_some_and(|(cell, _)| is_there(cell));
            if is_done {
                cx.fresh(read.ticket, version);
            }
            !is_done
        });
    }
}
