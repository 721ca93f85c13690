//! Names of what is in a schema.
//!
//! ```text
//!   public  t   -> "t"              as it was kept before there were other schemas
//!   s       t   -> "s" 00 "t"       no name has a zero byte in it
//! ```

use std::fmt;

use pangea_core::codec::DecodeError;
use serde::{Deserialize, Serialize};

/// The schema that is there from the beginning.
pub const PUBLIC: &str = "public";

/// Between the name of a schema and that of what is in it.
const SEPARATOR: char = '\0';

/// The name of something in a schema, with the schema. It is shown without, as in the messages of
/// PostgreSQL.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QualifiedName(String);

impl QualifiedName {
    /// A name in a schema.
    ///
    /// # Panics
    /// When one of the two has a zero byte in it.
    pub fn new(schema: &str, name: &str) -> Self {
        assert!(!schema.contains(SEPARATOR) && !name.contains(SEPARATOR), "names are texts");
        match schema {
            PUBLIC => Self(name.to_owned()),
            schema => Self(format!("{schema}{SEPARATOR}{name}")),
        }
    }

    /// A name in `public`.
    pub fn public(name: &str) -> Self {
        Self::new(PUBLIC, name)
    }

    /// The name that is kept as a text.
    pub(crate) fn kept(text: &[u8]) -> Result<Self, DecodeError> {
        let text = std::str::from_utf8(text).map_err(|_| DecodeError::new("name"))?;
        Ok(Self(text.to_owned()))
    }

    /// As it is kept, in keys and records.
    pub(crate) fn as_kept(&self) -> &str {
        &self.0
    }

    /// Its schema.
    pub fn schema(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(PUBLIC, |(schema, _)| schema)
    }

    /// The name without its schema.
    pub fn name(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or(&self.0, |(_, name)| name)
    }

    /// Another name in the same schema.
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
