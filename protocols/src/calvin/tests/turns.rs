//! Who may have the checkpoint turn: a replica that the others can do without for a while.

use super::super::checkpoint_turns::PeerTurnState;
use super::super::options::Checkpoints;
use super::*;

/// The replica that gets the turn if only the second one wants it. The first one, which decides, is
/// connected to these and sees these members.
fn turn(connected: &[u16], members: [bool; 3]) -> Option<NodeId> {
    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
    let options = Options { checkpoints: Checkpoints::Frozen, ..Options::default() };
    let (mut node, _) = Node::start_in(topology, Vec::new(), "append", &options);
    for peer in connected {
        node.step(Input::PeerUp(NodeId(*peer)));
    }
    let mut turn = None;
    node.act(|calvin, cx| {
        let inputs = &mut calvin.state.inputs;
        inputs.cut.is_member = members.to_vec();
        inputs.on_checkpoint_turn(cx, NodeId(1), true, PeerTurnState::default());
        turn = inputs.next_turn(cx);
    });
    turn
}

#[test]
fn a_replica_has_its_turn_while_the_others_can_do_without_it() {
    let all = [true; 3];
    assert_eq!(turn(&[1, 2], all), Some(NodeId(1)));
    assert_eq!(turn(&[2], all), None, "it is not connected");
    assert_eq!(turn(&[1], all), None, "the one that is left would be alone");
    assert_eq!(turn(&[1], [true, true, false]), Some(NodeId(1)), "nobody else is a member");
    assert_eq!(turn(&[1, 2], [true, false, true]), None, "it is not a member");
}
