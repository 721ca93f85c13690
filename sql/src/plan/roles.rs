//! Planning of required privileges, and of statements about roles.

use std::ops::Range;
use std::sync::Arc;

use sqlparser::ast;

use super::{DropTarget, Plan, Planner, Select};
use crate::authorization::{Needs, Required};
use crate::catalog::role::{Object, Privileges};
use crate::catalog::{QualifiedName, Table};
use crate::error::{Failure, SqlError, code};
use crate::expr::Expr;
use crate::syntax::{self, RoleStatement};

impl Planner<'_> {
    /// A statement about roles is planned when it runs, because it depends on its user.
    pub(super) fn role_statement(statement: &Arc<RoleStatement>) -> Plan {
        Plan::Utility(statement.clone())
    }

    /// Returns a table that must exist, and requires privileges on it.
    pub(super) fn table_for(
        &mut self,
        object: &ast::ObjectName,
        privileges: Privileges,
    ) -> Result<Arc<Table>, Failure> {
        let table = self.table_unchecked(object)?;
        self.required.push(Required::on_table(&table.name, privileges));
        Ok(table)
    }

    /// Like `table_for`, but reports a schema that does not exist.
    pub(super) fn own_table_for(
        &mut self,
        object: &ast::ObjectName,
        privileges: Privileges,
    ) -> Result<Arc<Table>, Failure> {
        self.check_schema_of(object)?;
        self.table_for(object, privileges)
    }

    /// Returns a table that must exist and that the user must own.
    pub(super) fn own_table(&mut self, object: &ast::ObjectName) -> Result<Arc<Table>, Failure> {
        self.check_schema_of(object)?;
        let table = self.table_unchecked(object)?;
        self.required.push(Required::owner(Object::Table(table.name.clone())));
        Ok(table)
    }

    /// Requires that the user owns the index of a table.
    pub(super) fn own_index(&mut self, table: &QualifiedName, index: &str) {
        let object = Object::Table(table.clone());
        let needs = Needs::Owner { index: Some(index.to_owned()) };
        self.required.push(Required::new(object, needs));
    }

    /// Turns requirements for reading the target of a write, at these positions, into those for
    /// writing it. SELECT is added if a column is read.
    pub(super) fn writes<'e>(
        &mut self,
        needed: Range<usize>,
        privileges: Privileges,
        exprs: impl IntoIterator<Item = &'e Expr>,
    ) {
        let reads = exprs.into_iter().any(|expr| !expr.columns().is_empty());
        let more = if reads { Privileges::SELECT } else { Privileges::default() };
        for required in &mut self.required[needed] {
            required.needs = Needs::All(privileges.and(more));
        }
    }

    /// Requires the privileges of an INSERT. SELECT is added if one of its columns is read.
    pub(super) fn inserts(
        &mut self,
        needed: Range<usize>,
        insert: &ast::Insert,
        returning: &[Expr],
    ) {
        let privileges = match &insert.on {
            Some(ast::OnInsert::OnConflict(conflict)) => match &conflict.action {
                ast::OnConflictAction::DoUpdate(_) => Privileges::UPDATE.and(Privileges::SELECT),
                ast::OnConflictAction::DoNothing if conflict.conflict_target.is_some() => {
                    Privileges::SELECT
                }
                ast::OnConflictAction::DoNothing => Privileges::default(),
            },
            _ => Privileges::default(),
        };
        self.writes(needed, privileges.and(Privileges::INSERT), returning);
    }

    /// FOR UPDATE and FOR SHARE: requires that the read relations are also writable.
    pub(super) fn locks(&mut self, query: &ast::Query, select: &Select) -> Result<(), Failure> {
        let Some(lock) = query.locks.first() else { return Ok(()) };
        let kind = lock.lock_type;
        let refused = match &*query.body {
            ast::SetExpr::Select(body) => {
                let is_group_by = !matches!(&body.group_by,
                    ast::GroupByExpr::Expressions(keys, _) if keys.is_empty());
                let clauses = [
                    (body.distinct.is_some(), "DISTINCT clause"),
                    (is_group_by, "GROUP BY clause"),
                    (body.having.is_some(), "HAVING clause"),
                    (select.grouping.is_some(), "aggregate functions"),
                ];
                clauses.into_iter().find(|(is_there, _)| *is_there).map(|(_, clause)| clause)
            }
            ast::SetExpr::SetOperation { .. } => Some("UNION/INTERSECT/EXCEPT"),
            _ => None,
        };
        if let Some(clause) = refused {
            let message = format!("FOR {kind} is not allowed with {clause}");
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).into());
        }
        for name in query.locks.iter().filter_map(|lock| lock.of.as_ref()) {
            let wanted = syntax::name_parts(name)?.pop().unwrap_or_default();
            if let ast::SetExpr::Select(body) = &*query.body
                && !body.from.iter().any(|table| has_relation(table, &wanted))
            {
                let message =
                    format!("relation \"{wanted}\" in FOR {kind} clause not found in FROM clause");
                let error = SqlError::new(code::UNDEFINED_TABLE, message);
                return Err(self.error_at(error, syntax::location(name)));
            }
        }
        for required in &mut self.required {
            if required.needs == Needs::All(Privileges::SELECT) {
                required.needs = Needs::All(Privileges::SELECT.and(Privileges::UPDATE));
            }
        }
        Ok(())
    }

    /// Requires that the user owns the dropped relations.
    pub(super) fn require_owner(&mut self, kind: ast::ObjectType, names: &[DropTarget]) {
        let of: fn(QualifiedName) -> Object = match kind {
            ast::ObjectType::Table => Object::Table,
            ast::ObjectType::Sequence => Object::Sequence,
            ast::ObjectType::View => Object::View,
            _ => return,
        };
        let names = names.iter().filter_map(|meant| meant.name.clone().ok());
        self.required.extend(names.map(|name| Required::owner(of(name))));
    }

    /// Requires the privileges on sequences that expressions use.
    pub(super) fn require_sequences(&mut self) -> Result<(), Failure> {
        for (name, any) in std::mem::take(&mut self.params.needs) {
            let name = self.sequence_named(&name)?;
            self.required.push(Required::new(Object::Sequence(name), Needs::Any(any)));
        }
        Ok(())
    }
}

/// Whether one of the joined relations has this name.
fn has_relation(table: &ast::TableWithJoins, wanted: &str) -> bool {
    let factors =
        std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation));
    factors.into_iter().any(|factor| match factor {
        ast::TableFactor::Table { alias: Some(alias), .. }
        | ast::TableFactor::Derived { alias: Some(alias), .. } => {
            syntax::name(&alias.name) == wanted
        }
        ast::TableFactor::Table { name, .. } => {
            let parts = syntax::name_parts(name).unwrap_or_default();
            parts.last().is_some_and(|name| name == wanted)
        }
        ast::TableFactor::NestedJoin { table_with_joins, .. } => {
            has_relation(table_with_joins, wanted)
        }
        _ => false,
    })
}
