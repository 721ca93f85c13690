//! Mako §5.2, figure 13: shards whose leaders stay go on while another leader is replaced.

use pangea_core::ids::ShardId;
use pangea_core::partition::{Partitions, Rule, ShardSet};
use pangea_core::time::{Span, Timestamp};
use pangea_core::workload::registers::{Op, REGISTERS, decode_ops, key};
use pangea_protocols::mako::Mako;
use pangea_sim::history::Operation;

use crate::mako_together::{KILL_MS, one_leader_fails};
use crate::runs::clean;

/// The shards of the rows that an operation accesses.
fn shards_of(operation: &Operation, partitions: &Partitions) -> ShardSet {
    let row = |op: &Op| match op {
        Op::Write { row, .. } | Op::Delete { row } | Op::Read { row } => *row,
        Op::Scan { first, .. } => *first,
    };
    let ops = decode_ops(&operation.call.args).unwrap();
    ops.iter().filter_map(|op| partitions.shard_of(REGISTERS, &key(row(op)))).collect()
}

fn latency(operation: &Operation) -> Option<Span> {
    operation.ended.filter(|_| operation.result().is_some()).map(|at| at.since(operation.invoked))
}

/// The latency below which 95 in 100 of these operations stay that end before a time.
fn usual(operations: &[&Operation], until: Timestamp) -> Span {
    let before = operations.iter().filter(|it| it.ended < Some(until));
    let mut before: Vec<Span> = before.filter_map(|it| latency(it)).collect();
    before.sort_unstable();
    before[before.len() * 95 / 100]
}

/// Of the operations of one shard that begin between the failure of another shard's leader and its
/// first commit afterwards, at least 90 in 100 end as early as 95 in 100 did before. Of those over
/// two shards whose leaders stay, 75 do with another round trip: they wait for transactions that
/// hang there.
#[test]
fn shards_whose_leaders_stay_go_on_while_another_one_is_replaced() {
    let partitions = Partitions::new(3, Rule::OF_WHOLE_KEY);
    let failed = ShardId(1);
    // Of one shard, and of two: those that began meanwhile, and those of them that were in time.
    let mut counts = [(0, 0); 2];
    for seed in 0..8 {
        let (settings, options) = one_leader_fails(seed);
        let report = clean::<Mako>(&settings, &options);
        assert!(report.counts.mark("mako.stays") >= 2, "two leaders stay");
        // Faults are counted from the time when the first clients begin.
        let begin = report.history.operations.iter().map(|it| it.invoked).min().unwrap();
        let kill = begin + Span::from_ms(KILL_MS);
        let all = report.history.operations.iter().filter(|it| it.node.0 % 3 != failed.0);
        let (others, healthy): (Vec<_>, Vec<_>) =
            all.partition(|it| shards_of(it, &partitions).contains(failed));
        let begun_after = others.iter().filter(|it| it.invoked > kill && latency(it).is_some());
        let back = begun_after.filter_map(|it| it.ended).min().expect("it is back");
        println!("seed {seed}: {} ms without the shard", back.since(kill).us / 1_000);
        let first = kill + Span::from_ms(40);
        let (local, across): (Vec<_>, Vec<_>) =
            healthy.into_iter().partition(|it| shards_of(it, &partitions).len() == 1);
        let more = [Span::ZERO, Span::from_ms(20)];
        for (((count, in_time), operations), more) in
            counts.iter_mut().zip([local, across]).zip(more)
        {
            let usual = Span::from_us(usual(&operations, kill).us + more.us);
            let during = operations.iter().filter(|it| first < it.invoked && it.invoked < back);
            let latencies: Vec<_> = during.map(|it| latency(it)).collect();
            *count += latencies.len();
            *in_time += latencies.iter().filter(|it| it.is_some_and(|it| it <= usual)).count();
            println!("  usually {} us: {in_time} of {count} until here", usual.us);
        }
    }
    for ((count, in_time), percent) in counts.into_iter().zip([90, 75]) {
        assert!(count > 80, "{count} operations are enough");
        assert!(in_time * 100 >= count * percent, "{in_time} of {count} are in time");
    }
}
