//! Single runs by name, for `./mutate`: the kinds of runs that find planted bugs, and small drawn
//! ones. `PANGEA_RUN` has the name of a run, or `list`.

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::calvin::{Calvin, Checkpoints};
use pangea_protocols::minerva::Minerva;
use pangea_sim::{Report, drawn, run};

use super::{Profile, Under};

/// Seeds of each kind.
const SEEDS: u64 = 2;
/// Drawn seeds of each protocol, of which only the small ones run.
const DRAWN: u64 = 60;
/// The longest drawn run, in milliseconds of virtual time.
const DRAWN_MS_MAX: u64 = 8_000;

/// A run with a name.
type Named = (String, Box<dyn Fn() -> Report>);

/// All runs. Their beginning has one of each kind.
fn all() -> Vec<Named> {
    let mut runs: Vec<Named> = Vec::new();
    for seed in 0..SEEDS {
        for profile in Profile::ALL {
            for under in Under::ALL {
                let mode = if seed == 0 { Checkpoints::Versions } else { Checkpoints::Zigzag };
                let run = move || {
                    let (settings, options) = profile.settings(seed);
                    under.run(profile, (&settings, &options), mode)
                };
                runs.push((format!("{under:?}/{profile:?}/{seed}"), Box::new(run)));
            }
        }
    }
    for (seed, profile) in (0..SEEDS).flat_map(|seed| Profile::OF_GEOGAUSS.map(|it| (seed, it))) {
        let run = move || {
            let (settings, options) = profile.settings(seed);
            Under::GeoGauss.run(profile, (&settings, &options), Checkpoints::Versions)
        };
        runs.push((format!("GeoGauss/{profile:?}/{seed}"), Box::new(run)));
    }
    runs.extend(all_drawn::<Minerva>());
    runs.extend(all_drawn::<Calvin>());
    runs
}

fn all_drawn<P: Protocol>() -> impl Iterator<Item = Named> {
    let small = (0..DRAWN).filter(|&seed| {
        let (settings, _) = drawn::<P>(seed);
        let is_benchmark = ["tpcc", "ycsb"].iter().any(|name| settings.workload.starts_with(name));
        settings.nodes <= 3 && settings.duration <= Span::from_ms(DRAWN_MS_MAX) && !is_benchmark
    });
    small.map(|seed| {
        let run = move || {
            let (settings, options) = drawn::<P>(seed);
            run::<P>(&settings, &options).unwrap()
        };
        (format!("{}/drawn/{seed}", P::NAME), Box::new(run) as Box<dyn Fn() -> Report>)
    })
}

#[test]
fn a_run_has_a_name() {
    let (runs, name) = (all(), std::env::var("PANGEA_RUN"));
    if name.as_deref() == Ok("list") {
        // Each on a line of its own, after the harness has begun one.
        runs.iter().for_each(|(name, _)| println!("\nrun: {name}"));
        return;
    }
    let name = name.as_deref().unwrap_or("Minerva/Lists/0");
    let (_, run) = runs.iter().find(|(known, _)| known == name).expect("a run has this name");
    let report = run();
    assert!(report.violation.is_none(), "{report}");
}
