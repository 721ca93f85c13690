//! The caches of this replica, and those of replicas that are removed (§5.2).
//!
//! A replica sends its batches to its caches as soon as they are durable. With `ack = "cached"` it
//! answers when one of them has the batches of an epoch. When a seal ends the life of a replica,
//! the others ask its caches before they report, and wait for them for `cache_ms` at most. So the
//! report covers what a cache has, and the rules of views are those without caches: nobody waits
//! for a batch that only a cache has.
//!
//! A cache that can't be reached is not waited for.

use std::collections::BTreeSet;

use pangea_core::ids::NodeId;
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::{Span, Timestamp};

use super::GeoGauss;
use super::batch::Batch;
use super::messages::Message;
use super::options::Ack;
use super::state::State;
use super::views::Seal;
use crate::streams::{self, Bid, Heads, decode_batch};

/// The maximum bytes of batches that are under way to a cache.
const FEED_BYTES_MAX: u64 = 8 << 20;

/// What a replica asks for is asked for again after this time.
const PATIENCE: Span = Span::from_ms(200);

/// The caches of all replicas, as seen from this one.
#[derive(Default)]
pub(super) struct Caches {
    feeds: Vec<Feed>,
    /// The connected ones.
    is_up: BTreeSet<NodeId>,
    asking: Option<Asking>,
}

/// A cache of this replica.
struct Feed {
    cache: NodeId,
    /// The last batch that was sent to it since it connected.
    sent: Bid,
    /// The batches up to this one are on its disk.
    kept: Bid,
}

/// A seal that waits for what caches have.
struct Asking {
    number: u64,
    seal: Seal,
    until: Timestamp,
    asked_at: Timestamp,
    /// The caches, with the name of the request, and the last batch of each that has replied.
    caches: Vec<(NodeId, u64, Option<Bid>)>,
}

impl Caches {
    pub(super) fn new(caches: impl Iterator<Item = NodeId>) -> Self {
        let feed = |cache| Feed { cache, sent: Bid(0), kept: Bid(0) };
        Self { feeds: caches.map(feed).collect(), ..Self::default() }
    }

    /// Whether a seal waits.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// The last batch of this replica that some connected cache has.
    fn kept(&self) -> Bid {
        self.feeds.iter().map(|feed| feed.kept).max().unwrap_or_default()
    }

    /// Whether a cache of this replica is connected.
    pub(super) fn is_connected(&self) -> bool {
        self.feeds.iter().any(|feed| self.is_up.contains(&feed.cache))
    }
}

impl State {
    /// Whether a cache has the batches of this replica up to these heads.
    pub(super) fn is_kept(&self, heads: &Heads) -> bool {
        self.caches.is_connected() && heads[self.me().index()] <= self.caches.kept()
    }
}

impl GeoGauss {
    pub(super) fn on_cache_up(&mut self, cx: &mut Cx<'_, Self>, cache: NodeId) {
        let State { caches, streams, replica, .. } = &mut self.state;
        caches.is_up.insert(cache);
        let collected = streams.own(replica).collected;
        let feed = caches.feeds.iter_mut().find(|feed| feed.cache == cache);
        // It may have lost its disk.
        feed.into_iter().for_each(|feed| (feed.sent, feed.kept) = (collected, collected));
        self.feed_caches(cx);
    }

    pub(super) fn on_cache_down(&mut self, cache: NodeId) {
        let caches = &mut self.state.caches;
        caches.is_up.remove(&cache);
        let feed = caches.feeds.iter_mut().find(|feed| feed.cache == cache);
        feed.into_iter().for_each(|feed| feed.kept = Bid(0));
        if let Some(asking) = &mut caches.asking {
            asking.caches.retain(|(asked, ..)| *asked != cache);
        }
    }

    /// Sends the next batches of this replica to its caches.
    pub(super) fn feed_caches(&mut self, cx: &mut Cx<'_, Self>) {
        let State { caches, streams, replica, .. } = &mut self.state;
        let Caches { feeds, is_up, .. } = caches;
        let log = streams.own(replica);
        for feed in feeds.iter_mut().filter(|feed| is_up.contains(&feed.cache)) {
            // The log may have been cut.
            feed.sent = feed.sent.min(log.received);
            feed.kept = feed.kept.min(feed.sent);
            while feed.sent < log.received
                && log.bytes_between(feed.kept, feed.sent) < FEED_BYTES_MAX
            {
                let after = feed.sent.max(log.collected);
                let Some((bid, slot)) = log.slots.range(after.next()..).next() else { break };
                if *bid > log.received {
                    break;
                }
                let (collected, bytes) = (log.collected, slot.bytes.clone());
                let message =
                    Message::Keep { collected, after: log.bounds.last_upto(after), bytes };
                cx.send_after(slot.position, feed.cache, message);
                feed.sent = *bid;
            }
        }
    }

    /// Tells the caches of this replica which batches nobody needs any more.
    pub(super) fn announce_collected(&self, cx: &mut Cx<'_, Self>) {
        let State { caches, streams, replica, .. } = &self.state;
        let upto = streams.own(replica).collected;
        let connected = caches.feeds.iter().filter(|feed| caches.is_up.contains(&feed.cache));
        connected.for_each(|feed| cx.send(feed.cache, Message::Collected { upto }));
    }

    /// Handles a message of a cache.
    pub(super) fn on_cache_message(
        &mut self,
        cx: &mut Cx<'_, Self>,
        cache: NodeId,
        message: Message,
    ) {
        let node_count = self.state.replica.topology.node_count();
        let home = self.state.replica.topology.home_of(cache);
        if message.check(node_count).is_err() || self.state.presence.is_asking() {
            return cx.mark("geogauss.cache_of_another");
        }
        let State { caches, streams, replica, .. } = &mut self.state;
        match message {
            Message::Kept { head } if home == Some(replica.me) => {
                let feed = caches.feeds.iter_mut().find(|feed| feed.cache == cache);
                let sound = feed.filter(|feed| head <= feed.sent);
                sound.into_iter().for_each(|feed| feed.kept = feed.kept.max(head));
                self.feed_caches(cx);
            }
            Message::CacheHead { token, head } => {
                let asked = caches.asking.iter_mut().flat_map(|asking| &mut asking.caches);
                let mut of_request = asked.filter(|it| (it.0, it.1) == (cache, token));
                if let Some((.., found)) = of_request.next() {
                    *found = Some(head);
                    self.fetch_from_asked(cx);
                }
            }
            Message::Streams(streams::Message::Batch { bytes }) => {
                let batch = decode_batch::<Batch>(&bytes, node_count);
                if !batch.is_ok_and(|batch| Some(batch.source) == home) {
                    return cx.mark("geogauss.cache_of_another");
                }
                cx.mark("geogauss.batch_of_cache");
                let batch = streams::Message::Batch { bytes };
                // It counts like any other, and no client waits for it.
                let _ = streams.on_message(cx, replica, cache, batch);
            }
            _ => cx.mark("geogauss.cache_of_another"),
        }
    }

    /// Fetches missing batches of this replica's own log from its caches: they are near.
    pub(super) fn fetch_own(&self, cx: &mut Cx<'_, Self>) {
        let State { caches, streams, replica, .. } = &self.state;
        let log = streams.own(replica);
        if log.known > log.received {
            let connected = caches.feeds.iter().filter(|feed| caches.is_up.contains(&feed.cache));
            let (source, from, upto) = (replica.me, log.received.next(), log.known);
            let fetch = || streams::Message::Fetch { source, from, upto };
            connected.for_each(|feed| cx.send(feed.cache, fetch().into()));
        }
    }

    /// Asks the caches of the replicas whose lives a seal ends. Returns whether the seal waits.
    pub(super) fn ask_caches(&mut self, cx: &mut Cx<'_, Self>, number: u64, seal: &Seal) -> bool {
        let State { caches, streams, replica, options, .. } = &mut self.state;
        if mutate!(CachesNotAsked: options.ack == Ack::Replicated => true) {
            return false;
        }
        // After an earlier report nothing more is taken.
        let is_open = |node: &&NodeId| !streams.logs[node.index()].is_sealed;
        let out = seal.out.iter().filter(is_open);
        let of_out = out.flat_map(|node| replica.topology.caches_of(*node));
        let of_out: Vec<NodeId> = of_out.filter(|cache| caches.is_up.contains(cache)).collect();
        if of_out.is_empty() {
            return false;
        }
        cx.mark("geogauss.caches_asked");
        let (asked_at, until) = (cx.now.at, cx.now.at + Span::from_ms(options.cache_ms));
        let asked = of_out.into_iter().map(|cache| (cache, replica.next_token(), None)).collect();
        let seal = seal.clone();
        caches.asking = Some(Asking { number, seal, until, asked_at, caches: asked });
        self.fetch_from_asked(cx);
        true
    }

    /// Ends the wait for caches, if they have nothing more or do not reply: reports on the seal.
    pub(super) fn end_asking_caches(&mut self, cx: &mut Cx<'_, Self>, is_over: bool) {
        let Some(asking) = &self.state.caches.asking else { return };
        let State { streams, replica, .. } = &self.state;
        let has_all = asking.caches.iter().all(|(cache, _, head)| {
            let home = replica.topology.home_of(*cache).expect("only caches are asked");
            let log = &streams.logs[home.index()];
            head.is_some_and(|head| log.received >= log.bounds.last_upto(head))
        });
        let is_late = cx.now.at >= asking.until;
        if !has_all && !is_late && !is_over {
            if cx.now.at.since(asking.asked_at) >= PATIENCE {
                self.fetch_from_asked(cx);
            }
            return;
        }
        if !has_all {
            cx.mark("geogauss.caches_late");
        }
        if let Some(Asking { number, seal, .. }) = self.state.caches.asking.take() {
            self.report_on(cx, number, seal);
        }
    }

    /// Fetches what the asked caches have and this replica has not.
    fn fetch_from_asked(&mut self, cx: &mut Cx<'_, Self>) {
        let State { caches, streams, replica, membership, .. } = &mut self.state;
        let Some(asking) = &mut caches.asking else { return };
        let view = membership.view.number.0;
        asking.asked_at = cx.now.at;
        for (cache, token, head) in &asking.caches {
            let source = replica.topology.home_of(*cache).expect("only caches are asked");
            let from = streams.logs[source.index()].received.next();
            match head {
                None => cx.send(*cache, Message::CacheRequest { token: *token, view }),
                Some(upto) if from <= *upto => {
                    let fetch = streams::Message::Fetch { source, from, upto: *upto };
                    cx.send(*cache, fetch.into());
                }
                Some(_) => {}
            }
        }
    }

    /// A replica that lost its disk hears of its own batches: only a cache had them, and a peer has
    /// asked that.
    pub(super) fn note_own_found(&mut self, head: Bid) {
        let State { membership, streams, replica, .. } = &mut self.state;
        let has_caches = replica.topology.caches_of(replica.me).next().is_some();
        if membership.has_no_life && has_caches {
            membership.own_head = membership.own_head.max(head);
            streams.own_reported = streams.own_reported.max(head);
        }
    }
}
