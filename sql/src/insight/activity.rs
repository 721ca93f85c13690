//! The sessions of a node and their activity: `pangea.sessions` and `pg_stat_activity`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::settings::Values;

/// The maximum length of a displayed statement, in bytes, as in PostgreSQL.
pub(crate) const QUERY_BYTES_MAX: usize = 1_024;

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Active,
    InTransaction,
    InFailedTransaction,
}

impl State {
    /// Returns PostgreSQL's name of the state.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Active => "active",
            Self::InTransaction => "idle in transaction",
            Self::InFailedTransaction => "idle in transaction (aborted)",
        }
    }
}

/// Signals that other sessions may send to a session.
pub trait Signals: std::fmt::Debug + Send + Sync {
    /// Cancels the running statement.
    fn cancel(&self);

    /// Terminates the session and its running statement.
    fn terminate(&self);
}

/// A session as it is displayed. Times are microseconds since 2000-01-01.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    pub process: i32,
    pub user: Arc<str>,
    pub database: Arc<str>,
    pub values: Arc<Values>,
    pub client: Option<SocketAddr>,
    pub started: i64,
    pub transaction_started: Option<i64>,
    pub query_started: Option<i64>,
    pub state_changed: i64,
    pub state: State,
    pub query: Arc<str>,
    pub signals: Option<Arc<dyn Signals>>,
}

/// The sessions of a node.
#[derive(Debug, Default)]
pub(crate) struct Activities {
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    last: u64,
    places: BTreeMap<u64, Arc<Mutex<Activity>>>,
}

/// A session's entry, written only by the session. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    activities: Arc<Activities>,
    number: u64,
    activity: Arc<Mutex<Activity>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Activities {
    /// Adds an entry for a session.
    pub(crate) fn enter(self: &Arc<Self>, activity: Activity) -> Place {
        let activity = Arc::new(Mutex::new(activity));
        let mut all = locked(&self.all);
        all.last += 1;
        let number = all.last;
        all.places.insert(number, activity.clone());
        Place { activities: self.clone(), number, activity }
    }

    /// Returns all sessions, oldest first.
    pub(crate) fn all(&self) -> Vec<Activity> {
        let places: Vec<_> = locked(&self.all).places.values().cloned().collect();
        places.iter().map(|place| locked(place).clone()).collect()
    }
}

impl Place {
    /// Changes the displayed state of the session.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Activity)) {
        change(&mut locked(&self.activity));
    }

    /// Returns the process id that the client has for the session.
    pub(crate) fn process(&self) -> i32 {
        locked(&self.activity).process
    }

    /// Returns a number that is unique among the node's sessions.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.activities.all).places.remove(&self.number);
    }
}

/// Returns the prefix of a statement that is displayed.
pub(crate) fn shown(text: &str) -> &str {
    let mut end = text.len().min(QUERY_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(process: i32) -> Activity {
        Activity {
            process,
            user: Arc::from("u"),
            database: Arc::from("d"),
            values: Arc::default(),
            client: None,
            started: 1,
            transaction_started: None,
            query_started: None,
            state_changed: 1,
            state: State::Idle,
            query: Arc::from(""),
            signals: None,
        }
    }

    #[test]
    fn a_session_is_shown_until_it_leaves() {
        let activities = Arc::new(Activities::default());
        let one = activities.enter(activity(7));
        let other = activities.enter(activity(8));
        one.change(|it| it.state = State::Active);
        let all = activities.all();
        let shown: Vec<_> = all.iter().map(|it| (it.process, it.state)).collect();
        assert_eq!(shown, [(7, State::Active), (8, State::Idle)]);
        drop(one);
        assert_eq!(activities.all().len(), 1);
        drop(other);
        assert!(activities.all().is_empty());
    }

    #[test]
    fn a_long_statement_is_cut_between_characters() {
        let text = "é".repeat(QUERY_BYTES_MAX);
        assert_eq!(shown(&text).len(), QUERY_BYTES_MAX);
        assert_eq!(shown(&format!("x{text}")).len(), QUERY_BYTES_MAX - 1);
    }
}
