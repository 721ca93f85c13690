//! Names of objects in schemas.
//!
//! ```text
//!   public  t   -> "t"              the format from before other schemas existed
//!   s       t   -> "s" 00 "t"       names contain no zero bytes
//! ```

use std::fmt;

use pangea_core::codec::DecodeError;
use serde::{Deserialize, Serialize};

use crate::error::{Failure, SqlError};

/// The schema that always exists.
pub const PUBLIC: &str = "public";

/// Separates the schema's name from the object's name.
const SEPARATOR: char = '\0';

/// The name of an object together with its schema. It is displayed without the schema, as in
/// PostgreSQL's messages.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QualifiedName(String);

impl QualifiedName {
    /// Creates a name in a schema.
    ///
    /// # Panics
    /// Panics if either name contains a zero byte.
    pub fn new(schema: &str, name: &str) -> Self {
        assert!(!schema.contains(SEPARATOR) && !name.contains(SEPARATOR), "names are texts");
        match schema {
            PUBLIC => Self(name.to_owned()),
            schema => Self(format!("{schema}{SEPARATOR}{name}")),
        }
    }

    /// Creates a name in `public`.
    pub fn public(name: &str) -> Self {
        Self::new(PUBLIC, name)
    }

    /// Decodes a stored name.
    pub(crate) fn kept(text: &[u8]) -> Result<Self, DecodeError> {
        let text = std::str::from_utf8(text).map_err(|_| DecodeError::new("name"))?;
        Ok(Self(text.to_owned()))
    }

    /// The stored form, as used in keys and records.
    pub(crate) fn as_kept(&self) -> &str {
        &self.0
    }

    /// The schema's name.
    pub fn schema(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(PUBLIC, |(schema, _)| schema)
    }

    /// The object's name without the schema.
    pub fn name(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(&self.0, |(_, name)| name)
    }

    /// Returns another name in the same schema.
    pub fn beside(&self, name: &str) -> Self {
        Self::new(self.schema(), name)
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema(), self.name())
    }
}

impl SqlError {
    /// Adds the violated constraint to the error of a statement that writes a table.
    #[must_use]
    pub(crate) fn in_table(self, table: &QualifiedName) -> Self {
        self.in_named_table(table.schema(), table.name())
    }
}

impl Failure {
    /// Applies [`SqlError::in_table`] to an SQL error.
    pub(crate) fn in_table(self, table: &QualifiedName) -> Self {
        match self {
            Self::Sql(error) => error.in_table(table).into(),
            Self::Interrupted => Self::Interrupted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_public_is_kept_as_it_was_before_there_were_schemas() {
        let old = postcard::to_stdvec("t").unwrap();
        let name: QualifiedName = postcard::from_bytes(&old).unwrap();
        assert_eq!(name, QualifiedName::public("t"));
        assert_eq!(postcard::to_stdvec(&name).unwrap(), old);
        assert_eq!((name.schema(), name.name()), ("public", "t"));
    }

    #[test]
    fn names_of_two_schemas_differ_and_are_shown_alike() {
        let (a, b) = (QualifiedName::new("a", "t"), QualifiedName::new("b", "t"));
        assert_ne!(a, b);
        assert_eq!((a.to_string(), b.to_string()), ("t".to_owned(), "t".to_owned()));
        assert_eq!((a.schema(), b.beside("u")), ("a", QualifiedName::new("b", "u")));
        assert_eq!(QualifiedName::kept(a.as_kept().as_bytes()), Ok(a));
    }
}
