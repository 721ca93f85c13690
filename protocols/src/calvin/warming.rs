//! Warming (§4): a transaction that reads rows which are not in memory is delayed before it is
//! ordered. During the delay all replicas fetch the rows.
//!
//! ```text
//!   request --cold?--> delayed ...................... released --> batch
//!                       | WarmRequest to all replicas  ^
//!                       | of its shards                |  all have sent WarmReply, or the
//!                       `--> fetch on this node -------'  predicted delay has elapsed
//! ```
//!
//! If the prediction was right, no locks are held during disk accesses. If not, the transaction
//! runs anyway, and stalls. Other requests overtake the delayed ones: the order is that in which
//! requests are sequenced.
//!
//! **The delay** (§4.1) is the time that the slowest replica has needed in most cases
//! (`cold_percent`) to fetch rows, including the network latency to it. It ends earlier if all have
//! reported that they are done.
//!
//! **The cold rows** (§4.2) of this node are known to its store. The other nodes report theirs
//! ([`ColdMap`]), as often as they report their progress. Missing or outdated knowledge costs time
//! but changes no outcome, because no decision depends on what is in memory.

mod times;

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::exec::declared_footprint;
use pangea_core::ids::{NodeId, ShardId, TableId, Ticket};
use pangea_core::key::Key;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::store::ColdMap;
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::Program;

use super::batch::UnsequencedRequest;
use super::messages::ColdWords;
use super::options::ColdDelay;
use super::{Calvin, Message, Timer};
use times::Times;

/// A request that reads more rows than this is not delayed, because requesting them would take long
/// too.
const KEYS_MAX: usize = 1_024;
/// A request whose keys are longer in total than this is not delayed. They are sent in one frame,
/// and one above the limit of the control lane would end the connection.
const KEY_BYTES_MAX: usize = 1 << 20;
/// The maximum number of rows of a range that are checked.
const RANGE_KEYS_MAX: usize = 256;
/// The maximum delay of a request, also if a node has never replied.
const DELAY_MAX: Span = Span::from_ms(1_000);
/// The maximum number of fetches for other nodes at a time: a few thousand requests in flight do
/// not need more.
const FETCHES_MAX: usize = 8_192;
/// The number of requests whose start times are remembered, so that late replies are measured, too.
const ASKED_MAX: usize = 4_096;

/// The delayed requests, and the knowledge of rows that are not in memory.
#[derive(Default)]
pub(super) struct Warming {
    delayed: BTreeMap<u64, DelayedRequest>,
    /// The times at which they are released at the latest.
    due: BTreeSet<(Timestamp, u64)>,
    /// The times at which rows were requested recently, by the names of the delayed requests.
    requested_at: BTreeMap<u64, Timestamp>,
    /// The fetches in progress for other nodes, with their names for them.
    fetches: BTreeMap<u64, (NodeId, u64)>,
    /// The fetch times of each node.
    times: BTreeMap<NodeId, Times>,
    /// The cold rows that other nodes have reported.
    maps: BTreeMap<NodeId, ColdMap>,
    /// The cold rows of this node, as last reported to the others.
    reported: ColdMap,
    /// The last predicted delay.
    delay: Span,
    delayed_total: u64,
}

/// A delayed request.
pub(super) struct DelayedRequest {
    ticket: Ticket,
    request: UnsequencedRequest,
    until: Timestamp,
    /// The nodes that have not fetched its rows.
    waits_for: BTreeSet<NodeId>,
}

impl Warming {
    /// The number of delayed requests.
    pub fn len(&self) -> usize {
        self.delayed.len()
    }

    pub fn status(&self) -> [(&'static str, u64); 3] {
        [
            ("txns_delayed", self.delayed_total),
            ("txns_held", self.delayed.len() as u64),
            ("cold_delay_us", self.delay.us),
        ]
    }

    pub fn invariants(&self) {
        let due = self.delayed.iter().map(|(token, delayed)| (delayed.until, *token));
        assert_eq!(due.collect::<BTreeSet<_>>(), self.due, "each delayed request is due");
    }

    fn take(&mut self, token: u64) -> Option<DelayedRequest> {
        let delayed = self.delayed.remove(&token)?;
        self.due.remove(&(delayed.until, token));
        Some(delayed)
    }
}

impl Calvin {
    /// Delays a request if it reads rows that are not in memory. Otherwise returns it.
    pub(super) fn delay_if_cold(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        request: UnsequencedRequest,
    ) -> Option<UnsequencedRequest> {
        let Some(cold_rows) = self.cold_rows(cx, &request) else { return Some(request) };
        cx.mark("calvin.held");
        let by_node = self.by_node(cold_rows);
        let delay = self.predicted(by_node.keys());
        let token = self.state.inputs.replica.next_token();
        let warming = &mut self.state.warming;
        (warming.delay, warming.delayed_total) = (delay, warming.delayed_total + 1);
        let until = cx.now.at + delay;
        warming.requested_at.insert(token, cx.now.at);
        if warming.requested_at.len() > ASKED_MAX {
            warming.requested_at.pop_first();
        }
        let waits_for = by_node.keys().copied().collect();
        let delayed = DelayedRequest { ticket, request, until, waits_for };
        warming.delayed.insert(token, delayed);
        warming.due.insert((until, token));
        let me = self.node();
        for (node, keys) in by_node {
            match node == me {
                true => cx.prefetch(token, keys),
                false => cx.send(node, Message::WarmRequest { token, keys }),
            }
        }
        self.set_delay_timer(cx);
        None
    }

    /// The rows that a program will read, if one of them is not in memory on some node. An
    /// interactive transaction has already read its rows, and its certification needs no values.
    fn cold_rows(
        &self,
        cx: &Cx<'_, Self>,
        request: &UnsequencedRequest,
    ) -> Option<Vec<(TableId, Key)>> {
        let warming = &self.state.warming;
        if self.state.options.cold_delay == ColdDelay::Off
            || !cx.store.has_cold() && warming.maps.is_empty()
        {
            return None;
        }
        let Program::Call { procedure, args } = &request.program else { return None };
        let found = request.footprint.as_ref();
        let declared = match found {
            Some(_) => None,
            None => Some(declared_footprint(&self.state.registry, *procedure, args)?),
        };
        let footprint = found.or(declared.as_ref())?;
        let points = footprint.points.iter().filter(|lock| lock.mode.reads());
        let mut keys: Vec<(TableId, Key)> =
            points.take(KEYS_MAX + 1).map(|lock| (lock.table, lock.key.clone())).collect();
        for lock in footprint.ranges.iter().filter(|lock| lock.mode.reads()) {
            let found = cx.store.keys_in(lock.table, &lock.range, RANGE_KEYS_MAX);
            keys.extend(found.into_iter().map(|key| (lock.table, key)));
        }
        if is_too_much(&keys) {
            return None;
        }
        let is_cold = |(table, key): &(TableId, Key)| {
            cx.store.is_cold(*table, key) || warming.maps.values().any(|map| map.has(*table, key))
        };
        keys.iter().any(is_cold).then_some(keys)
    }

    /// The connected nodes that have copies of these rows, and the rows of each.
    fn by_node(&self, keys: Vec<(TableId, Key)>) -> BTreeMap<NodeId, Vec<(TableId, Key)>> {
        let mut by_node: BTreeMap<NodeId, Vec<(TableId, Key)>> = BTreeMap::new();
        let me = self.node();
        for (table, key) in keys {
            let nodes = match &self.state.shards {
                None => self.state.inputs.replica.group.nodes().to_vec(),
                Some(shards) => {
                    let shard = shards.partitions.shard_of(table, &key);
                    let all = (0..shards.partitions.shards()).map(ShardId);
                    let of = all.filter(|other| shard.is_none_or(|shard| shard == *other));
                    of.flat_map(|shard| shards.topology.group(shard).nodes().to_vec()).collect()
                }
            };
            for node in nodes.into_iter().filter(|node| *node == me || self.is_connected(*node)) {
                by_node.entry(node).or_default().push((table, key.clone()));
            }
        }
        by_node
    }

    /// §4.1: the delay of a request for which these nodes fetch rows.
    fn predicted<'n>(&self, nodes: impl Iterator<Item = &'n NodeId>) -> Span {
        let percent = match self.state.options.cold_delay {
            ColdDelay::Off => return Span::ZERO,
            ColdDelay::Fixed(ms) => return Span::from_ms(ms),
            ColdDelay::Predicted => self.state.options.cold_percent,
        };
        let times = &self.state.warming.times;
        // Nothing is known of a node that was never asked: it is waited for.
        let within = |node: &NodeId| times.get(node).and_then(|times| times.within(percent));
        let longest = nodes.map(|node| within(node).unwrap_or(DELAY_MAX.us)).max();
        Span::from_us(longest.unwrap_or(0)).min(DELAY_MAX)
    }

    fn node(&self) -> NodeId {
        self.state.inputs.replica.group.node(self.state.inputs.replica.me)
    }

    fn is_connected(&self, node: NodeId) -> bool {
        match self.state.inputs.replica.group.member(node) {
            Some(replica) => self.state.inputs.replica.is_up[replica.index()],
            None => self.state.shards.as_ref().is_some_and(|shards| shards.up.contains(&node)),
        }
    }

    fn set_delay_timer(&mut self, cx: &mut Cx<'_, Self>) {
        match self.state.warming.due.first() {
            Some((until, _)) => cx.set_timer(Timer::Delay, until.since(cx.now.at)),
            None => cx.clear_timer(Timer::Delay),
        }
    }

    /// Releases the requests whose predicted delay has elapsed.
    pub(super) fn on_delay_timeout(&mut self, cx: &mut Cx<'_, Self>) {
        while let Some(&(until, token)) = self.state.warming.due.first()
            && until <= cx.now.at
        {
            let delayed = self.state.warming.take(token).expect("a due request is delayed");
            mutate!(HeldForgotten: () => continue);
            cx.mark("calvin.held_long_enough");
            self.release(cx, delayed);
        }
        self.set_delay_timer(cx);
    }

    fn release(&mut self, cx: &mut Cx<'_, Self>, delayed: DelayedRequest) {
        self.put(cx, delayed.ticket, delayed.request);
        self.dispatch(cx);
    }

    /// Handles the completion of a local fetch.
    pub(super) fn on_fetched(&mut self, cx: &mut Cx<'_, Self>, token: u64, took: Span) {
        match self.state.warming.fetches.remove(&token) {
            Some((node, token)) => cx.send(node, Message::WarmReply { token, took }),
            None => self.on_all_warm(cx, self.node(), token, took),
        }
    }

    /// Handles the request of a node that is about to order a transaction which reads these rows.
    pub(super) fn on_warm_request(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        token: u64,
        keys: Vec<(TableId, Key)>,
    ) {
        let warming = &mut self.state.warming;
        if warming.fetches.len() >= FETCHES_MAX {
            return cx.mark("calvin.too_much_to_fetch");
        }
        if cx.store.keep_warm(&keys) {
            // All rows are in memory: there is nothing to wait for.
            return cx.send(from, Message::WarmReply { token, took: Span::ZERO });
        }
        cx.mark("calvin.fetched_for_another");
        let own_token = self.state.inputs.replica.next_token();
        warming.fetches.insert(own_token, (from, token));
        cx.prefetch(own_token, keys);
    }

    /// Handles a node's report that it has fetched the requested rows.
    pub(super) fn on_warm_reply(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        token: u64,
        took: Span,
    ) {
        self.on_all_warm(cx, from, token, took);
    }

    fn on_all_warm(&mut self, cx: &mut Cx<'_, Self>, node: NodeId, token: u64, took: Span) {
        let me = self.node();
        let warming = &mut self.state.warming;
        if let Some(since) = warming.requested_at.get(&token) {
            let gone_by = cx.now.at.since(*since).us;
            let network_us = if node == me { 0 } else { gone_by.saturating_sub(took.us) / 2 };
            warming.times.entry(node).or_default().add(took.us + network_us);
        }
        let Some(delayed) = warming.delayed.get_mut(&token) else {
            return cx.mark("calvin.warm_too_late");
        };
        delayed.waits_for.remove(&node);
        if delayed.waits_for.is_empty() {
            cx.mark("calvin.held_until_warm");
            let delayed = warming.take(token).expect("the request was found just now");
            self.release(cx, delayed);
            self.set_delay_timer(cx);
        }
    }

    /// Reports this node's cold rows to the other nodes, as far as they have changed (§4.2).
    pub(super) fn send_cold_map(&mut self, cx: &mut Cx<'_, Self>) {
        if !cx.store.has_cold() || self.state.options.cold_delay == ColdDelay::Off {
            return;
        }
        let map = cx.store.cold_map();
        let changes = map.changes_since(&self.state.warming.reported);
        let words = map.len();
        self.state.warming.reported = map;
        if changes.is_empty() {
            return;
        }
        cx.mark("calvin.cold_told");
        for node in self.other_nodes().into_iter().filter(|node| self.is_connected(*node)) {
            cx.send(
                node,
                Message::ColdMapUpdate {
                    map: ColdWords { words, is_all: false, changes: changes.clone() },
                },
            );
        }
    }

    /// All other nodes.
    fn other_nodes(&self) -> Vec<NodeId> {
        let nodes = match &self.state.shards {
            None => self.state.inputs.replica.group.nodes().to_vec(),
            Some(shards) => shards.topology.node_ids().collect(),
        };
        let me = self.node();
        nodes.into_iter().filter(|node| *node != me).collect()
    }

    /// Handles a node's report of its cold rows.
    pub(super) fn on_cold_map_update(&mut self, from: NodeId, changed: ColdWords) {
        let ColdWords { words, is_all, changes } = changed;
        let map = self.state.warming.maps.entry(from).or_default();
        if is_all {
            *map = ColdMap::default();
        }
        map.change(words, &changes);
    }

    /// Reports this node's cold rows to a node that has just connected.
    pub(super) fn send_cold_map_to(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        let reported = &self.state.warming.reported;
        if !reported.is_empty() {
            let changes = reported.changes_since(&ColdMap::default());
            cx.send(
                node,
                Message::ColdMapUpdate {
                    map: ColdWords { words: reported.len(), is_all: true, changes },
                },
            );
        }
    }

    /// Stops waiting for a node that was disconnected.
    pub(super) fn on_warmer_down(&mut self, cx: &mut Cx<'_, Self>, node: NodeId) {
        let warming = &mut self.state.warming;
        warming.maps.remove(&node);
        warming.fetches.retain(|_, (from, _)| *from != node);
        let mut ready = Vec::new();
        for (token, delayed) in &mut warming.delayed {
            if delayed.waits_for.remove(&node) && delayed.waits_for.is_empty() {
                ready.push(*token);
            }
        }
        for token in ready {
            cx.mark("calvin.held_for_one_that_is_gone");
            let delayed = self.state.warming.take(token).expect("the request was found just now");
            self.release(cx, delayed);
        }
        self.set_delay_timer(cx);
    }
}

/// Whether these are more rows than may be requested.
fn is_too_much(keys: &[(TableId, Key)]) -> bool {
    let bytes: usize = keys.iter().map(|(_, key)| key.len()).sum();
    keys.len() > KEYS_MAX || bytes > KEY_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a thousand keys of some kilobytes made a frame that no peer accepts.
    /// Calvin §4: storage components are asked to warm up the rows of a transaction.
    #[test]
    fn what_is_asked_for_is_no_more_than_a_frame_takes() {
        let keys =
            |count: usize, len: usize| vec![(TableId(1), Key::from(&vec![7; len][..])); count];
        assert!(!is_too_much(&keys(KEYS_MAX, 1_000)) && is_too_much(&keys(KEYS_MAX + 1, 8)));
        assert!(is_too_much(&keys(KEYS_MAX, 5_000)) && is_too_much(&keys(1, 5 << 20)));
    }
}
