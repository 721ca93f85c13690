//! The statements that PostgreSQL has, by their first words.
//!
//! The parser knows many dialects, and its errors tell of all of them. What a statement is, is
//! therefore settled before it is parsed: one that PostgreSQL has and Pangea does not is a feature
//! that is missing, by its name, however it goes on; one that PostgreSQL does not have is a syntax
//! error at its first word, whatever another database would do with it.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::error::{SqlError, code};

/// Statements that go to the parser.
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

/// Statements that PostgreSQL has beside them.
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

/// What CREATE, ALTER and DROP are of, beside tables.
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

/// What may stand between CREATE and what it is of.
const MODIFIERS: &[&str] =
    &["OR", "REPLACE", "UNIQUE", "RECURSIVE", "CONSTRAINT", "TRUSTED", "PROCEDURAL", "DEFAULT"];

/// How many words are looked at: `ALTER INDEX IF EXISTS s . i RENAME` and one more.
const WORDS_MAX: usize = 9;

/// Refuses a statement that is not to be parsed, by its tokens without blanks.
///
/// # Errors
/// 0A000 with the name of the statement when PostgreSQL has it, 42601 when it does not.
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

/// What SET is of where it is of no setting.
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

/// A keyword in upper case.
fn word(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
        _ => None,
    }
}

/// The kind of thing that is created, altered or dropped; nothing where it is none of PostgreSQL's.
fn object(words: &[String]) -> Option<&'static str> {
    let is_modifier = |word: &&String| MODIFIERS.contains(&word.as_str());
    let skipped = words.iter().take_while(is_modifier).count();
    // ALTER DEFAULT PRIVILEGES begins with what may be a modifier.
    (0..=skipped).rev().find_map(|from| {
        let rest = words[from..].join(" ") + " ";
        let is_of =
            |object: &&&str| rest.strip_prefix(**object).is_some_and(|it| it.starts_with(' '));
        OBJECTS.iter().find(is_of).copied()
    })
}
