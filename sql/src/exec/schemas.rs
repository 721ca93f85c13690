//! Execution of CREATE SCHEMA, ALTER SCHEMA and DROP SCHEMA.

use std::ops::ControlFlow;

use pangea_core::key::Direction;
use pangea_core::txn::Scan;

use super::roles::{Running, give, refused};
use super::{ddl, sequences, views};
use crate::authorization::{self, Required, not_owner};
use crate::catalog::procedure::{self, Procedure};
use crate::catalog::role::{self, Access, Object};
use crate::catalog::{
    self, BOOTSTRAP, CATALOG, PUBLIC, QualifiedName, Relation, Table, View, comment, schema,
};
use crate::error::{Failure, SqlError, code};
use crate::notice::Notice;
use crate::search_path::shown;
use crate::syntax::quoted;
use crate::syntax::roles::{RoleName, SchemaStatement};
use crate::system::schema_number;
use crate::vocabulary::system::PG_NAMESPACE;

/// An object in a schema, or an object in another schema that depends on one.
enum Content {
    Table(Table),
    View(View),
    Sequence(QualifiedName),
    Procedure(Procedure),
    /// A foreign key of a table in another schema. It is dropped with the table that it references.
    Key,
}

/// The contents of a schema: number, object, description, and the description of the object that it
/// depends on.
type Contents = Vec<(u32, Content, String, String)>;

impl Running<'_> {
    pub(super) fn schema_statement(&mut self, statement: &SchemaStatement) -> Result<(), Failure> {
        match statement {
            SchemaStatement::Create { name, owner, if_not_exists } => {
                self.create_schema(name.as_deref(), owner.as_ref(), *if_not_exists)
            }
            SchemaStatement::Own { name, owner } => self.own_schema(name, owner),
            SchemaStatement::Drop { names, if_exists, is_cascade } => {
                names.iter().try_for_each(|name| self.drop_schema(name, *if_exists, *is_cascade))
            }
        }
    }

    fn create_schema(
        &mut self,
        name: Option<&str>,
        owner: Option<&RoleName>,
        if_not_exists: bool,
    ) -> Result<(), Failure> {
        let owner = match owner {
            Some(owner) => self.named(owner)?,
            None => super::roles::owner_of_new(self.env, self.cx)?,
        };
        let name = name.unwrap_or(&owner);
        if !self.is_superuser() {
            let database = &self.env.database;
            return Err(refused(format!("permission denied for database {database}")));
        }
        crate::plan::check_name(name)?;
        if name.starts_with("pg_") && !schema::SYSTEM.contains(&name) {
            let message = format!("unacceptable schema name \"{name}\"");
            let detail = "The prefix \"pg_\" is reserved for system schemas.";
            return Err(SqlError::new(code::RESERVED_NAME, message).with_detail(detail).into());
        }
        if schema::is_there(name, self.cx)? {
            let message = format!("schema \"{name}\" already exists");
            if !if_not_exists {
                return Err(SqlError::new(code::DUPLICATE_SCHEMA, message).into());
            }
            let notice = Notice::plain(format!("{message}, skipping"));
            self.notices.push(Notice { code: code::DUPLICATE_SCHEMA, ..notice });
            return Ok(());
        }
        schema::make(name, self.cx)?;
        if owner != BOOTSTRAP {
            let object = Object::Schema(name.to_owned());
            role::put_access(&object, &Access::of(&owner), self.cx)?;
        }
        Ok(())
    }

    /// Returns a schema that must exist and belong to the user.
    fn own_object(&mut self, name: &str) -> Result<Object, Failure> {
        let object = Object::Schema(name.to_owned());
        let required = Required::owner(object.clone());
        if schema::SYSTEM.contains(&name) && !self.is_superuser() {
            return Err(not_owner(&object, None).into());
        }
        authorization::check(&[required], self.env.current_user(), self.cx)?;
        Ok(object)
    }

    fn own_schema(&mut self, name: &str, owner: &RoleName) -> Result<(), Failure> {
        if !schema::is_there(name, self.cx)? {
            return Err(SqlError::undefined_schema(name).into());
        }
        let owner = self.named(owner)?;
        let object = self.own_object(name)?;
        if schema::SYSTEM.contains(&name) {
            return Err(SqlError::unsupported("changing the owner of a system schema").into());
        }
        if !self.is_superuser() {
            if !role::roles_of(&self.env.user, |_| true, self.cx)?.contains(&owner) {
                return Err(refused(format!("must be member of role \"{owner}\"")));
            }
            let database = &self.env.database;
            return Err(refused(format!("permission denied for database {database}")));
        }
        give(&object, &owner, self.cx)
    }

    fn drop_schema(
        &mut self,
        name: &str,
        if_exists: bool,
        is_cascade: bool,
    ) -> Result<(), Failure> {
        if !schema::is_there(name, self.cx)? {
            if !if_exists {
                return Err(SqlError::undefined_schema(name).into());
            }
            let message = format!("schema \"{name}\" does not exist, skipping");
            self.notices.push(Notice::plain(message));
            return Ok(());
        }
        let object = self.own_object(name)?;
        if schema::SYSTEM.contains(&name) {
            let message =
                format!("cannot drop schema {name} because it is required by the database system");
            return Err(SqlError::new(code::DEPENDENT_OBJECTS, message).into());
        }
        if name == PUBLIC {
            return Err(SqlError::unsupported("DROP SCHEMA public").into());
        }
        let contents = self.contents(name)?;
        if !is_cascade && !contents.is_empty() {
            let message = format!("cannot drop schema {name} because other objects depend on it");
            let lines = contents.iter().map(|(_, _, it, on)| format!("{it} depends on {on}"));
            let error = SqlError::new(code::DEPENDENT_OBJECTS, message)
                .with_detail(lines.collect::<Vec<_>>().join("\n"))
                .with_hint("Use DROP ... CASCADE to drop the dependent objects too.");
            return Err(error.into());
        }
        self.tell_dropped(&contents);
        self.drop_contents(contents)?;
        let number = schema::number(name, self.cx)?;
        comment::forget(PG_NAMESPACE, schema_number(name, number), self.cx)?;
        schema::remove(name, self.cx)?;
        Ok(role::remove_access(&object, self.cx)?)
    }

    fn tell_dropped(&mut self, contents: &Contents) {
        let lines = contents.iter().map(|(_, _, it, _)| format!("drop cascades to {it}"));
        let lines: Vec<String> = lines.collect();
        match &lines[..] {
            [] => {}
            [one] => self.notices.push(Notice::plain(one.clone())),
            all => {
                let message = format!("drop cascades to {} other objects", all.len());
                let detail = Some(all.join("\n"));
                self.notices.push(Notice { detail, ..Notice::plain(message) });
            }
        }
    }

    /// Returns the contents of a schema and their dependents in other schemas, in order of
    /// creation.
    fn contents(&mut self, schema: &str) -> Result<Contents, Failure> {
        let path = self.env.path_setting().resolve(self.cx)?;
        let (range, direction) = (catalog::relation_keys(), Direction::Forward);
        let mut records = Vec::new();
        self.cx.scan(&Scan { table: CATALOG, range, direction }, &mut |key, record| {
            let name = catalog::relation_of_key(key);
            if let Some(name) = name.filter(|name| name.schema() == schema) {
                records.push((name, Relation::decode(record)));
            }
            ControlFlow::Continue(())
        })?;
        let on = format!("schema {}", quoted(schema));
        let mut found = Contents::new();
        for (name, relation) in records {
            let shown = self.shown(&name)?;
            let on = on.clone();
            match relation? {
                Relation::Table(table) => {
                    self.dependents(&table, schema, &mut found)?;
                    found.push((table.id.0, Content::Table(table), format!("table {shown}"), on));
                }
                Relation::View(view) => {
                    let number = view.id.0;
                    self.dependent_views(("view", &name, number), schema, &mut found)?;
                    found.push((number, Content::View(view), format!("view {shown}"), on));
                }
                Relation::Sequence(sequence) if sequence.owner.is_none() => {
                    let shown = format!("sequence {shown}");
                    found.push((sequence.id, Content::Sequence(name), shown, on));
                }
                Relation::Sequence(_) | Relation::Index { .. } => {}
            }
        }
        for procedure in procedure::all(self.cx)? {
            if procedure.name.schema() == schema {
                let is_found = path.names().iter().any(|name| name == schema);
                let of = if is_found { String::new() } else { format!("{}.", quoted(schema)) };
                let shown = format!("function {of}{}", procedure.signature());
                found.push((procedure.id, Content::Procedure(procedure), shown, on.clone()));
            }
        }
        found.sort_by_key(|(number, content, _, on)| {
            (*number, !on.starts_with("schema "), !matches!(content, Content::Key))
        });
        Ok(found)
    }

    /// Adds the objects of other schemas that depend on a table.
    fn dependents(
        &mut self,
        table: &Table,
        schema: &str,
        found: &mut Contents,
    ) -> Result<(), Failure> {
        let shown = self.shown(&table.name)?;
        for child in table.children.iter().filter(|child| child.schema() != schema) {
            let Some(Relation::Table(child)) = catalog::find(child, self.cx)? else { continue };
            let of = self.shown(&child.name)?;
            for key in child.foreign_keys.iter().filter(|key| key.parent == table.name) {
                let key = format!("constraint {} on table {of}", key.name);
                found.push((table.id.0, Content::Key, key, format!("table {shown}")));
            }
        }
        self.dependent_views(("table", &table.name, table.id.0), schema, found)
    }

    /// Adds the views of other schemas that name a relation.
    fn dependent_views(
        &mut self,
        (kind, name, number): (&str, &QualifiedName, u32),
        schema: &str,
        found: &mut Contents,
    ) -> Result<(), Failure> {
        let on = format!("{kind} {}", self.shown(name)?);
        for (view, _) in views::all_dependents((kind, name), self.env, self.cx)? {
            let is_it = |known: &View| known.name == view.name;
            let is_known = found
                .iter()
                .any(|(_, content, ..)| matches!(content, Content::View(known) if is_it(known)));
            if view.name.schema() != schema && !is_known {
                let shown = format!("view {}", self.shown(&view.name)?);
                found.push((number, Content::View(view), shown, on.clone()));
            }
        }
        Ok(())
    }

    fn shown(&mut self, name: &QualifiedName) -> Result<String, Failure> {
        shown(name, &self.env.path_setting(), self.cx)
    }

    fn drop_contents(&mut self, contents: Contents) -> Result<(), Failure> {
        let names: Vec<QualifiedName> = contents
            .iter()
            .filter_map(|(_, content, ..)| match content {
                Content::Table(table) => Some(table.name.clone()),
                Content::View(view) => Some(view.name.clone()),
                Content::Sequence(name) => Some(name.clone()),
                Content::Procedure(_) | Content::Key => None,
            })
            .collect();
        for (_, content, ..) in contents {
            match content {
                // An earlier step may have changed the table's record.
                Content::Table(table) => {
                    if let Some(Relation::Table(table)) = catalog::find(&table.name, self.cx)? {
                        ddl::drop_table(table, (&names, true), self.env, self.cx)?;
                    }
                }
                Content::View(view) => views::forget(&view, self.cx)?,
                Content::Sequence(name) => sequences::forget(&name, self.cx)?,
                Content::Procedure(procedure) => {
                    if !procedure::find(&procedure.name, self.cx)?.is_empty() {
                        procedure::put(&procedure.name, &[], self.cx)?;
                    }
                }
                Content::Key => {}
            }
        }
        Ok(())
    }
}
