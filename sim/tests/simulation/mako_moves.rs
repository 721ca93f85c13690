//! Mako §6.2, B: slots move to other shards while clients work, and nodes fail.

use pangea_protocols::mako::Mako;
use pangea_sim::trace::Lines;
use pangea_sim::{Report, Settings, run};

use crate::mako_moving::{calm, faulty};
use crate::runs::clean;

fn count(marks: &mut [(&'static str, u64)], report: &Report) {
    marks.iter_mut().for_each(|(mark, hits)| *hits += report.counts.mark(mark));
}

/// Rows are where the placement says, no transaction is lost or seen twice, and snapshots over all
/// shards have everything.
#[test]
fn slots_of_mako_move_while_clients_work() {
    let mut marks =
        ["mako.migration_ends", "mako.barred", "mako.piece", "mako.swept"].map(|it| (it, 0));
    let (mut ended, mut snapshots) = (0, 0);
    for seed in 1_000..1_016 {
        let (settings, options) = calm(seed);
        let report = clean::<Mako>(&settings, &options);
        count(&mut marks, &report);
        let of = |what: &str| report.counts.moves.get(what).copied().unwrap_or_default();
        ended += of("moves that have ended");
        snapshots += of("snapshots over shards");
    }
    println!("{marks:?}, {ended} moves, {snapshots} snapshots");
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
    assert!(ended > 16, "{ended} moves have ended");
    assert!(snapshots > 100, "{snapshots} snapshots over shards were read");
}

/// Mako, B: "In the event of a shard failure during the migration procedure, the CM initiates a
/// failure recovery procedure, assigning a new epoch. After recovery, the CM can safely restart
/// migration procedure from the beginning."
#[test]
fn slots_of_mako_move_whatever_fails_meanwhile() {
    let mut marks = ["mako.migration_ends", "mako.leftovers", "mako.leads"].map(|it| (it, 0));
    for seed in 1_000..1_016 {
        let (settings, options) = faulty(seed);
        count(&mut marks, &clean::<Mako>(&settings, &options));
    }
    println!("{marks:?}");
    assert!(marks.iter().all(|(_, hits)| *hits > 0), "{marks:?}");
}

/// `PANGEA_MAKO_MOVES` has the kind of runs, the first seed and the number of seeds, as in
/// `faulty/1000+50`. Of a single one the trace is printed.
#[test]
fn drawn_moves_of_mako_are_clean() {
    let given = std::env::var("PANGEA_MAKO_MOVES").unwrap_or("faulty/0+12".to_owned());
    let parts: Vec<&str> = given.split(['/', '+']).collect();
    let [kind, first, count] = parts[..] else { panic!("{given}") };
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let mut failed = Vec::new();
    for seed in first..first + count {
        let lines = if count == 1 { Lines::Print } else { Lines::Off };
        let (settings, options) = if kind == "calm" { calm(seed) } else { faulty(seed) };
        let report = run::<Mako>(&Settings { lines, ..settings }, &options).unwrap();
        if report.violation.is_some() {
            eprintln!("seed {seed}: {options:?}: {report}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
