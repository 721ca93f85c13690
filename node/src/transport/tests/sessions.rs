//! Ends and restarts of sessions.

use super::*;
use crate::transport::CONTROL_QUEUE_BYTES_MAX;

#[test]
fn a_peer_that_restarts_is_up_again_whichever_side_dials() {
    for restarted in [0u16, 1] {
        let mut nodes = cluster(2, |_| {});
        let address = nodes[1].address();
        let gone = nodes.remove(usize::from(restarted));
        let stays = &nodes[0];
        gone.transport.stop();
        stays.wait_down(&gone);
        stays.transport.send(gone.id, Lane::Bulk, Bytes::from_static(b"to nobody"));

        let mut again = config(restarted, &[(NodeId(1), address)], 2);
        if restarted == 1 {
            again.listen = address;
        }
        let again = TestNode::start(again);
        again.wait_up(stays);
        stays.wait_up(&again);
        stays.send(&again, Lane::Bulk, &b"hello again"[..]);
        assert_eq!(again.wait_frame().3, &b"hello again"[..]);
        again.send(stays, Lane::Control, &b"hello"[..]);
        assert_eq!(stays.wait_frame().3, &b"hello"[..]);
    }
}

#[test]
fn a_queue_that_overflows_resets_the_connection_and_the_next_session_is_empty() {
    let nodes = cluster(2, |_| {});
    assert!(nodes[0].transport.cut(NodeId(1)));
    let frame = Bytes::from(vec![0; 1 << 20]);
    for _ in 0..=CONTROL_QUEUE_BYTES_MAX / frame.len() {
        nodes[0].send(&nodes[1], Lane::Control, frame.clone());
    }
    nodes[0].wait_down(&nodes[1]);
    nodes[1].wait_down(&nodes[0]);
    nodes[0].transport.heal();
    nodes[0].wait_up(&nodes[1]);
    nodes[1].wait_up(&nodes[0]);
    nodes[0].send(&nodes[1], Lane::Control, &b"first"[..]);
    assert_eq!(nodes[1].wait_frame().3, &b"first"[..]);
}

/// A panic once ended only its lane's thread: messages on that lane were lost, while the other lane
/// continued.
#[test]
fn a_thread_that_panics_ends_its_session_and_is_told_of() {
    for lane in [Lane::Control, Lane::Bulk] {
        let (sender, events) = channel();
        let sender = Mutex::new(sender);
        let on_event = move |event: TransportEvent| {
            assert!(!matches!(event, TransportEvent::Frame { .. }), "a bug in the receiver");
            // The test may have ended.
            let _ = sender.lock().unwrap().send(event);
        };
        let poisoned = Transport::start(config(1, &[], 2), Arc::new(on_event)).unwrap();
        let other = TestNode::start(config(0, &[(NodeId(1), poisoned.local_address())], 2));
        other.wait("PeerUp", |_, event| matches!(event, TransportEvent::PeerUp(_)).then_some(()));
        other.transport.send(NodeId(1), lane, Bytes::from_static(b"poison"));
        other.wait("the end of the session", |_, it| {
            matches!(it, TransportEvent::PeerDown(_)).then_some(())
        });
        let panicked = events.iter().find_map(|event| match event {
            TransportEvent::Panicked(reason) => Some(reason),
            _ => None,
        });
        let reason = panicked.expect("the end is reported");
        assert!(reason.contains("a bug in the receiver"), "{lane:?}: {reason}");
    }
}

#[test]
fn a_callback_that_blocks_holds_up_its_own_lane_and_no_other() {
    let (release, blocked) = channel::<()>();
    let blocked = Mutex::new(blocked);
    let (sender, events) = channel();
    let sender = Mutex::new(sender);
    let on_event = move |event: TransportEvent| {
        if matches!(event, TransportEvent::Frame { lane: Lane::Bulk, .. }) {
            blocked.lock().unwrap().recv().unwrap();
        }
        let _ = sender.lock().unwrap().send(event);
    };
    let slow = Transport::start(config(1, &[], 2), Arc::new(on_event)).unwrap();
    let fast = TestNode::start(config(0, &[(NodeId(1), slow.local_address())], 2));
    fast.wait("PeerUp", |_, event| matches!(event, TransportEvent::PeerUp(_)).then_some(()));
    fast.transport.send(NodeId(1), Lane::Bulk, Bytes::from_static(b"delayed"));
    fast.transport.send(NodeId(1), Lane::Control, Bytes::from_static(b"passes"));
    let next_lane = || loop {
        if let TransportEvent::Frame { lane, .. } = events.recv_timeout(PATIENCE).unwrap() {
            return lane;
        }
    };
    assert_eq!(next_lane(), Lane::Control);
    release.send(()).unwrap();
    assert_eq!(next_lane(), Lane::Bulk);
}

#[test]
fn a_stop_leaves_no_thread_behind_and_frees_the_port() {
    let nodes = cluster(3, |config| config.wan = Some(flat_wan(3, Span::from_ms(50))));
    let stranger = std::net::TcpStream::connect(nodes[0].address()).unwrap();
    let heard = Arc::new(());
    let held = heard.clone();
    let mut config = config(0, &[], 1);
    config.topology = topology(1);
    let alone = Transport::start(config, Arc::new(move |_| drop(held.clone()))).unwrap();
    assert_eq!(Arc::strong_count(&heard), 2);
    for node in &nodes {
        let address = node.address();
        let began = Instant::now();
        node.transport.stop();
        // The stop does not wait for any timeout of the transport, such as that of a hello.
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(std::net::TcpListener::bind(address).is_ok(), "the port is free");
    }
    drop(alone);
    assert_eq!(Arc::strong_count(&heard), 1, "no thread uses the callback any more");
    drop(stranger);
}
