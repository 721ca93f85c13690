//! Steps over one input: DataFusion's interfaces, as far as all of our steps implement them alike.
//!
//! ```text
//!   logical     AddColumns<S>   S: Adding     apply.rs, project_set.rs
//!   physical    Unary<S>        S: Step       these two, sequential_partitions.rs,
//!                                             cooperative_yield.rs
//!   optimizer   Rule            a function    sequential_partitions.rs, cooperative_yield.rs,
//!                                             unordered_scan.rs
//! ```

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, DFSchemaRef};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{
    Expr as Logical, Extension, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::data_fusion::Physical;

/// A logical step that adds columns to the rows of its input.
pub(super) trait Adding:
    Clone + fmt::Debug + PartialEq + Hash + Send + Sync + 'static
{
    const NAME: &'static str;

    /// Returns its expressions over the rows of the input.
    fn exprs(&self) -> Vec<Logical>;

    /// Returns the step with other expressions, in the same order.
    fn with_exprs(&self, exprs: Vec<Logical>) -> Self;

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// The node of an [`Adding`] step. The added columns do not distinguish two nodes.
#[derive(Clone, Debug)]
pub(super) struct AddColumns<S> {
    pub step: S,
    input: LogicalPlan,
    /// All columns.
    pub schema: DFSchemaRef,
    /// The columns that this step adds.
    pub added: Arc<DFSchema>,
}

impl<S: Adding> AddColumns<S> {
    pub(super) fn plan(input: LogicalPlan, step: S, added: DFSchema) -> Result<LogicalPlan> {
        let schema = Arc::new(input.schema().join(&added)?);
        Ok(Self { step, input, schema, added: Arc::new(added) }.into_plan())
    }

    /// Returns the node with another step.
    pub(super) fn with_step(&self, step: S) -> LogicalPlan {
        Self { step, ..self.clone() }.into_plan()
    }

    fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// Returns the node if it is of this kind.
    pub(super) fn of(node: &dyn UserDefinedLogicalNode) -> Option<&Self> {
        node.as_any().downcast_ref()
    }
}

impl<S: Adding> PartialEq for AddColumns<S> {
    fn eq(&self, other: &Self) -> bool {
        self.input == other.input && self.step == other.step
    }
}

impl<S: Adding> Eq for AddColumns<S> {}

impl<S: Adding> Hash for AddColumns<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.input.hash(state);
        self.step.hash(state);
    }
}

impl<S: Adding> PartialOrd for AddColumns<S> {
    fn partial_cmp(&self, _: &Self) -> Option<Ordering> {
        None
    }
}

impl<S: Adding> UserDefinedLogicalNodeCore for AddColumns<S> {
    fn name(&self) -> &str {
        S::NAME
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Logical> {
        self.step.exprs()
    }

    /// A condition without the added columns can be pushed down to the input.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        self.added.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.step.show(f)
    }

    fn with_exprs_and_inputs(
        &self,
        exprs: Vec<Logical>,
        mut inputs: Vec<LogicalPlan>,
    ) -> Result<Self> {
        let input = inputs.swap_remove(0);
        let schema = Arc::new(input.schema().join(&self.added)?);
        let step = self.step.with_exprs(exprs);
        Ok(Self { step, input, schema, added: self.added.clone() })
    }
}

/// A physical step over one input.
pub(super) trait Step: fmt::Debug + Send + Sync + 'static {
    /// Whether the step is to be taken for its input: it has the input's name, and a downcast
    /// finds the input.
    const IS_HIDDEN: bool = false;

    fn name<'a>(&'a self, input: &'a Physical) -> &'a str;

    fn show(
        &self,
        input: &Physical,
        kind: DisplayFormatType,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result;

    /// Returns the properties of its rows. They declare no order, even if the step maintains that
    /// of its input: the optimizer would drop a sort below it.
    fn properties(&self, input: &Physical) -> Arc<PlanProperties>;

    /// Returns its expressions over the rows of the input.
    fn exprs(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        Vec::new()
    }

    /// Starts one partition of the step.
    fn execute(self: Arc<Self>, run: Run<'_>) -> Result<SendableRecordBatchStream>;
}

/// The start of one partition of a [`Step`].
pub(super) struct Run<'a> {
    pub input: &'a Physical,
    pub partition: usize,
    pub context: Arc<TaskContext>,
}

/// The node of a [`Step`].
#[derive(Debug)]
pub(super) struct Unary<S> {
    pub step: Arc<S>,
    input: Physical,
    properties: Arc<PlanProperties>,
}

impl<S: Step> Unary<S> {
    pub(super) fn plan(input: Physical, step: S) -> Physical {
        Self::over(input, Arc::new(step))
    }

    fn over(input: Physical, step: Arc<S>) -> Physical {
        let properties = step.properties(&input);
        Arc::new(Self { step, input, properties })
    }
}

impl<S: Step> DisplayAs for Unary<S> {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.step.show(&self.input, kind, f)
    }
}

impl<S: Step> ExecutionPlan for Unary<S> {
    fn name(&self) -> &str {
        self.step.name(&self.input)
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        S::IS_HIDDEN.then_some(self.input.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Physical> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.step.exprs(), f)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Physical>) -> Result<Physical> {
        Ok(Self::over(children.swap_remove(0), self.step.clone()))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.step.clone().execute(Run { input: &self.input, partition, context })
    }
}

/// A rule of the physical optimizer: its name, and the function that changes a plan.
#[derive(Debug)]
pub(super) struct Rule(pub &'static str, pub fn(Physical) -> Result<Physical>);

impl PhysicalOptimizerRule for Rule {
    fn optimize(&self, plan: Physical, _: &ConfigOptions) -> Result<Physical> {
        (self.1)(plan)
    }

    fn name(&self) -> &str {
        self.0
    }

    fn schema_check(&self) -> bool {
        true
    }
}
