//! The statements of PostgreSQL, by their first words.
//!
//! The parser knows many dialects, and its errors mention all of them. Therefore the kind of a
//! statement is determined before it is parsed. A statement that PostgreSQL has and Pangea does not
//! is an unsupported feature, reported by its name, whatever follows. A statement that PostgreSQL
//! does not have is a syntax error at its first word, even if other databases have it.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::error::{SqlError, code};

/// Statements that are passed to the parser.
const PARSED: &[&str] = &[
    "ABORT",
    "ALTER",
    "ANALYZE",
    "BEGIN",
    "CALL",
    "COMMENT",
    "COMMIT",
    "COPY",
    "CREATE",
    "DEALLOCATE",
    "DELETE",
    "DISCARD",
    "DROP",
    "END",
    "EXECUTE",
    "INSERT",
    "LOCK",
    "PREPARE",
    "RELEASE",
    "RESET",
    "ROLLBACK",
    "SAVEPOINT",
    "SELECT",
    "SET",
    "SHOW",
    "START",
    "TRUNCATE",
    "UNLISTEN",
    "UPDATE",
    "VACUUM",
    "VALUES",
    "WITH",
];

/// Other statements of PostgreSQL, which are not supported.
const MISSING: &[&str] = &[
    "CHECKPOINT",
    "CLUSTER",
    "GRANT",
    "IMPORT",
    "LISTEN",
    "LOAD",
    "MERGE",
    "NOTIFY",
    "REASSIGN",
    "REFRESH",
    "REINDEX",
    "REVOKE",
    "SECURITY",
    "TABLE",
];

/// Kinds of objects, besides tables, that CREATE, ALTER and DROP name.
const OBJECTS: &[&str] = &[
    "ACCESS METHOD",
    "AGGREGATE",
    "CAST",
    "COLLATION",
    "CONVERSION",
    "DATABASE",
    "DEFAULT PRIVILEGES",
    "DOMAIN",
    "EVENT TRIGGER",
    "EXTENSION",
    "FOREIGN DATA WRAPPER",
    "FOREIGN TABLE",
    "FUNCTION",
    "GROUP",
    "INDEX",
    "LANGUAGE",
    "LARGE OBJECT",
    "MATERIALIZED VIEW",
    "OPERATOR",
    "OWNED",
    "POLICY",
    "PROCEDURE",
    "PUBLICATION",
    "ROLE",
    "ROUTINE",
    "RULE",
    "SCHEMA",
    "SEQUENCE",
    "SERVER",
    "STATISTICS",
    "SUBSCRIPTION",
    "SYSTEM",
    "TABLE",
    "TABLESPACE",
    "TEXT SEARCH",
    "TRANSFORM",
    "TRIGGER",
    "TYPE",
    "USER",
    "VIEW",
];

/// Words that may stand between CREATE and the kind of object.
const MODIFIERS: &[&str] =
    &["OR", "REPLACE", "UNIQUE", "RECURSIVE", "CONSTRAINT", "TRUSTED", "PROCEDURAL", "DEFAULT"];

/// Maximum number of words that are read: `ALTER INDEX IF EXISTS s . i RENAME` and one more.
const WORDS_MAX: usize = 9;

/// Refuses a statement that is not to be parsed, by its tokens without blanks.
///
/// # Errors
/// 0A000 with the name of the statement if PostgreSQL has it, 42601 if it does not.
pub(super) fn check<'a>(tokens: impl Iterator<Item = &'a TokenWithSpan>) -> Result<(), SqlError> {
    let tokens: Vec<&Token> = tokens.map(|token| &token.token).take(WORDS_MAX).collect();
    let Some(first) = tokens.first() else { return Ok(()) };
    if **first == Token::LParen {
        return Ok(());
    }
    let words: Vec<String> = tokens.iter().map_while(|token| word(token)).collect();
    let is_rename = |token: &&Token| word(token).is_some_and(|it| it == "RENAME");
    let is_part = |word: &&String| matches!(word.as_str(), "OWNER" | "SET" | "ATTRIBUTE");
    let kind = words.first().map_or("", String::as_str);
    let second = words.get(1).map_or("", String::as_str);
    match (kind, second) {
        ("COMMIT" | "ROLLBACK", "PREPARED") | ("PREPARE", "TRANSACTION") => {
            Err(SqlError::unsupported(format!("{kind} {second}")))
        }
        ("CREATE", "UNLOGGED") => Err(SqlError::unsupported("CREATE UNLOGGED TABLE")),
        ("SET", _) => match set_of(&words[1..]) {
            Some(of) => Err(SqlError::unsupported(format!("SET {of}"))),
            None => Ok(()),
        },
        ("CREATE" | "DROP" | "ALTER", _) => match object(&words[1..]) {
            Some("TYPE") if kind == "ALTER" => match words.iter().skip(3).find(is_part) {
                Some(part) => Err(SqlError::unsupported(format!("ALTER TYPE .. {part}"))),
                None => Ok(()),
            },
            Some("TABLE" | "TYPE" | "VIEW") => Ok(()),
            Some("INDEX") if kind != "ALTER" || tokens.iter().any(is_rename) => Ok(()),
            Some("SEQUENCE") => Ok(()),
            Some("PROCEDURE") if kind == "DROP" => Ok(()),
            Some(object) => Err(SqlError::unsupported(format!("{kind} {object}"))),
            None => Ok(()),
        },
        ("COMMENT", "ON") => match object(&words[2..]) {
            Some("TABLE" | "INDEX" | "SEQUENCE" | "VIEW" | "SCHEMA" | "DATABASE" | "TYPE") => {
                Ok(())
            }
            Some(object) => Err(SqlError::unsupported(format!("COMMENT ON {object}"))),
            None if words.get(2).is_some_and(|word| word == "CONSTRAINT") => {
                Err(SqlError::unsupported("COMMENT ON CONSTRAINT"))
            }
            None => Ok(()),
        },
        ("REFRESH", _) => Err(SqlError::unsupported("REFRESH MATERIALIZED VIEW")),
        _ if PARSED.contains(&kind) => Ok(()),
        _ if MISSING.contains(&kind) => Err(SqlError::unsupported(kind)),
        _ => Err(SqlError::new(code::SYNTAX, format!("syntax error at or near \"{first}\""))),
    }
}

/// Returns the subject of a SET that names no setting.
fn set_of(words: &[String]) -> Option<&'static str> {
    let scope = words.first().filter(|word| matches!(word.as_str(), "SESSION" | "LOCAL"));
    let rest = &words[usize::from(scope.is_some())..];
    match rest.first()?.as_str() {
        "ROLE" => Some("ROLE"),
        "AUTHORIZATION" if scope.is_some() => Some("SESSION AUTHORIZATION"),
        "SESSION" if rest.get(1).is_some_and(|it| it == "AUTHORIZATION") => {
            Some("SESSION AUTHORIZATION")
        }
        "CONSTRAINTS" => Some("CONSTRAINTS"),
        _ => None,
    }
}

/// Returns a keyword in upper case.
fn word(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
        _ => None,
    }
}

/// Returns the kind of object that is created, altered or dropped. Returns `None` if PostgreSQL
/// does not have it.
fn object(words: &[String]) -> Option<&'static str> {
    let is_modifier = |word: &&String| MODIFIERS.contains(&word.as_str());
    let skipped = words.iter().take_while(is_modifier).count();
    // DEFAULT in ALTER DEFAULT PRIVILEGES is also in the list of modifiers.
    (0..=skipped).rev().find_map(|from| {
        let rest = words[from..].join(" ") + " ";
        let is_of =
            |object: &&&str| rest.strip_prefix(**object).is_some_and(|it| it.starts_with(' '));
        OBJECTS.iter().find(is_of).copied()
    })
}
