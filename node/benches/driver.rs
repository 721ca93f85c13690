//! The cost of the driver and the log without a protocol: requests a second and their latency.
//!
//! ```text
//! cargo bench -p pangea-node --bench driver
//! ```
//!
//! There is one node, and each request is a record of 200 bytes that is persisted and then
//! answered. The number of requests in flight is constant: each answer submits the next request,
//! from the driver's own thread, as a native client's connection would from its thread.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pangea_core::codec::DecodeError;
use pangea_core::guarantee::Guarantee;
use pangea_core::ids::{NodeId, ProcedureId, SnapshotVersion, TxnId};
use pangea_core::protocol::{Cx, Input, Lane, Message, Protocol, Request, Setup, Status};
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_node::driver::{Handle, Network};
use pangea_node::log::Durability;
use pangea_node::node::{Node, NodeOptions};

const RUN: Duration = Duration::from_secs(3);
const RECORD_LEN: usize = 200;

struct Echo;

#[derive(Clone, Debug)]
struct NoMessage;

impl Message for NoMessage {
    fn encode(&self, _out: &mut Vec<u8>) {}
    fn decode(_bytes: &Bytes) -> Result<Self, DecodeError> {
        Ok(Self)
    }
    fn lane(&self) -> Lane {
        Lane::Control
    }
}

impl Protocol for Echo {
    const NAME: &'static str = "echo";
    type Message = NoMessage;
    type Timer = ();
    type Options = ();

    fn guarantee(_: &Self::Options) -> Guarantee {
        Guarantee::ReadCommitted
    }

    fn new(_setup: Setup<Self>) -> Self {
        Self
    }

    fn step(&mut self, cx: &mut Cx<'_, Self>, input: Input<Self>) {
        let Input::Submit(submissions) = input else { return };
        for submission in submissions {
            let Request::Commit(Program::Call { args, .. }, _) = submission.request else {
                continue;
            };
            let position = cx.persist(vec![args]);
            let (txn, version) = (TxnId::default(), SnapshotVersion(0));
            let outcome = Outcome::Committed { txn, version, result: Vec::new() };
            cx.reply_after(position, submission.ticket, outcome);
        }
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn invariants(&self) {}
}

struct Nowhere;

impl Network for Nowhere {
    fn send(&self, _to: NodeId, _lane: Lane, _frame: Bytes) {}
    fn stop(&self) {}
}

struct Load {
    handle: Handle<Echo>,
    args: Bytes,
    answered: AtomicU64,
    latencies_us: Mutex<Vec<u32>>,
}

impl Load {
    /// Submits a request, and another one when it is answered.
    fn go_on(self: &Arc<Self>) {
        let (load, started) = (self.clone(), Instant::now());
        let program = Program::Call { procedure: ProcedureId(0), args: self.args.clone() };
        self.handle.submit_with(program, move |outcome| {
            if outcome.is_err() {
                return;
            }
            if load.answered.fetch_add(1, Ordering::Relaxed) % 16 == 0 {
                let us = started.elapsed().as_micros() as u32;
                load.latencies_us.lock().expect("one thread").push(us);
            }
            load.go_on();
        });
    }
}

fn measure(dir: &Path, durability: Durability, in_flight: usize) {
    let topology = Topology::one_node_per_region("bench", &["here"], Span::ZERO);
    let registry = Arc::new(Registry::default());
    let mut options = NodeOptions::<Echo>::new(
        NodeId(0),
        Arc::new(topology),
        registry,
        dir.join(format!("{durability:?}-{in_flight}")),
    );
    options.durability = durability;
    options.tuning.workers = 1;
    let node = Node::start_on(options, |_| Ok(Arc::new(Nowhere))).expect("a node");
    let load = Arc::new(Load {
        handle: node.handle().clone(),
        args: Bytes::from(vec![7; RECORD_LEN]),
        answered: AtomicU64::new(0),
        latencies_us: Mutex::default(),
    });
    let started = Instant::now();
    (0..in_flight).for_each(|_| load.go_on());
    // The load runs on the node's own threads; this one only waits for its end.
    let (_never, end) = mpsc::channel::<()>();
    let _ = end.recv_timeout(RUN);
    let elapsed = started.elapsed().as_secs_f64();
    let answered = load.answered.load(Ordering::Relaxed);
    let (sender, status) = mpsc::channel();
    node.handle().status_with(move |it| sender.send(it).expect("a receiver"));
    let counters = status.recv().expect("an answer").expect("a status").counters;
    node.stop().expect("a clean end");
    let mut latencies = load.latencies_us.lock().expect("no panic").clone();
    latencies.sort_unstable();
    let at = |share: f64| latencies[(latencies.len() as f64 * share) as usize];
    let groups = counters["log_groups"].max(1);
    println!(
        "{:<7} {in_flight:>6} in flight: {:>9.0} requests/s, p50 {:>6} us, p99 {:>6} us, \
         {:>7.1} records and {:>5} us a group",
        format!("{durability:?}").to_lowercase(),
        answered as f64 / elapsed,
        at(0.5),
        at(0.99),
        counters["log_records"] as f64 / groups as f64,
        counters["log_busy_us"] / groups,
    );
}

fn main() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    for durability in [Durability::Fsync, Durability::Os, Durability::Memory] {
        for in_flight in [1, 64, 1_024, 16_384] {
            measure(temp.path(), durability, in_flight);
        }
    }
}
