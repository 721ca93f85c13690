//! Volatile conditions, such as `WHERE random() < 0.5`.
//!
//! They are evaluated for each row at their place in the plan. DataFusion could move a condition
//! without columns to any part of the plan. It would then be evaluated for the rows of one side of
//! a join.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::common::DFSchemaRef;
use datafusion::error::Result;
use datafusion::logical_expr::{
    Expr as Logical, Extension, LogicalPlan, UserDefinedLogicalNodeCore,
};

/// The rows of a plan for which a volatile condition holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Chance {
    input: LogicalPlan,
    pub condition: Logical,
}

impl Chance {
    pub(super) fn plan(input: LogicalPlan, condition: Logical) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(Self { input, condition }) })
    }
}

impl PartialOrd for Chance {
    fn partial_cmp(&self, _: &Self) -> Option<Ordering> {
        None
    }
}

impl UserDefinedLogicalNodeCore for Chance {
    fn name(&self) -> &str {
        "Chance"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Logical> {
        vec![self.condition.clone()]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chance: {}", self.condition)
    }

    fn with_exprs_and_inputs(
        &self,
        mut exprs: Vec<Logical>,
        mut inputs: Vec<LogicalPlan>,
    ) -> Result<Self> {
        Ok(Self { input: inputs.swap_remove(0), condition: exprs.swap_remove(0) })
    }
}
