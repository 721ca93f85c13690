//! The kinds of planned statements.

use std::sync::Arc;

use super::steps::Steps;
use super::utility::Utility;
use super::{Call, CopyFrom, CopyTo, Delete, Insert, Planned, Select, Source, Update};
use crate::catalog::Table;
use crate::expr::Expr;

/// The action of a statement.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Select(Select),
    Insert(Insert),
    Update(Update),
    Delete(Delete),
    /// WITH that contains writes.
    Steps(Box<Steps>),
    CopyFrom(CopyFrom),
    CopyTo(CopyTo),
    /// CALL and DO.
    Call(Box<Call>),
    /// Statements about the catalog, roles and privileges, and those that only check something.
    Utility(Arc<dyn Utility>),
}

impl Planned {
    /// Whether it is sent as a certified transaction, by its reads and writes. Statements that read
    /// facts of a node must be, because no other node has these facts.
    pub(crate) fn is_certified(&self) -> bool {
        self.plan.is_certified() || self.reads_node
    }
}

impl Plan {
    /// Whether it may write.
    pub(crate) fn is_write(&self) -> bool {
        match self {
            Self::Select(_) | Self::CopyTo(_) => false,
            Self::Call(call) => call.effects.writes.is_some(),
            Self::Utility(statement) => statement.is_write(),
            Self::Insert(_)
            | Self::Update(_)
            | Self::Delete(_)
            | Self::Steps(_)
            | Self::CopyFrom(_) => true,
        }
    }

    /// Returns how many values it draws from the sequence at a position, as far as is known.
    pub(crate) fn draws(&self, at: usize) -> u64 {
        let draws = |exprs: &[Expr]| exprs.iter().map(|expr| expr.draws(at)).sum::<u64>();
        match self {
            Self::Insert(insert) => match &insert.source.source {
                Source::Values(rows) => {
                    let given = rows.iter().map(|row| draws(row)).sum::<u64>();
                    given + draws(&insert.columns) * rows.len() as u64
                }
                Source::Nothing | Source::Table(_) | Source::Query(_) => {
                    draws(&insert.source.output) + draws(&insert.columns)
                }
            },
            Self::Select(select) => draws(&select.output),
            Self::Steps(steps) => steps.plans().map(|plan| plan.draws(at)).sum(),
            Self::CopyFrom(copy) => draws(&copy.columns),
            Self::Call(_) => Call::NUMBERS,
            _ => 0,
        }
    }

    /// Returns the table whose constraints it may violate.
    pub(crate) fn constrained(&self) -> Option<&Table> {
        match self {
            Self::Insert(insert) => Some(&insert.targets.own().table),
            Self::Update(update) => Some(&update.access.table),
            Self::Delete(delete) => Some(&delete.access.table),
            Self::CopyFrom(copy) => Some(&copy.targets.own().table),
            Self::CopyTo(_)
            | Self::Select(_)
            | Self::Steps(_)
            | Self::Call(_)
            | Self::Utility(_) => None,
        }
    }

    /// Whether it runs subqueries while it writes.
    pub(crate) fn asks(&self) -> bool {
        match self {
            Self::Insert(insert) => insert.on_conflict.asks() || insert.returning.asks(),
            Self::Update(update) => update.returning.asks(),
            Self::Delete(delete) => delete.returning.asks(),
            _ => false,
        }
    }

    /// Whether DataFusion finds its rows, whose order may differ on another replica. Its reads and
    /// writes are then certified, and it runs in only one place.
    pub(crate) fn is_certified(&self) -> bool {
        let is_query = |select: &Select| matches!(select.source, Source::Query(_));
        match self {
            Self::Select(select) => is_query(select),
            Self::Insert(insert) => is_query(&insert.source) || self.asks(),
            Self::Update(update) => update.joined.is_some(),
            Self::Delete(delete) => delete.joined.is_some(),
            Self::Steps(_) => true,
            Self::Call(call) => call.effects.is_certified,
            _ => false,
        }
    }

    /// Whether it writes whole tables, so that running it on every replica is cheaper than shipping
    /// its writes.
    pub(crate) fn is_bulk(&self) -> bool {
        match self {
            Self::Utility(statement) => statement.is_bulk(),
            Self::Update(update) => update.filter.is_none() && update.joined.is_none(),
            Self::Delete(delete) => delete.filter.is_none() && delete.joined.is_none(),
            Self::CopyFrom(_)
            | Self::CopyTo(_)
            | Self::Select(_)
            | Self::Insert(_)
            | Self::Steps(_)
            | Self::Call(_) => false,
        }
    }

    /// Returns PostgreSQL's command tag.
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Select(_) => "SELECT",
            Self::Insert(_) => "INSERT",
            Self::Update(_) => "UPDATE",
            Self::Delete(_) => "DELETE",
            Self::Steps(steps) => steps.last.command(),
            Self::CopyFrom(_) => "COPY FROM",
            Self::CopyTo(_) => "COPY TO",
            Self::Call(call) if call.is_do => "DO",
            Self::Call(_) => "CALL",
            Self::Utility(statement) => statement.command(),
        }
    }
}
