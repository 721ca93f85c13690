//! Tests of the emulated WAN in virtual time.

use proptest::prelude::*;

use super::*;

const A: RegionIndex = RegionIndex(0);
const B: RegionIndex = RegionIndex(1);
const MS: u64 = 1_000_000;

fn bytes(bytes: u64) -> Size {
    Size { wire_bytes: bytes, packets: 1, held_bytes: bytes as usize }
}

fn two_places(shape: Shape) -> Wan<u64> {
    Wan::new(2, 7, |_, _| shape)
}

fn of_ms(ms: u64) -> Shape {
    Shape::of_delay(Duration::from_millis(ms))
}

/// The packets that have arrived by `now`, with their arrival times.
fn arrived(wan: &mut Wan<u64>, now: Moment) -> Vec<(u64, Moment)> {
    wan.invariants();
    std::iter::from_fn(|| wan.deliver(now)).map(|it| (it.packet, it.due)).collect()
}

#[test]
fn a_packet_arrives_when_its_delay_is_over_and_no_nanosecond_earlier() {
    let mut wan = two_places(of_ms(25));
    assert_eq!(wan.next_due(), None);
    assert_eq!(wan.send(Moment(5), (A, B), bytes(100), 1), Ok(Moment(25 * MS + 5)));
    assert_eq!(wan.next_due(), Some(Moment(25 * MS + 5)));
    assert_eq!(arrived(&mut wan, Moment(25 * MS + 4)), []);
    let arrival = wan.deliver(Moment(25 * MS + 5)).unwrap();
    assert_eq!((arrival.from, arrival.to, arrival.packet), (A, B, 1));
    assert_eq!(wan.next_due(), None);
    assert_eq!(wan.deliver(Moment(u64::MAX)), None);
}

#[test]
fn what_should_arrive_first_is_delivered_first_whatever_link_it_is_on() {
    let mut wan: Wan<u64> = Wan::new(3, 1, |from, to| of_ms((from.0 * 10 + to.0 * 3) as u64));
    for (at, (from, to)) in [(2, 0), (1, 0), (0, 2), (0, 1)].into_iter().enumerate() {
        wan.send(Moment(0), (RegionIndex(from), RegionIndex(to)), bytes(1), at as u64).unwrap();
    }
    let order: Vec<u64> =
        arrived(&mut wan, Moment(99 * MS)).into_iter().map(|(packet, _)| packet).collect();
    assert_eq!(order, [3, 2, 1, 0]);
}

#[test]
fn bandwidth_makes_packets_wait_for_each_other_and_a_full_queue_drops() {
    // At this bandwidth a byte takes a microsecond.
    let shape = Shape { bits_per_sec: Some(8_000_000), queue_bytes: 2_500, ..of_ms(10) };
    let mut wan = two_places(shape);
    let mut send = |now, packet| wan.send(Moment(now), (A, B), bytes(1_000), packet);
    assert_eq!(send(0, 1), Ok(Moment(11 * MS)));
    assert_eq!(send(0, 2), Ok(Moment(12 * MS)));
    assert_eq!(send(0, 3), Err((Drop::Full, 3)));
    // Half of a packet has left.
    assert_eq!(send(MS / 2, 4), Ok(Moment(13 * MS)));
    assert_eq!(send(MS / 2, 5), Err((Drop::Full, 5)));
    // The other direction has its own queue.
    assert_eq!(wan.send(Moment(0), (B, A), bytes(1_000), 6), Ok(Moment(11 * MS)));
    assert_eq!(wan.counts(A, B).full, Tally { packets: 2, bytes: 2_000 });
    wan.invariants();
}

#[test]
fn what_is_larger_than_the_queue_passes_when_nothing_waits() {
    let shape = Shape { bits_per_sec: Some(8_000_000), queue_bytes: 10, ..of_ms(0) };
    let mut wan = two_places(shape);
    assert_eq!(wan.send(Moment(0), (A, B), bytes(1_000), 1), Ok(Moment(MS)));
    assert_eq!(wan.send(Moment(1), (A, B), bytes(1_000), 2), Err((Drop::Full, 2)));
    assert_eq!(wan.send(Moment(MS), (A, B), bytes(1_000), 3), Ok(Moment(2 * MS)));
}

#[test]
fn a_cut_takes_what_is_on_its_way_and_all_that_is_sent_until_it_is_healed() {
    let mut wan = two_places(of_ms(50));
    wan.send(Moment(0), (A, B), bytes(10), 1).unwrap();
    wan.send(Moment(0), (B, A), bytes(10), 2).unwrap();
    wan.cut(A, B);
    assert!(wan.is_cut(A, B) && !wan.is_cut(B, A));
    assert_eq!(wan.send(Moment(1), (A, B), bytes(10), 3), Err((Drop::Cut, 3)));
    assert_eq!(arrived(&mut wan, Moment(60 * MS)), [(2, Moment(50 * MS))]);
    wan.heal(A, B);
    assert_eq!(wan.send(Moment(60 * MS), (A, B), bytes(10), 4), Ok(Moment(110 * MS)));
    assert_eq!(wan.counts(A, B).cut, Tally { packets: 2, bytes: 20 });
    wan.invariants();
}

#[test]
fn a_link_that_becomes_shorter_keeps_the_order() {
    let mut wan = two_places(of_ms(50));
    wan.send(Moment(0), (A, B), bytes(1), 1).unwrap();
    wan.set_shape(A, B, of_ms(1));
    assert_eq!(wan.send(Moment(MS), (A, B), bytes(1), 2), Ok(Moment(50 * MS)));
    wan.set_shape(A, B, Shape { may_overtake: true, ..of_ms(1) });
    assert_eq!(wan.send(Moment(2 * MS), (A, B), bytes(1), 3), Ok(Moment(3 * MS)));
    let order = [(3, Moment(3 * MS)), (1, Moment(50 * MS)), (2, Moment(50 * MS))];
    assert_eq!(arrived(&mut wan, Moment(50 * MS)), order);
}

#[test]
fn as_many_are_lost_as_the_dice_say_and_several_at_once_as_often_as_one_of_them() {
    let mut wan = two_places(Shape { loss: 0.01, ..of_ms(1) });
    let ten = Size { wire_bytes: 10_000, packets: 10, held_bytes: 0 };
    for packet in 0..10_000 {
        let _ = wan.send(Moment(0), (A, B), bytes(1_000), packet);
        let _ = wan.send(Moment(0), (B, A), ten, packet);
    }
    let (one, ten) = (wan.counts(A, B).lost.packets, wan.counts(B, A).lost.packets / 10);
    assert!((60..=140).contains(&one), "about 100, not {one}");
    // 1 - 0.99 ^ 10 is 0.0956.
    assert!((860..=1_060).contains(&ten), "about 956, not {ten}");
}

#[test]
fn more_than_memory_holds_is_dropped() {
    let mut wan = two_places(of_ms(1_000));
    let half = Size { wire_bytes: 1, packets: 1, held_bytes: HELD_BYTES_MAX / 2 };
    wan.send(Moment(0), (A, B), half, 1).unwrap();
    wan.send(Moment(0), (B, A), half, 2).unwrap();
    assert_eq!(wan.send(Moment(0), (A, B), bytes(1), 3), Err((Drop::Full, 3)));
    assert_eq!(arrived(&mut wan, Moment(1_000 * MS)).len(), 2);
    assert!(wan.send(Moment(0), (A, B), bytes(1), 4).is_ok());
}

#[test]
fn what_a_region_refuses_is_counted_as_dropped() {
    let mut wan = two_places(of_ms(0));
    wan.send(Moment(0), (A, B), bytes(9), 1).unwrap();
    let arrival = wan.deliver(Moment(0)).unwrap();
    wan.refuse(arrival.from, arrival.to, arrival.size);
    let counts = wan.counts(A, B);
    assert_eq!((counts.delivered, counts.dropped()), (Tally::default(), counts.sent));
    wan.invariants();
}

/// An event in a WAN with three places.
#[derive(Clone, Debug)]
enum Event {
    Send { from: usize, to: usize, bytes: u64, packets: u32 },
    Pass { nanos: u64 },
    Cut { from: usize, to: usize },
    Heal { from: usize, to: usize },
    Delay { from: usize, to: usize, us: u64 },
}

fn pair() -> impl Strategy<Value = (usize, usize)> {
    (0..3_usize, 1..3_usize).prop_map(|(from, step)| (from, (from + step) % 3))
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (pair(), 40..70_000_u64, 1..45_u32).prop_map(|((from, to), bytes, packets)| {
            Event::Send { from, to, bytes, packets }
        }),
        6 => (0..5_000_000_u64).prop_map(|nanos| Event::Pass { nanos }),
        1 => pair().prop_map(|(from, to)| Event::Cut { from, to }),
        1 => pair().prop_map(|(from, to)| Event::Heal { from, to }),
        1 => (pair(), 0..20_000_u64).prop_map(|((from, to), us)| Event::Delay { from, to, us }),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let bits = prop_oneof![Just(None), (1_000_000..10_000_000_000_u64).prop_map(Some)];
    let loss = prop_oneof![Just(0.0), 0.0..0.5_f64];
    (0..20_000_u64, 0..5_000_u64, bits, 0..1_000_000_u64, loss, any::<bool>()).prop_map(
        |(delay, jitter, bits_per_sec, queue_bytes, loss, may_overtake)| Shape {
            delay: Duration::from_micros(delay),
            jitter: Duration::from_micros(jitter),
            bits_per_sec,
            queue_bytes,
            loss,
            may_overtake,
        },
    )
}

/// A sent packet: the time of sending, its minimum delay, and its number.
type Sent = (Moment, Duration, u64);

/// Runs the events, and returns the packets in the order of arrival.
fn run(seed: u64, shape: Shape, events: &[Event]) -> Vec<(u64, Moment)> {
    let mut wan: Wan<Sent> = Wan::new(3, seed, |_, _| shape);
    let (mut now, mut log, mut number) = (Moment(0), Vec::new(), 0);
    let mut last_on_link = [[0; 3]; 3];
    let mut arrive = |wan: &mut Wan<Sent>, now: Moment| {
        while let Some(Arrival { from, to, due, packet, .. }) = wan.deliver(now) {
            let (sent, delay, number) = packet;
            assert!(sent.after(delay) <= due && due <= now, "not before its delay has elapsed");
            let last = &mut last_on_link[from.0][to.0];
            assert!(shape.may_overtake || *last < number, "{number} after {last}");
            *last = number;
            log.push((number, due));
        }
    };
    for event in events {
        match *event {
            Event::Send { from, to, bytes, packets } => {
                number += 1;
                let size = Size { wire_bytes: bytes, packets, held_bytes: bytes as usize };
                let link = (RegionIndex(from), RegionIndex(to));
                let delay = wan.shape(link.0, link.1).delay;
                let _ = wan.send(now, link, size, (now, delay, number));
            }
            Event::Pass { nanos } => now = Moment(now.0 + nanos),
            Event::Cut { from, to } => wan.cut(RegionIndex(from), RegionIndex(to)),
            Event::Heal { from, to } => wan.heal(RegionIndex(from), RegionIndex(to)),
            Event::Delay { from, to, us } => {
                let delay = Duration::from_micros(us);
                wan.set_shape(RegionIndex(from), RegionIndex(to), Shape { delay, ..shape });
            }
        }
        arrive(&mut wan, now);
        wan.invariants();
    }
    // All packets in flight arrive eventually.
    while let Some(due) = wan.next_due() {
        arrive(&mut wan, due);
    }
    wan.invariants();
    assert_eq!(wan.held_bytes, 0);
    log
}

proptest! {
    #[test]
    fn nothing_is_early_out_of_order_or_unaccounted_for(
        seed: u64, shape in shape(), events in prop::collection::vec(event(), 0..200)
    ) {
        let first = run(seed, shape, &events);
        prop_assert_eq!(first, run(seed, shape, &events), "the same seed, the same answers");
    }

    #[test]
    fn a_busy_link_carries_its_bandwidth_and_no_more(
        mbit in 1..2_000_u64, sizes in prop::collection::vec(100..60_000_u64, 2..50)
    ) {
        let bits_per_sec = mbit * 1_000_000;
        let busy = Shape { bits_per_sec: Some(bits_per_sec), queue_bytes: u64::MAX, ..of_ms(3) };
        let mut wan = two_places(busy);
        let mut last = Moment(0);
        for size in &sizes {
            last = wan.send(Moment(0), (A, B), bytes(*size), 0).unwrap();
        }
        let ideal = sizes.iter().sum::<u64>() * 8_000 / mbit + 3 * MS;
        prop_assert!(last.0 <= ideal && ideal - last.0 <= sizes.len() as u64, "{last:?} {ideal}");
    }
}
