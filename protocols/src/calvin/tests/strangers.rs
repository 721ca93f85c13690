//! A peer that greets with another log than the recorded one.

use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::protocol::{Input, Protocol as _};
use pangea_core::time::Span;
use pangea_core::topology::Topology;

use super::super::{Message, Options};
use super::Node;
use crate::agreement::Term;
use crate::inputs;
use crate::presence;
use crate::streams::Bid;

const PEER: NodeId = NodeId(1);

fn hear(node: &mut Node, message: inputs::Message) -> Vec<&'static str> {
    node.step(Input::Message { from: PEER, message: Message::Inputs(message) }).marks
}

/// The peer connects anew and greets.
fn meet(node: &mut Node, log_identity: u64) -> Vec<&'static str> {
    node.step(Input::PeerDown(PEER));
    node.step(Input::PeerUp(PEER));
    let known = inputs::knowledge(Bid(0), Term::default());
    let greeting = presence::Message::Greeting { log_identity, receiver_identity: 0, known };
    hear(node, inputs::Message::Presence(greeting))
}

#[test]
fn only_the_greetings_of_a_stranger_are_handled() {
    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::ZERO);
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &Options::default());
    let applied = SnapshotVersion(3);
    let progress =
        || inputs::Message::Progress { applied, durable: applied, heads: vec![Bid(0); 3] };
    let known = |node: &Node| node.calvin.state.inputs.collection.applied[PEER.index()];
    meet(&mut node, 5);
    assert!(node.calvin.status().strangers.is_empty());
    assert!(meet(&mut node, 6).contains(&"presence.stranger"));
    assert_eq!(node.calvin.status().strangers, [PEER]);
    assert_eq!(hear(&mut node, progress()), ["presence.stranger_ignored"]);
    assert_eq!(known(&node), SnapshotVersion::ZERO);
    meet(&mut node, 5);
    assert!(node.calvin.status().strangers.is_empty());
    hear(&mut node, progress());
    assert_eq!(known(&node), applied);
}
