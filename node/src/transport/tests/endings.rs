//! What is queued when a node ends.

use super::*;
use crate::transport::FINISH_MAX;

const DELAY: Span = Span::from_ms(100);

/// Story: a node sent the digests that made its peers stop as well, and ended. Those that were in
/// its delay queue were lost.
#[test]
fn what_is_delayed_arrives_before_the_end_whichever_side_dials() {
    for ending in [0, 1] {
        let nodes = cluster(2, |config| config.wan = Some(flat_wan(2, DELAY)));
        let (ends, stays) = (&nodes[ending], &nodes[1 - ending]);
        for _ in 0..100 {
            ends.send(stays, Lane::Bulk, vec![7; 100_000]);
            ends.send(stays, Lane::Control, &b"short"[..]);
        }
        let began = Instant::now();
        ends.transport.finish();
        assert!(began.elapsed() < FINISH_MAX, "{:?}", began.elapsed());
        let mut count = [0, 0];
        for _ in 0..200 {
            let (_, _, lane, _) = stays.wait_frame();
            count[usize::from(lane == Lane::Bulk)] += 1;
        }
        assert_eq!(count, [100, 100]);
        stays.wait_down(ends);
    }
}

#[test]
fn nodes_that_end_at_once_do_not_wait_for_each_other() {
    let nodes = cluster(3, |config| config.wan = Some(flat_wan(3, DELAY)));
    let began = Instant::now();
    std::thread::scope(|scope| {
        nodes.iter().for_each(|node| drop(scope.spawn(|| node.transport.finish())));
    });
    assert!(began.elapsed() < FINISH_MAX, "{:?}", began.elapsed());
}

#[test]
fn the_end_does_not_wait_for_a_link_that_is_cut_nor_for_long_for_a_peer_that_does_not_read() {
    let nodes = cluster(2, |config| config.wan = Some(flat_wan(2, DELAY)));
    assert!(nodes[0].transport.cut(NodeId(1)));
    nodes[0].send(&nodes[1], Lane::Control, &b"lost"[..]);
    let began = Instant::now();
    nodes[0].transport.finish();
    assert!(began.elapsed() < FINISH_MAX, "{:?}", began.elapsed());

    let (release, blocked) = channel::<()>();
    let blocked = Mutex::new(blocked);
    let on_event = move |event: TransportEvent| {
        if matches!(event, TransportEvent::Frame { .. }) {
            // The test ends the wait by dropping the sender.
            let _ = blocked.lock().unwrap().recv();
        }
    };
    let stuck = Transport::start(config(1, &[], 2), Arc::new(on_event)).unwrap();
    let ends = TestNode::start(config(0, &[(NodeId(1), stuck.local_address())], 2));
    ends.wait("PeerUp", |_, event| matches!(event, TransportEvent::PeerUp(_)).then_some(()));
    ends.transport.send(NodeId(1), Lane::Bulk, Bytes::from_static(b"not read"));
    let began = Instant::now();
    ends.transport.finish();
    assert!(began.elapsed() < FINISH_MAX + PATIENCE, "{:?}", began.elapsed());
    drop(release);
}
