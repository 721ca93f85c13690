//! Name resolution: qualified names, and unqualified names along the search path.

use sqlparser::ast::{self, VisitMut};

use super::Planner;
use crate::authorization::Required;
use crate::catalog::role::Object;
use crate::catalog::{PUBLIC, QualifiedName, Relation, schema};
use crate::error::{Failure, SqlError};
use crate::notice::Notice;
use crate::syntax::{self, Written};
use crate::system::{self, Found};

impl Planner<'_> {
    /// Resolves a relation name. The plan then depends on the records read.
    pub(super) fn found(
        &mut self,
        written: &Written,
    ) -> Result<Option<(QualifiedName, Relation)>, Failure> {
        self.uses_schema_of(written);
        for name in self.path.candidates(written) {
            if let Some(relation) = self.relation_named(&name)? {
                return Ok(Some((name, relation)));
            }
        }
        Ok(None)
    }

    /// Resolves the name of a relation that must exist.
    pub(super) fn known(
        &mut self,
        written: &Written,
    ) -> Result<(QualifiedName, Relation), Failure> {
        self.found(written)?.ok_or_else(|| SqlError::undefined_table(written).into())
    }

    /// Like `known`, but reports a schema that does not exist.
    pub(super) fn known_of_ddl(
        &mut self,
        written: &Written,
    ) -> Result<(QualifiedName, Relation), Failure> {
        match self.found(written)? {
            Some(found) => Ok(found),
            None => {
                written.schema.as_deref().map_or(Ok(()), |schema| self.check_schema(schema))?;
                Err(SqlError::undefined_table(written).into())
            }
        }
    }

    /// Resolves the name of a system catalog relation. An unqualified name is in `pg_catalog`, or
    /// in another system schema on the path.
    pub(super) fn system_relation(
        &mut self,
        name: &ast::ObjectName,
    ) -> Result<Option<Found>, Failure> {
        let parts = syntax::name_parts(name)?;
        match &parts[..] {
            [name] => {
                let schema = self.system_schema(name)?;
                Ok(schema.and_then(|schema| system::find(&[schema, name.clone()])))
            }
            parts => Ok(system::find(parts)),
        }
    }

    /// Returns the system schema in which an unqualified name is found.
    pub(super) fn system_schema(&mut self, name: &str) -> Result<Option<String>, Failure> {
        let pg_catalog = schema::SYSTEM[0].to_owned();
        if system::find(&[pg_catalog.clone(), name.to_owned()]).is_some() {
            return Ok(Some(pg_catalog));
        }
        let path = self.path.clone();
        if !path.names().iter().any(|schema| schema::SYSTEM.contains(&schema.as_str())) {
            return Ok(None);
        }
        for schema in path.names() {
            let is_system = schema::SYSTEM.contains(&schema.as_str());
            if is_system && system::find(&[schema.clone(), name.to_owned()]).is_some() {
                return Ok(Some(schema.clone()));
            }
            if !is_system && self.relation_named(&QualifiedName::new(schema, name))?.is_some() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Requires the USAGE privilege on the schema of a qualified name.
    pub(super) fn uses_schema_of(&mut self, written: &Written) {
        // Names in a view's query need no privilege of its reader.
        let Some(schema) = written.schema.as_ref().filter(|_| self.within.is_empty()) else {
            return;
        };
        let object = Object::Schema(schema.clone());
        let required = Required::to_use(object);
        if !self.schemas_used.contains(&required) {
            self.schemas_used.push(required);
        }
    }

    /// Checks that a schema exists.
    pub(super) fn check_schema(&mut self, name: &str) -> Result<(), Failure> {
        let is_there = schema::is_there(name, &mut self.cx)?;
        if is_there { Ok(()) } else { Err(SqlError::undefined_schema(name).into()) }
    }

    /// Whether a name resolves to `table`, which may not exist yet.
    pub(super) fn is_meant(
        &mut self,
        written: &Written,
        table: &QualifiedName,
    ) -> Result<bool, Failure> {
        for name in self.path.candidates(written) {
            if name == *table {
                return Ok(true);
            }
            if self.relation_named(&name)?.is_some() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Qualifies a syntax tree for storage in the catalog, where unqualified names are in `public`.
    pub(super) fn keep(&mut self, tree: &mut impl VisitMut) -> Result<(), Failure> {
        syntax::qualify(tree, &mut |written| {
            if written.schema.is_none()
                && let Some(schema) = self.system_schema(&written.name)?
            {
                let is_first = schema == "pg_catalog";
                let name = written.name.clone();
                return Ok((!is_first).then_some(Written { schema: Some(schema), name }));
            }
            let found = self.found(written)?;
            let is_elsewhere = |(name, _): &(QualifiedName, Relation)| name.schema() != PUBLIC;
            Ok(found.filter(is_elsewhere).map(|(name, _)| Written::whole(&name)))
        })
    }

    /// Returns the text of an expression for storage in the catalog.
    pub(super) fn kept_text(&mut self, expr: &ast::Expr) -> Result<String, Failure> {
        let mut expr = bare(expr).clone();
        self.keep(&mut expr)?;
        // In PostgreSQL's spelling.
        syntax::for_each_expr(&mut expr, |part| {
            if let ast::Expr::Cast { data_type, .. } = part
                && matches!(data_type, ast::DataType::Regclass)
            {
                let name = ast::ObjectName::from(vec![ast::Ident::new("regclass")]);
                *data_type = ast::DataType::Custom(name, Vec::new());
            }
        });
        Ok(expr.to_string())
    }

    /// Checks that the schema of a qualified name exists.
    pub(super) fn check_schema_of(&mut self, object: &ast::ObjectName) -> Result<(), Failure> {
        let schema = syntax::table_name(object)?.schema;
        schema.as_deref().map_or(Ok(()), |schema| self.check_schema(schema))
    }

    /// Returns the name of a new object. Requires the privilege to create it in its schema.
    pub(super) fn new_name(&mut self, object: &ast::ObjectName) -> Result<QualifiedName, Failure> {
        let written = syntax::table_name(object)?;
        self.new_written(&written)
    }

    pub(super) fn new_written(&mut self, written: &Written) -> Result<QualifiedName, Failure> {
        super::check_name(&written.name)?;
        let schema = match &written.schema {
            Some(schema) => schema.clone(),
            None => self.path.first()?.to_owned(),
        };
        self.check_schema(&schema)?;
        self.required.push(Required::create(&schema));
        Ok(QualifiedName::new(&schema, &written.name))
    }

    /// Resolves a name in DROP and similar statements; the relation may not exist.
    pub(super) fn meant(&mut self, object: &ast::ObjectName) -> Result<DropTarget, Failure> {
        let written = syntax::table_name(object)?;
        match self.found(&written)? {
            Some((name, _)) => Ok(DropTarget { name: Ok(name), written }),
            None => self.absent(written),
        }
    }

    /// Returns a name without a relation, with the error of its schema if that does not exist
    /// either.
    pub(super) fn absent(&mut self, written: Written) -> Result<DropTarget, Failure> {
        let checked = written.schema.as_deref().map_or(Ok(()), |schema| self.check_schema(schema));
        match checked {
            Ok(()) => Ok(DropTarget { name: Err(None), written }),
            Err(Failure::Sql(error)) => Ok(DropTarget { name: Err(Some(error)), written }),
            Err(Failure::Interrupted) => Err(Failure::Interrupted),
        }
    }
}

/// A resolved name in DROP.
#[derive(Clone, Debug)]
pub(crate) struct DropTarget {
    /// If no relation exists: the error of the schema if that does not exist either.
    pub name: Result<QualifiedName, Option<SqlError>>,
    pub written: Written,
}

impl DropTarget {
    /// Returns the name of the existing relation. If it does not exist, IF EXISTS gives a notice
    /// and `None`.
    ///
    /// # Errors
    /// Without IF EXISTS: the schema's error, or the given one.
    pub(crate) fn existing(
        &self,
        if_exists: bool,
        error: SqlError,
        notices: &mut Vec<Notice>,
    ) -> Result<Option<&QualifiedName>, SqlError> {
        let missing = match &self.name {
            Ok(name) => return Ok(Some(name)),
            Err(of_schema) => of_schema.clone().unwrap_or(error),
        };
        if !if_exists {
            return Err(missing);
        }
        notices.push(Notice::plain(format!("{}, skipping", missing.message)));
        Ok(None)
    }
}

/// Removes parentheses around an expression: its display adds them.
pub(super) fn bare(expr: &ast::Expr) -> &ast::Expr {
    match expr {
        ast::Expr::Nested(inner) => bare(inner),
        expr => expr,
    }
}
