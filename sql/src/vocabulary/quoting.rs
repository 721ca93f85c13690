//! Names as written in statements and as displayed, and their quoting.

use std::fmt;

use super::name::{PUBLIC, QualifiedName};
use super::reserved::RESERVED;

/// A name as written in a statement. It is displayed as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Written {
    /// `None` if the name is looked up in the search path.
    pub schema: Option<String>,
    pub name: String,
}

impl Written {
    /// Returns a name without a schema.
    pub(crate) fn plain(name: &str) -> Self {
        Self { schema: None, name: name.to_owned() }
    }

    /// Returns a qualified name.
    pub(crate) fn whole(name: &QualifiedName) -> Self {
        Self { schema: Some(name.schema().to_owned()), name: name.name().to_owned() }
    }

    /// Returns the name that it denotes in a text stored in the catalog.
    pub(crate) fn kept(&self) -> QualifiedName {
        QualifiedName::new(self.schema.as_deref().unwrap_or(PUBLIC), &self.name)
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Quotes an identifier as `quote_ident` does. Reserved words are quoted too.
pub(crate) fn quoted_ident(name: &str) -> String {
    let is_word = RESERVED.binary_search(&name).is_ok();
    if is_word || name.is_empty() { format!("\"{name}\"") } else { quoted(name) }
}

/// Formats a name as in stored texts: without the schema if that is `public`.
pub(crate) fn quoted_name(name: &QualifiedName) -> String {
    match name.schema() {
        PUBLIC => quoted(name.name()),
        schema => format!("{}.{}", quoted(schema), quoted(name.name())),
    }
}

/// Returns `"name"` if the identifier needs quotes, otherwise the name.
pub(crate) fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit();
    if name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && name.chars().all(is_plain)
    {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}
