//! SQL fragments within a body, and their plans.

use std::sync::{Arc, Mutex, PoisonError};

use pangea_core::txn::Context;
use sqlparser::ast;

use super::body::Visible;
use super::hoisted_subqueries::{Lifted, lift};
use crate::error::{Failure, SqlError, code};
use crate::plan::{self, Calls, Plan, Planned, cache};
use crate::syntax::{self, Parsed};
use crate::types::SqlType;
use crate::vocabulary::variables::{Named, Signature};

/// A statement, or an expression wrapped in a query that computes it.
#[derive(Debug)]
pub(crate) struct Fragment {
    pub parsed: Parsed,
    /// The variables in scope, the innermost last.
    pub visible: Arc<[Visible]>,
    /// Bytes of the parsed text that precede the text as written.
    pub lead: usize,
    /// The subqueries lifted out of an expression; they run before it.
    pub lifted: Vec<Lifted>,
    /// The most recent plan, and the variables that it was made for.
    planned: Mutex<Option<(Arc<Signature>, Arc<Planned>)>>,
}

/// The prefix that turns an expression into a query.
const SELECT: &str = "SELECT ";

impl Fragment {
    fn new(parsed: Parsed, visible: Arc<[Visible]>, lead: usize) -> Self {
        Self { parsed, visible, lead, lifted: Vec::new(), planned: Mutex::default() }
    }

    /// Makes a fragment of a statement.
    ///
    /// # Errors
    /// For statements that procedures do not support.
    pub(crate) fn statement(parsed: Parsed, visible: Arc<[Visible]>) -> Result<Self, SqlError> {
        use ast::Statement as S;
        let is_refused = match &*parsed.ast {
            _ if parsed.cursor.is_some() => Some("a cursor in a procedure"),
            _ if parsed.role.is_some() => None,
            S::Copy { .. } => Some("COPY in a procedure"),
            S::Set(_) | S::Reset(_) => Some("SET in a procedure"),
            S::StartTransaction { .. }
            | S::Commit { .. }
            | S::Rollback { .. }
            | S::Savepoint { .. }
            | S::ReleaseSavepoint { .. } => {
                let message = "invalid transaction termination";
                let hint = "A procedure cannot begin or end a transaction: a CALL is one \
                            transaction, or part of the surrounding one.";
                return Err(SqlError::new(code::TRANSACTION_END, message).with_hint(hint));
            }
            _ => None,
        };
        match is_refused {
            Some(feature) => Err(SqlError::unsupported(feature)),
            None => Ok(Self::new(parsed, visible, 0)),
        }
    }

    /// Parses an expression, or a list of them.
    ///
    /// # Errors
    /// 42601 if the text is not an expression.
    pub(crate) fn expression(text: &str, visible: Arc<[Visible]>) -> Result<Self, SqlError> {
        let mut parsed = syntax::parse(&format!("{SELECT}{text}")).map_err(|error| {
            let position = error.position.map(|at| at.saturating_sub(SELECT.len() as u32).max(1));
            SqlError { position, ..error }
        })?;
        match (parsed.pop(), parsed.pop()) {
            (Some(mut one), None) if matches!(&*one.ast, ast::Statement::Query(_)) => {
                let lifted = lift(&mut one, &visible)?;
                Ok(Self { lifted, ..Self::new(one, visible, SELECT.len()) })
            }
            _ => Err(SqlError::new(code::SYNTAX, format!("syntax error at or near \"{text}\""))),
        }
    }

    /// Whether it is a query without writes.
    pub(crate) fn is_query(&self) -> bool {
        matches!(&*self.parsed.ast, ast::Statement::Query(query) if !syntax::is_write(query))
    }

    /// Returns the text as written.
    pub(crate) fn text(&self) -> &str {
        &self.parsed.text[self.lead..]
    }

    /// Returns the signature extended by the values of the lifted subqueries.
    pub(crate) fn seen(&self, signature: Arc<Signature>, lifted: &[SqlType]) -> Arc<Signature> {
        if lifted.is_empty() {
            return signature;
        }
        let mut seen = Arc::unwrap_or_clone(signature);
        for (query, ty) in self.lifted.iter().zip(lifted) {
            let (name, parameter) = (query.name.clone(), seen.types.len());
            let (qualifier, must_qualify) = (None, false);
            let named = Named { qualifier, must_qualify, name, parameter, ty: *ty };
            seen.variables.named.push(named);
            seen.types.push(*ty);
        }
        Arc::new(seen)
    }

    /// Returns the plan for variables of these types. The plan is cached while the catalog is
    /// unchanged.
    ///
    /// # Errors
    /// Those of planning.
    pub(crate) fn plan(
        &self,
        signature: &Arc<Signature>,
        calls: Calls<'_>,
        cx: &mut dyn Context,
    ) -> Result<Arc<Planned>, Failure> {
        let last = self.planned.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((known, planned)) = last
            && known == *signature
            && calls.path.is_none_or(|path| *path == planned.path)
            && cache::is_current(&planned, cx)?
        {
            cache::guard(&planned, cx)?;
            return Ok(planned);
        }
        let planned = Arc::new(plan::plan_in(&self.parsed, signature, calls, cx)?);
        cache::guard(&planned, cx)?;
        // A CALL is not cached, because its effects depend on the calls around it.
        if !matches!(planned.plan, Plan::Call(_)) {
            let kept = Some((signature.clone(), planned.clone()));
            *self.planned.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        }
        Ok(planned)
    }
}
