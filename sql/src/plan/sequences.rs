//! Planning of sequences: CREATE SEQUENCE, `serial`, and identity columns.

use sqlparser::ast;

use super::{AlterSequence, CreateSequence, Plan, Planner, as_table, refuse};
use crate::authorization::Required;
use crate::catalog::role::Object;
use crate::catalog::sequence::nextval_of;
use crate::catalog::{Enums, Identity, QualifiedName, Relation, Sequence, Table};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::{SequenceName, column_type};
use crate::expr::sequences::option_number;
use crate::sequence::Used;
use crate::syntax::{self, Written};
use crate::types::SqlType;

impl Planner<'_> {
    /// Returns the sequences that expressions refer to.
    pub(super) fn sequences(&mut self) -> Result<Vec<Used>, Failure> {
        self.require_sequences()?;
        let mut found = Vec::new();
        for (name, is_drawn) in std::mem::take(&mut self.params.sequences) {
            let name = self.sequence_named(&name)?;
            match self.relation_named(&name)? {
                Some(Relation::Sequence(sequence)) => found.push(Used { name, sequence, is_drawn }),
                Some(_) => {
                    let message = format!("\"{name}\" is not a sequence");
                    return Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).into());
                }
                None => return Err(SqlError::undefined_table(&name).into()),
            }
        }
        Ok(found)
    }

    /// Resolves the name of a sequence in an expression.
    pub(super) fn sequence_named(&mut self, name: &SequenceName) -> Result<QualifiedName, Failure> {
        match name {
            SequenceName::Known(name) => Ok(name.clone()),
            SequenceName::Named(written) => Ok(self.known_of_ddl(written)?.0),
            SequenceName::OfColumn { table, column } => self.sequence_of(table, column),
        }
    }

    /// Returns the sequence that a column owns.
    fn sequence_of(&mut self, table: &Written, column: &str) -> Result<QualifiedName, Failure> {
        let (name, relation) = self.known_of_ddl(table)?;
        let table = as_table(&name, relation)?;
        let Some(at) = table.position(column) else {
            let message = format!("column \"{column}\" of relation \"{name}\" does not exist");
            return Err(SqlError::new(code::UNDEFINED_COLUMN, message).into());
        };
        let found = table.sequences.iter().find(|(of, _)| *of == at);
        found.map(|(_, name)| name.clone()).ok_or_else(|| {
            let message = format!("column \"{column}\" of \"{name}\" has no sequence");
            SqlError::new(code::UNDEFINED_OBJECT, message).into()
        })
    }

    pub(super) fn create_sequence(&mut self, create: &ast::Statement) -> Result<Plan, Failure> {
        let ast::Statement::CreateSequence {
            temporary,
            if_not_exists,
            name,
            data_type,
            sequence_options,
            owned_by,
        } = create
        else {
            unreachable!("the caller has looked")
        };
        refuse(&[(*temporary, "CREATE TEMPORARY SEQUENCE")])?;
        let name = self.new_name(name)?;
        let base = type_of(data_type.as_ref())?.unwrap_or(SqlType::Int8);
        let mut sequence = sequence(None, base, sequence_options)?;
        let owner = self.owned_by(&name, owned_by.as_ref())?.flatten();
        let column = owner.as_ref().map(|(_, column)| *column);
        sequence.owner = owner.map(|(table, _)| table);
        let if_not_exists = *if_not_exists;
        Ok(Plan::utility(CreateSequence { name, sequence, if_not_exists, column }))
    }

    pub(super) fn alter_sequence(&mut self, alter: &ast::Statement) -> Result<Plan, Failure> {
        let ast::Statement::CreateSequence { name, data_type, sequence_options, owned_by, .. } =
            alter
        else {
            unreachable!("the caller has looked")
        };
        let (said, written) = (self.said.clone(), syntax::table_name(name)?);
        let (name, relation) = match self.known_of_ddl(&written) {
            Err(Failure::Sql(error)) if said.if_exists && error.code == code::UNDEFINED_TABLE => {
                let notice = format!("relation \"{}\" does not exist, skipping", written.name);
                return Ok(super::alter::nothing("ALTER SEQUENCE", notice));
            }
            found => found?,
        };
        let Relation::Sequence(before) = relation else {
            let message = format!("\"{name}\" is not a sequence");
            return Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).into());
        };
        self.required.push(Required::owner(Object::Sequence(name.clone())));
        let base = type_of(data_type.as_ref())?.unwrap_or_else(|| before.base());
        let mut after = sequence(Some(&before), base, sequence_options)?;
        let owner = self.owned_by(&name, owned_by.as_ref())?;
        if let (Some(_), Some(table)) = (&owner, &before.owner) {
            let table = self.table_named(table)?;
            let of = table.sequences.iter().find(|(_, of)| *of == name).map(|(at, _)| *at);
            if of.is_some_and(|at| table.columns[at].identity.is_some()) {
                let message = "cannot change ownership of identity sequence".to_owned();
                let detail = format!("Sequence \"{name}\" is linked to table \"{}\".", table.name);
                let error = SqlError { message, ..SqlError::unsupported("") };
                return Err(error.with_detail(detail).into());
            }
        }
        let column = owner.as_ref().map(|owner| owner.as_ref().map(|(_, column)| *column));
        if let Some(owner) = owner {
            after.owner = owner.map(|(table, _)| table);
        }
        let restart = said.restart.map(|restart| restart.unwrap_or(after.start));
        let alter = AlterSequence { name, before, after, column, restart };
        Ok(Plan::utility(alter))
    }

    /// Resolves OWNED BY: the outer `None` if it is absent, the inner one for NONE.
    fn owned_by(
        &mut self,
        sequence: &QualifiedName,
        owned_by: Option<&ast::ObjectName>,
    ) -> Result<Option<Option<(QualifiedName, usize)>>, Failure> {
        let Some(object) = owned_by else { return Ok(None) };
        let Some((column, table)) = object.0.split_last().filter(|(_, table)| !table.is_empty())
        else {
            if object.to_string().eq_ignore_ascii_case("none") {
                return Ok(Some(None));
            }
            let hint = "Specify OWNED BY table.column or OWNED BY NONE.";
            let error = SqlError::new(code::SYNTAX, "invalid OWNED BY option").with_hint(hint);
            return Err(error.into());
        };
        let table = self.own_table(&ast::ObjectName(table.to_vec()))?;
        let column = syntax::name_parts(&ast::ObjectName(vec![column.clone()]))?;
        let column = column.first().map_or("", String::as_str);
        if table.name.schema() != sequence.schema() {
            let message = "sequence must be in same schema as table it is linked to";
            return Err(SqlError::new(code::NOT_PREREQUISITE, message).into());
        }
        let Some(at) = table.position(column) else {
            let message =
                format!("column \"{column}\" of relation \"{}\" does not exist", table.name);
            return Err(SqlError::new(code::UNDEFINED_COLUMN, message).into());
        };
        Ok(Some(Some((table.name.clone(), at))))
    }

    /// Creates the sequence of a `serial` column, and its default.
    pub(super) fn serial(
        &mut self,
        table: &mut Table,
        at: usize,
    ) -> Result<(QualifiedName, Sequence), Failure> {
        let (name, sequence) = self.own_sequence(table, at, &[])?;
        let column = &mut table.columns[at];
        if column.default.is_some() {
            let (column, table) = (&column.name, &table.name);
            let message = format!(
                "multiple default values specified for column \"{column}\" of table \"{table}\""
            );
            return Err(SqlError::new(code::SYNTAX, message).into());
        }
        column.is_not_null = true;
        column.default = Some(nextval_of(&name));
        Ok((name, sequence))
    }

    /// Creates the sequence of an identity column.
    pub(super) fn identity(
        &mut self,
        table: &mut Table,
        at: usize,
        is_always: bool,
        options: &[ast::SequenceOptions],
    ) -> Result<(QualifiedName, Sequence), Failure> {
        let (table_name, column) = (table.name.clone(), table.columns[at].clone());
        if column.default.is_some() || column.identity.is_some() {
            let message = format!(
                "both default and identity specified for column \"{}\" of table \"{table_name}\"",
                column.name
            );
            return Err(SqlError::new(code::SYNTAX, message).into());
        }
        if !column.ty.base.is_integer() {
            let message = "identity column type must be smallint, integer, or bigint";
            return Err(SqlError::new(code::INVALID_PARAMETER, message).into());
        }
        let (name, sequence) = self.own_sequence(table, at, options)?;
        let column = &mut table.columns[at];
        column.is_not_null = true;
        column.identity = Some(Identity { sequence: name.clone(), is_always });
        Ok((name, sequence))
    }

    /// Creates a sequence that a column owns.
    fn own_sequence(
        &mut self,
        table: &mut Table,
        at: usize,
        options: &[ast::SequenceOptions],
    ) -> Result<(QualifiedName, Sequence), Failure> {
        let mut sequence = sequence(None, table.columns[at].ty.base, options)?;
        sequence.owner = Some(table.name.clone());
        let name = match &self.said.clone().name {
            Some(name) => {
                if name.schema.as_ref().is_some_and(|schema| schema != table.name.schema()) {
                    let message = "sequence must be in same schema as table it is linked to";
                    return Err(SqlError::new(code::NOT_PREREQUISITE, message).into());
                }
                table.name.beside(&name.name)
            }
            None => table.name.beside(&self.free_name(table, &[at], "seq")?),
        };
        table.sequences.push((at, name.clone()));
        Ok((name, sequence))
    }
}

/// Returns the type in AS.
fn type_of(data_type: Option<&ast::DataType>) -> Result<Option<SqlType>, SqlError> {
    let Some(data_type) = data_type else { return Ok(None) };
    let base = column_type(data_type, &Enums::default())?.base;
    if !base.is_integer() {
        let message = "sequence type must be smallint, integer, or bigint";
        return Err(SqlError::new(code::INVALID_PARAMETER, message));
    }
    Ok(Some(base))
}

/// Returns the smallest and the largest value of a type.
fn range_of(base: SqlType) -> (i64, i64) {
    match base {
        SqlType::Int2 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        SqlType::Int4 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    }
}

/// Returns a sequence of a type with these options. Omitted options keep their previous values;
/// bounds that were the limits of the previous type become those of the new one.
fn sequence(
    before: Option<&Sequence>,
    base: SqlType,
    options: &[ast::SequenceOptions],
) -> Result<Sequence, SqlError> {
    use ast::SequenceOptions as O;
    let mut start = before.map(|it| it.start);
    let mut increment = before.map_or(1, |it| it.increment);
    let mut is_cycle = before.is_some_and(|it| it.is_cycle);
    let is_same_type = |it: &&Sequence| it.base() == base;
    let of_type = |it: &Sequence| range_of(it.base());
    let mut min = before.filter(|it| is_same_type(it) || it.min != of_type(it).0).map(|it| it.min);
    let mut max = before.filter(|it| is_same_type(it) || it.max != of_type(it).1).map(|it| it.max);
    for option in options {
        match option {
            O::IncrementBy(by, _) => increment = option_number(by)?,
            O::MinValue(least) => min = least.as_ref().map(option_number).transpose()?,
            O::MaxValue(most) => max = most.as_ref().map(option_number).transpose()?,
            O::StartWith(first, _) => start = Some(option_number(first)?),
            // CACHE has no effect: nodes reserve blocks of their own size.
            O::Cache(_) => {}
            O::Cycle(is_not) => is_cycle = !is_not,
        }
    }
    let invalid = |message: String| SqlError::new(code::INVALID_PARAMETER, message);
    if increment == 0 {
        return Err(invalid("INCREMENT must not be zero".to_owned()));
    }
    let (least, most) = range_of(base);
    let min = min.unwrap_or(if increment > 0 { 1 } else { least });
    let max = max.unwrap_or(if increment > 0 { most } else { -1 });
    for (what, bound) in [("MAXVALUE", max), ("MINVALUE", min)] {
        if !(least..=most).contains(&bound) {
            let message = format!("{what} ({bound}) is out of range for sequence data type {base}");
            return Err(invalid(message));
        }
    }
    if min >= max {
        let message = format!("MINVALUE ({min}) must be less than MAXVALUE ({max})");
        return Err(invalid(message));
    }
    let start = start.unwrap_or(if increment > 0 { min } else { max });
    if start < min {
        let message = format!("START value ({start}) cannot be less than MINVALUE ({min})");
        return Err(invalid(message));
    }
    if start > max {
        let message = format!("START value ({start}) cannot be greater than MAXVALUE ({max})");
        return Err(invalid(message));
    }
    let type_oid = base.oid();
    let (id, owner) = before.map_or((0, None), |it| (it.id, it.owner.clone()));
    Ok(Sequence { id, type_oid, start, increment, min, max, is_cycle, owner })
}
