//! Execution of a procedure: its steps in order, in the context of the CALL.

use pangea_core::txn::Context;

use super::body::{Block, Body, Condition, Diagnostic, Does, Handler, Numbers, Over, Step, Target};
use super::conditions;
use super::fragment::Fragment;
use super::grammar::FOUND;
use super::slots::Slots;
use super::step_budget::Counted;
use crate::error::{Failure, SqlError, code};
use crate::exec::{self, Executed};
use crate::expr::Env;
use crate::notice::Notice;
use crate::plan::{Call, Calls};
use crate::search_path::SearchPath;
use crate::sequence::SequenceValues;
use crate::subtransaction::Subtransaction;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::deferred::Deferred;

/// The maximum number of steps and loop rows of a CALL, nested calls included. The limit exists
/// because the CALL runs on every replica and delays the transactions after it.
const STEPS_MAX: u64 = 1_000_000;
/// The maximum nesting depth of calls.
const CALLS_MAX: usize = 50;
/// The maximum bytes of notices that a CALL sends to its client, and the bytes that are counted for
/// each notice in addition to its text.
const NOTICES_BYTES_MAX: usize = 1 << 20;
const NOTICE_BYTES: usize = 32;

/// A running CALL, with the calls that it makes.
pub(super) struct Machine<'a> {
    pub env: &'a Env,
    pub calls: Calls<'a>,
    pub notices: Vec<Notice>,
    pub deferred: Vec<Deferred>,
    /// The remaining numbers of sequences that the procedure created, or repositioned with
    /// `setval`.
    pub own: Vec<SequenceValues>,
    steps_left: u64,
    /// The number of statements run; it gives each statement a distinct row seed.
    pub statements: u64,
    depth: usize,
    notice_bytes: usize,
}

/// A running procedure.
pub(super) struct Frame<'a> {
    pub body: &'a Body,
    pub slots: Slots,
    pub found: Option<usize>,
    pub row_count: u64,
    /// The error that the current handler caught.
    pub error: Option<SqlError>,
}

/// Rows with their columns.
type Found = (Vec<OutputColumn>, Vec<Vec<Datum>>);

/// The control flow after a step.
enum Flow {
    Next,
    /// Leaves a loop or a block, or continues with the next iteration of a loop.
    Leave {
        is_continue: bool,
        label: Option<String>,
    },
    Return,
}

/// Runs a CALL or a DO.
///
/// # Errors
/// Those of the procedure, and an error if it exceeds the limit on steps.
pub(crate) fn call(call: &Call, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let path = env.path_setting().resolve(cx)?;
    let mut machine = Machine {
        env,
        calls: Calls { bodies: Some(&call.bodies), path: Some(&path), seen: None },
        notices: Vec::new(),
        deferred: Vec::new(),
        own: Vec::new(),
        steps_left: STEPS_MAX,
        statements: 0,
        depth: 0,
        notice_bytes: 0,
    };
    let outputs = match env.is_local() {
        true => machine.call(call, env, cx)?,
        false => machine.call(call, env, &mut Counted::new(cx))?,
    };
    let Machine { notices, deferred, .. } = machine;
    match &env.deferred {
        Some(all) => all.borrow_mut().extend(deferred),
        None => exec::check_deferred(&deferred, env, cx)?,
    }
    let rows = if outputs.is_empty() { Vec::new() } else { vec![outputs] };
    Ok(Executed { rows, notices, ..Executed::default() })
}

/// The stack of one level of nested calls, in bytes: more than it takes without optimization.
const CALL_BYTES: usize = 1 << 19;

/// Does a step of a walk through nested calls. A thread's own stack has no room for the deepest.
pub(crate) fn with_stack<T>(step: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(CALL_BYTES, 4 * CALL_BYTES, step)
}

impl<'a> Machine<'a> {
    /// Runs a procedure, and returns the values of its output parameters.
    pub(super) fn call(
        &mut self,
        call: &Call,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Vec<Datum>, Failure> {
        with_stack(|| self.call_here(call, env, cx))
    }

    fn call_here(
        &mut self,
        call: &Call,
        env: &Env,
        cx: &mut dyn Context,
    ) -> Result<Vec<Datum>, Failure> {
        if self.depth >= CALLS_MAX {
            let message = format!("procedure calls are nested more than {CALLS_MAX} deep");
            return Err(SqlError::new(code::TOO_COMPLEX, message).into());
        }
        let body = &*call.body;
        let mut slots = Slots::of(body, self.calls.path.unwrap_or(&SearchPath::default()), cx)?;
        for (slot, argument) in &call.arguments {
            slots.set(*slot, argument.eval(&[], env)?);
        }
        let found = body.variables.iter().position(|it| it.name == FOUND);
        let found = found.filter(|slot| *slot >= call.parameters);
        if let Some(found) = found {
            slots.set(found, Datum::Bool(false));
        }
        let mut frame = Frame { body, slots, found, row_count: 0, error: None };
        self.depth += 1;
        let mut last = None;
        match body.is_strict() {
            true => drop(self.steps(&mut frame, &body.steps, cx)?),
            false => last = self.statements(&mut frame, cx)?,
        }
        self.depth -= 1;
        let outputs = call.outputs.iter();
        let Some((columns, rows)) = last.filter(|_| !call.outputs.is_empty()) else {
            return Ok(outputs.map(|output| frame.slots.value(output.slot)).collect());
        };
        // The last statement of a LANGUAGE sql body returns the output values.
        let targets: Vec<Target> = outputs.clone().map(|it| Target::Variable(it.slot)).collect();
        let row = rows.into_iter().next();
        frame.slots.assign_row(&targets, &columns, row, &self.env.zone)?;
        Ok(outputs.map(|output| frame.slots.value(output.slot)).collect())
    }

    /// Runs a LANGUAGE sql body.
    fn statements(
        &mut self,
        frame: &mut Frame<'_>,
        cx: &mut dyn Context,
    ) -> Result<Option<Found>, Failure> {
        let mut last = None;
        for step in &frame.body.steps {
            self.count(1)?;
            let Does::Sql { query, .. } = &step.does else { unreachable!("there are no others") };
            let (columns, executed) = self.query(frame, query, cx).map_err(|failure| {
                in_context(failure, || format!("SQL function \"{}\"", frame.body.name))
            })?;
            last = Some((columns, executed.rows));
        }
        Ok(last)
    }

    fn count(&mut self, steps: u64) -> Result<(), SqlError> {
        if let Some(left) = self.steps_left.checked_sub(steps) {
            self.steps_left = left;
            return Ok(());
        }
        self.steps_left = 0;
        let message = format!("the procedure exceeds {STEPS_MAX} steps");
        let hint = "Do more work in each statement, or split the work into several calls.";
        Err(SqlError::new(code::LIMIT_EXCEEDED, message).with_hint(hint))
    }

    /// Sends a notice to the client, within the limit of a statement.
    pub(super) fn told_to(&mut self, notice: Notice) -> Result<(), SqlError> {
        self.notice_bytes += notice.message.len() + NOTICE_BYTES;
        if self.notice_bytes > NOTICES_BYTES_MAX {
            let most = NOTICES_BYTES_MAX >> 20;
            let message = format!("the messages of the procedure exceed {most} MiB");
            return Err(SqlError::new(code::LIMIT_EXCEEDED, message));
        }
        self.notices.push(notice);
        Ok(())
    }

    #[recursive::recursive]
    fn steps(
        &mut self,
        frame: &mut Frame<'_>,
        steps: &[Step],
        cx: &mut dyn Context,
    ) -> Result<Flow, Failure> {
        for step in steps {
            self.count(1)?;
            let done = self.step(frame, &step.does, cx).map_err(|failure| {
                in_context(failure, || {
                    let (name, line) = (&frame.body.name, step.line);
                    format!("PL/pgSQL function {name} line {line} at {}", step.does.name())
                })
            });
            match done? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    fn step(
        &mut self,
        frame: &mut Frame<'_>,
        does: &Does,
        cx: &mut dyn Context,
    ) -> Result<Flow, Failure> {
        match does {
            Does::Nothing => {}
            Does::Return => return Ok(Flow::Return),
            Does::Block(block) => return self.block(frame, block, cx),
            Does::Assign(target, value) => self.assignment(frame, target, value, cx)?,
            Does::If { branches, otherwise } => {
                for (condition, steps) in branches {
                    if self.is_true(frame, condition, cx)? {
                        return self.steps(frame, steps, cx);
                    }
                }
                return self.steps(frame, otherwise, cx);
            }
            Does::Case { subject, branches, otherwise } => {
                if let Some((slot, compared)) = subject {
                    let (datum, ty) = self.evaluate(frame, compared, cx)?;
                    frame.slots.assign(&Target::Variable(*slot), datum, ty, &self.env.zone)?;
                }
                for (condition, steps) in branches {
                    if self.is_true(frame, condition, cx)? {
                        return self.steps(frame, steps, cx);
                    }
                }
                let Some(otherwise) = otherwise else {
                    let hint = "CASE statement is missing ELSE part.";
                    let error = SqlError::new(code::CASE_NOT_FOUND, "case not found");
                    return Err(error.with_hint(hint).into());
                };
                return self.steps(frame, otherwise, cx);
            }
            Does::Loop { label, condition, steps } => {
                return self.looped(frame, label.as_deref(), condition.as_ref(), steps, cx);
            }
            Does::For { label, targets, over, steps } => {
                return self.for_each(frame, (label.as_deref(), targets, over, steps), cx);
            }
            Does::Leave { is_continue, label, when } => {
                let is_meant = match when {
                    Some(when) => self.is_true(frame, when, cx)?,
                    None => true,
                };
                if is_meant {
                    let (is_continue, label) = (*is_continue, label.clone());
                    return Ok(Flow::Leave { is_continue, label });
                }
            }
            Does::Raise(raise) => self.raise(frame, raise, cx)?,
            Does::Assert { condition, message } => self.assert(frame, condition, message, cx)?,
            Does::Sql { query, into, is_perform } => {
                self.sql(frame, query, into.as_ref(), *is_perform, cx)?;
            }
            Does::Diagnostics(items) => self.diagnostics(frame, items)?,
        }
        Ok(Flow::Next)
    }

    fn assignment(
        &mut self,
        frame: &mut Frame<'_>,
        target: &Target,
        value: &Fragment,
        cx: &mut dyn Context,
    ) -> Result<(), Failure> {
        if frame.slots.is_record(target) {
            let (planned, executed) = self.fragment(frame, value, cx)?;
            let (targets, row) = (std::slice::from_ref(target), executed.rows.into_iter().next());
            let zone = &self.env.zone;
            return Ok(frame.slots.assign_row(targets, &planned.columns, row, zone)?);
        }
        let (datum, ty) = self.evaluate(frame, value, cx)?;
        Ok(frame.slots.assign(target, datum, ty, &self.env.zone)?)
    }

    fn block(
        &mut self,
        frame: &mut Frame<'_>,
        block: &Block,
        cx: &mut dyn Context,
    ) -> Result<Flow, Failure> {
        for (slot, value) in &block.declared {
            frame.slots.set(*slot, Datum::Null);
            if let Some(value) = value {
                self.assignment(frame, &Target::Variable(*slot), value, cx)?;
            }
        }
        let flow = if block.handlers.is_empty() {
            self.steps(frame, &block.steps, cx)?
        } else {
            self.guarded(frame, block, cx)?
        };
        Ok(match flow {
            Flow::Leave { is_continue: false, label: Some(label) }
                if block.label.as_ref() == Some(&label) =>
            {
                Flow::Next
            }
            other => other,
        })
    }

    /// Runs a block with handlers. If the block fails, its writes are rolled back.
    fn guarded(
        &mut self,
        frame: &mut Frame<'_>,
        block: &Block,
        cx: &mut dyn Context,
    ) -> Result<Flow, Failure> {
        let (deferred, depth, own) = (self.deferred.len(), self.depth, self.own.clone());
        let mut nested = Subtransaction::new(cx);
        let error = match self.steps(frame, &block.steps, &mut nested) {
            Ok(flow) => {
                nested.keep()?;
                return Ok(flow);
            }
            Err(Failure::Sql(error)) => error,
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
        };
        drop(nested);
        let handler = block.handlers.iter().find(|handler| handler.takes(&error));
        let Some(handler) = handler.filter(|_| self.steps_left > 0) else {
            return Err(error.into());
        };
        self.deferred.truncate(deferred);
        (self.depth, self.own) = (depth, own);
        if let Some((state, message)) = block.error {
            frame.slots.set(state, Datum::Text(error.code.as_str().to_owned()));
            frame.slots.set(message, Datum::Text(error.message.clone()));
        }
        let before = frame.error.replace(error);
        let flow = self.steps(frame, &handler.steps, cx);
        frame.error = before;
        flow
    }

    fn looped(
        &mut self,
        frame: &mut Frame<'_>,
        label: Option<&str>,
        condition: Option<&Fragment>,
        steps: &[Step],
        cx: &mut dyn Context,
    ) -> Result<Flow, Failure> {
        loop {
            self.count(1)?;
            if let Some(condition) = condition
                && !self.is_true(frame, condition, cx)?
            {
                return Ok(Flow::Next);
            }
            if let Some(flow) = self.round(frame, label, steps, cx)? {
                return Ok(flow);
            }
        }
    }

    /// Runs one iteration of a loop. Returns `None` to continue the loop, or the control flow after
    /// it.
    fn round(
        &mut self,
        frame: &mut Frame<'_>,
        label: Option<&str>,
        steps: &[Step],
        cx: &mut dyn Context,
    ) -> Result<Option<Flow>, Failure> {
        Ok(match self.steps(frame, steps, cx)? {
            Flow::Next => None,
            Flow::Leave { is_continue, label: meant }
                if meant.is_none() || meant.as_deref() == label =>
            {
                if is_continue {
                    None
                } else {
                    Some(Flow::Next)
                }
            }
            other => Some(other),
        })
    }

    fn for_each(
        &mut self,
        frame: &mut Frame<'_>,
        (label, targets, over, steps): (Option<&str>, &[Target], &Over, &[Step]),
        cx: &mut dyn Context,
    ) -> Result<Flow, Failure> {
        let (columns, rows) = match over {
            Over::Numbers(numbers) => {
                let bounds = self.bounds(frame, numbers, cx)?;
                let is_reverse = numbers.is_reverse;
                return self.count_up(frame, (label, &targets[0], bounds, is_reverse), steps, cx);
            }
            Over::Rows(query) => {
                let (columns, executed) = self.query(frame, query, cx)?;
                (columns, executed.rows)
            }
            Over::Elements(array) => self.elements(frame, array, cx)?,
        };
        let mut is_found = false;
        let mut flow = Flow::Next;
        for row in rows {
            self.count(1)?;
            is_found = true;
            frame.slots.assign_row(targets, &columns, Some(row), &self.env.zone)?;
            if let Some(over) = self.round(frame, label, steps, cx)? {
                flow = over;
                break;
            }
        }
        self.found(frame, is_found);
        Ok(flow)
    }

    fn elements(
        &mut self,
        frame: &mut Frame<'_>,
        array: &Fragment,
        cx: &mut dyn Context,
    ) -> Result<Found, Failure> {
        let (datum, ty) = self.evaluate(frame, array, cx)?;
        let Some(element) = ty.base.element() else {
            let message = format!("FOREACH expression must yield an array, not type {}", ty.base);
            return Err(SqlError::new(code::TYPE_MISMATCH, message).into());
        };
        let Datum::Array(array) = datum else {
            let message = "FOREACH expression must not be null";
            return Err(SqlError::new(code::NULL_NOT_ALLOWED, message).into());
        };
        let column = OutputColumn::new("", element);
        let rows = array.items().iter().map(|item| vec![item.clone()]).collect();
        Ok((vec![column], rows))
    }

    fn bounds(
        &mut self,
        frame: &mut Frame<'_>,
        numbers: &Numbers,
        cx: &mut dyn Context,
    ) -> Result<(i64, i64, i64), Failure> {
        let mut bound = |fragment: &Fragment, what: &str| {
            let datum = self.evaluate_as(frame, fragment, SqlType::Int4.into(), cx)?;
            match datum {
                Datum::Int(value) => Ok(value),
                _ => {
                    let message = format!("{what} of FOR loop cannot be null");
                    Err(Failure::from(SqlError::new(code::NULL_NOT_ALLOWED, message)))
                }
            }
        };
        let from = bound(&numbers.from, "lower bound")?;
        let to = bound(&numbers.to, "upper bound")?;
        let by = numbers.by.as_ref().map_or(Ok(1), |by| bound(by, "BY value"))?;
        if by <= 0 {
            let message = "BY value of FOR loop must be greater than zero";
            return Err(SqlError::new(code::INVALID_PARAMETER, message).into());
        }
        Ok((from, to, by))
    }

    fn count_up(
        &mut self,
        frame: &mut Frame<'_>,
        (label, target, (from, to, by), is_reverse): (Option<&str>, &Target, (i64, i64, i64), bool),
        steps: &[Step],
        cx: &mut dyn Context,
    ) -> Result<Flow, Failure> {
        let mut number = from;
        let mut flow = Flow::Next;
        let mut is_found = false;
        while if is_reverse { number >= to } else { number <= to } {
            self.count(1)?;
            is_found = true;
            let int = SqlType::Int4.into();
            frame.slots.assign(target, Datum::Int(number), int, &self.env.zone)?;
            if let Some(over) = self.round(frame, label, steps, cx)? {
                flow = over;
                break;
            }
            // Bounds and steps have 32 bits, so this does not overflow.
            number += if is_reverse { -by } else { by };
        }
        self.found(frame, is_found);
        Ok(flow)
    }

    pub(super) fn found(&self, frame: &mut Frame<'_>, is_found: bool) {
        if let Some(slot) = frame.found {
            frame.slots.set(slot, Datum::Bool(is_found));
        }
    }

    fn assert(
        &mut self,
        frame: &mut Frame<'_>,
        condition: &Fragment,
        message: &Option<Fragment>,
        cx: &mut dyn Context,
    ) -> Result<(), Failure> {
        if self.is_true(frame, condition, cx)? {
            return Ok(());
        }
        let mut text = "assertion failed".to_owned();
        if let Some(message) = message
            && let Datum::Text(given) =
                self.evaluate_as(frame, message, SqlType::Text.into(), cx)?
        {
            text = given;
        }
        Err(SqlError::new(code::ASSERT_FAILURE, text).into())
    }

    fn diagnostics(
        &mut self,
        frame: &mut Frame<'_>,
        items: &[(Target, Diagnostic)],
    ) -> Result<(), Failure> {
        for (target, item) in items {
            let text = |text: Option<&str>| Datum::Text(text.unwrap_or_default().to_owned());
            let error = frame.error.as_ref();
            let (datum, ty) = match item {
                Diagnostic::RowCount => (Datum::Int(frame.row_count as i64), SqlType::Int8),
                Diagnostic::State => (text(error.map(|it| it.code.as_str())), SqlType::Text),
                Diagnostic::Message => (text(error.map(|it| &*it.message)), SqlType::Text),
                Diagnostic::Detail => {
                    (text(error.and_then(|it| it.detail.as_deref())), SqlType::Text)
                }
                Diagnostic::Hint => (text(error.and_then(|it| it.hint.as_deref())), SqlType::Text),
            };
            frame.slots.assign(target, datum, ty.into(), &self.env.zone)?;
        }
        Ok(())
    }
}

impl Handler {
    /// Whether the handler catches an error.
    fn takes(&self, error: &SqlError) -> bool {
        // The session handles these errors, not the procedure.
        let is_ours = [code::TOO_FEW_NUMBERS, code::NOT_REPEATABLE].contains(&error.code);
        let from_outside = [code::QUERY_CANCELED, code::ADMIN_SHUTDOWN, code::ASSERT_FAILURE];
        !is_ours
            && self.conditions.iter().any(|condition| match condition {
                Condition::Others => !from_outside.contains(&error.code),
                Condition::Code(code) => conditions::is_of(error.code, *code),
            })
    }
}

/// Adds the context of an error, unless an inner statement has already set it.
fn in_context(failure: Failure, place: impl FnOnce() -> String) -> Failure {
    match failure {
        Failure::Sql(mut error) => {
            error.context.get_or_insert_with(place);
            error.into()
        }
        interrupted => interrupted,
    }
}
