//! Planning of WITH, and of what follows from itself.

use std::ops::ControlFlow;

use sqlparser::ast::{self, Visit, Visitor};

use super::query::is_all;
use super::{OutputColumn, Planner, refuse};
use crate::error::{Failure, SqlError, code};
use crate::relational::{self, Query};
use crate::syntax;

/// What WITH names.
#[derive(Clone, Debug)]
pub(super) struct Named {
    name: String,
    query: Query,
    columns: Vec<OutputColumn>,
}

impl Planner<'_> {
    /// Plans what WITH names, each of which may name those before it.
    pub(super) fn with(&mut self, with: &ast::With) -> Result<(), Failure> {
        for table in &with.cte_tables {
            let name = syntax::name(&table.alias.name);
            let is_recursive = with.recursive && names_itself(&table.query, &name);
            let (query, mut columns) = match is_recursive {
                true => self.recursive_query(&name, table)?,
                false => self.operand(&ast::SetExpr::Query(table.query.clone()))?,
            };
            rename_columns(&mut columns, &table.alias, &name)?;
            self.named.push(Named { name, query, columns });
        }
        Ok(())
    }

    /// `WITH RECURSIVE`: rows, and those that follow from rows, until there are no more.
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
        // The names of its columns come behind its own.
        let names = columns.iter().map(|column| format!("\0{}", column.name));
        self.labels.push((number, name.to_owned() + &names.collect::<String>()));
        let named = Named { name: name.to_owned(), query, columns: columns.clone() };
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

    /// What WITH has named, the last first.
    pub(super) fn with_named(&self, name: &str) -> Option<(Query, Vec<OutputColumn>)> {
        let found = self.named.iter().rev().find(|named| named.name == name);
        found.map(|named| (named.query.clone(), named.columns.clone()))
    }
}

/// Whether a query of WITH RECURSIVE names itself.
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
