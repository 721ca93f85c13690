//! CALL of a native procedure, written in Rust.

use std::cell::RefCell;
use std::sync::Arc;

use pangea_core::txn::{Outcome, Procedure, SqlState};
use sqlparser::ast;

use super::command::Modes;
use super::data::{CONFLICTS_MAX, given_up};
use super::explain::DryRun;
use super::interrupt::Interruptible;
use super::local::LocalContext;
use super::prepared::query_of;
use super::stream::Stream;
use super::{Response, Session, now};
use crate::authorization::ordinary;
use crate::catalog::PUBLIC;
use crate::error::{SqlError, code};
use crate::expr::Env;
use crate::native::Native;
use crate::result_memory::ResultReservation;
use crate::syntax::{self, Parsed};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;

/// The native procedure that a CALL refers to, and its arguments.
pub(super) struct NativeCall {
    native: Arc<Native>,
    args: Vec<ast::Expr>,
}

impl NativeCall {
    /// Whether its only argument is `$1` with the type of the procedure's parameter, so that it
    /// need not be evaluated. An untyped `$1` takes the type of the procedure's parameter.
    fn takes_first_param<'t>(
        &self,
        types: impl ExactSizeIterator<Item = Option<&'t SqlType>>,
    ) -> bool {
        let is_first = |arg: &ast::Expr| {
            matches!(arg, ast::Expr::Value(value)
                if matches!(&value.value, ast::Value::Placeholder(name) if name == "$1"))
        };
        let wanted = self.native.params();
        let fits = types.len() <= 1
            && types.zip(&wanted).all(|(given, wanted)| given.is_none_or(|given| given == wanted));
        fits && matches!(&self.args[..], [arg] if is_first(arg))
    }

    /// Returns a query of one row, the arguments cast to their types; `None` if there are no
    /// arguments.
    fn query(&self) -> Result<Option<Arc<Parsed>>, SqlError> {
        let has_args = !self.args.is_empty();
        let query = has_args.then(|| query_of(&self.args, &self.native.params())).transpose()?;
        Ok(query.map(Arc::new))
    }
}

impl Session {
    /// Returns the native procedure that a statement calls, if any.
    pub(super) fn native_call(&self, parsed: &Parsed) -> Result<Option<NativeCall>, SqlError> {
        let ast::Statement::Call(call) = &*parsed.ast else { return Ok(None) };
        if self.shared.natives.is_empty() {
            return Ok(None);
        }
        let parts = syntax::name_parts(&call.name)?;
        let (schema, name) = match &parts[..] {
            [name] => (PUBLIC, name),
            [schema, name] => (&**schema, name),
            _ => return Ok(None),
        };
        let is_it = |native: &&Arc<Native>| native.schema() == schema;
        let native = self.shared.natives.get(name).filter(is_it).cloned();
        let Some(native) = native else { return Ok(None) };
        let unsupported = || {
            SqlError::unsupported("CALL of a procedure in Rust with a named argument or a clause")
        };
        let args = match &call.args {
            ast::FunctionArguments::List(list) if list.clauses.is_empty() => &list.args[..],
            ast::FunctionArguments::None => &[],
            ast::FunctionArguments::List(_) | ast::FunctionArguments::Subquery(_) => {
                return Err(unsupported());
            }
        };
        let value = |arg: &ast::FunctionArg| match arg {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(value)) => Ok(value.clone()),
            _ => Err(unsupported()),
        };
        let args = args.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let types = native.params();
        if args.len() != types.len() {
            let shown: Vec<_> = types.iter().map(|base| base.name()).collect();
            let message = format!("procedure {name} takes {} arguments", types.len());
            let hint = format!("Its signature is {name}({}).", shown.join(", "));
            return Err(SqlError::new(code::UNDEFINED_FUNCTION, message).with_hint(hint));
        }
        Ok(Some(NativeCall { native, args }))
    }

    /// Returns the parameters of the calling statement, and the columns of its row.
    pub(super) async fn describe_native(
        &mut self,
        call: &NativeCall,
        types: &[Option<SqlType>],
    ) -> Result<(Vec<SqlType>, Vec<OutputColumn>), SqlError> {
        if call.takes_first_param(types.iter().map(Option::as_ref)) {
            return Ok((call.native.params(), call.native.columns()));
        }
        let params = match call.query()? {
            None => Vec::new(),
            Some(args) if self.transaction.is_some() => {
                self.plan_in_transaction(&args, types).await?.params.clone()
            }
            Some(args) => self.plan(&args, types).await?.0.params.clone(),
        };
        Ok((params, call.native.columns()))
    }

    /// Runs the call: outside of a transaction as a program, within one on its snapshot.
    pub(super) async fn run_native(
        &mut self,
        call: NativeCall,
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        let native = call.native.clone();
        if native.is_for_superusers() {
            self.demand_superuser(&native)?;
        }
        let is_given = params.len() == 1 && call.takes_first_param(param_types.iter().map(Some));
        let query = if is_given { None } else { call.query()? };
        let values = match query {
            None if is_given => params.to_vec(),
            None => Vec::new(),
            Some(args) => match Box::pin(self.run_data(&args, param_types, params)).await? {
                Response::Rows { mut rows, .. } if rows.len() == 1 => rows.swap_remove(0),
                _ => return Err(SqlError::new(code::INTERNAL, "the arguments are one row")),
            },
        };
        if self.transaction.is_some() {
            return self.native_in_transaction(&native, values).await;
        }
        if self.settings.is_on("default_transaction_read_only") {
            return Err(read_only());
        }
        let env = self.env(values.clone(), now(), Vec::new());
        let args = native.arguments(&env)?;
        // A call that only reads runs on a snapshot, which is not ordered after acknowledged
        // transactions.
        let may_only_read = native.is_read_only(&args) || !self.is_search_checked();
        if may_only_read {
            self.wait_for_snapshot().await?;
        }
        let program = self.program(native.name(), args)?;
        match self.commit_program(program, DryRun::default()).await? {
            Outcome::Aborted(abort) if abort.code == code::NOT_REPEATABLE => {
                self.native_alone(&native, values).await
            }
            Outcome::Aborted(abort) => Err(abort.into()),
            Outcome::Committed { txn, version, result, .. } => {
                self.note_commit(txn, version);
                let rows = native.returned(&result)?;
                Ok(self.called(native.columns(), rows))
            }
        }
    }

    fn demand_superuser(&mut self, native: &Native) -> Result<(), SqlError> {
        let mut cx = LocalContext::snapshot(self.engine.store().pin());
        let env = self.env(Vec::new(), now(), Vec::new());
        match ordinary(env.current_user(), &mut cx)? {
            None => Ok(()),
            Some(_) => {
                let message = format!("permission denied for procedure {}", native.name());
                Err(SqlError::new(code::NO_PRIVILEGE, message))
            }
        }
    }

    /// Runs the call in a transaction of its own, and retries it after conflicts.
    async fn native_alone(
        &mut self,
        native: &Native,
        values: Vec<Datum>,
    ) -> Result<Response, SqlError> {
        let mut conflicts = 0;
        loop {
            self.begin(true, Modes::default());
            let response = match self.native_in_transaction(native, values.clone()).await {
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

    async fn native_in_transaction(
        &mut self,
        native: &Native,
        values: Vec<Datum>,
    ) -> Result<Response, SqlError> {
        self.open_snapshot().await?;
        let started = self.open_transaction().started;
        let env = self.env(values, started, Vec::new());
        let env = Env { deferred: Some(RefCell::default()), ..env };
        let transaction = self.transaction.as_mut().expect("it is open");
        // The code of the procedure is not a statement that a replay could repeat.
        transaction.done.breaks();
        let is_read_only = transaction.is_read_only;
        let cx = transaction.context();
        cx.is_read_only = is_read_only;
        cx.begin_statement(true);
        let executed = match is_read_only {
            true => Err(read_only()),
            false => native
                .execute(&env, &mut Interruptible::new(cx, &self.engine))
                .map_err(SqlError::from),
        };
        let deferred = env.deferred.unwrap_or_default().into_inner();
        transaction.deferred.extend(deferred);
        Ok(self.called(native.columns(), executed?.rows))
    }

    fn called(&mut self, columns: Vec<OutputColumn>, rows: Vec<Vec<Datum>>) -> Response {
        if columns.is_empty() {
            return Response::Command { tag: "CALL".to_owned() };
        }
        self.respond_rows(
            columns,
            Stream::whole(rows, ResultReservation::default(), "CALL".to_owned()),
        )
    }
}

fn read_only() -> SqlError {
    SqlError::new(code::READ_ONLY, "cannot execute CALL in a read-only transaction")
}
