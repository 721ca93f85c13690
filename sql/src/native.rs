//! Procedures in Rust that run SQL: those of a program that has a node within it.
//!
//! ```text
//!   CALL transfer(1, 2, 30) ----> session: evaluates the arguments, as their types
//!                                   | Program::Call, with them and all that SQL depends on
//!                                   v
//!                           every replica, at its place in the order: SqlProcedure::run
//!                                   | cx.sql("update ..", ..): planned and run as sql.statement is
//!                                   v
//!                           one row, or an abort with a SQLSTATE
//! ```
//!
//! A procedure is a function of its arguments and of what it reads: no clock, no randomness, no
//! iteration over hash maps. In a transaction block it runs on its session's snapshot like any
//! statement there. One that asks for what DataFusion finds, whose order may be another on another
//! replica, runs in its session alone, and what it read and wrote is certified.

use std::cell::RefCell;
use std::sync::Arc;

use pangea_core::txn::{Abort, Context, Procedure, Stop};

use crate::catalog::PUBLIC;
use crate::catalog::schema::PANGEA;
use crate::error::{Failure, SqlError, code};
use crate::exec::{self, Executed};
use crate::expr::Env;
use crate::plan::cache::PlanCache;
use crate::plan::target::Deferred;
use crate::plan::{OutputColumn, Plan};
use crate::search_path::PathSetting;
use crate::statement::{Arguments, Returned};
use crate::syntax;
use crate::types::SqlType;
use crate::types::datum::Datum;

/// A deterministic procedure in Rust, which any PostgreSQL client of the node can call by its name.
///
/// All nodes of a cluster must have the same procedures, and the same code of each.
pub trait SqlProcedure: Send + Sync + 'static {
    /// The name that it is called by: in lower case, as SQL has names without quotes.
    fn name(&self) -> &str;

    /// The types of its arguments.
    fn params(&self) -> Vec<SqlType>;

    /// The columns of the one row that it returns; none where it returns nothing.
    fn columns(&self) -> Vec<(String, SqlType)> {
        Vec::new()
    }

    /// Runs it. The arguments are of its types or NULL; so must be what it returns.
    ///
    /// # Errors
    /// What a statement failed with, passed on with `?`, or an [`Abort`] of its own: then nothing
    /// of it is done.
    fn run(&self, args: &[Datum], cx: &mut Sql<'_>) -> Result<Vec<Datum>, Stop>;
}

/// What a statement within a procedure came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The columns of the rows.
    pub columns: Vec<OutputColumn>,
    /// The rows; those of RETURNING too.
    pub rows: Vec<Vec<Datum>>,
    /// How many rows were selected or changed.
    pub count: u64,
}

/// The database as a procedure in Rust has it.
pub struct Sql<'a> {
    plans: &'a PlanCache,
    env: &'a Env,
    cx: &'a mut dyn Context,
    statements: u64,
    deferred: Vec<Deferred>,
    /// What a statement failed with: the procedure fails with it, whatever it makes of that.
    failed: Option<Failure>,
}

impl Sql<'_> {
    /// Runs a SELECT, INSERT, UPDATE or DELETE with these values of `$1`, `$2` and so on.
    ///
    /// # Errors
    /// When the statement fails, which is to be passed on, or the run has to end.
    pub fn sql(&mut self, text: &str, params: &[Datum]) -> Result<Rows, Stop> {
        let done = match &self.failed {
            Some(failure) => Err(failure.clone()),
            None => self.execute(text, params),
        };
        done.map_err(|failure| {
            self.failed = Some(failure.clone());
            failure.into()
        })
    }

    /// The tables of the store and their keys, without SQL.
    pub fn store(&mut self) -> &mut dyn Context {
        self.cx
    }

    /// The name of who calls.
    pub fn user(&self) -> &str {
        &self.env.user
    }

    /// The time of the call, the same on every replica: microseconds since 2000-01-01 UTC.
    pub fn now(&self) -> i64 {
        self.env.now
    }

    fn execute(&mut self, text: &str, params: &[Datum]) -> Result<Rows, Failure> {
        let text: Arc<str> = Arc::from(text);
        let parse = || {
            let one: Result<[_; 1], _> = syntax::parse(&text)?.try_into();
            let [parsed] =
                one.map_err(|_| SqlError::new(code::SYNTAX, "one statement at a time"))?;
            Ok::<_, Failure>(parsed)
        };
        let path = PathSetting::of(self.env);
        let types = vec![None; params.len()];
        let planned = self.plans.plan(&text, &types, &path, parse, self.cx)?;
        let is_data = matches!(
            planned.plan,
            Plan::Select(_) | Plan::Insert(_) | Plan::Update(_) | Plan::Delete(_)
        );
        if !is_data || !planned.sequences.is_empty() {
            let what = if is_data { "a sequence" } else { planned.plan.command() };
            let message = format!("{what} in a procedure in Rust");
            return Err(SqlError::unsupported(message).into());
        }
        if !self.env.is_local() && planned.plan.is_certified() {
            return Err(SqlError::new(code::NOT_REPEATABLE, "a query of several tables").into());
        }
        if planned.params.len() != params.len() {
            let (wanted, given) = (planned.params.len(), params.len());
            let message = format!("{given} values for {wanted} parameters");
            return Err(SqlError::new(code::INVALID_PARAMETER, message).into());
        }
        let typed = planned.params.iter().zip(params).enumerate();
        let values = typed.map(|(at, (base, value))| as_type(at, *base, value));
        self.statements += 1;
        let env = Env {
            // Golden-ratio steps: far apart for statements that follow each other.
            row_seed: self
                .env
                .row_seed
                .wrapping_add(self.statements.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            deferred: Some(RefCell::default()),
            ..self.env.with_params(values.collect::<Result<_, SqlError>>()?)
        };
        let executed = exec::run(&planned, None, &env, self.cx)?;
        self.env.seed.set(env.seed.get());
        self.deferred.extend(env.deferred.unwrap_or_default().into_inner());
        let Executed { rows, count, .. } = executed;
        Ok(Rows { columns: planned.columns.clone(), rows, count })
    }
}

/// A value as a type has it; an error where it is of another.
pub(crate) fn as_type(at: usize, base: SqlType, value: &Datum) -> Result<Datum, SqlError> {
    let is_in = |bits: u32| matches!(value, Datum::Int(it) if it >> (bits - 1) == it >> 63);
    let fits = match (base, value) {
        (_, Datum::Null)
        | (SqlType::Bool, Datum::Bool(_))
        | (SqlType::Int8, Datum::Int(_))
        | (SqlType::Float8, Datum::Float(_))
        | (SqlType::Numeric, Datum::Numeric(_))
        | (
            SqlType::Text
            | SqlType::Varchar
            | SqlType::Bpchar
            | SqlType::Name
            | SqlType::Json
            | SqlType::Unknown,
            Datum::Text(_),
        )
        | (SqlType::Bytea, Datum::Bytea(_))
        | (SqlType::Date, Datum::Date(_))
        | (SqlType::Time, Datum::Time(_))
        | (SqlType::Timestamp | SqlType::Timestamptz, Datum::Timestamp(_))
        | (SqlType::Interval, Datum::Interval(_))
        | (SqlType::Uuid, Datum::Uuid(_))
        | (SqlType::Jsonb, Datum::Jsonb(_)) => true,
        (SqlType::Int2, Datum::Int(_)) => is_in(16),
        (SqlType::Int4, Datum::Int(_)) => is_in(32),
        _ => false,
    };
    if fits {
        return Ok(value.clone());
    }
    let message = format!("${} is of type {}, and its value is not", at + 1, base.name());
    Err(SqlError::new(code::TYPE_MISMATCH, message)
        .with_hint("Cast the parameter in the statement, or give a value of its type."))
}

/// A procedure in Rust that SQL can call.
pub struct Native {
    kind: Kind,
}

enum Kind {
    /// One over SQL's values, in the schema `public`.
    Sql { procedure: Arc<dyn SqlProcedure>, plans: PlanCache },
    /// One of the registry, over its encoded arguments, in the schema `pangea`.
    Program(Arc<dyn Procedure>),
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Native({})", Procedure::name(self))
    }
}

impl Native {
    /// The procedure for a registry, and for [`crate::Shared::with_procedures`].
    pub fn new(procedure: impl SqlProcedure) -> Arc<Self> {
        let (procedure, plans) = (Arc::new(procedure), PlanCache::default());
        Arc::new(Self { kind: Kind::Sql { procedure, plans } })
    }

    /// A procedure that the registry has, for [`crate::Shared::with_procedures`]: superusers call
    /// `pangea.NAME(bytea)` with its encoded arguments, and get its encoded result. What it reads
    /// and writes is no table of SQL's.
    pub fn program(procedure: Arc<dyn Procedure>) -> Arc<Self> {
        Arc::new(Self { kind: Kind::Program(procedure) })
    }

    /// The schema that it is of.
    pub(crate) fn schema(&self) -> &'static str {
        match &self.kind {
            Kind::Sql { .. } => PUBLIC,
            Kind::Program(_) => PANGEA,
        }
    }

    /// Whether superusers alone may call it.
    pub(crate) fn is_for_superusers(&self) -> bool {
        matches!(self.kind, Kind::Program(_))
    }

    /// The types of its arguments.
    pub(crate) fn params(&self) -> Vec<SqlType> {
        match &self.kind {
            Kind::Sql { procedure, .. } => procedure.params(),
            Kind::Program(_) => vec![SqlType::Bytea],
        }
    }

    /// The columns of its row.
    pub(crate) fn columns(&self) -> Vec<OutputColumn> {
        let column = |(name, base): (String, SqlType)| OutputColumn::new(name, base);
        match &self.kind {
            Kind::Sql { procedure, .. } => procedure.columns().into_iter().map(column).collect(),
            Kind::Program(_) => vec![OutputColumn::new("result", SqlType::Bytea)],
        }
    }

    /// The arguments of the program that a CALL becomes: `env` has the values as its parameters.
    ///
    /// # Errors
    /// When a program's argument is NULL.
    pub(crate) fn arguments(&self, env: &Env) -> Result<Vec<u8>, SqlError> {
        match &self.kind {
            Kind::Sql { .. } => Ok(Arguments::encode_parts("", &self.params(), env, (false, None))),
            Kind::Program(_) => encoded(env).map(<[u8]>::to_vec),
        }
    }

    /// Whether a call with these arguments never writes.
    pub(crate) fn is_read_only(&self, args: &[u8]) -> bool {
        matches!(&self.kind, Kind::Program(program) if program.is_read_only(args))
    }

    /// The rows of what the program has returned.
    ///
    /// # Errors
    /// When it is not in its encoding.
    pub(crate) fn returned(&self, result: &[u8]) -> Result<Vec<Vec<Datum>>, SqlError> {
        match &self.kind {
            Kind::Sql { .. } => Ok(Returned::decode(result)?.executed.rows),
            Kind::Program(_) => Ok(vec![vec![Datum::Bytea(result.into())]]),
        }
    }

    /// Runs it with the arguments that are the parameters of `env`.
    pub(crate) fn execute(&self, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
        let (procedure, plans) = match &self.kind {
            Kind::Sql { procedure, plans } => (procedure, plans),
            Kind::Program(program) => {
                let rows = self.returned(&program.run(encoded(env)?, cx)?)?;
                return Ok(Executed { rows, ..Executed::default() });
            }
        };
        let deferred = Vec::new();
        let mut sql = Sql { plans, env, cx, statements: 0, deferred, failed: None };
        let done = procedure.run(&env.params, &mut sql);
        let Sql { cx, deferred, failed, .. } = sql;
        let row = match (failed, done) {
            (Some(failure), _) => return Err(failure),
            (None, done) => done?,
        };
        let columns = self.columns();
        if row.len() != columns.len() {
            let name = procedure.name();
            let (given, wanted) = (row.len(), columns.len());
            let message =
                format!("the procedure {name} returned {given} values for {wanted} columns");
            return Err(SqlError::new(code::TYPE_MISMATCH, message).into());
        }
        let typed = columns.iter().zip(&row).enumerate();
        let row = typed.map(|(at, (column, value))| as_type(at, column.ty.base, value));
        let row = row.collect::<Result<Vec<_>, _>>()?;
        match &env.deferred {
            Some(all) => all.borrow_mut().extend(deferred),
            None => exec::check_deferred(&deferred, env, cx)?,
        }
        let rows = if row.is_empty() { Vec::new() } else { vec![row] };
        Ok(Executed { rows, ..Executed::default() })
    }

    fn replicated(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Failure> {
        let args = Arguments::decode(args)?;
        let executed = self.execute(&args.env, cx)?;
        let columns = self.columns();
        Ok(Returned { columns, executed, current: Vec::new(), last_number: None }.encode())
    }
}

/// The encoded arguments of a program.
fn encoded(env: &Env) -> Result<&[u8], SqlError> {
    match env.params.first() {
        Some(Datum::Bytea(bytes)) => Ok(bytes),
        _ => Err(SqlError::new(code::NULL_NOT_ALLOWED, "the arguments of a program are NULL")),
    }
}

impl Procedure for Native {
    fn name(&self) -> &str {
        match &self.kind {
            Kind::Sql { procedure, .. } => procedure.name(),
            Kind::Program(program) => program.name(),
        }
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        match &self.kind {
            Kind::Sql { .. } => self.replicated(args, cx).map_err(Stop::from),
            Kind::Program(program) => program.run(args, cx),
        }
    }
}

/// An abort of a procedure's own, with SQLSTATE P0001 as RAISE has it.
pub fn raise(message: impl Into<String>) -> Stop {
    Abort::new(code::RAISED, message).into()
}
