//! The cost of what clients and the network can make grow, on real replicas: transactions of an
//! epoch, epochs in arrears, waiting sessions, nodes.
//!
//! Each load runs with n and with 8 n of something. The cost of the most expensive node may grow
//! 32-fold, which leaves room for n log n and for a busy machine; a quadratic step costs 64 times
//! as much. The cost is the bytes that the steps of a node allocate, and their time on a processor.

use pangea_core::ids::Ticket;
use pangea_core::protocol::Request;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::minerva::Minerva;

use super::support::words::Transcribed;
use super::support::{ClusterOf, Fate, StepCost};

/// The factor between the two sizes of a load.
const TIMES: usize = 8;
/// The factor by which its cost may grow.
const GROWS_MAX: u64 = 32;
/// The runs of which the cheapest counts.
const RUNS: usize = 2;
/// A cheaper load counts as one of this cost.
const LEAST: StepCost = StepCost { bytes: 32 << 10, ns: 500_000 };
/// The node to which the clients of some loads are connected.
const AT: usize = 1;

/// The cost of a load of this size: of the most expensive node, in the cheapest run.
fn cost<P: Transcribed>(
    nodes: usize,
    prepare: &dyn Fn(&mut ClusterOf<P>),
    run: &dyn Fn(&mut ClusterOf<P>),
) -> StepCost {
    let once = |_| {
        let mut cluster = ClusterOf::<P>::new(nodes, P::by_hand());
        prepare(&mut cluster);
        cluster.measure();
        run(&mut cluster);
        let costs = cluster.nodes.iter().map(|node| node.cost.expect("steps are measured"));
        costs.reduce(StepCost::max).expect("there are nodes")
    };
    (0..RUNS).map(once).reduce(StepCost::min).expect("there are runs")
}

fn assert_grows(load: &str, (few, many): (StepCost, StepCost)) {
    eprintln!("{load}: {few:?}, {many:?}");
    let few = few.max(LEAST);
    assert!(
        many.bytes < GROWS_MAX * few.bytes && many.ns < GROWS_MAX * few.ns,
        "{load}: {few:?} becomes {many:?} with {TIMES} times the size"
    );
}

/// Runs a load of two sizes on three nodes.
fn grows<P: Transcribed>(
    load: &str,
    few: usize,
    prepare: impl Fn(usize, &mut ClusterOf<P>),
    run: impl Fn(usize, &mut ClusterOf<P>),
) {
    let of = |size| cost::<P>(3, &|it| prepare(size, it), &|it| run(size, it));
    assert_grows(&format!("{} {load}", P::NAME), (of(few), of(few * TIMES)));
}

/// The scripts of the transactions of an epoch.
type Script = fn(usize) -> String;

const EPOCHS: [(&str, Script); 6] = [
    ("writers of different keys", |n| format!("put k{n} {n}")),
    ("blind writers of one key", |n| format!("put x {n}")),
    ("readers and writers of one key", |_| "add x 1".to_owned()),
    ("readers of one key", |_| "get x".to_owned()),
    ("scans of written rows", |n| format!("put k{n} 1; scan k{n} k{n}~")),
    ("deletions", |n| format!("put k{n} 1; del k{n}")),
];

fn epochs_grow<P: Transcribed>() {
    for (load, script) in EPOCHS {
        let run = |size, cluster: &mut ClusterOf<P>| {
            // Runs of different sources conflict.
            (0..size).for_each(|n| _ = cluster.call(n % 3, &script(n)));
            cluster.epoch();
            cluster.epoch();
        };
        grows::<P>(load, 64, |_, _| (), run);
    }
}

#[test]
fn an_epoch_of_minerva_costs_no_square_of_its_transactions() {
    epochs_grow::<Minerva>();
}

#[test]
fn an_epoch_of_calvin_costs_no_square_of_its_transactions() {
    epochs_grow::<Calvin>();
}

/// A node is cut off for some epochs, and then takes all of them at once.
fn arrears_grow<P: Transcribed>() {
    let away = |cluster: &ClusterOf<P>| (cluster.leader() + 1) % 3;
    let prepare = |size, cluster: &mut ClusterOf<P>| {
        let (away, leader) = (away(cluster), cluster.leader());
        cluster.rule =
            Box::new(move |from, to, _| match from.index() == away || to.index() == away {
                true => Fate::HoldBack,
                false => Fate::Deliver,
            });
        for n in 0..size {
            cluster.call_declared(leader, &format!("put k{n} 1"));
            cluster.epoch();
        }
    };
    grows::<P>("epochs in arrears", 32, prepare, |size, cluster| {
        cluster.heal();
        cluster.run_for(2_000);
        let last = format!("k{}", size - 1);
        assert_eq!(cluster.value(away(cluster), &last), "1", "it caught up");
    });
}

#[test]
fn a_node_catches_up_at_no_square_of_the_epochs() {
    arrears_grow::<Minerva>();
    arrears_grow::<Calvin>();
}

#[test]
fn sessions_that_wait_for_a_version_cost_no_square() {
    waiting_sessions_grow::<Minerva>();
    waiting_sessions_grow::<Calvin>();
}

fn waiting_sessions_grow<P: Transcribed>() {
    let run = |size, cluster: &mut ClusterOf<P>| {
        let ask = |_| cluster.submit(AT, Request::Fresh);
        let asked: Vec<_> = (0..size).map(ask).collect();
        cluster.settle();
        // The first asks the coordinator alone, and all others wait for its answer.
        (0..4).for_each(|_| cluster.epoch());
        let is_told = |it: &&Ticket| cluster.fresh(AT, **it).is_some();
        assert_eq!(asked.iter().filter(is_told).count(), size, "all are told");
    };
    grows::<P>("waiting sessions", 128, |_, _| (), run);
}

/// One node has clients: if all had, each node would rightly handle the acknowledgements of all for
/// the batches of all.
#[test]
fn a_node_costs_no_square_of_the_nodes() {
    fn grows_for<P: Transcribed>() {
        let of = |nodes| {
            cost::<P>(nodes, &|_| (), &|cluster| {
                for n in 0..10 {
                    cluster.call_declared(AT, &format!("put k{n} 1"));
                    cluster.epoch();
                }
            })
        };
        assert_grows(&format!("{} nodes", P::NAME), (of(3), of(3 * TIMES)));
    }
    grows_for::<Minerva>();
    grows_for::<Calvin>();
}
