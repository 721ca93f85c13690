//! Planning with enums, and of the statements that create, alter and drop them.
//!
//! Type names are resolved among the enums known so far. A name of no known type is first an error;
//! then the enum of that name is read, and the statement is planned again ([`with_enums`]).
//! Therefore the many statements without enums read none. Enums of columns and parameters are read
//! by their numbers, together with the table.

use pangea_core::txn::Context;
use sqlparser::ast;

use super::recorder::Recorder;
use super::{DropTables, DropTarget, DropTypes, Plan, Planner, check_name};
use crate::authorization::Required;
use crate::catalog::role::Object;
use crate::catalog::{CATALOG, PUBLIC, QualifiedName, enums};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::column_type;
use crate::syntax;
use crate::types::{ColumnType, SqlType};

/// The maximum length of a label in bytes, as in PostgreSQL.
const LABEL_BYTES_MAX: usize = 63;

/// CREATE TYPE .. AS ENUM.
#[derive(Clone, Debug)]
pub(crate) struct CreateType {
    pub name: String,
    pub labels: Vec<String>,
}

/// ALTER TYPE of an enum.
#[derive(Clone, Debug)]
pub(crate) struct AlterType {
    pub name: String,
    pub change: LabelChange,
}

/// A change of an enum.
#[derive(Clone, Debug)]
pub(crate) enum LabelChange {
    /// Adds a label before or after another one, or at the end.
    Add { text: String, neighbour: Option<Neighbour>, if_not_exists: bool },
    /// Renames a label.
    RenameValue { from: String, to: String },
    /// Renames the type.
    Rename { to: String },
}

/// The existing label that a new one is placed next to.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    pub text: String,
    pub is_before: bool,
}

/// Runs a planning function. If a type name is unknown, reads the enum of that name and plans
/// again.
pub(super) fn with_enums<'a, T>(
    cx: &'a mut dyn Context,
    mut plan: impl FnMut(&mut Planner<'a>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut names: Vec<String> = Vec::new();
    let mut planner = Planner::new(Recorder::new(cx));
    loop {
        let error = match plan(&mut planner) {
            Err(Failure::Sql(error)) => error,
            done => return done,
        };
        let known = std::mem::take(&mut planner.params.enums);
        // The recorder keeps the records read so far, because the plan depends on them.
        planner = Planner::new(planner.cx);
        for name in &names {
            planner.enum_named(name)?;
        }
        match error.missing_type().map(str::to_owned) {
            Some(name) if !names.contains(&name) && planner.enum_named(&name)? => names.push(name),
            _ => return Err(known.unmarked_error(error).into()),
        }
    }
}

impl Planner<'_> {
    /// Returns the type that a syntax tree names.
    pub(super) fn column_type(&self, data_type: &ast::DataType) -> Result<ColumnType, SqlError> {
        column_type(data_type, &self.params.enums)
    }

    /// Reads the enum of a type, or of an array's elements, unless it is known already.
    ///
    /// # Errors
    /// If no enum has its number.
    pub(super) fn enum_of(&mut self, base: SqlType) -> Result<(), Failure> {
        let Some(id) = base.enumeration() else { return Ok(()) };
        if self.params.enums.get(id).is_some() {
            return Ok(());
        }
        let Some(found) = enums::find(id, &mut self.cx)? else {
            let message = format!("type with OID {} does not exist", base.oid());
            return Err(SqlError::new(code::UNDEFINED_OBJECT, message).into());
        };
        self.params.enums.insert(found);
        Ok(())
    }

    /// Reads the enum of a name. Returns whether it exists.
    fn enum_named(&mut self, name: &str) -> Result<bool, Failure> {
        let id = match crate::types::EnumId::of_mark(name) {
            Some(id) => Some(id),
            None => {
                let record = self.cx.get(CATALOG, &enums::name_key(name))?;
                enums::decode_number(record.as_ref())?.and_then(crate::types::EnumId::new)
            }
        };
        match id {
            Some(id) => self.enum_of(SqlType::Enum(id)).map(|()| true),
            None => Ok(false),
        }
    }

    pub(super) fn create_type(
        &mut self,
        name: &ast::ObjectName,
        representation: Option<&ast::UserDefinedTypeRepresentation>,
    ) -> Result<Plan, Failure> {
        use ast::UserDefinedTypeRepresentation as R;
        let labels = match representation {
            Some(R::Enum { labels }) => labels,
            Some(R::Composite { .. }) => {
                return Err(SqlError::unsupported("a composite type").into());
            }
            Some(R::Range { .. }) => return Err(SqlError::unsupported("a range type").into()),
            Some(R::SqlDefinition { .. }) | None => {
                return Err(SqlError::unsupported("a type other than an enum").into());
            }
        };
        let name = self.new_name(name)?;
        if name.schema() != PUBLIC {
            return Err(SqlError::unsupported("a type outside of schema public").into());
        }
        let name = name.name().to_owned();
        let labels: Vec<String> = labels.iter().map(|label| label.value.clone()).collect();
        labels.iter().try_for_each(|label| check_label(label))?;
        Ok(Plan::utility(CreateType { name, labels }))
    }

    pub(super) fn alter_type(&mut self, alter: &ast::AlterType) -> Result<Plan, Failure> {
        use ast::{AlterTypeAddValuePosition as P, AlterTypeOperation as O};
        let name = self.enum_name(&alter.name)?;
        let change = match &alter.operation {
            O::Rename(rename) => {
                let to = syntax::name(&rename.new_name);
                check_name(&to)?;
                LabelChange::Rename { to }
            }
            O::AddValue(add) => {
                let text = add.value.value.clone();
                check_label(&text)?;
                let beside = |text: &ast::Ident, is_before| Neighbour {
                    text: text.value.clone(),
                    is_before,
                };
                let neighbour = add.position.as_ref().map(|position| match position {
                    P::Before(text) => beside(text, true),
                    P::After(text) => beside(text, false),
                });
                LabelChange::Add { text, neighbour, if_not_exists: add.if_not_exists }
            }
            O::RenameValue(rename) => {
                let (from, to) = (rename.from.value.clone(), rename.to.value.clone());
                check_label(&to)?;
                LabelChange::RenameValue { from, to }
            }
        };
        self.required.push(Required::owner(Object::Type(name.clone())));
        Ok(Plan::utility(AlterType { name, change }))
    }

    /// Plans DROP TYPE.
    pub(super) fn drop_types(
        &mut self,
        names: &[ast::ObjectName],
        if_exists: bool,
        is_cascade: bool,
    ) -> Result<Plan, Failure> {
        let mut meant = Vec::with_capacity(names.len());
        for object in names {
            let written = syntax::table_name(object)?;
            let is_of_public = written.schema.as_deref().is_none_or(|schema| schema == PUBLIC);
            if is_of_public && self.enum_named(&written.name)? {
                self.required.push(Required::owner(Object::Type(written.name.clone())));
                meant.push(DropTarget { name: Ok(QualifiedName::public(&written.name)), written });
            } else {
                meant.push(self.absent(written)?);
            }
        }
        Ok(Plan::utility(DropTypes(DropTables { names: meant, if_exists, is_cascade })))
    }

    /// Returns the name of an enum. All enums are in `public`.
    fn enum_name(&mut self, object: &ast::ObjectName) -> Result<String, Failure> {
        let written = syntax::table_name(object)?;
        match written.schema.as_deref() {
            None | Some(PUBLIC) => Ok(written.name),
            Some(schema) => {
                self.check_schema(schema)?;
                Err(SqlError::undefined_type(&written.to_string()).into())
            }
        }
    }

    /// Returns the number of the enum that a comment is on.
    pub(super) fn type_to_comment(&mut self, name: &ast::ObjectName) -> Result<u32, Failure> {
        let name = self.enum_name(name)?;
        if !self.enum_named(&name)? {
            return Err(SqlError::undefined_type(&name).into());
        }
        self.required.push(Required::owner(Object::Type(name.clone())));
        let known = self.params.enums.named(&name);
        Ok(known.map(|one| one.oid).expect("it was read"))
    }
}

fn check_label(label: &str) -> Result<(), SqlError> {
    if label.len() <= LABEL_BYTES_MAX {
        return Ok(());
    }
    let message = format!("invalid enum label \"{label}\"");
    let detail = format!("Labels must be {LABEL_BYTES_MAX} bytes or less.");
    Err(SqlError::new(code::INVALID_NAME, message).with_detail(detail))
}
