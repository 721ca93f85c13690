//! Frames between peers arrive intact and in order, and are compressed if that is worthwhile.

use super::*;

/// A frame that contains its number, with pseudo-random bytes derived from it.
fn numbered(seed: u64, number: u32) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed ^ u64::from(number));
    let len = match number % 500 {
        499 => rng.usize(3_000_000..4_000_000),
        n if n % 10 == 0 => rng.usize(0..40_000),
        _ => rng.usize(0..300),
    };
    let mut frame = number.to_le_bytes().to_vec();
    let (run, byte) = (rng.usize(1..100), rng.u8(..));
    frame.extend((0..len).map(|i| if i % run == 0 { rng.u8(..) } else { byte }));
    frame
}

#[test]
fn frames_of_three_nodes_arrive_intact_and_in_order_on_each_lane() {
    const FRAMES: u32 = 1_500;
    let nodes = cluster(3, |_| {});
    std::thread::scope(|scope| {
        for from in &nodes {
            scope.spawn(|| {
                for number in 0..FRAMES {
                    for to in nodes.iter().filter(|to| to.id != from.id) {
                        let seed = u64::from(from.id.0) << 40 | u64::from(to.id.0) << 36;
                        from.send(to, Lane::Control, numbered(seed, number));
                        from.send(to, Lane::Bulk, numbered(seed + 1, number));
                    }
                }
            });
            scope.spawn(|| {
                let mut next = vec![[0u32; 2]; nodes.len()];
                for _ in 0..2 * 2 * FRAMES {
                    let (_, sender, lane, bytes) = from.wait_frame();
                    let number = &mut next[sender.index()][lane as usize];
                    let seed = u64::from(sender.0) << 40 | u64::from(from.id.0) << 36;
                    let expected = numbered(seed + lane as u64, *number);
                    assert!(bytes == expected, "frame {number} of {sender} on {lane:?}");
                    *number += 1;
                }
            });
        }
    });
    for node in &nodes {
        node.assert_none("a session ended", |event| matches!(event, TransportEvent::PeerDown(_)));
    }
}

#[test]
fn the_bulk_lane_is_compressed_where_it_pays_and_the_switch_turns_it_off() {
    for compression in [Compression::Lz4, Compression::Off] {
        let nodes = cluster(2, |config| config.compression = compression);
        let body = Bytes::from(vec![42; 1_000_000]);
        for lane in [Lane::Control, Lane::Bulk] {
            nodes[0].send(&nodes[1], lane, body.clone());
            let (_, _, _, bytes) = nodes[1].wait_frame();
            assert!(bytes == body);
        }
        let sent = &nodes[0].transport.links()[0];
        let received = &nodes[1].transport.links()[0];
        assert_eq!((sent.bulk.frames_sent, sent.bulk.bytes_sent), (1, 1_000_000));
        assert_eq!(received.bulk.bytes_received, 1_000_000);
        assert_eq!(received.bulk.wire_bytes_received, sent.bulk.wire_bytes_sent);
        assert!(sent.control.wire_bytes_sent > 1_000_000, "small and urgent: not compressed");
        let is_small = sent.bulk.wire_bytes_sent < 20_000;
        assert_eq!(is_small, compression == Compression::Lz4, "{:?}", sent.bulk);
    }
}

#[test]
fn a_frame_at_the_limit_passes_and_one_over_it_resets_the_connection_at_its_source() {
    let nodes = cluster(2, |_| {});
    let limit = super::super::CONTROL_FRAME_MAX;
    nodes[0].send(&nodes[1], Lane::Control, vec![2; limit]);
    let (_, _, _, bytes) = nodes[1].wait_frame();
    assert!(bytes.len() == limit && bytes[0] == 2);
    nodes[0].send(&nodes[1], Lane::Control, vec![1; limit + 1]);
    nodes[0].wait_down(&nodes[1]);
    nodes[0].wait_trouble("exceeds the limit");
    nodes[1].wait_down(&nodes[0]);
    nodes[0].wait_up(&nodes[1]);
    nodes[1].wait_up(&nodes[0]);
}

#[test]
fn a_configuration_that_makes_no_sense_is_an_error_that_names_it() {
    let started = |change: fn(&mut TransportConfig)| {
        let mut config = config(0, &[], 3);
        change(&mut config);
        Transport::start(config, Arc::new(|_| {})).err().map(|error| error.to_string())
    };
    let contains = |error: Option<String>, text: &str| {
        assert!(error.as_ref().is_some_and(|error| error.contains(text)), "{error:?}");
    };
    assert_eq!(started(|_| {}), None);
    contains(started(|config| config.me = NodeId(3)), "n3");
    contains(started(|config| config.peers.truncate(1)), "all other nodes");
    contains(started(|config| config.peers[0].0 = NodeId(2)), "each once");
    contains(started(|config| config.wan = Some(flat_wan(2, Span::ZERO))), "3 by 3");
    let far = |config: &mut TransportConfig| config.wan = Some(flat_wan(3, Span::from_ms(9_000)));
    contains(started(far), "9000.000 ms");

    let taken = std::net::TcpListener::bind(loopback(0)).unwrap();
    let mut config = config(0, &[], 1);
    config.listen = taken.local_addr().unwrap();
    let error = Transport::start(config, Arc::new(|_| {})).err().map(|error| error.to_string());
    contains(error, &taken.local_addr().unwrap().to_string());
}
