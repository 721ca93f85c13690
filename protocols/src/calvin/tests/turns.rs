//! Who may have the checkpoint turn: a replica that the others can do without for a while. And
//! who sends it the outcomes of its requests.

use super::super::Timer;
use super::super::checkpoint_turns::PeerTurnState;
use super::super::options::Checkpoints;
use super::*;

/// The first of three replicas, which is connected to the others.
fn start() -> Node {
    let mut node = start_alone();
    node.step(Input::PeerUp(NodeId(1)));
    node.step(Input::PeerUp(NodeId(2)));
    node
}

fn start_alone() -> Node {
    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
    let options = Options { checkpoints: Checkpoints::Frozen, ..Options::default() };
    Node::start_in(topology, Vec::new(), "append", &options).0
}

/// The replica that gets the turn if only the second one wants it. The first one, which decides, is
/// connected to these and sees these members.
fn turn(connected: &[u16], members: [bool; 3]) -> Option<NodeId> {
    let mut node = start_alone();
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

/// A proposal in flight already gives the turn to a replica. Another one may have done so before,
/// in the name of another coordinator.
#[test]
fn the_turn_is_that_of_the_last_proposal_while_it_is_in_flight_and_else_that_of_the_last_cut() {
    let mut node = start();
    node.act(|calvin, cx| {
        let inputs = &mut calvin.state.inputs;
        for peer in [1, 2] {
            inputs.on_checkpoint_turn(cx, NodeId(peer), true, PeerTurnState::default());
        }
        inputs.note_turn(cx, SnapshotVersion(1), Some(NodeId(2)));
        assert_eq!(inputs.cut.undecided(), 0);
        assert_eq!(inputs.next_turn(cx), Some(NodeId(2)), "it keeps the turn that it has");
        inputs.cut.last_proposal.nonce += 1;
        inputs.note_turn_proposed(Some(NodeId(1)));
        assert_eq!(inputs.next_turn(cx), Some(NodeId(1)), "the turn that was proposed");
    });
}

/// The peer of which a node that has the turn wants the outcomes of its requests.
fn asked_peer(node: &mut Node) -> Vec<NodeId> {
    let did = node.step(Input::Timer(Timer::Inputs(inputs::Timer::Progress)));
    let is_wanted =
        |message: &Message| matches!(message, Message::OutcomesRequest { is_wanted: true, .. });
    did.sent.into_iter().filter(|(_, message)| is_wanted(message)).map(|(to, _)| to).collect()
}

#[test]
fn outcomes_are_requested_of_one_peer_until_the_connection_to_it_is_lost() {
    let mut node = start();
    node.act(|calvin, cx| {
        calvin.state.inputs.note_turn(cx, SnapshotVersion(1), Some(NodeId(0)));
    });
    assert_eq!(asked_peer(&mut node), [NodeId(1)], "the nearest one");
    node.step(Input::PeerDown(NodeId(1)));
    assert_eq!(asked_peer(&mut node), [NodeId(2)]);
    node.step(Input::PeerUp(NodeId(1)));
    assert_eq!(asked_peer(&mut node), [NodeId(2)], "it goes on sending them");
    node.step(Input::PeerDown(NodeId(1)));
    node.step(Input::PeerUp(NodeId(1)));
    assert_eq!(asked_peer(&mut node), [NodeId(2)], "it was another connection");
    node.step(Input::PeerDown(NodeId(2)));
    node.step(Input::PeerUp(NodeId(2)));
    assert_eq!(asked_peer(&mut node), [NodeId(1)], "the nearest one of those that are there");
}
