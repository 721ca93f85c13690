//! Calls of set-returning functions.

use crate::expr::{Expr, Typed};
use crate::types::SqlType;
use crate::vocabulary::set_function::SetFunction;

/// A call of a set-returning function in a query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Called {
    pub function: SetFunction,
    pub args: Vec<Typed>,
    /// Types of its columns.
    pub types: Vec<SqlType>,
}

impl Called {
    /// The expressions of the call.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        self.args.iter_mut().map(|(expr, _)| expr)
    }
}
