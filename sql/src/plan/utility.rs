//! Statements that change the catalog or only check something: they have no rows to plan for.
//!
//! The file in `plan` has the type of the statement, which the planner fills. The file in `exec`
//! implements [`Utility`] for it, so a new statement appears in no other list than the planner's.

use std::fmt::Debug;
use std::sync::Arc;

use pangea_core::txn::Context;

use super::{Change, Plan};
use crate::error::Failure;
use crate::exec::Executed;
use crate::expr::Env;

/// A planned utility statement (PostgreSQL's word).
pub(crate) trait Utility: Debug + Send + Sync {
    /// PostgreSQL's command tag.
    fn command(&self) -> &'static str;

    fn run(&self, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure>;

    /// Whether it may write.
    fn is_write(&self) -> bool {
        true
    }

    /// Whether it writes whole tables, so that running it on every replica is cheaper than shipping
    /// its writes.
    fn is_bulk(&self) -> bool {
        false
    }

    /// Whether it has no effect outside of a transaction block, which is an error.
    fn needs_block(&self) -> bool {
        false
    }

    /// The number of ranges of a table that it creates.
    fn ranges(&self) -> usize {
        1
    }

    /// The change of a table that it makes.
    fn change(&self) -> Option<&Change> {
        None
    }
}

/// Implements [`Utility`]: for each type the command tag, the function that runs the statement, and
/// in braces the methods whose default does not apply.
macro_rules! utilities {
    ($($statement:ty: $command:literal, $run:path $(, { $($methods:tt)* })?;)*) => {
        $(impl Utility for $statement {
            fn command(&self) -> &'static str {
                $command
            }

            fn run(&self, env: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
                $run(self, env, cx)
            }

            $($($methods)*)?
        })*
    };
}
pub(crate) use utilities;

impl Plan {
    pub(super) fn utility(statement: impl Utility + 'static) -> Self {
        Self::Utility(Arc::new(statement))
    }

    /// Returns the statement if it is a utility statement.
    pub(crate) fn as_utility(&self) -> Option<&dyn Utility> {
        match self {
            Self::Utility(statement) => Some(&**statement),
            _ => None,
        }
    }
}
