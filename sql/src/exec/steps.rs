//! Execution of a writing statement: its steps, and the data that each of them sees.
//!
//! ```text
//!   before ---------- rows are found, subqueries are run ----------+
//!      ^                                                           |
//!      |  a statement of several steps, or with subqueries         v
//!   writes of the statement <-------- rows are written, keys are checked
//!      |
//!      +--> after all steps: foreign key actions and checks; then the writes are passed on
//! ```
//!
//! As in PostgreSQL, a step sees no writes of other steps, and it skips rows that another step has
//! written. Unique keys are checked across all steps.

use std::collections::BTreeSet;
use std::sync::Arc;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::Context;

use super::write::{self, Pending};
use super::{Executed, query};
use crate::error::Failure;
use crate::expr::Env;
use crate::plan::target::Targets;
use crate::plan::{Asked, Plan, Steps};
use crate::subtransaction::Subtransaction;
use crate::types::datum::Datum;

/// A writing statement in progress.
pub(super) struct Run<'a> {
    pub env: &'a Env,
    cx: StatementContext<'a>,
    /// Foreign key work that is deferred until all steps are done.
    pending: Vec<(&'a Targets, Pending)>,
    /// Rows written so far, for checks of later rows and steps.
    touched: BTreeSet<(TableId, Key)>,
    /// Whether the statement has several steps.
    pub is_several: bool,
    /// Number of rows proposed for insertion so far.
    pub inserted: usize,
}

/// The context that the statement reads and writes.
enum StatementContext<'a> {
    /// For one step that finishes reading before it begins to write.
    Same(&'a mut dyn Context),
    Apart(Subtransaction<'a>),
}

/// Runs a statement of one step.
pub(super) fn alone(plan: &Plan, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let cx = if plan.asks() {
        StatementContext::Apart(Subtransaction::new(cx))
    } else {
        StatementContext::Same(cx)
    };
    let mut run = Run::new(env, cx, false);
    let executed = run.step(plan)?;
    run.finish()?;
    Ok(executed)
}

/// Runs a statement of several steps and returns the result of the last one.
pub(super) fn all(steps: &Steps, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
    let mut run = Run::new(env, StatementContext::Apart(Subtransaction::new(cx)), true);
    let mut done = BTreeSet::new();
    for &at in &steps.reads {
        run.named(steps, at, &mut done)?;
    }
    let executed = run.step(&steps.last)?;
    // As in PostgreSQL, steps that no other step has read run in reverse order.
    for at in (0..steps.writes.len()).rev() {
        run.named(steps, at, &mut done)?;
    }
    run.finish()?;
    Ok(executed)
}

impl StatementContext<'_> {
    fn before(&mut self) -> &mut dyn Context {
        match self {
            Self::Same(cx) => *cx,
            Self::Apart(nested) => nested.below(),
        }
    }

    fn now(&mut self) -> &mut dyn Context {
        match self {
            Self::Same(cx) => *cx,
            Self::Apart(nested) => nested,
        }
    }
}

impl<'a> Run<'a> {
    fn new(env: &'a Env, cx: StatementContext<'a>, is_several: bool) -> Self {
        let (pending, touched) = (Vec::new(), BTreeSet::new());
        Self { env, cx, pending, touched, is_several, inserted: 0 }
    }

    /// The state before the statement.
    pub(super) fn before(&mut self) -> &mut dyn Context {
        self.cx.before()
    }

    /// The current state.
    pub(super) fn now(&mut self) -> &mut dyn Context {
        self.cx.now()
    }

    /// Runs a step of WITH and the steps that it reads, unless they have run.
    fn named(
        &mut self,
        steps: &'a Steps,
        at: usize,
        done: &mut BTreeSet<usize>,
    ) -> Result<(), Failure> {
        if !done.insert(at) {
            return Ok(());
        }
        let step = &steps.writes[at];
        assert!(step.reads.last().is_none_or(|last| *last < at), "a step reads those before it");
        for &read in &step.reads {
            self.named(steps, read, done)?;
        }
        let executed = self.step(&step.plan)?;
        self.env.given.borrow_mut().insert(step.relation, Arc::new(executed.rows));
        Ok(())
    }

    fn step(&mut self, plan: &'a Plan) -> Result<Executed, Failure> {
        let done = match plan {
            Plan::Insert(insert) => self.insert(insert),
            Plan::Update(update) => self.update(update),
            Plan::Delete(delete) => self.delete(delete),
            Plan::Select(select) => {
                let (rows, _) = query::run(select, self.env, self.before())?;
                let count = rows.len() as u64;
                return Ok(Executed { rows, count, ..Executed::default() });
            }
            other => unreachable!("{other:?} is no step of a statement"),
        };
        let written = plan.constrained();
        done.map_err(|failure| match written {
            Some(table) => failure.in_table(&table.name),
            None => failure,
        })
    }

    /// Defers the foreign key work of a step.
    pub(super) fn put_off(&mut self, targets: &'a Targets, pending: Pending) {
        self.pending.push((targets, pending));
    }

    /// Records that a row has been written.
    pub(super) fn touch(&mut self, table: TableId, key: Key) {
        self.touched.insert((table, key));
    }

    /// Whether the statement has already written a row.
    pub(super) fn has_touched(&self, table: TableId, key: &Key) -> bool {
        self.touched.contains(&(table, key.clone()))
    }

    /// Runs a query over `rows`.
    pub(super) fn ask(
        &mut self,
        asked: &Asked,
        rows: Vec<Vec<Datum>>,
    ) -> Result<Vec<Vec<Datum>>, Failure> {
        self.env.given.borrow_mut().insert(asked.relation, Arc::new(rows));
        let (rows, _) = query::run(&asked.rows, self.env, self.before())?;
        Ok(rows)
    }

    fn finish(mut self) -> Result<(), Failure> {
        let pending = std::mem::take(&mut self.pending);
        write::finish(pending, self.env, self.now())?;
        self.env.given.borrow_mut().clear();
        match self.cx {
            StatementContext::Same(_) => Ok(()),
            StatementContext::Apart(nested) => Ok(nested.keep()?),
        }
    }
}
