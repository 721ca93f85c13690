//! The effects of a procedure, planned before it runs as far as they can be known.
//!
//! All steps are planned in the order of the text, whether or not they will be reached. For a step
//! that cannot be planned yet, such as one on a table that the procedure creates itself, the
//! analysis assumes the worst.

use std::sync::Arc;

use pangea_core::txn::Context;

use super::body::{Body, Does, Into, Over, Query, Step, Target};
use super::fragment::Fragment;
use super::hoisted_subqueries::Is;
use super::slots::Slots;
use crate::error::{Failure, SqlError};
use crate::plan::{Calls, Plan, Planned};
use crate::search_path::SearchPath;
use crate::sequence::Used;
use crate::types::SqlType;
use crate::vocabulary::column::OutputColumn;

/// The possible effects of a procedure.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcedureEffects {
    /// Whether it must run on one node, and be certified.
    pub is_certified: bool,
    /// The first command that may write.
    pub writes: Option<&'static str>,
    /// The sequences that it uses.
    pub sequences: Vec<Used>,
    /// Whether it may reposition sequences with `setval`.
    pub sets_sequences: bool,
    /// Whether it reads the state of the node.
    pub reads_node: bool,
}

impl ProcedureEffects {
    /// The effects of a procedure that cannot be inspected.
    pub(crate) fn unknown() -> Self {
        Self { is_certified: true, writes: Some("CALL"), ..Self::default() }
    }

    /// Analyzes a body. The result is valid while the catalog records that it read are unchanged.
    ///
    /// # Errors
    /// If the executor interrupts the run.
    #[recursive::recursive]
    pub(crate) fn of(body: &Body, calls: Calls<'_>, cx: &mut dyn Context) -> Result<Self, Failure> {
        let mut analysis = EffectsAnalysis {
            effects: Self::default(),
            slots: Slots::default(),
            is_strict: body.is_strict(),
            calls,
        };
        match Slots::of(body, calls.path.unwrap_or(&SearchPath::default()), cx) {
            Ok(slots) => {
                analysis.slots = slots;
                analysis.steps(&body.steps, cx)?;
            }
            Err(Failure::Sql(_)) => analysis.unknown(),
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
        }
        Ok(analysis.effects)
    }

    fn add(&mut self, planned: &Planned) {
        let writes = match &planned.plan {
            Plan::Call(call) => {
                self.is_certified |= call.effects.is_certified;
                call.effects.writes
            }
            plan => {
                self.is_certified |= plan.is_certified();
                planned.is_write().then(|| plan.command())
            }
        };
        self.writes = self.writes.or(writes);
        self.sets_sequences |= planned.sets_sequences;
        self.reads_node |= planned.reads_node;
        planned.sequences.iter().for_each(|used| used.add_to(&mut self.sequences));
    }
}

struct EffectsAnalysis<'a> {
    effects: ProcedureEffects,
    slots: Slots,
    is_strict: bool,
    calls: Calls<'a>,
}

impl EffectsAnalysis<'_> {
    /// Assumes the worst of a step.
    fn unknown(&mut self) {
        self.effects.is_certified = true;
        self.effects.writes.get_or_insert("CALL");
    }

    fn fragment(
        &mut self,
        fragment: &Fragment,
        cx: &mut dyn Context,
    ) -> Result<Option<Arc<Planned>>, Failure> {
        let mut lifted = Vec::with_capacity(fragment.lifted.len());
        for query in &fragment.lifted {
            let Some(planned) = self.fragment(&query.fragment, cx)? else { return Ok(None) };
            let value = planned.columns.first().map_or(SqlType::Text, |column| column.ty.base);
            lifted.push(if query.is == Is::Value { value } else { SqlType::Bool });
        }
        let signature = self.slots.signature(&fragment.visible, self.is_strict);
        let signature = fragment.seen(signature, &lifted);
        match fragment.plan(&signature, self.calls, cx) {
            Ok(planned) => {
                self.effects.add(&planned);
                Ok(Some(planned))
            }
            Err(Failure::Sql(SqlError { .. })) => {
                self.unknown();
                Ok(None)
            }
            Err(Failure::Interrupted) => Err(Failure::Interrupted),
        }
    }

    fn all<'f>(
        &mut self,
        fragments: impl IntoIterator<Item = &'f Fragment>,
        cx: &mut dyn Context,
    ) -> Result<(), Failure> {
        fragments.into_iter().try_for_each(|fragment| self.fragment(fragment, cx).map(|_| ()))
    }

    /// Gives records the columns of the row assigned to them.
    fn shape(&mut self, targets: &[Target], columns: Option<&[OutputColumn]>) {
        if let ([Target::Variable(slot)], Some(columns)) = (targets, columns) {
            self.slots.take_shape(*slot, columns);
        }
    }

    fn query(
        &mut self,
        query: &Query,
        cx: &mut dyn Context,
    ) -> Result<Option<Arc<Planned>>, Failure> {
        match query {
            Query::Written(fragment) => self.fragment(fragment, cx),
            Query::Computed { text, using } => {
                self.unknown();
                self.all(std::iter::once(text).chain(using), cx)?;
                Ok(None)
            }
        }
    }

    fn steps(&mut self, steps: &[Step], cx: &mut dyn Context) -> Result<(), Failure> {
        steps.iter().try_for_each(|step| self.step(&step.does, cx))
    }

    fn branches(
        &mut self,
        branches: &[(Fragment, Vec<Step>)],
        otherwise: &[Step],
        cx: &mut dyn Context,
    ) -> Result<(), Failure> {
        for (condition, steps) in branches {
            self.fragment(condition, cx)?;
            self.steps(steps, cx)?;
        }
        self.steps(otherwise, cx)
    }

    fn step(&mut self, does: &Does, cx: &mut dyn Context) -> Result<(), Failure> {
        match does {
            Does::Nothing | Does::Return | Does::Diagnostics(_) => Ok(()),
            Does::Block(block) => {
                self.all(block.declared.iter().filter_map(|(_, value)| value.as_ref()), cx)?;
                self.steps(&block.steps, cx)?;
                block.handlers.iter().try_for_each(|handler| self.steps(&handler.steps, cx))
            }
            Does::Assign(target, value) => {
                let planned = self.fragment(value, cx)?;
                let columns = planned.as_ref().map(|planned| &planned.columns[..]);
                self.shape(std::slice::from_ref(target), columns);
                Ok(())
            }
            Does::If { branches, otherwise } => self.branches(branches, otherwise, cx),
            Does::Case { subject, branches, otherwise } => {
                if let Some((slot, compared)) = subject
                    && let Some(planned) = self.fragment(compared, cx)?
                {
                    self.slots.take_shape(*slot, &planned.columns);
                }
                self.branches(branches, otherwise.as_deref().unwrap_or_default(), cx)
            }
            Does::Loop { condition, steps, .. } => {
                self.all(condition, cx)?;
                self.steps(steps, cx)
            }
            Does::For { targets, over, steps, .. } => {
                match over {
                    Over::Numbers(numbers) => {
                        let bounds = [&numbers.from, &numbers.to];
                        self.all(bounds.into_iter().chain(&numbers.by), cx)?;
                    }
                    Over::Elements(array) => self.all([array], cx)?,
                    Over::Rows(query) => {
                        let planned = self.query(query, cx)?;
                        self.shape(targets, planned.as_ref().map(|planned| &planned.columns[..]));
                    }
                }
                self.steps(steps, cx)
            }
            Does::Leave { when, .. } => self.all(when, cx),
            Does::Raise(raise) => self.all(raise.fragments(), cx),
            Does::Assert { condition, message } => {
                self.all(std::iter::once(condition).chain(message), cx)
            }
            Does::Sql { query, into, .. } => {
                let planned = self.query(query, cx)?;
                if let Some(Into { targets, .. }) = into {
                    self.shape(targets, planned.as_ref().map(|planned| &planned.columns[..]));
                }
                Ok(())
            }
        }
    }
}
