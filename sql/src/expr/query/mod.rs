//! The parts of queries that contain expressions: calls of aggregates, of set-returning functions
//! and of window functions, and subqueries.

mod aggregate;
mod set_returning;
mod subquery;
mod window;

pub(crate) use aggregate::Aggregate;
pub(crate) use set_returning::Called;
pub(crate) use subquery::{Keyed, Query, Shape, Split, Subquery, SubqueryKind};
pub(crate) use window::{Frame, FrameBound, Over, Window};
