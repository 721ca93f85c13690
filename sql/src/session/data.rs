//! Statements that read and write tables: in autocommit mode, or in a transaction.

use std::cell::{Cell, OnceCell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use pangea_core::guarantee::Isolation;
use pangea_core::partition::Partitions;
use pangea_core::txn::{Outcome, Program, SqlState};

use super::command::Modes;
use super::explain::DryRun;
use super::interrupt::Interruptible;
use super::local::LocalContext;
use super::sequences::{CachedValues, TRIES_MAX};
use super::stream::{On, Stream};
use super::{Response, Session, index, now};
use crate::authorization;
use crate::copy::Rows;
use crate::error::{Failure, SqlError, code};
use crate::exec::{self, Executed};
use crate::expr::Env;
use crate::plan::{Plan, Planned};
use crate::result_memory::{ResultReservation, size_of_rows};
use crate::search_path::PathSetting;
use crate::sequence::SequenceValues;
use crate::statement::{Arguments, Returned, STATEMENT};
use crate::syntax::Parsed;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;

/// The maximum number of retries of a statement whose rows other transactions have changed.
pub(super) const CONFLICTS_MAX: u32 = 20;

/// The error of a statement that lost all its tries.
pub(super) fn given_up(error: SqlError) -> SqlError {
    let tries = CONFLICTS_MAX + 1;
    error.with_hint(format!(
        "The statement was tried {tries} times, each time on a new snapshot, because it can't run \
         as a program. It might succeed if retried."
    ))
}

impl Session {
    pub(super) async fn run_data(
        &mut self,
        parsed: &Parsed,
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        if let Some(as_of) = &parsed.as_of {
            return self.run_as_of((parsed, as_of), param_types, params).await;
        }
        let (mut tries, mut is_fresh) = (0, self.transaction.is_some());
        loop {
            let done = match self.transaction.is_some() {
                true => self.run_in_transaction(parsed, param_types, params, tries).await,
                false => self.run_alone(parsed, param_types, params, tries).await,
            };
            match done {
                Err(error) if error.code == code::TOO_FEW_NUMBERS && tries < TRIES_MAX => {
                    tries += 1;
                }
                Err(error) if error.code == code::TOO_FEW_NUMBERS => {
                    let message = format!(
                        "the statement needs too many values of sequence \"{}\"",
                        error.message
                    );
                    return Err(SqlError::new(code::LIMIT_EXCEEDED, message));
                }
                // The privilege may just have been granted through another node.
                Err(error) if error.code == code::NO_PRIVILEGE && !is_fresh => {
                    is_fresh = true;
                    self.wait_fresh().await?;
                }
                done => return done,
            }
        }
    }

    async fn run_alone(
        &mut self,
        parsed: &Parsed,
        param_types: &[SqlType],
        params: &[Datum],
        tries: u32,
    ) -> Result<Response, SqlError> {
        let types: Vec<_> = param_types.iter().copied().map(Some).collect();
        let (planned, mut cx) = self.plan(parsed, &types).await?;
        check_planned(&planned, params, &self.engine.topology().partitions)?;
        check_alone(&planned)?;
        self.gather_facts(&planned).await;
        if planned.is_write() && planned.is_certified() {
            drop(cx);
            return self.run_certified(parsed, param_types, params, tries).await;
        }
        if planned.is_write() || !planned.sequences.is_empty() {
            self.check_privileges(&planned, &mut cx)?;
        }
        let (drawn, borrowed) = self.draw(&planned, 1, tries).await?;
        if !planned.is_write() {
            return match self.run_read(&planned, cx, params, (drawn, &borrowed)) {
                // A procedure wrote although its analysis predicted no write.
                Err(error) if error.code == code::NOT_REPEATABLE => {
                    self.run_certified(parsed, param_types, params, tries).await
                }
                done => done,
            };
        }
        if self.settings.is_on("default_transaction_read_only") {
            return Err(read_only_violation(&planned));
        }
        let online = self.index_online(parsed, &planned, &cx);
        drop(cx);
        let rehearsed = self.rehearsed(&planned, params, drawn.clone()).await?;
        let env = self.env(params.to_vec(), now(), drawn);
        let args = Arguments {
            text: parsed.text.clone(),
            param_types: planned.params.clone(),
            env: Env { fills_later: online.is_some(), ..env },
            is_bulk: planned.plan.is_bulk(),
            rows: None,
        };
        let program = self.program(STATEMENT, args.encode())?;
        match self.commit_program(program, rehearsed).await? {
            Outcome::Aborted(abort) if abort.code == code::NOT_REPEATABLE => {
                self.give_back(&borrowed, &[]);
                self.run_certified(parsed, param_types, params, tries).await
            }
            Outcome::Aborted(abort) => {
                let error = self.give_back_after(&borrowed, abort.into());
                Err(violating(&planned, error))
            }
            Outcome::Committed { txn, version, result, .. } => {
                self.note_commit(txn, version);
                let returned = Returned::decode(&result)?;
                self.give_back(&borrowed, &returned.current);
                self.note_drawn(returned.current, returned.last_number);
                // A notice means that the index already exists, and that another session may be
                // filling it.
                if let Some(new) = online.filter(|_| returned.executed.notices.is_empty()) {
                    self.fill_online(&new).await?;
                }
                Ok(self.respond(&planned, returned.columns, returned.executed))
            }
        }
    }

    /// Runs a statement that only reads, on a snapshot.
    pub(super) fn run_read(
        &mut self,
        planned: &Arc<Planned>,
        mut cx: LocalContext,
        params: &[Datum],
        (drawn, borrowed): (Vec<SequenceValues>, &CachedValues),
    ) -> Result<Response, SqlError> {
        let env = self.env(params.to_vec(), now(), drawn);
        if self.is_streamed(planned) {
            let stream = self.begin_stream(planned, On::Snapshot(cx), env)?;
            return Ok(self.respond_rows(planned.columns.clone(), stream));
        }
        let cx = &mut cx;
        let started = self.profile.as_ref().map(|_| Instant::now());
        let executed = exec::run(planned, None, &env, &mut Interruptible::new(cx, &self.engine));
        self.note_end(started);
        let executed = executed.map_err(SqlError::from);
        self.give_back_of(borrowed, &executed, &env.current());
        let executed = executed?;
        self.note_env(&env);
        self.apply_settings()?;
        Ok(self.respond(planned, planned.columns.clone(), executed))
    }

    /// Whether the rows of a statement are returned as they are found.
    fn is_streamed(&self, planned: &Planned) -> bool {
        let is_query = matches!(planned.plan, Plan::Select(_)) && !planned.is_write();
        // Rows are locked while the statement runs, so all of them are found then.
        let is_guarded = planned.locks_rows && self.settings.isolation() != Isolation::Serializable;
        let is_known = planned.sequences.is_empty() && self.profile.is_none();
        is_query && is_known && !is_guarded
    }

    /// Rehearses a program if EXPLAIN ANALYZE is measuring it.
    async fn rehearsed(
        &mut self,
        planned: &Planned,
        params: &[Datum],
        drawn: Vec<SequenceValues>,
    ) -> Result<DryRun, SqlError> {
        match &self.profile {
            Some(_) => self.rehearse(planned, (params, drawn)).await,
            None => Ok(DryRun::default()),
        }
    }

    /// Returns a call of a procedure of the node.
    pub(super) fn program(&self, name: &str, args: Vec<u8>) -> Result<Program, SqlError> {
        let procedure = self.engine.registry().id(name).ok_or_else(|| {
            SqlError::new(code::INTERNAL, format!("the node does not know the procedure {name}"))
        })?;
        Ok(Program::Call { procedure, args: args.into() })
    }

    /// Runs a write on this node, in a transaction of its own. Its reads must still be current when
    /// it commits; otherwise it runs again.
    async fn run_certified(
        &mut self,
        parsed: &Parsed,
        param_types: &[SqlType],
        params: &[Datum],
        tries: u32,
    ) -> Result<Response, SqlError> {
        let mut conflicts = 0;
        loop {
            self.begin(true, Modes::default());
            let done = self.run_in_transaction(parsed, param_types, params, tries).await;
            let response = match done {
                Ok(response) => response,
                Err(error) => {
                    self.rollback();
                    return Err(error);
                }
            };
            match self.commit().await {
                Ok(_) => return Ok(response),
                Err(error) if error.code != SqlState::SERIALIZATION_FAILURE => return Err(error),
                Err(error) if conflicts == CONFLICTS_MAX => return Err(given_up(error)),
                Err(_) => conflicts += 1,
            }
        }
    }

    /// Plans a statement outside of a transaction. If planning fails on a snapshot that may be old,
    /// it is repeated on a fresh one: the table may just have been created through another node. A
    /// statement that requires a fresh snapshot is planned again, too.
    pub(super) async fn plan(
        &self,
        parsed: &Parsed,
        types: &[Option<SqlType>],
    ) -> Result<(Arc<Planned>, LocalContext), SqlError> {
        let (is_fresh, is_behind) = (!self.must_wait(), self.is_behind());
        let mut cx = LocalContext::snapshot(self.engine.store().pin());
        let parse = || Ok::<_, Failure>(parsed.clone());
        let path = self.path_setting();
        let plan = || self.shared.plans.plan(&parsed.text, types, &path, parse, &mut cx);
        let planned = match self.time_planning(plan) {
            Ok(planned) if is_fresh || self.may_be_old(&planned, is_behind) => planned,
            Err(failure) if !depends_on_schema(&failure) => return Err(failure.into()),
            planned => {
                match planned {
                    Ok(_) => self.wait_for_snapshot().await?,
                    Err(_) => self.wait_fresh().await?,
                }
                cx = LocalContext::snapshot(self.engine.store().pin());
                self.shared.plans.plan(&parsed.text, types, &path, parse, &mut cx)?
            }
        };
        // The catalog is stored on every node, and a write reads rows where it runs.
        if !planned.touches_no_table() && !planned.is_write() {
            let remote = self.remote_rows(cx.at()).await?;
            if remote.as_ref().is_some_and(|remote| remote.reclaimed().is_some()) {
                cx = LocalContext::snapshot(self.snapshot().await?);
                let planned = self.shared.plans.plan(&parsed.text, types, &path, parse, &mut cx)?;
                return Ok((planned, cx));
            }
            cx.set_remote(remote);
        }
        Ok((planned, cx))
    }

    async fn run_in_transaction(
        &mut self,
        parsed: &Parsed,
        param_types: &[SqlType],
        params: &[Datum],
        tries: u32,
    ) -> Result<Response, SqlError> {
        self.open_snapshot().await?;
        let types: Vec<_> = param_types.iter().copied().map(Some).collect();
        let parse = || Ok::<_, Failure>(parsed.clone());
        let path = self.path_setting();
        let transaction = self.transaction.as_mut().expect("the caller has looked");
        let cx = transaction.cx.as_mut().expect("the snapshot is open");
        let started = self.profile.as_ref().map(|_| Instant::now());
        let planned = self.shared.plans.plan(&parsed.text, &types, &path, parse, cx)?;
        if let (Some(profile), Some(started)) = (&self.profile, started) {
            profile.planned(started.elapsed());
        }
        check_planned(&planned, params, &self.engine.topology().partitions)?;
        if planned.is_write() && transaction.is_read_only {
            return Err(read_only_violation(&planned));
        }
        if !transaction.is_implicit && index::is_concurrent(parsed) {
            let message = "CREATE INDEX CONCURRENTLY cannot run inside a transaction block";
            return Err(SqlError::new(code::ACTIVE_TRANSACTION, message));
        }
        self.gather_facts(&planned).await;
        if !planned.sequences.is_empty() {
            self.check_open_privileges(&planned)?;
        }
        let (drawn, borrowed) = self.draw(&planned, 1, tries).await?;
        let text = Some(&*parsed.text);
        if self.is_streamed(&planned) {
            return self.stream_in_transaction(text, &planned, params);
        }
        let result = self.run_open((text, &planned), (params, None), (drawn, &borrowed));
        self.apply_settings()?;
        result
    }

    /// Starts a query in the open transaction.
    fn stream_in_transaction(
        &mut self,
        text: Option<&str>,
        planned: &Arc<Planned>,
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        let started = self.open_transaction().started;
        let env = self.env(params.to_vec(), started, Vec::new());
        let args = self.replayable(text, (planned, &env));
        let transaction = self.open_transaction();
        let view = transaction.context().view();
        let note = Self::note_begun(transaction, args, planned);
        let mut stream = self.begin_stream(planned, On::Transaction(view), env)?;
        if let Some(note) = note {
            self.note_stream(&mut stream, note);
        }
        Ok(self.respond_rows(planned.columns.clone(), stream))
    }

    /// Plans a statement in the open transaction.
    pub(super) async fn plan_in_transaction(
        &mut self,
        parsed: &Parsed,
        types: &[Option<SqlType>],
    ) -> Result<Arc<Planned>, SqlError> {
        self.open_snapshot().await?;
        let path = self.path_setting();
        let open = self.transaction.as_mut().and_then(|open| open.cx.as_mut());
        let cx = open.expect("the snapshot is open");
        let parse = || Ok::<_, Failure>(parsed.clone());
        Ok(self.shared.plans.plan(&parsed.text, types, &path, parse, cx)?)
    }

    /// Returns the setting that resolves unqualified names.
    pub(super) fn path_setting(&self) -> PathSetting {
        let authorization = self.settings.authorization();
        let (user, first) = (authorization.user(), authorization.session_user());
        let is_trusted = authorization.is_trusted() && user == first;
        PathSetting { text: self.settings.search_path(), user: user.clone(), is_trusted }
    }

    /// Runs a planned statement in the open transaction.
    pub(super) fn run_open(
        &mut self,
        (text, planned): (Option<&str>, &Planned),
        (params, rows): (&[Datum], Option<&Rows>),
        (drawn, borrowed): (Vec<SequenceValues>, &CachedValues),
    ) -> Result<Response, SqlError> {
        let started = self.open_transaction().started;
        let env = self.env(params.to_vec(), started, drawn);
        let env = Env { deferred: Some(RefCell::default()), ..env };
        let args = self.replayable(text, (planned, &env));
        let started = self.profile.as_ref().map(|_| Instant::now());
        let executed = self.execute_open(planned, rows, &env);
        self.note_end(started);
        self.give_back_of(borrowed, &executed, &env.current());
        let executed = executed?;
        self.note_env(&env);
        let transaction = self.open_transaction();
        Self::note_done(transaction, args, planned, &executed);
        transaction.deferred.extend(env.deferred.unwrap_or_default().into_inner());
        Ok(self.respond(planned, planned.columns.clone(), executed))
    }

    /// Executes a planned statement in the open transaction. If it fails and may be run again with
    /// more sequence values, its writes are undone.
    fn execute_open(
        &mut self,
        planned: &Planned,
        rows: Option<&Rows>,
        env: &Env,
    ) -> Result<Executed, SqlError> {
        let transaction = self.transaction.as_mut().expect("the caller has looked");
        let (is_read_only, has_savepoints) =
            (transaction.is_read_only, !transaction.savepoints.is_empty());
        let cx = transaction.context();
        cx.is_read_only = is_read_only;
        cx.begin_statement(planned.is_write());
        let may_be_run_again = planned.sequences.iter().any(|used| used.is_drawn);
        let before = may_be_run_again.then(|| cx.mark());
        let executed = exec::run(planned, rows, env, &mut Interruptible::new(cx, &self.engine))
            .map_err(|failure| violating(planned, failure.into()));
        if let Some(before) = before {
            if executed.is_err() {
                cx.go_back(before);
            }
            if !has_savepoints {
                cx.forget_marks();
            }
        }
        executed
    }

    /// Checks the user's privileges before numbers are drawn or other nodes are queried. They are
    /// checked again when the statement runs.
    pub(super) fn check_privileges(
        &mut self,
        planned: &Planned,
        cx: &mut LocalContext,
    ) -> Result<(), SqlError> {
        let env = self.env(Vec::new(), now(), Vec::new());
        Ok(authorization::check(&planned.required, env.current_user(), cx)?)
    }

    /// As [`Self::check_privileges`], in the open transaction.
    pub(super) fn check_open_privileges(&mut self, planned: &Planned) -> Result<(), SqlError> {
        let env = self.env(Vec::new(), now(), Vec::new());
        let cx = self.open_transaction().context();
        Ok(authorization::check(&planned.required, env.current_user(), cx)?)
    }

    pub(super) fn env(
        &mut self,
        params: Vec<Datum>,
        started: i64,
        sequences: Vec<SequenceValues>,
    ) -> Env {
        let mut draw = || {
            self.entropy = self.entropy.wrapping_add(1);
            // A keyed hash of a counter; the system chose the key at random.
            RandomState::new().hash_one(self.entropy)
        };
        let (seed, row_seed) = (Cell::new(draw()), draw());
        Env {
            params,
            now: started,
            statement_now: now(),
            zone: self.settings.zone().clone(),
            user: self.settings.authorization().user().clone(),
            session_user: self.settings.authorization().session_user().clone(),
            is_trusted: self.settings.authorization().is_trusted(),
            database: self.database.clone(),
            search_path: self.path_setting().text,
            seed,
            row_seed,
            sequences,
            last_number: Cell::new(self.last_numbers.last),
            set_sequences: RefCell::default(),
            settings: Some(self.settings.values().clone()),
            cursors: self.cursors.shown(),
            set_settings: RefCell::default(),
            catalog: OnceCell::new(),
            profile: self.profile.clone(),
            facts: self.facts.clone(),
            deferred: None,
            fills_later: false,
            results: Some(self.shared.results.clone()),
            given: RefCell::default(),
        }
    }

    pub(super) fn respond(
        &mut self,
        planned: &Planned,
        columns: Vec<OutputColumn>,
        executed: Executed,
    ) -> Response {
        self.notices.extend(executed.notices);
        let command = planned.plan.command();
        let tag = match command {
            "SELECT" | "UPDATE" | "DELETE" => format!("{command} {}", executed.count),
            "COPY FROM" => format!("COPY {}", executed.count),
            "INSERT" => format!("INSERT 0 {}", executed.count),
            _ => command.to_owned(),
        };
        if columns.is_empty() && command != "SELECT" {
            return Response::Command { tag };
        }
        let mut reservation = ResultReservation::of(Some(&self.shared.results));
        reservation.take_anyway(size_of_rows(&executed.rows));
        self.respond_rows(columns, Stream::whole(executed.rows, reservation, tag))
    }
}

/// Adds the table of the violated constraint to the error of a statement.
fn violating(planned: &Planned, error: SqlError) -> SqlError {
    match planned.plan.constrained() {
        Some(table) => error.in_table(&table.name),
        None => error,
    }
}

pub(super) fn read_only_violation(planned: &Planned) -> SqlError {
    let command = match &planned.plan {
        Plan::Call(call) => call.effects.writes.unwrap_or("CALL"),
        plan => plan.command(),
    };
    let message = format!("cannot execute {command} in a read-only transaction");
    SqlError::new(code::READ_ONLY, message)
}

/// Checks that all parameters have values. A simple query has none.
pub(super) fn check_params(planned: &Planned, params: &[Datum]) -> Result<(), SqlError> {
    if planned.params.len() <= params.len() {
        return Ok(());
    }
    let message = format!("there is no parameter ${}", params.len() + 1);
    Err(SqlError::new(code::UNDEFINED_PARAMETER, message))
}

/// Checks the requirements of a plan on its parameters and on the cluster.
fn check_planned(
    planned: &Planned,
    params: &[Datum],
    partitions: &Partitions,
) -> Result<(), SqlError> {
    check_params(planned, params)?;
    check_ranges(planned, partitions)
}

/// If tables are partitioned, checks that there is a shard for each range of a new table.
fn check_ranges(planned: &Planned, partitions: &Partitions) -> Result<(), SqlError> {
    let ranges = planned.plan.as_utility().map_or(1, |statement| statement.ranges());
    let shards = usize::from(partitions.shards());
    if shards == 1 || ranges <= shards {
        return Ok(());
    }
    let message = format!("{ranges} ranges require {ranges} shards, but there are {shards}");
    let most = match shards - 1 {
        1 => "1 start".to_owned(),
        most => format!("{most} starts"),
    };
    Err(SqlError::new(code::LIMIT_EXCEEDED, message)
        .with_hint(format!("Specify at most {most} in SPLIT AT VALUES.")))
}

/// Whether the statement may succeed with a newer schema.
fn depends_on_schema(failure: &Failure) -> bool {
    let Failure::Sql(error) = failure else { return false };
    let is_of_names = error.code.as_str().starts_with("42") && error.code != code::SYNTAX;
    is_of_names || error.code == code::UNDEFINED_SCHEMA
}

/// Refuses a statement that makes sense only in a transaction block.
fn check_alone(planned: &Planned) -> Result<(), SqlError> {
    let Some(statement) = planned.plan.as_utility().filter(|it| it.needs_block()) else {
        return Ok(());
    };
    let message = format!("{} can only be used in transaction blocks", statement.command());
    Err(SqlError::new(code::NO_TRANSACTION, message))
}
