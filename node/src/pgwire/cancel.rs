//! Cancel requests and other ends of a statement's waits.
//!
//! ```text
//!   psql, Ctrl-C ---- process, secret ----> Cancels ---- press ----> Switch
//!                                                                      |
//!   the client's session ---- fresh, commit ----> Cancellable <--------+
//! ```
//!
//! A statement waits in only two places, both in its engine: for a snapshot for a strict read, and
//! for the outcome of what it submitted. [`Cancellable`] ends either wait in three cases: the
//! client's [`Switch`] is pressed, the statement exceeds `statement_timeout`, or the server's grace
//! period at a stop is over. The session receives an error from the engine and cleans up as usual;
//! no computation is interrupted halfway. A statement that reads on this node checks every few
//! rows.
//!
//! A submitted transaction can't be recalled. Ending its wait is answered with 08007, because the
//! transaction may still commit. All other ends are answered with 57014, or with 57P01 if the
//! server stops.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::pgwire::messages::cancel::CancelRequest;
use ::pgwire::messages::startup::SecretKey;
use async_trait::async_trait;
use pangea_core::guarantee::{Isolation, Isolations};
use pangea_core::ids::SnapshotVersion;
use pangea_core::pool::Pool;
use pangea_core::protocol::Status;
use pangea_core::store::Store;
use pangea_core::topology::Topology;
use pangea_core::txn::{Outcome, Program, Registry};
use pangea_sql::Signals;
use pangea_sql::engine::{Engine, Interruption, NodeInfo, Trace, Unavailable};
use pangea_sql::history::History;
use pangea_sql::losses::Losses;
use pangea_sql::remote_rows::RemoteSnapshot;
use tokio::runtime::RuntimeFlavor;
use tokio::sync::watch;

/// The computing time after which a statement lets the runtime poll its sockets.
const LONG: Duration = Duration::from_millis(5);

/// How long to wait for another thread to take over this one's tasks: at the first attempt, and at
/// most.
const HANDING_OVER: Duration = Duration::from_micros(300);
const HANDING_OVER_MAX: Duration = Duration::from_millis(20);

/// Ends the waits of one client.
#[derive(Debug, Default)]
pub(super) struct Switch {
    is_pressed: watch::Sender<bool>,
    /// Whether the session has been terminated.
    is_dismissed: watch::Sender<bool>,
    /// The deadline of the running statement.
    deadline: Mutex<Option<Instant>>,
    /// The time when the running statement began or last waited, or when the runtime was last woken
    /// for it.
    woken: Mutex<Option<Instant>>,
    /// Whether another thread has taken over the tasks of the running statement's thread, and the
    /// number of attempts.
    has_handed_over: AtomicBool,
    tries: AtomicU32,
}

impl Switch {
    /// Ends the current wait, and all waits until the next reset.
    fn press(&self) {
        self.is_pressed.send_replace(true);
    }

    /// Watches whether the session has been terminated.
    pub(super) fn dismissed(&self) -> watch::Receiver<bool> {
        self.is_dismissed.subscribe()
    }

    /// Resets the switch, so that a cancel request that came too late does not affect the next
    /// statement.
    pub(super) fn reset(&self) {
        // A read is cheaper than a write, and this runs for each message.
        if self.is_pressed() {
            self.is_pressed.send_replace(false);
        }
        self.set_deadline(None);
    }

    fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_deadline(&self, deadline: Option<Instant>) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// The time limit of the next attempt to hand tasks over.
    fn patience(&self) -> Duration {
        let tries = self.tries.fetch_add(1, Ordering::Relaxed).min(16);
        (HANDING_OVER * (1 << tries)).min(HANDING_OVER_MAX)
    }

    /// The running statement has waited, and its thread was available to other tasks in the
    /// meantime.
    fn has_waited(&self, now: Instant) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Whether the running statement has computed for long since it began or waited, or since this
    /// last returned true.
    fn is_long(&self, now: Instant) -> bool {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_long = woken.is_some_and(|woken| now.duration_since(woken) >= LONG);
        if is_long {
            *woken = Some(now);
        }
        is_long
    }

    pub(super) fn is_pressed(&self) -> bool {
        *self.is_pressed.borrow()
    }

    async fn pressed(&self) {
        let mut is_pressed = self.is_pressed.subscribe();
        // The sender can't be dropped, because it is borrowed.
        let _ = is_pressed.wait_for(|&is_pressed| is_pressed).await;
    }

    async fn timed_out(&self) {
        match self.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => pending().await,
        }
    }
}

impl Signals for Switch {
    fn cancel(&self) {
        self.press();
    }

    fn terminate(&self) {
        self.is_dismissed.send_replace(true);
    }
}

/// The switches of all clients, by process id and secret.
#[derive(Debug, Default)]
pub(super) struct Cancels {
    switches: Mutex<BTreeMap<i32, (i32, Arc<Switch>)>>,
}

impl Cancels {
    fn switches(&self) -> MutexGuard<'_, BTreeMap<i32, (i32, Arc<Switch>)>> {
        self.switches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a client's switch until the result is dropped.
    pub(super) fn register(self: &Arc<Self>, process: i32, secret: i32) -> Registration {
        let switch = Arc::new(Switch::default());
        self.switches().insert(process, (secret, switch.clone()));
        Registration { cancels: self.clone(), process, switch }
    }

    /// Presses the switch named by a cancel request. A request with a wrong secret has no effect
    /// and, as in PostgreSQL, gets no answer.
    pub(super) fn cancel(&self, request: &CancelRequest) {
        if let Some((secret, switch)) = self.switches().get(&request.pid)
            && SecretKey::I32(*secret).eq_value(&request.secret_key)
        {
            switch.press();
        }
    }
}

/// A client's registered switch.
#[derive(Debug)]
pub(super) struct Registration {
    cancels: Arc<Cancels>,
    process: i32,
    switch: Arc<Switch>,
}

impl Registration {
    pub(super) fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut switches = self.cancels.switches();
        // Process ids repeat after two billion clients.
        let is_own = switches
            .get(&self.process)
            .is_some_and(|(_, switch)| Arc::ptr_eq(switch, &self.switch));
        if is_own {
            switches.remove(&self.process);
        }
    }
}

/// An engine with waits that a switch can end.
pub(super) struct Cancellable {
    pub engine: Arc<dyn Engine>,
    pub switch: Arc<Switch>,
    /// Whether the server no longer waits for statements.
    pub is_ending: watch::Receiver<bool>,
    /// The runtime that serves the clients.
    pub runtime: tokio::runtime::Handle,
}

impl Cancellable {
    async fn until_interrupted<T>(
        &self,
        answer: impl Future<Output = Result<T, Unavailable>>,
    ) -> Result<T, Unavailable> {
        tokio::select! {
            // An available answer has priority.
            biased;
            answer = answer => {
                self.switch.has_waited(Instant::now());
                answer
            }
            () = self.ending() => {
                Err(Unavailable { reason: "the server is stopping".to_owned() })
            }
            () = self.switch.pressed() => {
                Err(Unavailable { reason: "the client requested a cancel".to_owned() })
            }
            () = self.switch.timed_out() => {
                Err(Unavailable { reason: "the statement timed out".to_owned() })
            }
        }
    }
}

impl Cancellable {
    /// Lets the runtime continue without this thread while a statement computes for long.
    fn release_runtime(&self) {
        let is_served = self.runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
        let is_of_runtime = is_served && tokio::task::try_id().is_some();
        if is_of_runtime && !self.switch.has_handed_over.load(Ordering::Relaxed) {
            // `block_in_place` lets another thread take over the tasks of this one. The runtime
            // reverts this unless another thread has begun with them when the closure ends, and it
            // does not report the result. Therefore a probe task is queued after this thread's
            // tasks. If no thread runs it in time, all threads are as busy as this one, and another
            // attempt follows.
            let _of_server = self.runtime.enter();
            let (done, is_done) = std::sync::mpsc::channel();
            drop(self.runtime.spawn(async move {
                let _ = done.send(());
            }));
            let time = self.switch.patience();
            let others = tokio::task::block_in_place(|| is_done.recv_timeout(time));
            self.switch.has_handed_over.store(others.is_ok(), Ordering::Relaxed);
        }
        // The computing thread may have been the one that polls all sockets, while the runtime's
        // other threads wait only for tasks. A spawned task wakes one of them, which polls the
        // sockets afterwards. Two are spawned because the first may stay in this thread's queue.
        (0..2).for_each(|_| drop(self.runtime.spawn(std::future::ready(()))));
    }

    /// Waits until the running statement must end.
    pub(super) async fn interrupted(&self) {
        let never = pending::<Result<(), Unavailable>>();
        let _ = self.until_interrupted(never).await;
    }

    /// Waits until the server no longer waits for this client's statements.
    pub(super) async fn ending(&self) {
        let (mut is_ending, mut dismissed) = (self.is_ending.clone(), self.switch.dismissed());
        let ended = tokio::select! {
            ended = is_ending.wait_for(|&is_ending| is_ending) => ended.is_ok(),
            ended = dismissed.wait_for(|&is_dismissed| is_dismissed) => ended.is_ok(),
        };
        if !ended {
            // The sender is gone, so the end will never be signalled.
            pending().await
        }
    }
}

#[async_trait]
impl Engine for Cancellable {
    fn store(&self) -> &Arc<Store> {
        self.engine.store()
    }

    fn registry(&self) -> &Arc<Registry> {
        self.engine.registry()
    }

    fn topology(&self) -> &Topology {
        self.engine.topology()
    }

    fn pool(&self) -> &dyn Pool {
        self.engine.pool()
    }

    fn losses(&self) -> Option<&Losses> {
        self.engine.losses()
    }

    fn isolations(&self) -> Isolations {
        self.engine.isolations()
    }

    async fn commit(&self, program: Program, isolation: Isolation) -> Result<Outcome, Unavailable> {
        self.until_interrupted(self.engine.commit(program, isolation)).await
    }

    async fn commit_traced(
        &self,
        program: Program,
        isolation: Isolation,
        trace: &Arc<Trace>,
    ) -> Result<Outcome, Unavailable> {
        self.until_interrupted(self.engine.commit_traced(program, isolation, trace)).await
    }

    async fn fresh(&self) -> Result<SnapshotVersion, Unavailable> {
        self.until_interrupted(self.engine.fresh()).await
    }

    async fn published(&self, version: SnapshotVersion) -> Result<(), Unavailable> {
        self.until_interrupted(self.engine.published(version)).await
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        self.until_interrupted(self.engine.status()).await
    }

    fn about(&self) -> NodeInfo {
        self.engine.about()
    }

    fn history(&self) -> Option<&History> {
        self.engine.history()
    }

    fn begin_statement(&self, time_max: Option<Duration>) {
        // A timeout beyond the range of the clock means no timeout.
        let now = Instant::now();
        self.switch.set_deadline(time_max.and_then(|time| now.checked_add(time)));
        self.switch.has_waited(now);
        self.switch.has_handed_over.store(false, Ordering::Relaxed);
        self.switch.tries.store(0, Ordering::Relaxed);
    }

    fn interruption(&self) -> Option<Interruption> {
        if self.switch.is_long(Instant::now()) {
            self.release_runtime();
        }
        if *self.is_ending.borrow() || *self.switch.is_dismissed.borrow() {
            return Some(Interruption::Stopping);
        }
        if self.switch.is_pressed() {
            return Some(Interruption::Cancelled);
        }
        let is_over = |deadline| Instant::now() >= deadline;
        self.switch.deadline().is_some_and(is_over).then_some(Interruption::TimedOut)
    }

    fn is_fresh_within(&self, age: Duration) -> bool {
        self.engine.is_fresh_within(age)
    }

    async fn remote_rows(
        &self,
        at: SnapshotVersion,
    ) -> Result<Option<RemoteSnapshot>, Unavailable> {
        self.engine.remote_rows(at).await
    }

    fn closed_to_sessions(&self) -> Option<String> {
        self.engine.closed_to_sessions()
    }

    fn cut_off(&self) -> Option<String> {
        self.engine.cut_off()
    }

    fn waits_for(&self) -> Option<String> {
        self.engine.waits_for()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_secret_presses_and_nothing_else_does() {
        let cancels = Arc::new(Cancels::default());
        let client = cancels.register(7, -9);
        let wrong = [(7, 9), (8, -9)];
        for (process, secret) in wrong {
            cancels.cancel(&CancelRequest::new(process, SecretKey::I32(secret)));
            assert!(!client.switch().is_pressed(), "{process} {secret}");
        }
        let bytes = bytes::Bytes::copy_from_slice(&(-9i32).to_be_bytes());
        cancels.cancel(&CancelRequest::new(7, SecretKey::Bytes(bytes)));
        assert!(client.switch().is_pressed());
        client.switch().reset();
        assert!(!client.switch().is_pressed());
    }

    #[test]
    fn what_a_statement_waits_for_is_no_time_that_it_computes() {
        let (switch, began) = (Switch::default(), Instant::now());
        switch.has_waited(began);
        assert!(!switch.is_long(began + LONG / 2));
        let answered = began + 20 * LONG;
        switch.has_waited(answered);
        assert!(!switch.is_long(answered + LONG / 2));
        assert!(switch.is_long(answered + LONG));
        assert!(!switch.is_long(answered + LONG), "the reason was sent");
    }

    #[test]
    fn a_client_that_left_is_forgotten_and_its_successor_is_not() {
        let cancels = Arc::new(Cancels::default());
        let first = cancels.register(7, 1);
        let second = cancels.register(7, 2);
        drop(first);
        cancels.cancel(&CancelRequest::new(7, SecretKey::I32(2)));
        assert!(second.switch().is_pressed());
        drop(second);
        assert!(cancels.switches().is_empty());
    }
}
