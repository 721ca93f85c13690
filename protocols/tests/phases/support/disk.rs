//! The disks of the lockstep world: syncs, checkpoints, crashes and losses.

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::protocol::Input;
use pangea_core::time::Span;

use super::words::{self, Transcribed};
use super::{ClusterOf, node};

impl<P: Transcribed> ClusterOf<P> {
    /// Stops a node: unsynced records and messages in flight are lost.
    pub fn crash(&mut self, id: usize) {
        self.transcript.act(|| format!("n{id} crashes"));
        let node = &mut self.nodes[id];
        node.brain = None;
        node.log.retain(|(position, _)| *position <= node.synced);
        node.head = node.synced;
        node.waiting.clear();
        node.writing = None;
        node.fetches.clear();
        node.timers.clear();
        let me = NodeId(id as u16);
        self.wire.retain(|(from, to, _)| *from != me && *to != me);
        self.held_back.retain(|(from, to, _)| *from != me && *to != me);
        for peer in 0..self.nodes.len() {
            if self.nodes[peer].brain.is_some() {
                self.step(peer, Input::PeerDown(me));
            }
        }
    }

    /// Makes a node's whole log durable, if its disk syncs.
    pub(super) fn sync(&mut self, id: usize) -> bool {
        let node = &mut self.nodes[id];
        if node.brain.is_none() || !node.syncs {
            return false;
        }
        if node.writes_checkpoints
            && let Some((checkpoint, pin)) = node.writing.take()
        {
            let version = checkpoint.version;
            if node.fails_checkpoints {
                self.transcript.note(id, || "fails to write its checkpoint".to_owned());
                self.step(id, Input::CheckpointFailed(version));
                return true;
            }
            let rows = node.rows(version);
            drop(pin);
            let text = || words::state::<P>(version, &node::writes(&rows));
            self.transcript.note(id, || format!("has a checkpoint of {}", text()));
            node.checkpoint = Some((checkpoint, rows));
            self.step(id, Input::Checkpointed(version));
            return true;
        }
        if node.synced == node.head {
            return false;
        }
        self.transcript.note(id, || "syncs".to_owned());
        node.synced = node.head;
        let position = node.synced;
        let waiting = std::mem::take(&mut node.waiting);
        waiting.into_iter().for_each(|effect| self.carry_out(id, effect));
        self.step(id, Input::Durable(position));
        true
    }

    /// Lets a node's disk sync no more, or again.
    pub fn set_syncs(&mut self, id: usize, syncs: bool) {
        let does = if syncs { "syncs" } else { "stalls" };
        self.transcript.act(|| format!("the disk of n{id} {does}"));
        self.nodes[id].syncs = syncs;
        self.settle();
    }

    /// Lets a node write no checkpoints, or write them again.
    pub fn set_writes_checkpoints(&mut self, id: usize, writes: bool) {
        let can = if writes { "can" } else { "can't" };
        self.transcript.act(|| format!("n{id} {can} write checkpoints"));
        self.nodes[id].writes_checkpoints = writes;
        self.settle();
    }

    /// Replaces a node that does not run by one with an empty disk, and starts it.
    pub fn replace(&mut self, id: usize) {
        self.lose_log(id);
        self.nodes[id].is_replaced = true;
        self.start(id);
    }

    /// Empties the disk of a node that does not run.
    pub fn lose_log(&mut self, id: usize) {
        self.transcript.act(|| format!("n{id} loses its disk"));
        let node = &mut self.nodes[id];
        assert!(node.brain.is_none(), "the node is not running");
        node.stopped = None;
        node.log.clear();
        node.checkpoint = None;
        (node.head, node.synced) = (LogPosition(0), LogPosition(0));
    }

    /// Restores an earlier disk of a node that does not run.
    pub fn restore_log(&mut self, id: usize, log: Vec<(LogPosition, Bytes)>) {
        self.transcript.act(|| format!("n{id} gets an earlier disk"));
        let node = &mut self.nodes[id];
        (node.head, node.synced) = (LogPosition(log.len() as u64), LogPosition(log.len() as u64));
        node.log = log;
    }

    /// Removes the records from a position on from the disk of a node that does not run.
    pub fn lose_records_from(&mut self, id: usize, first: LogPosition) {
        let node = &mut self.nodes[id];
        assert!(node.brain.is_none(), "the node is not running");
        node.log.retain(|(position, _)| *position < first);
        node.head = LogPosition(first.0 - 1);
        node.synced = node.head;
    }

    /// Ends the fetches of rows that a node has begun.
    pub fn fetch(&mut self, id: usize) {
        const TOOK: Span = Span::from_ms(5);
        self.transcript.act(|| format!("n{id} has fetched the rows"));
        for (token, keys) in std::mem::take(&mut self.nodes[id].fetches) {
            self.nodes[id].store.fetch_ahead(&keys);
            self.step(id, Input::Prefetched { token, took: TOOK });
        }
        self.settle();
    }

    /// Evicts rows of a node from memory, as far as its limit requires.
    pub fn evict(&mut self, id: usize) {
        self.nodes[id].store.evict();
        let cold = self.nodes[id].store.cold_counts().cold;
        self.transcript.act(|| format!("n{id} evicts rows from memory; cold rows: {cold}"));
    }

    /// Makes one more record of a node durable.
    pub fn sync_one(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        assert!(node.synced < node.head, "there is one");
        self.transcript.note(id, || "syncs one record".to_owned());
        node.synced = LogPosition(node.synced.0 + 1);
        let position = node.synced;
        let waiting = std::mem::take(&mut node.waiting);
        waiting.into_iter().for_each(|effect| self.carry_out(id, effect));
        self.step(id, Input::Durable(position));
    }
}
