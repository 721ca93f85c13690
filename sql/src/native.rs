//! Procedures in Rust that run SQL, defined by a program that embeds a node.
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
//! A procedure is a function of its arguments and of the rows that it reads: no clock, no
//! randomness, no iteration over hash maps. In a transaction block it runs on its session's
//! snapshot like any other statement. A procedure that runs a query of DataFusion, whose row order
//! may differ between replicas, runs only in its session, and its reads and writes are certified.

use std::cell::RefCell;
use std::sync::Arc;

use pangea_core::txn::{Abort, Context, Procedure, Stop};

use crate::catalog::PUBLIC;
use crate::catalog::schema::PANGEA;
use crate::error::{Failure, SqlError, code};
use crate::exec::{self, Executed};
use crate::expr::Env;
use crate::plan::Plan;
use crate::plan::cache::PlanCache;
use crate::statement::{Arguments, Returned};
use crate::syntax;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::deferred::Deferred;

/// A deterministic procedure in Rust, which any PostgreSQL client of the node can call by its name.
///
/// All nodes of a cluster must have the same procedures with the same code.
pub trait SqlProcedure: Send + Sync + 'static {
    /// The name for CALL, in lower case, because SQL folds unquoted names.
    fn name(&self) -> &str;

    /// The version of the procedure, to be raised when its body, parameters or columns change: see
    /// [`Procedure::version`].
    fn version(&self) -> u32 {
        0
    }

    /// The types of its arguments.
    fn params(&self) -> Vec<SqlType>;

    /// The columns of the row that it returns; empty if it returns no row.
    fn columns(&self) -> Vec<(String, SqlType)> {
        Vec::new()
    }

    /// Runs the procedure. Arguments and returned values have the declared types or are NULL.
    ///
    /// # Errors
    /// The failure of a statement, passed on with `?`, or an [`Abort`] of the procedure. All its
    /// writes are then rolled back.
    fn run(&self, args: &[Datum], cx: &mut Sql<'_>) -> Result<Vec<Datum>, Stop>;
}

/// The result of a statement within a procedure.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The columns of the rows.
    pub columns: Vec<OutputColumn>,
    /// The rows, including those of RETURNING.
    pub rows: Vec<Vec<Datum>>,
    /// The number of rows selected or changed.
    pub count: u64,
}

/// The database as a procedure in Rust sees it.
pub struct Sql<'a> {
    plans: &'a PlanCache,
    env: &'a Env,
    cx: &'a mut dyn Context,
    statements: u64,
    deferred: Vec<Deferred>,
    /// The failure of a statement. The procedure fails with it, even if its code ignores the error.
    failed: Option<Failure>,
}

impl Sql<'_> {
    /// Runs a SELECT, INSERT, UPDATE or DELETE with these values of `$1`, `$2` and so on.
    ///
    /// # Errors
    /// If the statement fails or the run has to end. The caller must pass the error on.
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

    /// Returns the tables of the store and their keys, without SQL.
    pub fn store(&mut self) -> &mut dyn Context {
        self.cx
    }

    /// Returns the name of the calling user.
    pub fn user(&self) -> &str {
        &self.env.user
    }

    /// Returns the time of the call, the same on every replica: microseconds since 2000-01-01 UTC.
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
        let path = self.env.path_setting();
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
            // Golden-ratio steps keep the seeds of successive statements far apart.
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

/// Returns the value as a value of the type, or an error if it has another type.
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
    /// A procedure over SQL values, in the schema `public`.
    Sql { procedure: Arc<dyn SqlProcedure>, plans: PlanCache },
    /// A procedure of the registry over its encoded arguments, in the schema `pangea`.
    Program(Arc<dyn Procedure>),
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Native({})", Procedure::name(self))
    }
}

impl Native {
    /// Wraps a procedure for a registry, and for [`crate::Shared::with_procedures`].
    pub fn new(procedure: impl SqlProcedure) -> Arc<Self> {
        let (procedure, plans) = (Arc::new(procedure), PlanCache::default());
        Arc::new(Self { kind: Kind::Sql { procedure, plans } })
    }

    /// Wraps a procedure of the registry, for [`crate::Shared::with_procedures`]. Superusers call
    /// `pangea.NAME(bytea)` with its encoded arguments and get its encoded result. It does not
    /// access SQL tables.
    pub fn program(procedure: Arc<dyn Procedure>) -> Arc<Self> {
        Arc::new(Self { kind: Kind::Program(procedure) })
    }

    /// Returns the schema of the procedure.
    pub(crate) fn schema(&self) -> &'static str {
        match &self.kind {
            Kind::Sql { .. } => PUBLIC,
            Kind::Program(_) => PANGEA,
        }
    }

    /// Whether only superusers may call it.
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

    /// Returns the columns of its row.
    pub(crate) fn columns(&self) -> Vec<OutputColumn> {
        let column = |(name, base): (String, SqlType)| OutputColumn::new(name, base);
        match &self.kind {
            Kind::Sql { procedure, .. } => procedure.columns().into_iter().map(column).collect(),
            Kind::Program(_) => vec![OutputColumn::new("result", SqlType::Bytea)],
        }
    }

    /// Encodes the arguments of the program for a CALL, from the parameters of `env`.
    ///
    /// # Errors
    /// If the argument of a registry procedure is NULL.
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

    /// Returns the rows of the program's result.
    ///
    /// # Errors
    /// If the result cannot be decoded.
    pub(crate) fn returned(&self, result: &[u8]) -> Result<Vec<Vec<Datum>>, SqlError> {
        match &self.kind {
            Kind::Sql { .. } => Ok(Returned::decode(result)?.executed.rows),
            Kind::Program(_) => Ok(vec![vec![Datum::Bytea(result.into())]]),
        }
    }

    /// Runs the procedure with the parameters of `env` as arguments.
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

/// Returns the encoded arguments of a registry procedure.
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

    fn version(&self) -> u32 {
        match &self.kind {
            Kind::Sql { procedure, .. } => procedure.version(),
            Kind::Program(program) => program.version(),
        }
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        match &self.kind {
            Kind::Sql { .. } => self.replicated(args, cx).map_err(Stop::from),
            Kind::Program(program) => program.run(args, cx),
        }
    }
}

/// Returns an abort of a procedure, with SQLSTATE P0001 like RAISE.
pub fn raise(message: impl Into<String>) -> Stop {
    Abort::new(code::RAISED, message).into()
}
