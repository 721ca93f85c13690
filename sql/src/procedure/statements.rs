//! Statements and expressions of a running procedure.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use pangea_core::txn::Context;

use super::body::{Into, Query};
use super::fragment::Fragment;
use super::hoisted_subqueries::{Is, Lifted};
use super::run::{Frame, Machine};
use super::slots::converted;
use crate::error::{Failure, SqlError, code};
use crate::exec::{self, Executed};
use crate::expr::Env;
use crate::plan::{Plan, Planned};
use crate::sequence::SequenceValues;
use crate::syntax;
use crate::types::datum::Datum;
use crate::types::{ColumnType, SqlType};
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::variables::Signature;

/// The number of values taken at once from a sequence that the procedure created.
const OWN_NUMBERS: usize = 32;

impl Machine<'_> {
    /// Runs an SQL statement, and assigns its first row to the targets of INTO.
    pub(super) fn sql(
        &mut self,
        frame: &mut Frame<'_>,
        query: &Query,
        into: Option<&Into>,
        is_perform: bool,
        cx: &mut dyn Context,
    ) -> Result<(), Failure> {
        let (columns, executed) = self.query(frame, query, cx)?;
        frame.row_count = executed.count.max(executed.rows.len() as u64);
        let is_written = matches!(query, Query::Written(_));
        if is_written {
            self.found(frame, frame.row_count > 0);
        }
        let Some(Into { targets, is_strict }) = into else {
            if !columns.is_empty() && is_written && !is_perform {
                let hint = "If you want to discard the results of a SELECT, use PERFORM instead.";
                let message = "query has no destination for result data";
                return Err(SqlError::new(code::SYNTAX, message).with_hint(hint).into());
            }
            return Ok(());
        };
        if columns.is_empty() {
            let message = "INTO used with a command that cannot return data";
            return Err(SqlError::new(code::SYNTAX, message).into());
        }
        let is_select = executed.rows.len() as u64 == executed.count;
        let mut rows = executed.rows.into_iter();
        let first = rows.next();
        if *is_strict && first.is_none() {
            let message = "query returned no rows";
            return Err(SqlError::new(code::NO_DATA_FOUND, message).into());
        }
        // As in PostgreSQL, a write with INTO may return at most one row.
        let is_write = matches!(query, Query::Written(it) if !it.is_query());
        if (*is_strict || is_write) && rows.next().is_some() {
            let message = "query returned more than one row";
            let hint = "Make sure the query returns a single row, or use LIMIT 1.";
            return Err(SqlError::new(code::TOO_MANY_ROWS, message).with_hint(hint).into());
        }
        if is_select {
            frame.row_count = u64::from(first.is_some());
        }
        Ok(frame.slots.assign_row(targets, &columns, first, &self.env.zone)?)
    }

    /// Runs a query that is written in the body, or computed as text.
    pub(super) fn query(
        &mut self,
        frame: &mut Frame<'_>,
        query: &Query,
        cx: &mut dyn Context,
    ) -> Result<(Vec<OutputColumn>, Executed), Failure> {
        let (text, using) = match query {
            Query::Written(fragment) => {
                let (planned, executed) = self.fragment(frame, fragment, cx)?;
                // The outputs of a CALL have already been assigned to its variables.
                let is_call = matches!(planned.plan, Plan::Call(_));
                let columns = if is_call { Vec::new() } else { planned.columns.clone() };
                return Ok((columns, executed));
            }
            Query::Computed { text, using } => (text, using),
        };
        let Datum::Text(text) = self.evaluate_as(frame, text, SqlType::Text.into(), cx)? else {
            let message = "query string argument of EXECUTE is null";
            return Err(SqlError::new(code::NULL_NOT_ALLOWED, message).into());
        };
        let (mut values, mut types) = (Vec::new(), Vec::new());
        for value in using {
            let (datum, ty) = self.evaluate(frame, value, cx)?;
            values.push(datum);
            types.push(ty.base);
        }
        let unplaced = |error: SqlError| SqlError { position: None, ..error };
        let mut parsed = syntax::parse(&text).map_err(unplaced)?;
        let (Some(parsed), None) = (parsed.pop(), parsed.pop()) else {
            return Err(SqlError::unsupported("EXECUTE of several statements").into());
        };
        let fragment = Fragment::statement(parsed, Arc::default()).map_err(unplaced)?;
        let signature = Signature { types, ..Signature::default() }.into();
        let planned = fragment.plan(&signature, self.calls, cx)?;
        let executed = self.run(frame, &planned, values, &fragment, cx)?;
        Ok((planned.columns.clone(), executed))
    }

    /// Returns the value of a lifted subquery.
    fn lifted(
        &mut self,
        frame: &mut Frame<'_>,
        query: &Lifted,
        cx: &mut dyn Context,
    ) -> Result<(Datum, SqlType), Failure> {
        let (planned, executed) = self.fragment(frame, &query.fragment, cx)?;
        let has_rows = !executed.rows.is_empty();
        match query.is {
            Is::There => return Ok((Datum::Bool(has_rows), SqlType::Bool)),
            Is::Missing => return Ok((Datum::Bool(!has_rows), SqlType::Bool)),
            Is::Value => {}
        }
        let [column] = &planned.columns[..] else {
            let message = "subquery must return only one column";
            return Err(SqlError::new(code::SYNTAX, message).into());
        };
        if executed.rows.len() > 1 {
            let message = "more than one row returned by a subquery used as an expression";
            return Err(SqlError::new(code::CARDINALITY, message).into());
        }
        let row = executed.rows.into_iter().next();
        let datum = row.and_then(|row| row.into_iter().next()).unwrap_or(Datum::Null);
        Ok((datum, column.ty.base))
    }

    /// Runs a fragment.
    pub(super) fn fragment(
        &mut self,
        frame: &mut Frame<'_>,
        fragment: &Fragment,
        cx: &mut dyn Context,
    ) -> Result<(Arc<Planned>, Executed), Failure> {
        let (mut lifted, mut types) = (Vec::new(), Vec::new());
        for query in &fragment.lifted {
            let (datum, ty) = self.lifted(frame, query, cx)?;
            lifted.push(datum);
            types.push(ty);
        }
        let signature = frame.slots.signature(&fragment.visible, frame.body.is_strict());
        let signature = fragment.seen(signature, &types);
        let planned = fragment.plan(&signature, self.calls, cx).map_err(unplaced)?;
        let mut values = frame.slots.values(&fragment.visible);
        values.append(&mut lifted);
        let executed = self.run(frame, &planned, values, fragment, cx)?;
        Ok((planned, executed))
    }

    fn run(
        &mut self,
        frame: &mut Frame<'_>,
        planned: &Planned,
        values: Vec<Datum>,
        fragment: &Fragment,
        cx: &mut dyn Context,
    ) -> Result<Executed, Failure> {
        if let Plan::Call(call) = &planned.plan {
            let env = self.env_for(planned, values, cx)?;
            let outputs = self.call(call, &env, cx)?;
            self.take_back(planned, &env)?;
            for (output, value) in call.outputs.iter().zip(outputs) {
                let parameter = output.argument;
                let target = parameter.and_then(|at| frame.slots.target(&fragment.visible, at));
                let Some(target) = target else {
                    let message = format!(
                        "procedure parameter \"{}\" is an output parameter but corresponding \
                         argument is not writable",
                        call.body.variables[output.slot].name
                    );
                    return Err(SqlError::new(code::SYNTAX, message).into());
                };
                frame.slots.assign(&target, value, output.ty, &self.env.zone)?;
            }
            return Ok(Executed::default());
        }
        if !self.env.is_local() && planned.plan.is_certified() {
            return Err(SqlError::new(code::NOT_REPEATABLE, "a query of several tables").into());
        }
        let env = self.env_for(planned, values, cx)?;
        let mut executed = exec::run(planned, None, &env, cx).map_err(unplaced)?;
        self.take_back(planned, &env)?;
        self.notices.append(&mut executed.notices);
        Ok(executed)
    }

    /// Returns the environment of a statement.
    fn env_for(
        &mut self,
        planned: &Planned,
        params: Vec<Datum>,
        cx: &mut dyn Context,
    ) -> Result<Env, Failure> {
        self.statements += 1;
        let mut sequences = Vec::with_capacity(planned.sequences.len());
        for used in &planned.sequences {
            let (name, id) = (used.name.clone(), used.sequence.id);
            let drawn = self.drawn(id);
            let (mut values, current) = match drawn {
                Some(drawn) => (drawn.values.take(), drawn.current.get()),
                None => (VecDeque::new(), None),
            };
            let is_known = self.env.sequences.iter().any(|drawn| drawn.id == id);
            let is_own = !is_known || self.own.iter().any(|drawn| drawn.id == id);
            // The sequence is newer than the numbers reserved for the CALL, so the CALL takes them
            // itself.
            if is_own && used.is_drawn && values.len() < OWN_NUMBERS {
                let block = used.sequence.take(&used.name, OWN_NUMBERS as u64, cx)?;
                let number = |at: u64| block.first + at as i64 * block.increment;
                values.extend((0..block.count).map(number));
            }
            if is_own && drawn.is_none() {
                self.own.push(SequenceValues {
                    name: name.clone(),
                    id,
                    ..SequenceValues::default()
                });
            }
            let (values, current) = (RefCell::new(values), Cell::new(current));
            sequences.push(SequenceValues { name, id, values, current });
        }
        Ok(Env {
            // Steps of the golden ratio keep the seeds of successive statements far apart.
            row_seed: self
                .env
                .row_seed
                .wrapping_add(self.statements.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            last_number: self.env.last_number.clone(),
            sequences,
            catalog: OnceCell::new(),
            // Settings changed by earlier statements are visible.
            set_settings: self.env.set_settings.clone(),
            deferred: Some(RefCell::default()),
            ..self.env.with_params(params)
        })
    }

    /// Returns the numbers drawn of a sequence.
    fn drawn(&self, id: u32) -> Option<&SequenceValues> {
        self.own.iter().chain(&self.env.sequences).find(|drawn| drawn.id == id)
    }

    /// Takes over the numbers, settings and deferred checks of a finished statement.
    fn take_back(&mut self, planned: &Planned, env: &Env) -> Result<(), Failure> {
        self.env.seed.set(env.seed.get());
        self.env.last_number.set(env.last_number.get());
        for (used, drawn) in planned.sequences.iter().zip(&env.sequences) {
            if let Some(kept) = self.drawn(used.sequence.id) {
                kept.values.replace(drawn.values.take());
                kept.current.set(drawn.current.get());
            }
        }
        if planned.sets_sequences {
            // Numbers reserved before `setval` are discarded.
            for drawn in &env.sequences {
                let (name, id, current) = (drawn.name.clone(), drawn.id, drawn.current.clone());
                self.own.retain(|own| own.id != id);
                self.own.push(SequenceValues { name, id, current, ..SequenceValues::default() });
            }
        }
        let settings = env.set_settings.take();
        if !settings.is_empty() && !self.env.is_local() {
            return Err(SqlError::new(code::NOT_REPEATABLE, "a setting of the session").into());
        }
        self.env.set_settings.replace(settings);
        if let Some(deferred) = &env.deferred {
            self.deferred.extend(deferred.take());
        }
        Ok(())
    }

    /// Returns the value of an expression, and its type.
    pub(super) fn evaluate(
        &mut self,
        frame: &mut Frame<'_>,
        fragment: &Fragment,
        cx: &mut dyn Context,
    ) -> Result<(Datum, ColumnType), Failure> {
        let (planned, executed) = self.fragment(frame, fragment, cx)?;
        let [column] = &planned.columns[..] else {
            let message = format!("query returned {} columns", planned.columns.len());
            let detail = format!("query: {}", fragment.text());
            return Err(SqlError::new(code::SYNTAX, message).with_detail(detail).into());
        };
        let mut rows = executed.rows.into_iter();
        let first = rows.next();
        if rows.next().is_some() {
            let message = "query returned more than one row";
            let detail = format!("query: {}", fragment.text());
            return Err(SqlError::new(code::CARDINALITY, message).with_detail(detail).into());
        }
        let datum = first.and_then(|row| row.into_iter().next()).unwrap_or(Datum::Null);
        Ok((datum, column.ty))
    }

    /// Returns the value of an expression, converted to a type.
    pub(super) fn evaluate_as(
        &mut self,
        frame: &mut Frame<'_>,
        fragment: &Fragment,
        to: ColumnType,
        cx: &mut dyn Context,
    ) -> Result<Datum, Failure> {
        let (datum, ty) = self.evaluate(frame, fragment, cx)?;
        Ok(converted(datum, ty, to, &self.env.zone)?)
    }

    pub(super) fn is_true(
        &mut self,
        frame: &mut Frame<'_>,
        condition: &Fragment,
        cx: &mut dyn Context,
    ) -> Result<bool, Failure> {
        let datum = self.evaluate_as(frame, condition, SqlType::Bool.into(), cx)?;
        Ok(datum == Datum::Bool(true))
    }
}

/// Removes the position from an error, because it does not refer to the client's text.
fn unplaced(failure: Failure) -> Failure {
    match failure {
        Failure::Sql(error) => SqlError { position: None, ..error }.into(),
        interrupted => interrupted,
    }
}
