//! Members that cannot hear each other, but a third one (§5.2; the paper has no such case).
//!
//! ```text
//!   A x x x C     B hears both. C tells B that it does not hear A. From then on B hands on to C
//!    \     /      what A sends: its batches, and the ends of its epochs.
//!      \ /
//!       B
//! ```
//!
//! Nobody is removed whom some member still hears, because all of them can merge each epoch.

use pangea_core::ids::NodeId;
use pangea_core::protocol::Cx;

use super::GeoGauss;
use super::messages::{HeardEnd, Message};
use super::state::{End, State};

/// What the replicas hear of each other.
pub(super) struct Hearing {
    /// Whether each replica has told that it does not hear each other one itself: by receiver and
    /// source.
    deaf: Vec<Vec<bool>>,
    /// The replicas that have told so, or the opposite, in this session.
    has_told: Vec<bool>,
    /// What the peers were told last: the end of each source, and whether it is heard.
    told: Option<Vec<(End, bool)>>,
}

impl Hearing {
    pub(super) fn new(node_count: usize) -> Self {
        Self {
            deaf: vec![vec![false; node_count]; node_count],
            has_told: vec![false; node_count],
            told: None,
        }
    }

    /// A peer has connected again: it is told everything, and tells everything.
    pub(super) fn forget(&mut self, peer: NodeId) {
        self.told = None;
        self.deaf[peer.index()].fill(false);
        self.has_told[peer.index()] = false;
    }

    /// Whether a peer has told that it hears a source.
    pub(super) fn is_heard_by(&self, peer: NodeId, source: NodeId) -> bool {
        self.has_told[peer.index()] && !self.deaf[peer.index()][source.index()]
    }
}

impl State {
    /// The connected peers that do not hear a source.
    fn deaf_to(&self, source: NodeId) -> Vec<NodeId> {
        let is_deaf = |peer: &NodeId| self.epochs.hearing.deaf[peer.index()][source.index()];
        let peers = self.replica.peers().filter(|peer| self.replica.is_up[peer.index()]);
        peers.filter(is_deaf).collect()
    }

    fn heard_end(&self, source: NodeId, is_heard: bool) -> HeardEnd {
        let End { through, reached, last, view } = self.epochs.ends[source.index()];
        HeardEnd { source, through, reached, last, view: view.0, is_heard }
    }
}

impl GeoGauss {
    /// Tells the peers what the others have ended since the last time, and whom this replica hears.
    pub(super) fn send_ends(&mut self, cx: &mut Cx<'_, Self>) {
        let replica = &self.state.replica;
        // Of two nodes none has a third one to tell about.
        if replica.topology.node_count() < 3 {
            return;
        }
        let is_up = |node: NodeId| node == replica.me || replica.is_up[node.index()];
        let is_heard = |node: NodeId| is_up(node) && self.hears(cx, node);
        let heard: Vec<bool> = replica.topology.node_ids().map(is_heard).collect();
        let now: Vec<(End, bool)> =
            self.state.epochs.ends.iter().copied().zip(heard.iter().copied()).collect();
        if self.state.epochs.hearing.told.as_ref() == Some(&now) {
            return;
        }
        self.state.epochs.hearing.told = Some(now);
        let of = |source: NodeId| self.state.heard_end(source, heard[source.index()]);
        let ends: Vec<HeardEnd> = self.state.replica.peers().map(of).collect();
        let message = || Message::Ends { ends: ends.clone() };
        let replica = &self.state.replica;
        replica.peers().for_each(|peer| replica.send(cx, peer, message()));
    }

    /// A peer tells what others have ended, and whom it hears.
    pub(super) fn on_ends(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, ends: Vec<HeardEnd>) {
        let me = self.state.me();
        for told in ends.into_iter().filter(|told| told.source != me) {
            self.note_hearing(cx, from, told.source, told.is_heard);
            let known = self.state.epochs.ends[told.source.index()];
            if (told.view, told.through) > (known.view.0, known.through) {
                cx.mark("geogauss.end_relayed");
                self.on_eof(cx, told);
            }
        }
    }

    fn note_hearing(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        source: NodeId,
        is_heard: bool,
    ) {
        let State { epochs, streams, replica, .. } = &mut self.state;
        epochs.hearing.has_told[from.index()] = true;
        let is_deaf = &mut epochs.hearing.deaf[from.index()][source.index()];
        let was_deaf = std::mem::replace(is_deaf, !is_heard && source != from);
        if !was_deaf && *is_deaf {
            cx.mark("geogauss.relays");
            streams.relay_all(cx, replica, source, from);
        }
    }

    /// A source has ended epochs: tells the peers that do not hear it.
    pub(super) fn relay_end(&mut self, cx: &mut Cx<'_, Self>, source: NodeId) {
        for peer in self.state.deaf_to(source) {
            let ends = vec![self.state.heard_end(source, true)];
            self.state.replica.send(cx, peer, Message::Ends { ends });
        }
    }

    /// A batch has arrived from its source: hands it on to the peers that do not hear that.
    pub(super) fn relay_batch(&mut self, cx: &mut Cx<'_, Self>, source: NodeId) {
        for peer in self.state.deaf_to(source) {
            self.state.streams.relay_last(cx, &self.state.replica, source, peer);
        }
    }
}
