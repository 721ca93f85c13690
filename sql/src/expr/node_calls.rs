//! Functions that query the node that received the statement, or signal another of its sessions.
//!
//! A statement that calls one is never sent as a program, like one that reads `pangea.sessions`.

use std::time::{Duration, Instant};

use super::Env;
use super::signatures::{Signature, of};
use crate::error::{SqlError, code};
use crate::expr::functions::Function;
use crate::insight::Facts;
use crate::types::datum::Datum;
use crate::types::{Element, SqlType};
use SqlType::{Bool, Float8, Int4, Int8, Text};

/// A function about the node or its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeFunction {
    /// `pg_backend_pid`
    Process,
    /// `pg_blocking_pids`: always empty, because no session waits for a lock of another.
    Blocking,
    /// `pg_cancel_backend`
    Cancel,
    /// `pg_terminate_backend`
    Terminate,
    /// `pg_sleep`
    Sleep,
    /// `pg_sleep_for`
    SleepFor,
}

use NodeFunction as F;

const fn function(function: NodeFunction) -> Function {
    Function::Node(function)
}

pub(super) const SIGNATURES: &[Signature] = &[
    of("pg_backend_pid", &[], Int4, function(F::Process)),
    of("pg_blocking_pids", &[Int4], SqlType::Array(Element::INT4), function(F::Blocking)),
    of("pg_cancel_backend", &[Int4], Bool, function(F::Cancel)),
    of("pg_terminate_backend", &[Int4], Bool, function(F::Terminate)),
    of("pg_terminate_backend", &[Int4, Int8], Bool, function(F::Terminate)),
    of("pg_sleep", &[Float8], Text, function(F::Sleep)),
    of("pg_sleep_for", &[SqlType::Interval], Text, function(F::SleepFor)),
];

/// The interval at which a sleeping statement checks whether it must end.
const NAP: Duration = Duration::from_millis(10);

/// Evaluates a function.
pub(super) fn call(function: NodeFunction, args: &[Datum], env: &Env) -> Result<Datum, SqlError> {
    let Some(facts) = &env.facts else {
        let message = "a function of the node in a statement that does not run in a session of \
                       the node";
        return Err(SqlError::unsupported(message));
    };
    match (function, args) {
        (F::Process, _) => Ok(Datum::Int(facts.process.into())),
        (F::Blocking, _) => Ok(Datum::array(Vec::new())),
        (F::Cancel | F::Terminate, [Datum::Int(process), ..]) => {
            signal(*process, function == F::Terminate, facts, env).map(Datum::Bool)
        }
        (F::Sleep, [Datum::Float(seconds)]) => sleep(*seconds, facts),
        (F::SleepFor, [Datum::Interval(time)]) => sleep(time.micros_in_all() as f64 / 1e6, facts),
        (function, args) => panic!("{function:?} of {args:?}"),
    }
}

/// Cancels the statement of another session of this node, or terminates the session. Returns
/// whether the session exists.
fn signal(process: i64, ends: bool, facts: &Facts, env: &Env) -> Result<bool, SqlError> {
    let Some(other) = facts.activities.iter().find(|it| i64::from(it.process) == process) else {
        return Ok(false);
    };
    let catalog = env.catalog()?;
    let refused = |message: &str| Err(SqlError::new(code::NO_PRIVILEGE, message));
    if !catalog.is_superuser(&env.user, env) {
        if catalog.is_superuser(&other.user, env) {
            return refused(match ends {
                true => "must be a superuser to terminate superuser process",
                false => "must be a superuser to cancel superuser query",
            });
        }
        if !catalog.has_role(&env.user, &other.user) {
            return refused(match ends {
                true => "must be a member of the role whose process is being terminated",
                false => "must be a member of the role whose query is being canceled",
            });
        }
    }
    let Some(signals) = &other.signals else { return Ok(false) };
    if ends {
        signals.terminate()
    } else {
        signals.cancel()
    }
    Ok(true)
}

/// Sleeps. Expressions are evaluated synchronously, so the thread itself sleeps, in short naps.
/// Between naps the statement can be canceled, and the engine hands its other work to another
/// thread.
fn sleep(seconds: f64, facts: &Facts) -> Result<Datum, SqlError> {
    // A duration that the clock cannot represent never elapses.
    let time = Duration::try_from_secs_f64(seconds.max(0.0)).ok();
    let end = time.and_then(|time| Instant::now().checked_add(time));
    loop {
        facts.look.check()?;
        let left = end.map_or(NAP, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(Datum::Text(String::new()));
        }
        std::thread::sleep(left.min(NAP));
    }
}
