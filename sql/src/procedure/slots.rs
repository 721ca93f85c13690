//! The variables of a running procedure, with their types and values.

use std::sync::Arc;

use pangea_core::txn::Context;
use sqlparser::ast;

use super::body::{Body, Declared, DeclaredType, Target, Visible};
use crate::catalog::{self, Enums, Relation, Table, enums};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::column_type;
use crate::expr::cast::{self, Level};
use crate::search_path::SearchPath;
use crate::syntax::Written;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::types::{ColumnType, SqlType, text};
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::variables::{Named, Signature, Variables, unassigned};

/// The maximum bytes of a variable's value.
const VALUE_BYTES_MAX: usize = 16 << 20;

/// The variables of a procedure, indexed by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots(Vec<Slot>);

/// A variable.
#[derive(Clone, Debug)]
struct Slot {
    name: String,
    is_not_null: bool,
    /// Whether it takes the type or the columns of the value assigned to it.
    is_free: bool,
    value: Held,
    /// The enums of its type, or of its columns.
    enums: Enums,
}

#[derive(Clone, Debug)]
enum Held {
    Value(ColumnType, Datum),
    /// A row; `None` before the first assignment.
    Record(Option<(Arc<[OutputColumn]>, Vec<Datum>)>),
}

impl Body {
    /// Whether a name of both a variable and a column is an error.
    pub(super) fn is_strict(&self) -> bool {
        self.language == crate::catalog::procedure::Language::PlPgSql
    }
}

impl Slots {
    /// Makes the variables of a body, all NULL. Resolves the types that refer to tables.
    ///
    /// # Errors
    /// If a table or column does not exist.
    pub(super) fn of(
        body: &Body,
        path: &SearchPath,
        cx: &mut dyn Context,
    ) -> Result<Self, Failure> {
        let slots = body.variables.iter().map(|it| Slot::of(it, path, cx));
        let slots: Result<_, Failure> = slots.collect();
        Ok(Self(slots?))
    }

    /// Returns the signature that fragments are planned with, for the variables in scope.
    pub(super) fn signature(&self, visible: &[Visible], is_strict: bool) -> Arc<Signature> {
        let mut named = Vec::with_capacity(visible.len());
        let mut types = Vec::with_capacity(visible.len());
        let mut unassigned = Vec::new();
        for Visible { label, name, slot } in visible {
            match &self.0[*slot].value {
                Held::Value(ty, _) => {
                    let (qualifier, name) = (label.clone(), name.clone());
                    let (parameter, ty) = (types.len(), ty.base);
                    named.push(Named { qualifier, must_qualify: false, name, parameter, ty });
                    types.push(ty);
                }
                Held::Record(Some((columns, _))) => {
                    for column in columns.iter() {
                        let (qualifier, parameter) = (Some(name.clone()), types.len());
                        let (name, ty) = (column.name.clone(), column.ty.base);
                        named.push(Named { qualifier, must_qualify: true, name, parameter, ty });
                        types.push(ty);
                    }
                }
                Held::Record(None) => unassigned.push(name.clone()),
            }
        }
        Arc::new(Signature { variables: Variables { named, unassigned, is_strict }, types })
    }

    /// Returns the values that match a signature.
    pub(super) fn values(&self, visible: &[Visible]) -> Vec<Datum> {
        let mut values = Vec::with_capacity(visible.len());
        for Visible { slot, .. } in visible {
            match &self.0[*slot].value {
                Held::Value(_, datum) => values.push(datum.clone()),
                Held::Record(Some((_, fields))) => values.extend(fields.iter().cloned()),
                Held::Record(None) => {}
            }
        }
        values
    }

    /// Returns the variable that a parameter of a fragment stands for.
    pub(super) fn target(&self, visible: &[Visible], parameter: usize) -> Option<Target> {
        let mut at = 0;
        for Visible { slot, .. } in visible {
            match &self.0[*slot].value {
                Held::Value(..) if at == parameter => return Some(Target::Variable(*slot)),
                Held::Value(..) => at += 1,
                Held::Record(Some((columns, _))) => {
                    if let Some(column) = columns.get(parameter - at) {
                        return Some(Target::Field(*slot, column.name.clone()));
                    }
                    at += columns.len();
                }
                Held::Record(None) => {}
            }
        }
        None
    }

    /// Whether the target takes a whole row.
    pub(super) fn is_record(&self, target: &Target) -> bool {
        match target {
            Target::Variable(slot) => matches!(self.0[*slot].value, Held::Record(_)),
            Target::Field(..) => false,
        }
    }

    /// Gives a variable without a declared type the type or the columns of a row.
    pub(super) fn take_shape(&mut self, slot: usize, columns: &[OutputColumn]) {
        let slot = &mut self.0[slot];
        match &mut slot.value {
            Held::Record(held) if slot.is_free => {
                let is_same = held.as_ref().is_some_and(|(known, _)| **known == *columns);
                if !is_same {
                    *held = Some((columns.into(), vec![Datum::Null; columns.len()]));
                }
            }
            Held::Value(ty, _) if slot.is_free => {
                *ty = columns.first().map_or(*ty, |column| column.ty);
            }
            _ => {}
        }
    }

    pub(super) fn value(&self, slot: usize) -> Datum {
        match &self.0[slot].value {
            Held::Value(_, datum) => datum.clone(),
            Held::Record(_) => Datum::Null,
        }
    }

    /// Sets a variable to a value of its type.
    pub(super) fn set(&mut self, slot: usize, datum: Datum) {
        if let Held::Value(_, held) = &mut self.0[slot].value {
            *held = datum;
        }
    }

    /// Assigns a value of a type.
    ///
    /// # Errors
    /// If it cannot be converted to the variable's type, or is NULL and the variable is NOT NULL.
    pub(super) fn assign(
        &mut self,
        target: &Target,
        datum: Datum,
        from: ColumnType,
        zone: &Zone,
    ) -> Result<(), SqlError> {
        let (Target::Variable(slot) | Target::Field(slot, _)) = target;
        let slot = &mut self.0[*slot];
        match (&mut slot.value, target) {
            (Held::Value(ty, held), _) => {
                if slot.is_free {
                    *ty = from;
                }
                if datum.is_null() && slot.is_not_null {
                    let message = format!(
                        "null value cannot be assigned to variable \"{}\" declared NOT NULL",
                        slot.name
                    );
                    return Err(SqlError::new(code::NULL_NOT_ALLOWED, message));
                }
                let new = converted(datum, from, *ty, zone)?;
                let new = slot.enums.value(ty.base, new)?;
                if new.size() > VALUE_BYTES_MAX {
                    let most = VALUE_BYTES_MAX >> 20;
                    let message = format!("variable \"{}\" exceeds {most} MiB", slot.name);
                    return Err(SqlError::new(code::LIMIT_EXCEEDED, message));
                }
                *held = new;
                Ok(())
            }
            (Held::Record(Some((columns, fields))), Target::Field(_, name)) => {
                let Some(at) = columns.iter().position(|column| column.name == *name) else {
                    let message = format!("record \"{}\" has no field \"{name}\"", slot.name);
                    return Err(SqlError::new(code::UNDEFINED_COLUMN, message));
                };
                let base = columns[at].ty.base;
                let new = converted(datum, from, columns[at].ty, zone)?;
                fields[at] = slot.enums.value(base, new)?;
                Ok(())
            }
            (Held::Record(None), Target::Field(..)) => Err(unassigned(&slot.name)),
            (Held::Record(_), Target::Variable(_)) => {
                let message = "cannot assign non-composite value to a record variable";
                Err(SqlError::new(code::TYPE_MISMATCH, message))
            }
        }
    }

    /// Assigns a row, or NULLs if `row` is `None`.
    ///
    /// # Errors
    /// Those of assigning each value.
    pub(super) fn assign_row(
        &mut self,
        targets: &[Target],
        columns: &[OutputColumn],
        row: Option<Vec<Datum>>,
        zone: &Zone,
    ) -> Result<(), SqlError> {
        let mut row = row.unwrap_or_else(|| vec![Datum::Null; columns.len()]);
        if let [Target::Variable(slot)] = targets
            && let slot = &mut self.0[*slot]
            && let Held::Record(held) = &mut slot.value
        {
            match held {
                Some((known, fields)) if !slot.is_free => {
                    // A row of a table has a value for each of its columns, in the column's type.
                    row.resize(known.len(), Datum::Null);
                    let types = columns.iter().map(|column| column.ty);
                    let types = types.chain(std::iter::repeat(SqlType::Text.into()));
                    for (((field, column), datum), from) in
                        fields.iter_mut().zip(known.iter()).zip(row).zip(types)
                    {
                        let new = converted(datum, from, column.ty, zone)?;
                        *field = slot.enums.value(column.ty.base, new)?;
                    }
                }
                held => {
                    let is_same = held.as_ref().is_some_and(|(known, _)| **known == *columns);
                    match held {
                        Some((_, fields)) if is_same => *fields = row,
                        _ => *held = Some((columns.into(), row)),
                    }
                }
            }
            return Ok(());
        }
        // As in PostgreSQL, missing values are NULL and excess values are dropped.
        let values = row.into_iter().zip(columns.iter().map(|column| column.ty));
        let values = values.chain(std::iter::repeat((Datum::Null, SqlType::Text.into())));
        for (target, (datum, from)) in targets.iter().zip(values) {
            self.assign(target, datum, from, zone)?;
        }
        Ok(())
    }
}

impl Slot {
    fn of(declared: &Declared, path: &SearchPath, cx: &mut dyn Context) -> Result<Self, Failure> {
        let Declared { name, ty, is_not_null, .. } = declared;
        let mut enums = Enums::default();
        let (is_free, value) = match ty {
            DeclaredType::Known(ty) => {
                know(ty.base, &mut enums, cx)?;
                (false, Held::Value(*ty, Datum::Null))
            }
            DeclaredType::Named(ty) => {
                let ty = type_named(ty, &mut enums, cx)?;
                (false, Held::Value(ty, Datum::Null))
            }
            DeclaredType::Any => (true, Held::Value(SqlType::Text.into(), Datum::Null)),
            DeclaredType::Record => (true, Held::Record(None)),
            DeclaredType::Column(table, column) => {
                let table = table_of(table, path, cx)?;
                let Some(at) = table.position(column) else {
                    let message = format!(
                        "column \"{column}\" of relation \"{}\" does not exist",
                        table.name
                    );
                    return Err(SqlError::new(code::UNDEFINED_COLUMN, message).into());
                };
                enums = table.enums;
                (false, Held::Value(table.columns[at].ty, Datum::Null))
            }
            DeclaredType::Row(table) => {
                let table = table_of(table, path, cx)?;
                let column = |(_, column): (usize, &catalog::Column)| {
                    OutputColumn::new(&column.name, column.ty)
                };
                enums = table.enums.clone();
                let columns: Arc<[OutputColumn]> = table.live_columns().map(column).collect();
                let fields = vec![Datum::Null; columns.len()];
                (false, Held::Record(Some((columns, fields))))
            }
        };
        Ok(Self { name: name.clone(), is_not_null: *is_not_null, is_free, value, enums })
    }
}

/// Loads the enum that a type is, or is an array of.
fn know(base: SqlType, enums: &mut Enums, cx: &mut dyn Context) -> Result<(), Failure> {
    if let Some(id) = base.enumeration()
        && let Some(found) = enums::find(id, cx)?
    {
        enums.insert(found);
    }
    Ok(())
}

/// Resolves a type in a syntax tree that may be an enum, or an array of one.
fn type_named(
    data_type: &ast::DataType,
    enums: &mut Enums,
    cx: &mut dyn Context,
) -> Result<ColumnType, Failure> {
    if let Err(error) = column_type(data_type, enums)
        && let Some(name) = error.missing_type()
        && let Some(found) = enums::find_named(name, cx)?
    {
        enums.insert(found);
    }
    Ok(column_type(data_type, enums)?)
}

fn table_of(written: &Written, path: &SearchPath, cx: &mut dyn Context) -> Result<Table, Failure> {
    match path.find(written, cx)? {
        Some((_, Relation::Table(table))) => Ok(table),
        _ => Err(SqlError::undefined_table(written).into()),
    }
}

/// Converts a value to another type: by its assignment cast if one exists, otherwise via its text.
pub(super) fn converted(
    datum: Datum,
    from: ColumnType,
    to: ColumnType,
    zone: &Zone,
) -> Result<Datum, SqlError> {
    if datum.is_null() || from == to {
        return Ok(datum);
    }
    if cast::level(from.base, to.base).is_some_and(|level| level <= Level::Assignment) {
        return cast::apply(datum, from.base, to, false, zone);
    }
    let text = text::format(from.base, &datum, zone);
    text::fit(to, text::parse(to.base, &text, zone)?, false)
}
