//! What statements do, once they are planned.

use std::sync::Arc;

use super::{
    Alter, AlterType, Call, Comment, CopyFrom, CopyTo, CreateProcedure, CreateSequence,
    CreateTable, CreateType, CreateView, Delete, DropProcedures, DropTables, Insert, Select,
    Source, Truncate, Update,
};
use crate::catalog::Table;
use crate::syntax::RoleStatement;

/// What a statement does.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Select(Select),
    Insert(Insert),
    Update(Update),
    Delete(Delete),
    CreateTable(CreateTable),
    DropTables(DropTables),
    Truncate(Truncate),
    Alter(Box<Alter>),
    CreateSequence(CreateSequence),
    DropSequences(DropTables),
    CreateView(Box<CreateView>),
    DropViews(DropTables),
    CreateType(CreateType),
    AlterType(AlterType),
    DropTypes(DropTables),
    Comment(Comment),
    CopyFrom(CopyFrom),
    CopyTo(CopyTo),
    CreateProcedure(Box<CreateProcedure>),
    DropProcedures(DropProcedures),
    /// CALL and DO.
    Call(Box<Call>),
    /// About roles and privileges.
    Role(Arc<RoleStatement>),
    /// The names of all tables.
    ShowTables,
}

impl Plan {
    /// Whether it may write.
    pub(crate) fn is_write(&self) -> bool {
        match self {
            Self::Select(_) | Self::CopyTo(_) | Self::ShowTables => false,
            Self::Call(call) => call.survey.writes.is_some(),
            _ => true,
        }
    }

    /// The table whose constraints it may violate.
    pub(crate) fn constrained(&self) -> Option<&Table> {
        match self {
            Self::Insert(insert) => Some(&insert.targets.own().table),
            Self::Update(update) => Some(&update.access.table),
            Self::Delete(delete) => Some(&delete.access.table),
            Self::CopyFrom(copy) => Some(&copy.targets.own().table),
            Self::CopyTo(_)
            | Self::Select(_)
            | Self::CreateTable(_)
            | Self::DropTables(_)
            | Self::Truncate(_)
            | Self::Alter(_)
            | Self::CreateSequence(_)
            | Self::DropSequences(_)
            | Self::CreateView(_)
            | Self::DropViews(_)
            | Self::CreateType(_)
            | Self::AlterType(_)
            | Self::DropTypes(_)
            | Self::Comment(_)
            | Self::CreateProcedure(_)
            | Self::DropProcedures(_)
            | Self::Call(_)
            | Self::Role(_)
            | Self::ShowTables => None,
        }
    }

    /// Whether DataFusion finds its rows, whose order on another replica may be another: what it
    /// read and wrote is then certified, and it is run in one place alone.
    pub(crate) fn is_certified(&self) -> bool {
        let is_query = |select: &Select| matches!(select.source, Source::Query(_));
        match self {
            Self::Select(select) => is_query(select),
            Self::Insert(insert) => is_query(&insert.source),
            Self::Update(update) => update.joined.is_some(),
            Self::Delete(delete) => delete.joined.is_some(),
            Self::Call(call) => call.survey.is_certified,
            _ => false,
        }
    }

    /// Whether it writes whole tables, so that running it everywhere is cheaper than its writes.
    pub(crate) fn is_bulk(&self) -> bool {
        match self {
            Self::DropTables(_) | Self::Truncate(_) | Self::Alter(_) => true,
            Self::Update(update) => update.filter.is_none() && update.joined.is_none(),
            Self::Delete(delete) => delete.filter.is_none() && delete.joined.is_none(),
            Self::CopyFrom(_)
            | Self::CopyTo(_)
            | Self::Select(_)
            | Self::Insert(_)
            | Self::CreateTable(_)
            | Self::CreateSequence(_)
            | Self::DropSequences(_)
            | Self::CreateView(_)
            | Self::DropViews(_)
            | Self::CreateType(_)
            | Self::AlterType(_)
            | Self::DropTypes(_)
            | Self::Comment(_)
            | Self::CreateProcedure(_)
            | Self::DropProcedures(_)
            | Self::Call(_)
            | Self::Role(_)
            | Self::ShowTables => false,
        }
    }

    /// What PostgreSQL calls the command.
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Select(_) => "SELECT",
            Self::Insert(_) => "INSERT",
            Self::Update(_) => "UPDATE",
            Self::Delete(_) => "DELETE",
            Self::CreateTable(_) => "CREATE TABLE",
            Self::DropTables(_) => "DROP TABLE",
            Self::Truncate(_) => "TRUNCATE TABLE",
            Self::Alter(alter) => alter.command,
            Self::CreateSequence(_) => "CREATE SEQUENCE",
            Self::DropSequences(_) => "DROP SEQUENCE",
            Self::CreateView(_) => "CREATE VIEW",
            Self::DropViews(_) => "DROP VIEW",
            Self::CreateType(_) => "CREATE TYPE",
            Self::AlterType(_) => "ALTER TYPE",
            Self::DropTypes(_) => "DROP TYPE",
            Self::Comment(_) => "COMMENT",
            Self::CopyFrom(_) => "COPY FROM",
            Self::CopyTo(_) => "COPY TO",
            Self::CreateProcedure(_) => "CREATE PROCEDURE",
            Self::DropProcedures(_) => "DROP PROCEDURE",
            Self::Call(call) if call.is_do => "DO",
            Self::Call(_) => "CALL",
            Self::Role(role) => role.tag(),
            Self::ShowTables => "SHOW",
        }
    }
}
