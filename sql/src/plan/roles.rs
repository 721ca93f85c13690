//! Planning of what statements need of privileges, and of statements about roles.

use std::sync::Arc;

use sqlparser::ast;

use super::{Plan, Planner};
use crate::authorization::{Needs, Required};
use crate::catalog::Table;
use crate::catalog::role::{Object, Privileges};
use crate::error::Failure;
use crate::expr::Expr;
use crate::expr::bind::SequenceName;
use crate::syntax::RoleStatement;

impl Planner<'_> {
    /// A statement about roles is planned when it runs: it depends on its user.
    pub(super) fn role_statement(statement: &Arc<RoleStatement>) -> Plan {
        Plan::Role(statement.clone())
    }

    /// The schema of a table that must exist, and that the statement does something with.
    pub(super) fn table_for(
        &mut self,
        object: &ast::ObjectName,
        privileges: Privileges,
    ) -> Result<Arc<Table>, Failure> {
        let table = self.table_unchecked(object)?;
        self.required.push(Required::on_table(&table.name, privileges));
        Ok(table)
    }

    /// The schema of a table that must exist, and belong to the user.
    pub(super) fn own_table(&mut self, object: &ast::ObjectName) -> Result<Arc<Table>, Failure> {
        let table = self.table_unchecked(object)?;
        self.required.push(Required::owner(Object::Table(table.name.clone())));
        Ok(table)
    }

    /// The index of a table that must belong to the user.
    pub(super) fn own_index(&mut self, table: &str, index: &str) {
        let object = Object::Table(table.to_owned());
        let needs = Needs::Owner { index: Some(index.to_owned()) };
        self.required.push(Required::new(object, needs));
    }

    /// What a statement writes that has been resolved as what is read: at a place among what it
    /// requires. It must be readable too where a column of it is read.
    pub(super) fn writes<'e>(
        &mut self,
        at: usize,
        privileges: Privileges,
        exprs: impl IntoIterator<Item = &'e Expr>,
    ) {
        let reads = exprs.into_iter().any(|expr| !expr.columns().is_empty());
        let more = if reads { Privileges::SELECT } else { Privileges::default() };
        self.required[at].needs = Needs::All(privileges.and(more));
    }

    /// An INSERT: it must be readable too where one of its columns is read.
    pub(super) fn inserts(&mut self, at: usize, insert: &ast::Insert, returning: &[Expr]) {
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
        self.writes(at, privileges.and(Privileges::INSERT), returning);
    }

    /// FOR UPDATE, FOR SHARE: what is read must be writable too.
    pub(super) fn locks(&mut self, query: &ast::Query) {
        if query.locks.is_empty() {
            return;
        }
        for required in &mut self.required {
            if required.needs == Needs::All(Privileges::SELECT) {
                required.needs = Needs::All(Privileges::SELECT.and(Privileges::UPDATE));
            }
        }
    }

    /// What is dropped must belong to the user.
    pub(super) fn require_owner(&mut self, kind: ast::ObjectType, names: &[String]) {
        let of: fn(String) -> Object = match kind {
            ast::ObjectType::Table => Object::Table,
            ast::ObjectType::Sequence => Object::Sequence,
            ast::ObjectType::View => Object::View,
            _ => return,
        };
        self.required.extend(names.iter().map(|name| Required::owner(of(name.clone()))));
    }

    /// What expressions do with sequences, their user must be allowed to.
    pub(super) fn require_sequences(&mut self) -> Result<(), Failure> {
        for (name, any) in std::mem::take(&mut self.params.needs) {
            let name = match name {
                SequenceName::Named(name) => name,
                SequenceName::OfColumn { table, column } => self.sequence_of(&table, &column)?,
            };
            self.required.push(Required::new(Object::Sequence(name), Needs::Any(any)));
        }
        Ok(())
    }
}
