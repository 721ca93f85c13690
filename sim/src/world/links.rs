//! Connections as nodes observe them: up, down, and messages in between.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::{Effect, Input, Lane, Message, Protocol};
use pangea_core::time::Span;
use xxhash_rust::xxh3::xxh3_64;

use super::network::{Arrival, ConnectionId, Flight, LANES};
use super::{Event, World};

/// The maximum time until a side notices a lost connection.
const NOTICE_US_MAX: u64 = 300_000;
/// The range of the time after which a blocked connection is dropped.
const KEEP_ALIVE_US: (u64, u64) = (200_000, 1_500_000);
/// The range of the pause between attempts to connect.
const BACKOFF_US: (u64, u64) = (5_000, 200_000);

impl<P: Protocol> World<P> {
    /// Returns the indexes of the last message of each lane to each node, among effects that are
    /// carried out together once the log is durable up to a position. Nothing if no messages are
    /// late.
    pub(super) fn last_messages(
        &self,
        effects: &[Effect<P>],
        synced: LogPosition,
    ) -> BTreeSet<usize> {
        let mut last = BTreeMap::new();
        for (at, effect) in effects.iter().enumerate().filter(|_| self.network.has_late()) {
            if let Effect::Send { to, message, after } = effect
                && *after <= synced
            {
                last.insert((*to, message.lane() as usize), at);
            }
        }
        last.into_values().collect()
    }

    /// Encodes a message and sends it. `is_last` says whether it is the last one of a step.
    pub(super) fn transmit(
        &mut self,
        from: NodeId,
        to: NodeId,
        message: &P::Message,
        is_last: bool,
    ) {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        self.counts.messages += 1;
        self.counts.bytes += encoded.len() as u64;
        let bytes = Bytes::from(encoded);
        match self.network.send(self.now, (from, to), message.lane(), bytes, is_last) {
            Some((at, flight)) => self.queue.push(at, Event::Arrive(flight)),
            None => self.counts.messages_lost += 1,
        }
    }

    pub(super) fn on_arrive(&mut self, flight: &Flight) {
        match self.network.arrive(flight) {
            Arrival::Received => self.receive(flight),
            Arrival::Stalled => {}
            Arrival::Lost => self.counts.messages_lost += 1,
        }
    }

    fn receive(&mut self, flight: &Flight) {
        let Flight { from, to, bytes, .. } = flight;
        let numbers = [xxh3_64(bytes), bytes.len() as u64];
        match P::Message::decode(bytes) {
            Ok(message) => {
                let words = || format!("from {from}: {message:?}");
                self.trace.event(self.now, *to, "message", numbers, words);
                self.input(*to, Input::Message { from: *from, message });
            }
            Err(error) => self.violate("codec", format!("{from} sent {to} a {error}")),
        }
    }

    pub(super) fn on_flush(&mut self, from: NodeId, to: NodeId) {
        for flight in self.network.flush(from, to) {
            self.receive(&flight);
        }
    }

    /// Blocks one direction. The connection may outlast the block.
    pub(super) fn block(&mut self, from: NodeId, to: NodeId) {
        LANES.iter().for_each(|&lane| self.network.block(from, to, lane));
        let connection = self.network.connection(from, to);
        let patience = self.faults.dice.usual.between(KEEP_ALIVE_US.0, KEEP_ALIVE_US.1);
        let at = self.now + Span::from_us(patience);
        self.queue.push(at, Event::KeepAlive { a: from, b: to, connection });
    }

    /// Removes one block of a direction's lane.
    pub(super) fn unblock(&mut self, from: NodeId, to: NodeId, lane: Lane) {
        self.network.unblock(from, to, lane);
        let at = self.now + self.network.delay(from, to);
        self.queue.push(at, Event::Flush { from, to });
    }

    pub(super) fn on_keep_alive(&mut self, a: NodeId, b: NodeId, connection: ConnectionId) {
        if self.network.is_blocked(a, b) && self.network.is_up_in(a, b, connection) {
            self.lose(a, b);
        }
    }

    /// Drops the connection between two nodes.
    pub(super) fn lose(&mut self, a: NodeId, b: NodeId) {
        let Some(connection) = self.network.lose(a, b) else { return };
        self.counts.connections_lost += 1;
        self.trace
            .event(self.now, a, "lost", [u64::from(b.0), connection.0], || format!("link to {b}"));
        let mut noticed = self.now;
        for (me, peer) in [(a, b), (b, a)] {
            let at = self.now + Span::from_us(self.faults.dice.usual.between(0, NOTICE_US_MAX));
            noticed = noticed.max(at);
            self.queue.push(at, Event::NoticeLoss { me, peer, connection });
        }
        self.connect_after(a, b, noticed.since(self.now));
    }

    pub(super) fn on_notice_loss(&mut self, me: NodeId, peer: NodeId, connection: ConnectionId) {
        // If they have reconnected, the loss was noticed before that.
        if !self.network.is_up_since(me, peer, connection) {
            self.notice_loss(me, peer);
        }
    }

    fn notice_loss(&mut self, me: NodeId, peer: NodeId) {
        if self.network.notice_loss(me, peer) {
            self.trace.event(self.now, me, "peer down", [u64::from(peer.0), 0], String::new);
            self.input(me, Input::PeerDown(peer));
        }
    }

    /// Schedules an attempt to connect two nodes.
    pub(super) fn connect_after(&mut self, a: NodeId, b: NodeId, wait: Span) {
        let attempt = self.network.new_attempt(a, b);
        let backoff = self.faults.dice.usual.between(BACKOFF_US.0, BACKOFF_US.1);
        let (there, back) = (self.network.delay(a, b), self.network.delay(b, a));
        let at = self.now + wait + there + back + Span::from_us(backoff);
        self.queue.push(at, Event::Connect { a, b, attempt });
    }

    pub(super) fn on_connect(&mut self, a: NodeId, b: NodeId, attempt: u64) {
        if !self.network.is_attempting(a, b, attempt) || !self.is_running(a) || !self.is_running(b)
        {
            return;
        }
        if self.network.is_blocked(a, b) {
            self.connect_after(a, b, Span::ZERO);
            return;
        }
        self.notice_loss(a, b);
        self.notice_loss(b, a);
        self.network.connect(self.now, a, b);
        for (me, peer) in [(a, b), (b, a)] {
            self.trace.event(self.now, me, "peer up", [u64::from(peer.0), 0], String::new);
            self.input(me, Input::PeerUp(peer));
        }
    }
}
