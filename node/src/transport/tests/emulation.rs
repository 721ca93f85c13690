//! Measurements of the emulated WAN.
//!
//! A loaded machine delays single frames, so upper bounds are checked on the best of many frames.
//! The emulation itself must guarantee lower bounds, so these are checked on all.

use super::*;
use crate::transport::LinkSettings;

/// The maximum lateness of the best of many frames.
const PRECISION: Duration = Duration::from_millis(1);
/// What a round trip of 50 ms may take if no process is in the way.
const NEARLY_EXACT: Span = Span::from_us(52_000);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The latencies of `count` frames, each sent after the previous one has arrived.
fn one_way(from: &TestNode, to: &TestNode, lane: Lane, count: usize) -> Vec<Duration> {
    let measure = |_| {
        let sent = Instant::now();
        from.send(to, lane, &b"are we there yet"[..]);
        to.wait_frame().0 - sent
    };
    (0..count).map(measure).collect()
}

fn asymmetric(there: Span, back: Span) -> Wan {
    Wan { one_way: vec![vec![Span::ZERO, there], vec![back, Span::ZERO]], ..Wan::default() }
}

#[test]
fn each_direction_has_its_own_delay_to_within_a_millisecond() {
    for (there, back) in [(0, 25), (100, 0)] {
        let wan = asymmetric(Span::from_ms(there), Span::from_ms(back));
        let nodes = cluster(2, |config| config.wan = Some(wan.clone()));
        for (from, to, delay) in
            [(&nodes[0], &nodes[1], ms(there)), (&nodes[1], &nodes[0], ms(back))]
        {
            for lane in [Lane::Control, Lane::Bulk] {
                let mut took = one_way(from, to, lane, 15);
                took.sort();
                println!("{delay:?} {lane:?}: min {:?}, median {:?}", took[0], took[7]);
                assert!(took[0] >= delay, "{delay:?} {lane:?}: {took:?}");
                assert!(took[0] < delay + PRECISION, "{delay:?} {lane:?}: {took:?}");
            }
        }
    }
}

#[test]
fn the_round_trip_is_measured_through_the_emulation() {
    let wan = asymmetric(Span::from_ms(30), Span::from_ms(20));
    let nodes = cluster(2, |config| config.wan = Some(wan.clone()));
    for node in &nodes {
        // A busy machine delays single samples, but not all of them.
        let until = Instant::now() + PATIENCE;
        let round_trip = loop {
            let measured = node.transport.links()[0].round_trip;
            match measured {
                Some(round_trip) if round_trip.samples >= 2 && round_trip.min < NEARLY_EXACT => {
                    break round_trip;
                }
                _ => assert!(Instant::now() < until, "no exact sample: {measured:?}"),
            }
            // No event tells of a sample, and a loop without a pause would delay them itself.
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(round_trip.min >= Span::from_ms(50), "{round_trip:?}");
        assert!(round_trip.mean >= round_trip.min);
    }
}

#[test]
fn a_burst_is_delayed_together_and_stays_in_order_under_jitter() {
    let mut wan = flat_wan(2, Span::from_ms(20));
    wan.jitter = Span::from_ms(5);
    let nodes = cluster(2, |config| config.wan = Some(wan.clone()));
    let sent = Instant::now();
    for number in 0..1_000u32 {
        nodes[0].send(&nodes[1], Lane::Control, number.to_le_bytes().to_vec());
    }
    let enqueued = sent.elapsed();
    let mut last = sent;
    for number in 0..1_000u32 {
        let (at, _, _, bytes) = nodes[1].wait_frame();
        assert_eq!(bytes, number.to_le_bytes()[..]);
        last = at;
    }
    let took = last - sent;
    assert!(took >= ms(20), "{took:?}");
    // The frames overlap: together they take one delay, its jitter, and the time added by a loaded
    // machine.
    assert!(took < enqueued + ms(500), "{took:?}");
}

#[test]
fn a_narrow_link_takes_its_time_and_lets_the_control_lane_pass() {
    let mut wan = flat_wan(2, Span::ZERO);
    wan.bandwidth_bits = Some(8_000_000);
    let nodes = cluster(2, |config| {
        config.wan = Some(wan.clone());
        config.compression = Compression::Off;
    });
    let sent = Instant::now();
    for _ in 0..5 {
        nodes[0].send(&nodes[1], Lane::Bulk, vec![0; 100_000]);
    }
    nodes[0].send(&nodes[1], Lane::Control, &b"urgent"[..]);
    let (at, _, lane, _) = nodes[1].wait_frame();
    assert_eq!(lane, Lane::Control);
    assert!(at - sent < ms(100), "before the first batch");
    let arrivals: Vec<Duration> = (0..5).map(|_| nodes[1].wait_frame().0 - sent).collect();
    for (i, &took) in arrivals.iter().enumerate() {
        let expected = ms(100 * (i as u64 + 1));
        assert!(took >= expected, "{arrivals:?}");
        assert!(took < expected + ms(50), "{arrivals:?}");
    }
}

#[test]
fn a_delay_that_is_changed_holds_for_what_is_sent_from_then_on() {
    let nodes = cluster(2, |_| {});
    let settings = LinkSettings { one_way: Span::from_ms(40), ..LinkSettings::default() };
    assert_eq!(nodes[0].transport.set_link(NodeId(1), settings), Ok(()));
    let took = one_way(&nodes[0], &nodes[1], Lane::Bulk, 5);
    assert!(took.iter().all(|&took| took >= ms(40)), "{took:?}");
    assert_eq!(nodes[0].transport.set_link(NodeId(1), LinkSettings::default()), Ok(()));
    let took = one_way(&nodes[0], &nodes[1], Lane::Bulk, 5);
    assert!(took.iter().any(|&took| took < ms(20)), "{took:?}");
    let far = LinkSettings { one_way: Span::from_ms(2_001), ..settings };
    assert!(nodes[0].transport.set_link(NodeId(1), far).is_err());
    assert!(nodes[0].transport.set_link(NodeId(0), settings).is_err(), "not a peer");
}

#[test]
fn a_handshake_on_its_way_holds_up_nobody() {
    // Links were once locked while the hello waited for its delay, so that reading them took as
    // long.
    let wan = flat_wan(2, Span::from_ms(1_900));
    let start = |me, peers: &[(NodeId, SocketAddr)]| {
        let mut config = config(me, peers, 2);
        config.wan = Some(wan.clone());
        TestNode::start(config)
    };
    let acceptor = start(1, &[]);
    let dialer = start(0, &[(NodeId(1), acceptor.address())]);
    let began = Instant::now();
    let mut looks = 0;
    while !acceptor.transport.links()[0].is_up {
        let before = Instant::now();
        dialer.transport.links();
        assert!(before.elapsed() < ms(900), "after {looks} looks");
        looks += 1;
        // This is only a pause; no event is due.
        let _ = dialer.events.lock().unwrap().recv_timeout(ms(10));
    }
    assert!(began.elapsed() >= ms(3_800), "there and back: {:?}", began.elapsed());
}

#[test]
fn a_short_cut_holds_frames_and_loses_none() {
    let nodes = cluster(2, |config| config.wan = Some(flat_wan(2, Span::from_ms(5))));
    assert!(nodes[0].transport.cut(NodeId(1)));
    assert!(!nodes[0].transport.cut(NodeId(0)), "not a peer");
    for number in 0..10u8 {
        nodes[0].send(&nodes[1], Lane::Control, vec![number]);
        nodes[0].send(&nodes[1], Lane::Bulk, vec![number]);
    }
    // The other direction still works: its ten round trips take longer than the delay.
    one_way(&nodes[1], &nodes[0], Lane::Control, 10);
    let is_frame = |event: &TransportEvent| matches!(event, TransportEvent::Frame { .. });
    nodes[1].assert_none("a frame came through a cut", is_frame);
    assert!(nodes[0].transport.links()[0].is_cut);

    let healed = Instant::now();
    nodes[0].transport.heal();
    let mut next = [0u8; 2];
    for _ in 0..20 {
        let (at, _, lane, bytes) = nodes[1].wait_frame();
        assert!(at >= healed + ms(5), "the delay applies after the link healed");
        assert_eq!(bytes[0], next[lane as usize]);
        next[lane as usize] += 1;
    }
}

#[test]
fn a_long_cut_of_what_the_dialer_sends_takes_both_down_until_it_heals() {
    cut_long(0);
}

#[test]
fn a_long_cut_of_what_the_acceptor_sends_takes_both_down_until_it_heals() {
    cut_long(1);
}

fn cut_long(cut: usize) {
    let nodes = cluster(2, |_| {});
    let (from, to) = (&nodes[cut], &nodes[1 - cut]);
    assert!(from.transport.cut(to.id));
    from.send(to, Lane::Bulk, &b"lost"[..]);
    to.wait_down(from);
    from.wait_down(to);
    // The dialer retries at least twice a second, and must not get through.
    let is_up = |event: &TransportEvent| matches!(event, TransportEvent::PeerUp(_));
    to.assert_none_for(ms(1_200), "a session in spite of the cut", is_up);
    from.assert_none("a session in spite of the cut", is_up);
    from.transport.heal();
    from.wait_up(to);
    to.wait_up(from);
    from.send(to, Lane::Bulk, &b"found"[..]);
    assert_eq!(to.wait_frame().3, &b"found"[..], "frames sent before the loss are not sent again");
}
