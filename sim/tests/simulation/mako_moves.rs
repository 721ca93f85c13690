//! Mako §6.2, B: slots move to other shards while clients work, and nodes fail.

use pangea_protocols::mako::Mako;
use pangea_sim::Report;

use crate::mako_moving::{calm, faulty};
use crate::runs::{clean, drawn_seeds};

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

/// `PANGEA_MAKO_MOVES=faulty/1000+50` runs others.
#[test]
fn drawn_moves_of_mako_are_clean() {
    drawn_seeds::<Mako>("PANGEA_MAKO_MOVES", "faulty/0+12", |kind, seed| match kind {
        "calm" => calm(seed),
        _ => faulty(seed),
    });
}
