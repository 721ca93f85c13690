//! Stands in for the module in a build without the cargo feature `relational`.

use pangea_core::txn::Context;

use crate::error::Failure;
use crate::explain::Node;
use crate::explain::statement::Showing;
use crate::expr::query::Query;

impl Showing<'_> {
    pub(in crate::explain) fn query(
        &self,
        query: &Query,
        _: &mut dyn Context,
    ) -> Result<Node, Failure> {
        query.plan.never()
    }
}
