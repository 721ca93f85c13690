//! Clients in the same process as their nodes: calls without sockets, submitted and completed in
//! batches.
//!
//! ```text
//!   load thread --submit_many--> node's event loop ---each outcome--> done
//!        ^                                                              |
//!        '---------------- all outcomes that have arrived --------------'
//! ```
//!
//! One thread for each region runs all of its clients. While it makes calls, outcomes accumulate.
//! It takes all of them at once, and sleeps only if there are no outcomes or few compared to the
//! calls in flight. So a client costs its call and an entry in a list, but no thread, task or
//! wake-up.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pangea_core::txn::{Outcome, Program};
use pangea_node::client::ClientError;
use pangea_node::driver::Answer;
use pangea_node::running::Requests;
use pangea_sql::engine::Unavailable;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Made, Phase, Shared, Terminal, now};

/// The name prefix of the threads, by which the kernel reports their CPU time.
pub const THREADS: &str = "load-";

/// If less than one in this number of calls has ended, more outcomes are expected soon.
const FEW: usize = 8;

/// The time to wait for more outcomes.
const LINGER: Duration = Duration::from_micros(50);

type Ended = Result<Outcome, Unavailable>;

/// Makes one call and waits for its outcome.
///
/// # Errors
/// If the outcome is not known.
pub async fn call(node: &dyn Requests, name: &str, args: &Bytes) -> Result<Outcome, ClientError> {
    let (sender, outcome) = oneshot::channel();
    // Sending fails only if the caller no longer waits for the outcome.
    let reply = Answer::new(move |ended: Ended| drop(sender.send(ended)));
    node.submit(vec![(program(node, name, args.clone())?, reply)]);
    let lost = || ClientError::Ambiguous("the node has stopped".to_owned());
    let ended = outcome.await.map_err(|_| lost())?;
    ended.map_err(|Unavailable { reason }| ClientError::Ambiguous(reason))
}

fn program(node: &dyn Requests, name: &str, args: Bytes) -> Result<Program, ClientError> {
    let unknown = || ClientError::Refused(format!("there is no procedure {name:?}"));
    let procedure = node.procedure(name).ok_or_else(unknown)?;
    Ok(Program::Call { procedure, args })
}

/// Outcomes that the load thread has not processed.
#[derive(Default)]
struct Done {
    state: Mutex<Outcomes>,
    wake: Condvar,
}

#[derive(Default)]
struct Outcomes {
    ended: Vec<(usize, Ended)>,
    is_idle: bool,
}

impl Done {
    fn lock(&self) -> MutexGuard<'_, Outcomes> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the outcome of a client's call.
    fn push(&self, client: usize, ended: Ended) {
        let mut state = self.lock();
        state.ended.push((client, ended));
        if std::mem::take(&mut state.is_idle) {
            self.wake.notify_one();
        }
    }

    /// Waits for an outcome and takes all that have arrived. `in_flight` is the number of calls in
    /// flight.
    fn take(&self, in_flight: usize, into: &mut Vec<(usize, Ended)>) {
        assert!(into.is_empty(), "earlier outcomes have been processed");
        let mut state = self.lock();
        if state.ended.is_empty() {
            while state.ended.is_empty() {
                state.is_idle = true;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_idle = false;
            if state.ended.len() * FEW < in_flight {
                // These are the first outcomes of an epoch, and the node is about to send the
                // others. Taking them one by one, on the node's own core, would cost both sides
                // more than the wait.
                drop(state);
                std::thread::sleep(LINGER);
                state = self.lock();
            }
        }
        std::mem::swap(&mut state.ended, into);
    }
}

/// Runs a region's clients, each with one call in flight, on a separate thread.
pub(super) fn spawn(
    tasks: &mut JoinSet<()>,
    node: Arc<dyn Requests>,
    region: usize,
    terminals: Vec<Terminal>,
    shared: Arc<Shared>,
) {
    let (sender, ended) = oneshot::channel();
    let run = move || {
        Clients { node, region, terminals, shared }.work();
        // Sending fails only if the task that waits was dropped.
        let _ = sender.send(());
    };
    let thread = std::thread::Builder::new().name(format!("{THREADS}{region}")).spawn(run);
    tasks.spawn(async move {
        let thread = thread.expect("the system can start a thread");
        ended.await.expect("the load's thread does not panic");
        drop(thread);
    });
}

/// The clients of a region.
struct Clients {
    node: Arc<dyn Requests>,
    region: usize,
    terminals: Vec<Terminal>,
    shared: Arc<Shared>,
}

impl Clients {
    fn work(mut self) {
        let done = Arc::new(Done::default());
        let mut made: Vec<Option<Made>> = self.terminals.iter().map(|_| None).collect();
        let mut free: Vec<usize> = (0..self.terminals.len()).collect();
        let (mut in_flight, mut ended) = (0, Vec::new());
        loop {
            if !self.shared.is_in(Phase::Ending) {
                in_flight += free.len();
                self.call(&mut free, &mut made, &done);
            }
            if in_flight == 0 {
                return;
            }
            done.take(in_flight, &mut ended);
            in_flight -= ended.len();
            free.extend(ended.iter().map(|(client, _)| *client));
            if self.count(&mut ended, &made) && !self.node.is_running() {
                // Calls in flight are abandoned, and no more calls are accepted.
                return;
            }
        }
    }

    /// Makes a call for each client that has none in flight.
    fn call(&mut self, free: &mut Vec<usize>, made: &mut [Option<Made>], done: &Arc<Done>) {
        let at = Instant::now();
        let date = now();
        let mut programs = Vec::with_capacity(free.len());
        for client in free.drain(..) {
            let call = self.terminals[client].next_at(date);
            let written = self.shared.watch.written(&call);
            made[client] = Some(Made { label: call.label, written, at });
            let done = done.clone();
            let reply = Answer::new(move |ended| done.push(client, ended));
            let program = program(&*self.node, call.procedure, call.args);
            programs.push((program.expect("a node knows the workloads' procedures"), reply));
        }
        self.node.submit(programs);
    }

    /// Counts the ended calls under one lock. Returns whether some of them have no outcome.
    fn count(&self, ended: &mut Vec<(usize, Ended)>, made: &[Option<Made>]) -> bool {
        let (now, mut has_lost) = (Instant::now(), false);
        let started = self.shared.started;
        let mut counted = self.shared.counted();
        // Under the lock, because the statistics of one run are taken and those of the next begin
        // under it.
        let is_measured = self.shared.is_in(Phase::Measured);
        for (client, ended) in ended.drain(..) {
            let made = made[client].as_ref().expect("only started calls end");
            has_lost |= ended.is_err();
            let lost = |Unavailable { reason }| ClientError::Ambiguous(reason);
            let when = (now - made.at, is_measured);
            counted.end(self.region, made, when, &ended.map_err(lost), started);
        }
        has_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::{SnapshotVersion, TxnId};

    #[test]
    fn outcomes_are_taken_all_at_a_time_and_each_once() {
        let done = Arc::new(Done::default());
        let push = |client| {
            let (txn, version) = (TxnId::default(), SnapshotVersion(1));
            done.push(client, Ok(Outcome::Committed { txn, version, result: Vec::new() }));
        };
        push(3);
        push(1);
        let mut ended = Vec::new();
        done.take(2, &mut ended);
        assert_eq!(ended.iter().map(|(client, _)| *client).collect::<Vec<_>>(), [3, 1]);
        ended.clear();
        let taker = {
            let done = done.clone();
            std::thread::spawn(move || {
                let mut ended = Vec::new();
                done.take(1, &mut ended);
                ended.len()
            })
        };
        while !done.lock().is_idle {
            std::thread::yield_now();
        }
        push(2);
        assert_eq!(taker.join().unwrap(), 1, "a waiting thread is woken");
    }
}
