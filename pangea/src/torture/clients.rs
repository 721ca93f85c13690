//! Clients that speak PostgreSQL's protocol: each works through one connection at a time, and opens
//! another, under another number, when that is lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use pangea_sim::record::Outcome;
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Error, NoTls};

use super::history::{Attempt, History};
use super::work::{Found, Numbers, Step, Work};
use crate::failure::Failure;

/// How long a client waits before it connects again.
const RECONNECT: Duration = Duration::from_millis(100);
/// How long a client waits before it tries a transaction again that lost to another, at most, and
/// times the attempt.
const BACK_OFF: Duration = Duration::from_millis(20);
/// How often a transaction is tried.
const ATTEMPTS_MAX: u32 = 5;
/// How long a statement of the impatient clients may take: less than faults last.
const STATEMENT_TIMEOUT_MS: u32 = 1_500;
/// At most so many different surprises are kept.
const SURPRISES_MAX: usize = 10;

/// A node as clients know it.
#[derive(Clone)]
pub struct Place {
    pub region: String,
    pub sql: Config,
}

/// Clients at work.
pub struct Clients {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    history: Arc<History>,
    places: Vec<Place>,
    numbers: Numbers,
    /// The numbers that clients have.
    clients: AtomicU64,
    conflicts: AtomicU64,
    connections_lost: AtomicU64,
    is_over: AtomicBool,
    /// What no client should be told.
    surprises: Mutex<BTreeSet<String>>,
}

/// What clients met, beside what is in the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Transactions that lost to others.
    pub conflicts: u64,
    /// Connections that were lost, or could not be made.
    pub connections_lost: u64,
}

impl Clients {
    /// Starts clients, so many for each place.
    pub fn start(history: &Arc<History>, places: &[Place], each: usize, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            history: history.clone(),
            places: places.to_vec(),
            numbers: Numbers::default(),
            clients: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            connections_lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            surprises: Mutex::default(),
        });
        let mut rng = Rng::with_seed(seed);
        let mut tasks = JoinSet::new();
        for index in 0..places.len() * each {
            let of_place = index / places.len();
            let runner = Runner {
                shared: shared.clone(),
                rng: rng.fork(),
                at: index % places.len(),
                roams: of_place % 2 == 1,
                is_strict: of_place % 4 < 2,
                is_impatient: of_place % 3 == 2,
            };
            tasks.spawn(runner.run());
        }
        Self { shared, tasks }
    }

    /// What clients have met so far.
    pub fn met(&self) -> Met {
        Met {
            conflicts: self.shared.conflicts.load(Ordering::Relaxed),
            connections_lost: self.shared.connections_lost.load(Ordering::Relaxed),
        }
    }

    /// Lets every client end its transaction.
    ///
    /// # Errors
    /// When one has no answer by the deadline, or was told what none should be told.
    pub async fn end(mut self, deadline: Duration) -> Result<Met, Failure> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.expect("a client does not panic");
            }
        };
        if tokio::time::timeout(deadline, all).await.is_err() {
            return Err(Failure::Failed(format!(
                "{} clients have no answer {} s after everything was healed",
                self.tasks.len(),
                deadline.as_secs()
            )));
        }
        let surprises: Vec<String> = self.shared.surprises().iter().cloned().collect();
        match surprises.is_empty() {
            true => Ok(self.met()),
            false => Err(Failure::failed("clients were told what none should be told", {
                surprises.join("; ")
            })),
        }
    }
}

impl Shared {
    fn surprises(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.surprises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_surprise(&self, what: String) {
        let mut surprises = self.surprises();
        if surprises.len() < SURPRISES_MAX {
            surprises.insert(what);
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// How an error ended a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It lost to another and may be tried again.
    Conflict,
    /// It is over, and the session goes on.
    Refused,
    /// The session has ended.
    Lost,
    /// It was submitted, and nobody knows.
    Unknown,
}

impl Why {
    /// What an error means, or the error where no client should see it. `is_submitted` says whether
    /// the transaction may have been.
    fn of(error: &Error, is_submitted: bool) -> Result<Self, String> {
        let Some(code) = error.code() else {
            return Ok(if is_submitted { Self::Unknown } else { Self::Lost });
        };
        if *code == SqlState::T_R_SERIALIZATION_FAILURE {
            Ok(Self::Conflict)
        } else if *code == SqlState::TRANSACTION_RESOLUTION_UNKNOWN && is_submitted {
            Ok(Self::Unknown)
        } else if [SqlState::UNIQUE_VIOLATION, SqlState::QUERY_CANCELED].contains(code) {
            Ok(Self::Refused)
        } else if [SqlState::ADMIN_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW].contains(code) {
            Ok(Self::Lost)
        } else {
            Err(error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string))
        }
    }
}

/// One client.
struct Runner {
    shared: Arc<Shared>,
    rng: Rng,
    /// Where it works.
    at: usize,
    /// Whether it goes to the next place when it is lost in one.
    roams: bool,
    /// Whether it wants to read what was acknowledged before.
    is_strict: bool,
    /// Whether its statements have a time limit.
    is_impatient: bool,
}

/// A connection.
struct Session {
    client: Client,
    number: u64,
    /// For stories.
    note: String,
    is_strict: bool,
}

impl Runner {
    async fn run(mut self) {
        while !self.shared.is_over() {
            if let Some(session) = self.open().await {
                self.use_session(&session).await;
            }
            if self.shared.is_over() {
                break;
            }
            self.shared.connections_lost.fetch_add(1, Ordering::Relaxed);
            if self.roams {
                self.at = (self.at + 1) % self.shared.places.len();
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    async fn open(&self) -> Option<Session> {
        let Place { region, sql } = &self.shared.places[self.at];
        let reads = if self.is_strict { "strict" } else { "snapshot" };
        let timeout_ms = if self.is_impatient { STATEMENT_TIMEOUT_MS } else { 0 };
        let mut sql = sql.clone();
        sql.options(format!("-c reads={reads} -c statement_timeout={timeout_ms}"));
        // Nobody listens there now.
        let (client, connection) = sql.connect(NoTls).await.ok()?;
        // How it ends its client sees.
        tokio::spawn(connection);
        Some(Session {
            client,
            number: self.shared.clients.fetch_add(1, Ordering::Relaxed),
            note: format!("{region}, {reads}"),
            is_strict: self.is_strict,
        })
    }

    /// Works until the session is lost or all is over.
    async fn use_session(&mut self, session: &Session) {
        while !self.shared.is_over() {
            let work = Work::draw(&self.shared.numbers, &mut self.rng);
            for attempt in 1..=ATTEMPTS_MAX {
                match self.try_once(session, &work).await {
                    Ok(()) | Err(Why::Refused) => break,
                    Err(Why::Lost | Why::Unknown) => return,
                    Err(Why::Conflict) => {
                        self.shared.conflicts.fetch_add(1, Ordering::Relaxed);
                        let most = BACK_OFF * attempt;
                        tokio::time::sleep(most.mul_f64(self.rng.f64())).await;
                    }
                }
            }
        }
    }

    async fn try_once(&mut self, session: &Session, work: &Work) -> Result<(), Why> {
        let shared = self.shared.clone();
        let mut attempt = session.begin(&shared, work);
        let done = match work {
            Work::Autocommit(step) => {
                let done = session.autocommit(&shared, *step, &mut attempt).await;
                match done {
                    Ok(Found::Something) => Ok(()),
                    Ok(Found::Nothing) => {
                        // That there is none is what this transaction was told.
                        attempt.end(Outcome::Committed);
                        attempt = session.begin(&shared, work);
                        let made = step.make(&session.client, &shared.numbers, &mut attempt);
                        made.await.map_err(|error| shared.why(&error, true))
                    }
                    Err(why) => Err(why),
                }
            }
            Work::Block(steps) => session.block(&shared, steps, &mut attempt).await,
        };
        let outcome = match done {
            Ok(()) => Outcome::Committed,
            Err(Why::Unknown) => Outcome::Unknown,
            Err(Why::Conflict | Why::Refused | Why::Lost) => Outcome::Aborted,
        };
        attempt.end(outcome);
        done
    }
}

impl Shared {
    fn why(&self, error: &Error, is_submitted: bool) -> Why {
        Why::of(error, is_submitted).unwrap_or_else(|what| {
            self.on_surprise(what);
            if is_submitted { Why::Unknown } else { Why::Lost }
        })
    }
}

impl Session {
    async fn autocommit(
        &self,
        shared: &Shared,
        step: Step,
        attempt: &mut Attempt,
    ) -> Result<Found, Why> {
        let done = step.run(&self.client, &shared.numbers, attempt).await;
        done.map_err(|error| shared.why(&error, step.is_write()))
    }

    async fn block(
        &self,
        shared: &Shared,
        steps: &[Step],
        attempt: &mut Attempt,
    ) -> Result<(), Why> {
        let done = async {
            self.client.batch_execute("begin").await?;
            for step in steps {
                if step.run(&self.client, &shared.numbers, attempt).await? == Found::Nothing {
                    step.make(&self.client, &shared.numbers, attempt).await?;
                }
            }
            Ok(())
        };
        if let Err(error) = done.await {
            let why = shared.why(&error, false);
            if why != Why::Lost {
                let back = self.client.batch_execute("rollback").await;
                back.map_err(|error| shared.why(&error, false))?;
            }
            return Err(why);
        }
        let committed = self.client.batch_execute("commit").await;
        committed.map_err(|error| shared.why(&error, true))
    }

    fn begin(&self, shared: &Shared, work: &Work) -> Attempt {
        // What only reads of a snapshot may be of the past.
        let is_held = self.is_strict || work.is_write();
        shared.history.begin(self.number, &self.note, is_held)
    }
}
