//! LOCK TABLE. No transaction waits for it.
//!
//! A serializable transaction requires that everything that it read is unchanged when it commits,
//! whether it locked anything or not, so a lock adds nothing. Below, a lock against writers means
//! that the whole table is unchanged. Otherwise the transaction is replayed or fails with 40001.

use pangea_core::ids::TableId;
use pangea_core::key::KeyRange;
use pangea_core::txn::Context;
use sqlparser::ast;

use super::utility::Utility;
use super::{Plan, Planner};
use crate::authorization::{Needs, Required};
use crate::catalog::Relation;
use crate::catalog::role::{Object, Privileges};
use crate::error::{Failure, SqlError, code};
use crate::exec::Executed;
use crate::expr::Env;
use crate::syntax;

/// A lock that has been checked.
#[derive(Debug, Default)]
struct Lock {
    /// The tables that must not change.
    held: Vec<TableId>,
}

impl Utility for Lock {
    fn command(&self) -> &'static str {
        "LOCK TABLE"
    }

    fn run(&self, _: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
        if let Some(guards) = cx.guards() {
            self.held.iter().try_for_each(|table| guards.range(*table, &KeyRange::all()))?;
        }
        Ok(Executed::default())
    }

    fn is_write(&self) -> bool {
        false
    }

    fn needs_block(&self) -> bool {
        true
    }
}

impl Planner<'_> {
    /// Checks the relations of a LOCK TABLE.
    pub(super) fn lock(&mut self, lock: &ast::Lock) -> Result<Plan, Failure> {
        let needs = match lock.lock_mode {
            Some(ast::LockTableMode::AccessShare) => Needs::All(Privileges::SELECT),
            _ => Needs::Any(Privileges::UPDATE.and(Privileges::DELETE).and(Privileges::TRUNCATE)),
        };
        use ast::LockTableMode as Mode;
        let is_against_writers = !matches!(
            lock.lock_mode,
            Some(
                Mode::AccessShare
                    | Mode::RowShare
                    | Mode::RowExclusive
                    | Mode::ShareUpdateExclusive
            )
        );
        let mut held = Vec::new();
        for target in &lock.tables {
            let location = syntax::location(&target.name);
            let at = |planner: &Self, error: SqlError| error.at(&planner.source, location);
            let written = syntax::table_name(&target.name).map_err(|error| at(self, error))?;
            let (name, relation) = match self.known_of_ddl(&written) {
                Err(Failure::Sql(error)) => return Err(at(self, error).into()),
                found => found?,
            };
            let object = match relation {
                Relation::Table(table) => {
                    held.extend(is_against_writers.then_some(table.id));
                    Object::Table(name)
                }
                Relation::View(_) => Object::View(name),
                other => {
                    let message = format!("cannot lock relation \"{name}\"");
                    let kind = match other {
                        Relation::Sequence(_) => "sequences",
                        _ => "indexes",
                    };
                    let detail = format!("This operation is not supported for {kind}.");
                    let error = SqlError::new(code::WRONG_OBJECT_TYPE, message);
                    return Err(at(self, error.with_detail(detail)).into());
                }
            };
            self.required.push(Required::new(object, needs.clone()));
        }
        Ok(Plan::utility(Lock { held }))
    }
}
