//! Variables as the SQL binder sees them: names of parameters.

use crate::error::{SqlError, code};
use crate::types::SqlType;

/// The names that an expression can use besides columns, in the order of the parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Variables {
    pub named: Vec<Named>,
    /// Records without fields so far.
    pub unassigned: Vec<String>,
    /// Whether a name that is also a column is an error; otherwise the column wins.
    pub is_strict: bool,
}

/// A named parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    /// The optional qualifier: a label, or the record of a field, for which it is required.
    pub qualifier: Option<String>,
    pub must_qualify: bool,
    pub name: String,
    /// The number of the parameter, from 0.
    pub parameter: usize,
    pub ty: SqlType,
}

impl Variables {
    /// Returns the innermost variable of a name.
    pub(crate) fn find(&self, qualifier: Option<&str>, name: &str) -> Option<&Named> {
        self.named.iter().rev().find(|it| {
            let is_qualified = match qualifier {
                Some(qualifier) => it.qualifier.as_deref() == Some(qualifier),
                None => !it.must_qualify,
            };
            is_qualified && it.name == name
        })
    }
}

/// The input of planning besides the catalog: variables and parameter types.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Signature {
    pub variables: Variables,
    pub types: Vec<SqlType>,
}

/// The error for a record without fields.
pub(crate) fn unassigned(name: &str) -> SqlError {
    let message = format!("record \"{name}\" is not assigned yet");
    let detail = "The tuple structure of a not-yet-assigned record is indeterminate.";
    SqlError::new(code::NOT_PREREQUISITE, message).with_detail(detail)
}
