//! What expressions know beside their row.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalog::PUBLIC;
use crate::error::SqlError;
use crate::explain::Profile;
use crate::held::Results;
use crate::insight::Facts;
use crate::plan::target::Deferred;
use crate::sequence::Drawn;
use crate::session::cursors::Shown;
use crate::session::settings::Values;
use crate::system::SystemCatalog;
use crate::types::datum::Datum;
use crate::types::zone::Zone;

/// What an expression may know beside its row. The same on every replica.
#[derive(Clone, Debug)]
pub(crate) struct Env {
    /// The values of `$1`, `$2`, ...
    pub params: Vec<Datum>,
    /// The transaction's time: microseconds since 2000-01-01 UTC.
    pub now: i64,
    /// The statement's time.
    pub statement_now: i64,
    /// The session's time zone.
    pub zone: Zone,
    /// The session's user.
    pub user: Arc<str>,
    /// Whom the session belongs to: the user but for SET ROLE.
    pub session_user: Arc<str>,
    /// Whether trust let the session in under a name that no role had.
    pub is_trusted: bool,
    /// The session's database.
    pub database: Arc<str>,
    /// The session's `search_path`.
    pub search_path: Arc<str>,
    /// What random values are drawn from, fixed where the statement came in.
    pub seed: Cell<u64>,
    /// What sets apart the rows without a key that this statement inserts.
    pub row_seed: u64,
    /// What it has of sequences, in the order of its plan.
    pub sequences: Vec<Drawn>,
    /// What the session took last of any sequence.
    pub last_number: Cell<Option<i64>>,
    /// Where sequences are told to go on: their place, the number, and whether it was taken.
    pub set_sequences: RefCell<Vec<(usize, i64, bool)>>,
    /// The session's settings; nothing where it is another that runs the statement.
    pub settings: Option<Arc<Values>>,
    /// The session's cursors.
    pub cursors: Vec<Shown>,
    /// The settings that the statement asks for: names, values, and whether until the transaction
    /// ends.
    pub set_settings: RefCell<Vec<(String, String, bool)>>,
    /// The catalog, where the statement asks for it.
    pub catalog: OnceCell<Arc<SystemCatalog>>,
    /// What is measured, where somebody asks.
    pub profile: Option<Arc<Profile>>,
    /// What the node knows of itself, where the statement asks for it.
    pub facts: Option<Arc<Facts>>,
    /// Where foreign keys that wait for COMMIT are noted; nothing where that comes at once.
    pub deferred: Option<RefCell<Vec<Deferred>>>,
    /// Whether new indexes are filled by steps that follow the statement.
    pub fills_later: bool,
    /// What rows that are held count against; nothing where every replica runs the statement.
    pub results: Option<Arc<Results>>,
    /// Rows that steps of the statement have come to, by the numbers of the relations that they are
    /// for its queries.
    pub given: RefCell<BTreeMap<u32, Given>>,
}

/// Rows of a step of a statement.
pub(crate) type Given = Arc<Vec<Vec<Datum>>>;

impl Env {
    /// That of nobody's statement, which has neither parameters nor a time.
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

    /// The same for expressions with other parameters, which name no sequence.
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

    /// Whether the session itself runs the statement, and no other replica does.
    pub fn is_local(&self) -> bool {
        self.settings.is_some()
    }

    /// The catalog.
    ///
    /// # Errors
    /// Where an expression that asks for it stands where none is read: a default, an index.
    pub fn catalog(&self) -> Result<&SystemCatalog, SqlError> {
        let found = self.catalog.get().map(|catalog| &**catalog);
        found.ok_or_else(|| SqlError::unsupported("a name of the catalog here"))
    }

    /// The same once more, for expressions that DataFusion holds while it runs.
    pub fn fork(&self) -> Self {
        let sequences = self.sequences.clone();
        let last_number = self.last_number.clone();
        let profile = self.profile.clone();
        let given = self.given.clone();
        Self { sequences, last_number, profile, given, ..self.with_params(self.params.clone()) }
    }

    /// The rows of a step that has been done.
    pub fn given(&self, relation: u32) -> Given {
        self.given.borrow().get(&relation).cloned().unwrap_or_default()
    }

    /// Takes over what expressions over a fork have drawn and set.
    pub fn join(&self, fork: &Self) {
        self.seed.set(fork.seed.get());
        self.last_number.set(fork.last_number.get());
        for (own, other) in self.sequences.iter().zip(&fork.sequences) {
            own.go_on_from(other);
        }
        self.set_sequences.borrow_mut().extend(fork.set_sequences.take());
        self.set_settings.borrow_mut().extend(fork.set_settings.take());
    }

    /// What the session took last of each sequence that is used.
    pub fn current(&self) -> Vec<(u32, i64)> {
        let current = |drawn: &Drawn| drawn.current.get().map(|number| (drawn.id, number));
        self.sequences.iter().filter_map(current).collect()
    }

    /// The next random number: splitmix64 over the seed.
    pub fn random(&self) -> u64 {
        let state = self.seed.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
