//! Planning of COPY.

use std::sync::Arc;

use sqlparser::ast;

use super::dml::specified_twice;
use super::target::{Targets, default_of};
use super::{Plan, Planner, Select, Source};
use crate::access::Access;
use crate::access::path::Paths;
use crate::catalog::Table;
use crate::catalog::role::Privileges;
use crate::copy::{Named, Options, Target};
use crate::error::{Failure, SqlError, code};
use crate::expr::{Expr, enums};
use crate::syntax;
use crate::vocabulary::column::OutputColumn;

/// `COPY .. FROM STDIN`: the client sends the rows.
#[derive(Clone, Debug)]
pub(crate) struct CopyFrom {
    pub targets: Arc<Targets>,
    pub options: Arc<Options>,
    /// The columns of the input.
    pub source: Arc<[Target]>,
    /// The columns of the table, over those of the input.
    pub columns: Vec<Expr>,
}

/// `COPY .. TO STDOUT`.
#[derive(Clone, Debug)]
pub(crate) struct CopyTo {
    pub select: Select,
    pub options: Arc<Options>,
    pub columns: Vec<OutputColumn>,
    /// For each column, whether CSV always quotes it (FORCE_QUOTE).
    pub quoted: Vec<bool>,
}

impl Planner<'_> {
    pub(super) fn copy(
        &mut self,
        copied: &ast::CopySource,
        is_to: bool,
        target: &ast::CopyTarget,
        options: Arc<Options>,
    ) -> Result<Plan, Failure> {
        refuse_files(target, is_to)?;
        let (name, listed) = match copied {
            ast::CopySource::Query(query) => {
                if !matches!(
                    &*query.body,
                    ast::SetExpr::Select(_)
                        | ast::SetExpr::Values(_)
                        | ast::SetExpr::Query(_)
                        | ast::SetExpr::SetOperation { .. }
                ) || syntax::names_write(query)
                {
                    return Err(SqlError::unsupported("COPY of a statement that writes").into());
                }
                let (select, columns) = self.query(query)?;
                return Ok(copy_to(None, select, options, columns)?);
            }
            ast::CopySource::Table { table_name, columns } => (table_name, columns),
        };
        let privileges = if is_to { Privileges::SELECT } else { Privileges::INSERT };
        let paths = Paths::new(self.own_table_for(name, privileges)?)?;
        let table = paths.table.clone();
        let copied = self.copied(&table, listed)?;
        if is_to {
            let output = copied.iter().map(|&at| Expr::Column(at)).collect();
            let columns: Vec<_> = copied.iter().map(|&at| shown(&table, at)).collect();
            let select = Select {
                source: Source::Table(Access::new(&paths, None)),
                filter: None,
                grouping: None,
                output,
                types: columns.iter().map(|column| column.ty.base).collect(),
                sort: Vec::new(),
                is_distinct: false,
                limit: None,
                offset: None,
            };
            return Ok(copy_to(Some(&table), select, options, columns)?);
        }
        self.copy_from(&paths, &copied, options)
    }

    fn copy_from(
        &mut self,
        paths: &Paths,
        copied: &[usize],
        options: Arc<Options>,
    ) -> Result<Plan, Failure> {
        let table = paths.table.clone();
        let mut columns = Vec::with_capacity(table.columns.len());
        for at in 0..table.columns.len() {
            columns.push(match copied.iter().position(|&copied| copied == at) {
                Some(position) => self.copied_column(&table, at, position),
                None => default_of(&table, at, &mut self.params)?,
            });
        }
        let names: Vec<&str> = copied.iter().map(|&at| &*table.columns[at].name).collect();
        let never_null = forced(&*table, "FORCE_NOT_NULL", &options.force_not_null, &names)?;
        let null_quoted = forced(&*table, "FORCE_NULL", &options.force_null, &names)?;
        let source = copied.iter().enumerate().map(|(position, &at)| Target {
            name: table.columns[at].name.clone(),
            ty: table.columns[at].ty,
            is_never_null: never_null[position],
            is_null_quoted: null_quoted[position],
        });
        let source = source.collect();
        let targets = Arc::new(self.targets(paths, true)?);
        Ok(Plan::CopyFrom(CopyFrom { targets, options, source, columns }))
    }

    /// Returns a column of the input as a value of the table's column.
    fn copied_column(&self, table: &Table, at: usize, position: usize) -> Expr {
        let id = table.columns[at].ty.base.enumeration();
        match id.and_then(|id| self.params.enums.get(id)) {
            Some(known) => enums::value(known, Expr::Column(position)),
            None => Expr::Column(position),
        }
    }

    /// Returns the positions of the columns that a COPY names; without a list, of all columns that
    /// are not generated.
    fn copied(&mut self, table: &Table, listed: &[ast::Ident]) -> Result<Vec<usize>, Failure> {
        if listed.is_empty() {
            let stored = table.live_columns().filter(|(_, column)| column.generated.is_none());
            return Ok(stored.map(|(at, _)| at).collect());
        }
        let mut copied = Vec::with_capacity(listed.len());
        for ident in listed {
            let name = syntax::name(ident);
            let Some(at) = table.position(&name) else {
                let message =
                    format!("column \"{name}\" of relation \"{}\" does not exist", table.name);
                return Err(SqlError::new(code::UNDEFINED_COLUMN, message).into());
            };
            if table.columns[at].generated.is_some() {
                let message = format!("column \"{name}\" is a generated column");
                return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message)
                    .with_detail("Generated columns cannot be used in COPY.")
                    .into());
            }
            if copied.contains(&at) {
                return Err(specified_twice(&name).into());
            }
            copied.push(at);
        }
        Ok(copied)
    }
}

fn shown(table: &Table, at: usize) -> OutputColumn {
    let column = &table.columns[at];
    OutputColumn::new(&column.name, column.ty)
}

fn copy_to(
    table: Option<&Table>,
    select: Select,
    options: Arc<Options>,
    columns: Vec<OutputColumn>,
) -> Result<Plan, SqlError> {
    let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
    let quoted = forced(table, "FORCE_QUOTE", &options.force_quote, &names)?;
    Ok(Plan::CopyTo(CopyTo { select, options, columns, quoted }))
}

/// Returns, for each of the columns, whether an option names it.
fn forced<'a>(
    table: impl Into<Option<&'a Table>>,
    option: &str,
    named: &Named,
    columns: &[&str],
) -> Result<Vec<bool>, SqlError> {
    let these = match named {
        Named::None => return Ok(vec![false; columns.len()]),
        Named::All => return Ok(vec![true; columns.len()]),
        Named::These(these) => these,
    };
    let unknown = these.iter().find(|name| !columns.contains(&name.as_str()));
    if let Some(unknown) = unknown {
        let table = table.into();
        if table.is_none_or(|table| table.position(unknown).is_none()) {
            let of = table.map(|table| format!(" of relation \"{}\"", table.name));
            let of = of.unwrap_or_default();
            let message = format!("column \"{unknown}\"{of} does not exist");
            return Err(SqlError::new(code::UNDEFINED_COLUMN, message));
        }
        let message = format!("{option} column \"{unknown}\" not referenced by COPY");
        return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message));
    }
    Ok(columns.iter().map(|column| these.iter().any(|name| name == column)).collect())
}

/// Rejects files and programs: they belong to the server, which clients may not access.
fn refuse_files(target: &ast::CopyTarget, is_to: bool) -> Result<(), SqlError> {
    let (role, what) = match (target, is_to) {
        (ast::CopyTarget::Stdin | ast::CopyTarget::Stdout, _) => return Ok(()),
        (ast::CopyTarget::File { .. }, false) => ("pg_read_server_files", "from a file"),
        (ast::CopyTarget::File { .. }, true) => ("pg_write_server_files", "to a file"),
        (ast::CopyTarget::Program { .. }, _) => {
            ("pg_execute_server_program", "to or from an external program")
        }
    };
    let message = format!("must be superuser or have privileges of the {role} role to COPY {what}");
    let hint =
        "Anyone can COPY to stdout or from stdin. psql's \\copy command also works for anyone.";
    Err(SqlError::new(code::NO_PRIVILEGE, message).with_hint(hint))
}
