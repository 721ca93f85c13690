//! The activity and the statistics that a session records for monitoring.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use pangea_core::exec::Change;
use pangea_core::txn::{Abort, Outcome, SqlState};

use super::interrupt::check_interruption;
use super::{Response, Session, TransactionStatus, now};
use crate::engine::Trace;
use crate::error::SqlError;
use crate::insight::activity::{Signals, State, shown};
use crate::insight::normal::normal;
use crate::insight::statements::Call;
use crate::insight::{CancelCheck, Facts, Progress};
use crate::plan::Planned;

impl Session {
    /// Sets the session's process number, its client's address, and the handle by which other
    /// sessions can end it.
    pub fn introduce(
        &mut self,
        process: i32,
        client: Option<SocketAddr>,
        signals: Option<Arc<dyn Signals>>,
    ) {
        self.place.change(|it| {
            it.process = process;
            it.client = client;
            it.signals = signals;
        });
    }

    /// Records that the session runs a text, if it is known.
    pub(super) fn show_active(&self, text: Option<&str>) {
        let moment = now();
        let text = text.map(text_of);
        let authorization = self.settings.authorization();
        let (user, values) = (authorization.session_user(), self.settings.values());
        let started = self.transaction.as_ref().map(|open| open.started);
        self.place.change(|it| {
            it.state = State::Active;
            if let Some(text) = text {
                it.query = text;
            }
            it.user = user.clone();
            it.values = values.clone();
            (it.query_started, it.state_changed) = (Some(moment), moment);
            it.transaction_started = Some(started.unwrap_or(moment));
        });
    }

    /// Records that the session waits for its client.
    pub(super) fn show_idle(&self) {
        let moment = now();
        let state = match self.transaction_status() {
            TransactionStatus::Idle => State::Idle,
            TransactionStatus::Active => State::InTransaction,
            TransactionStatus::Failed => State::InFailedTransaction,
        };
        let started = self.transaction.as_ref().map(|open| open.started);
        let authorization = self.settings.authorization();
        let (user, values) = (authorization.session_user(), self.settings.values());
        self.place.change(|it| {
            it.state = state;
            it.user = user.clone();
            it.values = values.clone();
            (it.state_changed, it.transaction_started) = (moment, started);
        });
    }

    /// Starts the statistics of a statement, and returns the time.
    pub(super) fn begin_call(&mut self) -> Instant {
        self.tally = Call::default();
        Instant::now()
    }

    /// Records the statistics of a statement that has run.
    pub(super) fn end_call(
        &mut self,
        text: &str,
        started: Instant,
        done: &Result<Response, SqlError>,
    ) {
        let rows = match done {
            Ok(Response::Rows { rows, .. }) => rows.len() as u64,
            Ok(Response::Command { tag }) => {
                tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
            }
            _ => 0,
        };
        let call = Call { took: started.elapsed(), rows, has_failed: done.is_err(), ..self.tally };
        let user = self.settings.authorization().user();
        self.shared.insight.statements.note(self.place.number(), user, text, &call);
        self.facts = None;
        if let Ok(Response::Stream { .. }) = done {
            let noting = self.noting(text);
            if let Some(stream) = &mut self.stream {
                stream.note(noting);
            }
        }
    }

    /// Records the outcome of a transaction, and the row of a conflict.
    pub(super) fn note_outcome(&mut self, outcome: &Outcome, trace: &Trace) {
        if let Some((table, key)) = trace.contended() {
            self.shared.insight.hot_keys.note(table, &key, now());
        }
        self.tally.reruns += u32::from(trace.ran_again());
        if let Outcome::Aborted(abort) = outcome {
            self.note_abort(abort);
        }
    }

    fn note_abort(&mut self, abort: &Abort) {
        if abort.code != SqlState::SERIALIZATION_FAILURE {
            return;
        }
        self.tally.conflicts += 1;
        if let Some(change) = abort.detail.as_deref().and_then(Change::from_detail) {
            self.shared.insight.hot_keys.note(change.table, &change.key, now());
        }
    }

    /// Collects the state of this node for a statement that reads it.
    pub(super) async fn gather_facts(&mut self, planned: &Planned) {
        self.facts = None;
        if !planned.reads_node {
            return;
        }
        let status = self.engine.status().await.ok();
        let (about, topology) = (self.engine.about(), self.engine.topology().clone());
        let moment = now();
        let ms_since = |version| {
            let micros = self.engine.history()?.micros_since(version, moment)?;
            Some(micros as f64 / 1e3)
        };
        let progress = Progress::of(&topology, status.as_ref(), &about, ms_since);
        let insight = &self.shared.insight;
        let engine = self.engine.clone();
        self.facts = Some(Arc::new(Facts {
            process: self.place.process(),
            look: CancelCheck(Box::new(move || check_interruption(&*engine))),
            about,
            topology,
            status,
            cut_off: self.engine.cut_off(),
            waits_for: self.engine.waits_for(),
            activities: insight.activities.all(),
            statements: insight.statements.all(),
            hot_keys: insight.hot_keys.all(),
            progress,
        }));
    }
}

/// Returns the part of a text that is displayed, without passwords.
fn text_of(text: &str) -> Arc<str> {
    const SECRET: &[u8] = b"password";
    let has_secret =
        text.as_bytes().windows(SECRET.len()).any(|it| it.eq_ignore_ascii_case(SECRET));
    if has_secret { Arc::from(shown(&normal(text))) } else { Arc::from(shown(text)) }
}
