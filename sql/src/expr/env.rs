//! The environment of expressions: everything except the row.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::authorization::User;
use crate::catalog::PUBLIC;
use crate::error::SqlError;
use crate::insight::Facts;
use crate::profile::Profile;
use crate::result_memory::ResultMemory;
use crate::search_path::PathSetting;
use crate::sequence::SequenceValues;
use crate::settings::Values;
use crate::system::SystemCatalog;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::vocabulary::cursor::ShownCursor;
use crate::vocabulary::deferred::Deferred;

/// The environment that an expression is evaluated in, apart from its row. Identical on every
/// replica.
#[derive(Clone, Debug)]
pub(crate) struct Env {
    /// The values of `$1`, `$2`, ...
    pub params: Vec<Datum>,
    /// The transaction's time: microseconds since 2000-01-01 UTC.
    pub now: i64,
    /// The statement's time, in microseconds since 2000-01-01 UTC.
    pub statement_now: i64,
    /// The session's time zone.
    pub zone: Zone,
    /// The current user, after SET ROLE.
    pub user: Arc<str>,
    /// The session user: the current user unless SET ROLE changed it.
    pub session_user: Arc<str>,
    /// Whether the session was authenticated by trust, under a name that no role had.
    pub is_trusted: bool,
    /// The session's database.
    pub database: Arc<str>,
    /// The session's `search_path`.
    pub search_path: Arc<str>,
    /// The state of the random generator, seeded by the node that received the statement.
    pub seed: Cell<u64>,
    /// Distinguishes the hidden keys of rows that this statement inserts into tables without a
    /// primary key.
    pub row_seed: u64,
    /// The statement's sequences, in the order of its plan.
    pub sequences: Vec<SequenceValues>,
    /// The value that the session drew last from any sequence (`lastval`).
    pub last_number: Cell<Option<i64>>,
    /// Requests of `setval`: the position of the sequence, the value, and whether it was drawn.
    pub set_sequences: RefCell<Vec<(usize, i64, bool)>>,
    /// The session's settings; `None` if the session does not run the statement itself.
    pub settings: Option<Arc<Values>>,
    /// The session's cursors.
    pub cursors: Vec<ShownCursor>,
    /// Requests of `set_config`: name, value, and whether the value lasts only until the
    /// transaction ends.
    pub set_settings: RefCell<Vec<(String, String, bool)>>,
    /// The system catalog; loaded only for statements that read it.
    pub catalog: OnceCell<Arc<SystemCatalog>>,
    /// Measurements of the run; present only if requested.
    pub profile: Option<Arc<Profile>>,
    /// Facts about the node; present only if the statement reads them.
    pub facts: Option<Arc<Facts>>,
    /// Foreign-key checks deferred until COMMIT; `None` if the statement commits by itself.
    pub deferred: Option<RefCell<Vec<Deferred>>>,
    /// Whether new indexes are filled by separate steps after the statement.
    pub fills_later: bool,
    /// Memory that results are counted against; `None` if every replica runs the statement.
    pub results: Option<Arc<ResultMemory>>,
    /// Rows computed by earlier steps of the statement, by the number of the relation that they
    /// form in its queries.
    pub given: RefCell<BTreeMap<u32, Given>>,
}

/// Rows of one step of a statement.
pub(crate) type Given = Arc<Vec<Vec<Datum>>>;

impl Env {
    /// An environment without a session: no parameters, and the time is zero.
    pub fn nobody() -> Self {
        Self {
            params: Vec::new(),
            now: 0,
            statement_now: 0,
            zone: Zone::default(),
            user: Arc::from(""),
            session_user: Arc::from(""),
            is_trusted: false,
            database: Arc::from(""),
            search_path: Arc::from(PUBLIC),
            seed: Cell::new(0),
            row_seed: 0,
            sequences: Vec::new(),
            last_number: Cell::new(None),
            set_sequences: RefCell::default(),
            settings: None,
            cursors: Vec::new(),
            set_settings: RefCell::default(),
            catalog: OnceCell::new(),
            profile: None,
            facts: None,
            deferred: None,
            fills_later: false,
            results: None,
            given: RefCell::default(),
        }
    }

    /// Returns a copy with other parameters and without sequences.
    pub fn with_params(&self, params: Vec<Datum>) -> Self {
        Self {
            params,
            now: self.now,
            statement_now: self.statement_now,
            zone: self.zone.clone(),
            user: self.user.clone(),
            session_user: self.session_user.clone(),
            is_trusted: self.is_trusted,
            database: self.database.clone(),
            search_path: self.search_path.clone(),
            seed: Cell::new(self.seed.get()),
            row_seed: self.row_seed,
            sequences: Vec::new(),
            last_number: Cell::new(None),
            set_sequences: RefCell::default(),
            settings: self.settings.clone(),
            cursors: self.cursors.clone(),
            set_settings: RefCell::default(),
            catalog: self.catalog.clone(),
            profile: None,
            facts: self.facts.clone(),
            deferred: None,
            fills_later: false,
            results: self.results.clone(),
            given: RefCell::default(),
        }
    }

    /// Whether only the session runs the statement, and no other replica does.
    pub fn is_local(&self) -> bool {
        self.settings.is_some()
    }

    /// Returns the user whose privileges the run has.
    pub fn current_user(&self) -> User<'_> {
        let is_trusted = self.is_trusted && self.user == self.session_user;
        User { name: &self.user, is_trusted }
    }

    /// Returns the search path of the run, and the user that it is resolved for.
    pub fn path_setting(&self) -> PathSetting {
        let is_trusted = self.current_user().is_trusted;
        PathSetting { text: self.search_path.clone(), user: self.user.clone(), is_trusted }
    }

    /// The system catalog.
    ///
    /// # Errors
    /// If no catalog was loaded, as in defaults and indexes.
    pub fn catalog(&self) -> Result<&SystemCatalog, SqlError> {
        let found = self.catalog.get().map(|catalog| &**catalog);
        found.ok_or_else(|| SqlError::unsupported("a name of a catalog object in this place"))
    }

    /// Returns a copy for expressions that DataFusion owns while it runs.
    pub fn fork(&self) -> Self {
        let sequences = self.sequences.clone();
        let last_number = self.last_number.clone();
        let profile = self.profile.clone();
        let given = self.given.clone();
        Self { sequences, last_number, profile, given, ..self.with_params(self.params.clone()) }
    }

    /// Returns the rows of a finished step.
    pub fn given(&self, relation: u32) -> Given {
        self.given.borrow().get(&relation).cloned().unwrap_or_default()
    }

    /// Merges back the values drawn and the settings made by expressions that ran in a fork.
    pub fn join(&self, fork: &Self) {
        self.seed.set(fork.seed.get());
        self.last_number.set(fork.last_number.get());
        for (own, other) in self.sequences.iter().zip(&fork.sequences) {
            own.go_on_from(other);
        }
        self.set_sequences.borrow_mut().extend(fork.set_sequences.take());
        self.set_settings.borrow_mut().extend(fork.set_settings.take());
    }

    /// Returns the value that the session drew last from each of the statement's sequences.
    pub fn current(&self) -> Vec<(u32, i64)> {
        let current = |drawn: &SequenceValues| drawn.current.get().map(|number| (drawn.id, number));
        self.sequences.iter().filter_map(current).collect()
    }

    /// Returns the next random number: splitmix64 over the seed.
    pub fn random(&self) -> u64 {
        let state = self.seed.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
