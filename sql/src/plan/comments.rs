//! Planning of COMMENT ON: resolves the object to its number.

use sqlparser::ast;

use super::{Plan, Planner};
use crate::authorization::Required;
use crate::catalog::comment::Subject;
use crate::catalog::role::Object;
use crate::catalog::{PUBLIC, QualifiedName, Relation, schema, stored};
use crate::error::{Failure, SqlError, code};
use crate::syntax::{self, Written};
use crate::system;
use crate::vocabulary::system::{DATABASE, PG_CLASS, PG_DATABASE, PG_NAMESPACE, PG_TYPE};

/// A comment on an object.
#[derive(Clone, Debug)]
pub(crate) struct Comment {
    pub subject: Subject,
    /// `None` removes the comment.
    pub text: Option<String>,
}

impl Planner<'_> {
    pub(super) fn comment(
        &mut self,
        kind: ast::CommentObject,
        object: &ast::ObjectName,
        text: Option<&str>,
    ) -> Result<Plan, Failure> {
        use ast::CommentObject as C;
        let of = |class, object, part| Subject { class, object, part };
        let subject = match kind {
            C::Column => {
                let mut parts = object.0.clone();
                let column = parts.pop().and_then(|part| part.as_ident().map(syntax::name));
                let column = column
                    .filter(|_| !parts.is_empty())
                    .ok_or_else(|| SqlError::new(code::SYNTAX, "column name must be qualified"))?;
                let written = syntax::table_name(&ast::ObjectName(parts))?;
                let (name, _) = self.known_of_ddl(&written)?;
                let (number, at) = self.column_named(&name, &column)?;
                of(PG_CLASS, number, at)
            }
            C::Table | C::View | C::Index | C::Sequence => {
                let written = syntax::table_name(object)?;
                let number = self.relation_of(&written, &kind.to_string().to_lowercase())?;
                of(PG_CLASS, number, 0)
            }
            C::Type => of(PG_TYPE, self.type_to_comment(object)?, 0),
            C::Schema | C::Database => {
                let name = syntax::name_parts(object)?.join(".");
                match kind {
                    C::Schema => {
                        self.check_schema(&name)?;
                        self.required.push(Required::owner(Object::Schema(name.clone())));
                        let number = schema::number(&name, &mut self.cx)?;
                        of(PG_NAMESPACE, system::schema_number(&name, number), 0)
                    }
                    _ => {
                        let public = Object::Schema(PUBLIC.to_owned());
                        self.required.push(Required::owner(public));
                        of(PG_DATABASE, DATABASE, 0)
                    }
                }
            }
            other => return Err(SqlError::unsupported(format!("COMMENT ON {other}")).into()),
        };
        Ok(Plan::utility(Comment { subject, text: text.map(str::to_owned) }))
    }

    /// Returns the number of a relation of a kind, which the user must own.
    fn relation_of(&mut self, written: &Written, wanted: &str) -> Result<u32, Failure> {
        let (name, relation) = self.known_of_ddl(written)?;
        if relation.kind() != wanted {
            let article = if wanted == "index" { "an" } else { "a" };
            let message = format!("\"{name}\" is not {article} {wanted}");
            return Err(SqlError::new(code::WRONG_OBJECT_TYPE, message).into());
        }
        let owned = |object| Required::owner(object);
        Ok(match relation {
            Relation::Table(table) => {
                self.required.push(owned(Object::Table(table.name)));
                stored(table.id.0)
            }
            Relation::View(view) => {
                self.required.push(owned(Object::View(view.name)));
                stored(view.id.0)
            }
            Relation::Sequence(sequence) => {
                self.required.push(owned(Object::Sequence(name)));
                stored(sequence.id)
            }
            Relation::Index { table } => {
                self.own_index(&table, name.name());
                let table = self.table_named(&table)?;
                let index = table.indexes.iter().find(|index| index.name == name.name());
                index.map_or(system::primary_key(&table), |index| stored(index.id.0))
            }
        })
    }

    /// Returns the numbers of a relation and of one of its columns.
    fn column_named(&mut self, name: &QualifiedName, column: &str) -> Result<(u32, u32), Failure> {
        let missing = || {
            let message = format!("column \"{column}\" of relation \"{name}\" does not exist");
            SqlError::new(code::UNDEFINED_COLUMN, message)
        };
        match self.relation_named(name)? {
            Some(Relation::View(view)) => {
                self.required.push(Required::owner(Object::View(view.name.clone())));
                let at = view.columns.iter().position(|it| it.name == column);
                Ok((stored(view.id.0), at.ok_or_else(missing)? as u32 + 1))
            }
            _ => {
                let table = self.table_named(name)?;
                self.required.push(Required::owner(Object::Table(table.name.clone())));
                let at = table.position(column).ok_or_else(missing)?;
                Ok((stored(table.id.0), at as u32 + 1))
            }
        }
    }
}
