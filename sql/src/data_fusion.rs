//! The types of DataFusion's plans, for the modules below [`relational`](crate::relational): they
//! hold such plans, and never look into them.
//!
//! A build without the cargo feature `relational` cannot make a value of these types. What it would
//! do with one need not be written.

#[cfg(feature = "relational")]
mod types {
    use std::sync::Arc;

    pub(crate) use datafusion::logical_expr::LogicalPlan;
    use datafusion::physical_plan::ExecutionPlan;

    /// An executable plan.
    pub(crate) type Physical = Arc<dyn ExecutionPlan>;
}

#[cfg(not(feature = "relational"))]
mod types {
    use std::convert::Infallible;

    /// A plan that no build without DataFusion has.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct LogicalPlan(Infallible);

    pub(crate) type Physical = LogicalPlan;

    impl LogicalPlan {
        /// Returns whatever the caller wants: there is no plan to call this for.
        pub(crate) fn never(&self) -> ! {
            match self.0 {}
        }
    }
}

pub(crate) use types::{LogicalPlan, Physical};
