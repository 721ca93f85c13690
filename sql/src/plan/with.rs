//! Planning of WITH: queries, writes, and recursive queries.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{self, Visit, Visitor};

use super::query::is_all;
use super::steps::Step;
use super::{Planner, refuse};
use crate::error::{Failure, SqlError, code};
use crate::expr::query::Query;
use crate::vocabulary::column::OutputColumn;
use crate::{relational, syntax};

/// A WITH query.
#[derive(Clone, Debug)]
pub(super) struct Named {
    name: String,
    /// `None` for a write without RETURNING.
    query: Option<Query>,
    columns: Vec<OutputColumn>,
    /// The steps of the statement that it reads.
    reads: BTreeSet<usize>,
}

/// The writes of a statement that run before or after its main part.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// Whether the next WITH is the statement's own, which may write.
    pub may_write: bool,
    pub steps: Vec<Step>,
    /// The steps read by the query that is being planned.
    pub reads: BTreeSet<usize>,
}

impl Planner<'_> {
    /// Plans the queries of WITH; each may refer to those before it.
    pub(super) fn with(&mut self, with: &ast::With) -> Result<(), Failure> {
        let may_write = std::mem::take(&mut self.writes.may_write);
        let first = self.named.len();
        for table in &with.cte_tables {
            let name = syntax::name(&table.alias.name);
            if self.named[first..].iter().any(|named| named.name == name) {
                let message = format!("WITH query name \"{name}\" specified more than once");
                let error = SqlError::new(code::DUPLICATE_ALIAS, message);
                return Err(self.error_at(error, table.alias.name.span.start));
            }
            let is_recursive = with.recursive && names_itself(&table.query, &name);
            let around = std::mem::take(&mut self.writes.reads);
            let named = match (syntax::is_write(&table.query), is_recursive) {
                (true, _) => self.named_write(name, table, may_write, is_recursive)?,
                (false, true) => {
                    let (query, columns) = self.recursive_query(&name, table)?;
                    self.named_query(name, query, columns)
                }
                (false, false) => {
                    let body = ast::SetExpr::Query(table.query.clone());
                    let (query, columns) = self.operand(&body)?;
                    self.named_query(name, query, columns)
                }
            };
            self.writes.reads = around;
            let mut named = named;
            rename_columns(&mut named.columns, &table.alias, &named.name)?;
            self.named.push(named);
        }
        Ok(())
    }

    fn named_query(&mut self, name: String, query: Query, columns: Vec<OutputColumn>) -> Named {
        let reads = std::mem::take(&mut self.writes.reads);
        Named { name, query: Some(query), columns, reads }
    }

    /// Plans a write in WITH as a step of the statement. Its rows are those of RETURNING.
    fn named_write(
        &mut self,
        name: String,
        table: &ast::Cte,
        may_write: bool,
        is_recursive: bool,
    ) -> Result<Named, Failure> {
        let refused = if is_recursive {
            let message =
                format!("recursive query \"{name}\" must not contain data-modifying statements");
            Some((code::INVALID_RECURSION, message))
        } else if !may_write {
            let message = "WITH clause containing a data-modifying statement must be at the top \
                           level";
            Some((code::FEATURE_NOT_SUPPORTED, message.to_owned()))
        } else {
            None
        };
        if let Some((code, message)) = refused {
            return Err(self.error_at(SqlError::new(code, message), table.alias.name.span.start));
        }
        let (plan, columns) = self.write(&table.query)?;
        let reads = std::mem::take(&mut self.writes.reads);
        let relation = self.number();
        let names = columns.iter().zip(0..).map(|(column, at)| {
            let given = table.alias.columns.get(at);
            given.map_or_else(|| column.name.clone(), |given| syntax::name(&given.name))
        });
        let label = names.fold(name.clone(), |label, name| label + "\0" + &name);
        self.labels.push((relation, label));
        let types: Vec<_> = columns.iter().map(|column| column.ty.base).collect();
        let query = (!types.is_empty()).then(|| relational::given(&types, relation)).transpose()?;
        self.writes.steps.push(Step { plan, name: name.clone(), relation, reads });
        let reads = BTreeSet::from([self.writes.steps.len() - 1]);
        Ok(Named { name, query, columns, reads })
    }

    /// Plans `WITH RECURSIVE`: initial rows, and rows derived from rows until no new ones appear.
    fn recursive_query(
        &mut self,
        name: &str,
        table: &ast::Cte,
    ) -> Result<(Query, Vec<OutputColumn>), Failure> {
        let is_bare = table.query.order_by.is_none()
            && table.query.limit_clause.is_none()
            && table.query.fetch.is_none()
            && table.query.with.is_none();
        refuse(&[(!is_bare, "ORDER BY, LIMIT or WITH in a recursive query")])?;
        use ast::SetOperator::Union;
        let ast::SetExpr::SetOperation { op: Union, set_quantifier, left, right } =
            &*table.query.body
        else {
            let message = format!(
                "recursive query \"{name}\" does not have the form non-recursive-term UNION [ALL] \
                 recursive-term"
            );
            return Err(SqlError::new(code::INVALID_RECURSION, message).into());
        };
        let is_all = is_all(*set_quantifier)?;
        let (first, mut columns) = self.operand(left)?;
        rename_columns(&mut columns, &table.alias, name)?;
        let types = first.types.clone();
        let number = self.number();
        let work = format!("work{number}");
        let query = relational::work_table(&work, &types, number)?;
        // The label is the name, followed by the column names.
        let names = columns.iter().map(|column| format!("\0{}", column.name));
        self.labels.push((number, name.to_owned() + &names.collect::<String>()));
        let (name_of, reads) = (name.to_owned(), BTreeSet::new());
        let named = Named { name: name_of, query: Some(query), columns: columns.clone(), reads };
        self.named.push(named);
        let planned = self.operand(right);
        self.named.pop();
        let (next, others) = planned?;
        if others.len() != columns.len() {
            let message = "each UNION query must have the same number of columns";
            return Err(SqlError::new(code::SYNTAX, message).into());
        }
        self.common_types(&mut columns.clone(), &others, "UNION")?;
        for (at, (column, other)) in columns.iter().zip(&others).enumerate() {
            if column.ty.base != other.ty.base {
                let message = format!(
                    "recursive query \"{name}\" column {} has type {} in non-recursive term but \
                     type {} overall",
                    at + 1,
                    column.ty.base,
                    other.ty.base
                );
                let error = SqlError::new(code::TYPE_MISMATCH, message)
                    .with_hint("Cast the output of the non-recursive term to the correct type.");
                return Err(error.into());
            }
        }
        let relation = self.number();
        let query = relational::recursive(&work, (first, next), is_all, relation)?;
        Ok((query, columns))
    }

    /// Looks up a WITH query, innermost first.
    pub(super) fn with_named(
        &mut self,
        ident: &ast::Ident,
    ) -> Result<Option<(Query, Vec<OutputColumn>)>, Failure> {
        let name = syntax::name(ident);
        let Some(named) = self.named.iter().rev().find(|named| named.name == name) else {
            return Ok(None);
        };
        self.writes.reads.extend(&named.reads);
        match &named.query {
            Some(query) => Ok(Some((query.clone(), named.columns.clone()))),
            None => {
                let message = format!("WITH query \"{name}\" does not have a RETURNING clause");
                let error = SqlError::new(code::FEATURE_NOT_SUPPORTED, message);
                Err(self.error_at(error, ident.span.start))
            }
        }
    }
}

/// Whether a query in WITH RECURSIVE refers to itself.
fn names_itself(query: &ast::Query, name: &str) -> bool {
    struct Find<'a>(&'a str);
    impl Visitor for Find<'_> {
        type Break = ();
        fn pre_visit_relation(&mut self, relation: &ast::ObjectName) -> ControlFlow<()> {
            match &relation.0[..] {
                [part] if part.as_ident().is_some_and(|it| syntax::name(it) == self.0) => {
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    query.visit(&mut Find(name)).is_break()
}

fn rename_columns(
    columns: &mut [OutputColumn],
    alias: &ast::TableAlias,
    name: &str,
) -> Result<(), SqlError> {
    if alias.columns.len() > columns.len() {
        let (has, given) = (columns.len(), alias.columns.len());
        let message = format!(
            "WITH query \"{name}\" has {has} columns available but {given} columns specified"
        );
        return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, message));
    }
    for (column, given) in columns.iter_mut().zip(&alias.columns) {
        column.name = syntax::name(&given.name);
    }
    Ok(())
}
