//! An in-memory network: a frame is in the receiver's inbox when `send` returns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pangea_core::ids::NodeId;
use pangea_core::protocol::{Lane, Protocol};
use pangea_node::driver::{Handle, Inbox, Network};

pub struct MemNet<P: Protocol> {
    nodes: Arc<Mutex<BTreeMap<NodeId, Arc<Inbox<P>>>>>,
}

impl<P: Protocol> Clone for MemNet<P> {
    fn clone(&self) -> Self {
        Self { nodes: self.nodes.clone() }
    }
}

impl<P: Protocol> Default for MemNet<P> {
    fn default() -> Self {
        Self { nodes: Arc::default() }
    }
}

struct Port<P: Protocol> {
    net: MemNet<P>,
    me: NodeId,
}

impl<P: Protocol> MemNet<P> {
    /// Connects a node to all others that are already connected.
    pub fn connect(&self, handle: &Handle<P>) -> Arc<dyn Network> {
        let mut nodes = self.nodes.lock().unwrap();
        let (me, inbox) = (handle.me(), handle.inbox());
        for (&peer, other) in nodes.iter() {
            other.on_peer_up(me);
            inbox.on_peer_up(peer);
        }
        assert!(nodes.insert(me, inbox.clone()).is_none(), "{me} is already connected");
        Arc::new(Port { net: self.clone(), me })
    }
}

impl<P: Protocol> Network for Port<P> {
    fn send(&self, to: NodeId, _lane: Lane, frame: Bytes) {
        let to = self.net.nodes.lock().unwrap().get(&to).cloned();
        if let Some(inbox) = to {
            inbox.on_frame(self.me, &frame);
        }
    }

    fn stop(&self) {
        let mut nodes = self.net.nodes.lock().unwrap();
        if nodes.remove(&self.me).is_some() {
            nodes.values().for_each(|other| other.on_peer_down(self.me));
        }
    }
}
