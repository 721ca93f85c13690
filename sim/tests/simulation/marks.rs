//! Every mark of a protocol is hit by a swarm, or has a reason not to be.

use std::collections::BTreeSet;
use std::thread::available_parallelism;

use pangea_core::protocol::{Protocol, Rarity};
use pangea_protocols::{NAMES, WithProtocol, with_protocol};
use pangea_sim::{Extent, drawn, run_swarm};

/// Enough to hit every mark that is not listed.
const SEEDS: u64 = 100;
/// The number of seeds after which the swarm ends if it has hit them all.
const PORTION: usize = 10;

/// Returns the names of a protocol's marks whose rarity matches.
fn named<P: Protocol>(which: fn(Rarity) -> bool) -> BTreeSet<&'static str> {
    P::MARKS.iter().filter(|mark| which(mark.rarity)).map(|mark| mark.name).collect()
}

fn hits_every_mark_but_those_with_a_reason<P: Protocol>() {
    assert_eq!(named::<P>(|_| true).len(), P::MARKS.len(), "names differ");
    let never = named::<P>(|rarity| matches!(rarity, Rarity::Never(_)));
    let rare = named::<P>(|rarity| matches!(rarity, Rarity::Rare(_)));
    let threads = available_parallelism().map_or(1, usize::from);
    let mut unhit = named::<P>(|_| true);
    let mut missed = unhit.clone();
    for first in (0..SEEDS).step_by(PORTION) {
        if missed.is_empty() {
            break;
        }
        let seeds = first..first + PORTION as u64;
        let extent = Extent { seeds, time: None, threads, is_twice: false };
        let summary = run_swarm::<P>(extent, &drawn::<P>, &mut |_, _| {}).unwrap();
        println!("{summary}");
        assert!(summary.failures.is_empty(), "{summary}");
        let still_unhit = summary.never_hit().map(|mark| mark.name).collect();
        unhit = &unhit & &still_unhit;
        missed = &unhit - &(&never | &rare);
    }
    assert!(missed.is_empty(), "not hit, and without a reason: {missed:?}");
    let wrong: Vec<_> = never.difference(&unhit).collect();
    assert!(wrong.is_empty(), "hit, although the reason says that they can't be: {wrong:?}");
}

/// Runs the swarm of one protocol.
struct Hits;

impl WithProtocol for Hits {
    type Output = ();

    fn run<P: Protocol>(self) {
        hits_every_mark_but_those_with_a_reason::<P>();
    }
}

#[test]
fn every_mark_is_hit_by_a_swarm_or_has_a_reason_not_to_be() {
    for name in NAMES {
        with_protocol(name, Hits).unwrap();
    }
}
