//! Variables as the binder of SQL sees them: names for parameters.

use crate::types::SqlType;

/// What an expression can name beside columns, in the order of the parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Variables {
    pub named: Vec<Named>,
    /// Records that have no fields yet.
    pub unassigned: Vec<String>,
    /// Whether a name that is a column too is an error; else the column wins.
    pub is_strict: bool,
}

/// A parameter that has a name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    /// What may stand before the name: a label, or for a field its record, which must.
    pub qualifier: Option<String>,
    pub must_qualify: bool,
    pub name: String,
    /// The number of the parameter, from 0.
    pub parameter: usize,
    pub ty: SqlType,
}

impl Variables {
    /// The innermost of a name.
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
