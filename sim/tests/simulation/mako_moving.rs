//! Settings for runs of Mako in which slots move between shards, also for those with planted bugs.

use pangea_core::time::Span;
use pangea_protocols::mako::Options;
use pangea_sim::faults::{Fault, Role, Target};
use pangea_sim::{Settings, SlotMove};

use crate::mako_divided::{WORKLOADS, divided, rule};
use crate::mako_drawn::hasty;

/// The number of slots.
const SLOTS: u16 = 1_024;

/// Some slots: all of a shard at first, every second one, a few, or half of all.
fn slots(dice: &mut fastrand::Rng, shards: u16) -> Vec<u16> {
    let (kind, first) = (dice.u8(..4), dice.u16(..shards));
    let is_moved = |slot: &u16| match kind {
        0 => slot % shards == first,
        1 => slot % 2 == first % 2,
        2 => slot % 16 < 3,
        _ => dice.bool(),
    };
    (0..SLOTS).filter(is_moved).collect()
}

/// Requests to move slots at drawn times, the last one before a time.
fn moves(dice: &mut fastrand::Rng, shards: u16, until_ms: u64) -> Vec<SlotMove> {
    let count = dice.u64(1..5);
    let each = until_ms / count;
    let one = |round: u64| SlotMove {
        at_ms: round * each + dice.u64(50..each),
        node: dice.u16(..3 * shards),
        slots: slots(dice, shards),
        to: dice.u16(..shards),
    };
    (0..count).map(one).collect()
}

/// Clients work while slots move, and nothing fails.
pub fn calm(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed);
    let shards = [2, 2, 3, 4][dice.usize(..4)];
    let workload = WORKLOADS[seed as usize % WORKLOADS.len()];
    let settings = Settings {
        moves: moves(dice, shards, 3_000),
        clients_per_node: [2, 6][dice.usize(..2)],
        one_way_max: Span::from_ms([1, 20, 60][dice.usize(..3)]),
        duration: Span::from_ms(4_000),
        ..divided(seed, workload, shards)
    };
    let options = Options {
        move_rows: [1, 2, 4_096][dice.usize(..3)],
        slice_txns: [1, 64][dice.usize(..2)],
        ..Options::default()
    };
    (settings, options)
}

/// Slots move while leaders and managers fail, links and disks are lost, and nodes stop.
pub fn faulty(seed: u64) -> (Settings, Options) {
    const MARKS: [&str; 8] = [
        "mako.migration_begins",
        "mako.piece_sent",
        "mako.piece",
        "mako.moved",
        "mako.migration_ends",
        "mako.leftovers",
        "mako.swept",
        "mako.barred",
    ];
    let dice = &mut fastrand::Rng::with_seed(seed);
    let shards = [2, 2, 3][dice.usize(..3)];
    let nodes = 3 * shards;
    let (mut rules, mut at_ms) = (Vec::new(), 100);
    for _ in 0..dice.u8(2..7) {
        at_ms += dice.u64(50..1_000);
        let node = match dice.u8(..4) {
            0 => Target::Role(Role::Coordinator),
            1 => Target::Node(dice.u16(..nodes)),
            _ => Target::Node(dice.u16(..shards)),
        };
        let after_effects = dice.u64(..20);
        let one = dice.u16(..nodes);
        let others: Vec<u16> = (0..nodes).filter(|node| *node != one).collect();
        let fault = match dice.u8(..10) {
            0 => Fault::Pause { node },
            1 => Fault::Cut { from: vec![one], to: others, one_way: dice.bool() },
            2 => Fault::DiskLoss { node },
            3..6 => Fault::CrashAfterMark {
                node: dice.bool().then_some(node),
                mark: MARKS[dice.usize(..MARKS.len())].to_owned(),
                times: dice.u64(1..4),
                after_effects,
            },
            6 => Fault::Flap { between: [one, others[dice.usize(..others.len())]], times: 4 },
            _ => Fault::Crash { node, after_effects },
        };
        rules.push(rule(at_ms, dice.u64(20..1_200), fault));
    }
    match dice.u8(..12) {
        0 => rules.push(rule(dice.u64(300..4_000), 900, Fault::FullStop {})),
        1 => {
            let fault = Fault::Upgrade { in_order: true, rolling: false, after_all: dice.bool() };
            rules.push(rule(dice.u64(300..4_000), 300, fault));
        }
        _ => {}
    }
    let workload = ["list-append", "bank", "list-append", "ranges", "register"][dice.usize(..5)];
    let settings = Settings {
        moves: moves(dice, shards, 5_000),
        rules: Some(rules),
        clients_per_node: [2, 6][dice.usize(..2)],
        one_way_max: Span::from_ms([1, 20, 60][dice.usize(..3)]),
        duration: Span::from_ms(6_000),
        ..divided(seed, workload, shards)
    };
    let options = Options { move_rows: [1, 2, 8, 4_096][dice.usize(..4)], ..hasty() };
    let options = match dice.u8(..3) {
        0 => Options { checkpoint_bytes: 8_192, chunk_bytes: 2_000, ..options },
        _ => options,
    };
    (settings, options)
}
