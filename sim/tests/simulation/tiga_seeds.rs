//! Seeds of all kinds of drawn runs of Tiga. `PANGEA_TIGA_KIND` has some kinds, and
//! `PANGEA_TIGA_SEEDS` the first seed and the number of seeds, as in `1000+500`.

use pangea_protocols::tiga::{Options, Tiga};
use pangea_sim::trace::Lines;
use pangea_sim::{Settings, run};

use crate::{tiga_drawn, tiga_partial_drawn, tiga_placed};

type Draw = fn(u64) -> (Settings, Options);

const KINDS: [(&str, Draw); 19] = [
    ("drawn", tiga_drawn::drawn),
    ("away", |seed| tiga_drawn::away(seed, "list-append")),
    ("replaced", |seed| tiga_drawn::replaced(seed, "list-append")),
    ("upgraded", tiga_drawn::upgraded),
    ("mute", |seed| tiga_drawn::mute(seed, "list-append")),
    ("voters", tiga_drawn::cut_from_voters),
    ("shards", tiga_drawn::drawn_divided),
    ("shards-fast", tiga_drawn::drawn_fast),
    ("shards-away", tiga_drawn::away_divided),
    ("shards-replaced", tiga_drawn::replaced_divided),
    ("shards-upgraded", tiga_drawn::upgraded_divided),
    ("moved", tiga_placed::moved),
    ("wild", tiga_placed::wild),
    ("bounded", |seed| tiga_placed::bounded(seed, seed % 2 == 0)),
    ("partial", tiga_partial_drawn::drawn_partial),
    ("partial-away", tiga_partial_drawn::away_partial),
    ("partial-replaced", tiga_partial_drawn::replaced_partial),
    ("partial-upgraded", tiga_partial_drawn::upgraded_partial),
    ("non-voting", tiga_partial_drawn::drawn_non_voting),
];

/// Of a single seed the trace is printed.
#[test]
fn seeds_of_each_kind_are_clean() {
    let kinds = std::env::var("PANGEA_TIGA_KIND").ok();
    let is_wanted =
        |kind: &str| kinds.as_ref().is_none_or(|all| all.split(',').any(|it| it == kind));
    let given = std::env::var("PANGEA_TIGA_SEEDS").ok();
    let given = given.filter(|_| kinds.is_some()).unwrap_or("50000+2".to_owned());
    let (first, count) = given.split_once('+').expect("a seed and a number");
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let mut failed = Vec::new();
    for (kind, draw) in KINDS.into_iter().filter(|(kind, _)| is_wanted(kind)) {
        for seed in first..first + count {
            let (settings, options) = draw(seed);
            let lines = if count == 1 { Lines::Print } else { Lines::Off };
            let report = run::<Tiga>(&Settings { lines, ..settings }, &options).unwrap();
            if report.violation.is_some() {
                eprintln!("{kind} {seed}: {options:?}: {report}");
                failed.push((kind, seed));
            }
        }
        eprintln!("{kind}: {count} seeds from {first}");
    }
    assert!(failed.is_empty(), "{failed:?}");
}
