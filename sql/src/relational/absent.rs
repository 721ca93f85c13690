//! Stands in for the module in a build without the cargo feature `relational`.
//!
//! The planner may ask for a plan of DataFusion, and gets an error. So no plan exists, and the
//! functions over plans have no body.

mod block;
mod init_plan;

use std::ops::ControlFlow;

use pangea_core::txn::Context;

use crate::catalog::Sequence;
use crate::data_fusion::LogicalPlan;
use crate::error::{Failure, SqlError, code};
use crate::expr::query::{Called, Query};
use crate::expr::{Env, Expr};
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::vocabulary::column::ColumnId;
use crate::vocabulary::system::SystemTable;
pub(crate) use block::{
    Block, Distinct, From, GroupBy, JoinKind, Numbers, RELATIONS_MAX, SetOperation,
};
pub(crate) use init_plan::{INIT_SEQUENCE_FIRST, init_plan_of};

type Planned = Result<LogicalPlan, SqlError>;

/// The error for a query that needs DataFusion.
fn absent() -> SqlError {
    let message =
        "the query is not supported: this binary was built without the feature \"relational\"";
    let detail = "Joins, subqueries, views, window functions and the system catalog need it.";
    let hint = "Build it with cargo build, without --no-default-features.";
    SqlError::new(code::FEATURE_NOT_SUPPORTED, message).with_detail(detail).with_hint(hint)
}

impl From {
    pub(crate) fn plan(self) -> Planned {
        Err(absent())
    }
}

pub(crate) fn lower(_: Block, _: u32, _: &mut Numbers) -> Planned {
    Err(absent())
}

pub(crate) fn system_scan(_: &'static SystemTable, _: u32) -> Planned {
    Err(absent())
}

pub(crate) fn sequence_scan(_: String, _: Sequence, _: u32) -> Planned {
    Err(absent())
}

pub(crate) fn given(_: &[SqlType], _: u32) -> Result<Query, SqlError> {
    Err(absent())
}

pub(crate) fn work_table(_: &str, _: &[SqlType], _: u32) -> Result<Query, SqlError> {
    Err(absent())
}

pub(crate) fn renamed(query: &Query, _: u32) -> Planned {
    query.plan.never()
}

pub(crate) fn recursive(
    _: &str,
    (first, _): (Query, Query),
    _: bool,
    _: u32,
) -> Result<Query, SqlError> {
    first.plan.never()
}

pub(crate) fn combined(
    _: SetOperation,
    _: bool,
    (left, _): (Query, Query),
    _: u32,
    _: &mut Numbers,
) -> Result<Query, SqlError> {
    left.plan.never()
}

pub(crate) fn join(
    left: LogicalPlan,
    _: LogicalPlan,
    _: JoinKind,
    _: Option<Expr>,
    _: &[(ColumnId, SqlType)],
) -> Planned {
    left.never()
}

pub(crate) fn lateral(
    left: LogicalPlan,
    _: &Query,
    _: &[(ColumnId, SqlType)],
    _: u32,
    _: bool,
) -> Planned {
    left.never()
}

pub(crate) fn filtered(
    plan: LogicalPlan,
    _: Expr,
    _: &[(ColumnId, SqlType)],
    _: &mut Numbers,
) -> Planned {
    plan.never()
}

pub(crate) fn with_columns(
    plan: LogicalPlan,
    _: &[(ColumnId, SqlType)],
    _: Vec<(Expr, SqlType)>,
    _: u32,
) -> Planned {
    plan.never()
}

pub(crate) fn answered(
    plan: LogicalPlan,
    _: &[(ColumnId, SqlType)],
    _: Vec<(Expr, SqlType)>,
    _: u32,
    _: &mut Numbers,
) -> Planned {
    plan.never()
}

pub(crate) fn expand(
    plan: LogicalPlan,
    _: &[(ColumnId, SqlType)],
    _: &[Called],
    _: (bool, bool),
    _: u32,
    _: &mut Numbers,
) -> Planned {
    plan.never()
}

pub(crate) fn names_outer(plan: &LogicalPlan) -> bool {
    plan.never()
}

impl Query {
    pub(crate) fn with_types(self, _: &[SqlType]) -> Result<Self, SqlError> {
        self.plan.never()
    }
}

type OnRow<'a> = dyn FnMut(Vec<Datum>) -> Result<ControlFlow<()>, Failure> + 'a;

pub(crate) fn run(
    query: &Query,
    _: &Env,
    _: &mut dyn Context,
    _: &mut OnRow<'_>,
) -> Result<(), Failure> {
    query.plan.never()
}

#[derive(Debug)]
pub(crate) struct Running(LogicalPlan);

impl Running {
    pub(crate) fn open(query: &Query, _: &Env, _: &mut dyn Context) -> Result<Self, Failure> {
        query.plan.never()
    }

    pub(crate) fn fill(
        &mut self,
        _: &Env,
        _: &mut dyn Context,
        _: &mut OnRow<'_>,
    ) -> Result<bool, Failure> {
        self.0.never()
    }
}
