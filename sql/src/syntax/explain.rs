//! EXPLAIN, in PostgreSQL's grammar: its options and the explained statement.

use sqlparser::ast;
use sqlparser::tokenizer::{Location, Token, TokenWithSpan};

use super::words::{Words, word};
use super::{CursorStatement, Parsed};
use crate::error::{SqlError, code};
use crate::types::SqlType;

/// The options of EXPLAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether the statement is run (ANALYZE).
    pub is_analyzed: bool,
    pub is_verbose: bool,
    pub has_costs: bool,
    pub has_timing: bool,
    pub has_summary: bool,
    pub format: Format,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            is_analyzed: false,
            is_verbose: false,
            has_costs: true,
            has_timing: false,
            has_summary: false,
            format: Format::Text,
        }
    }
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
    Xml,
}

impl Format {
    /// The type of the column `QUERY PLAN`.
    pub(crate) fn base(self) -> SqlType {
        match self {
            Self::Text | Self::Xml => SqlType::Text,
            Self::Json => SqlType::Json,
        }
    }
}

/// An EXPLAIN.
#[derive(Clone, Debug)]
pub(crate) struct Explain {
    pub options: Options,
    /// The explained statement. For a DECLARE, its query.
    pub statement: Parsed,
}

/// The first words of the statements that have a plan in PostgreSQL.
const EXPLAINABLE: &[&str] = &[
    "CREATE", "DECLARE", "DELETE", "INSERT", "MERGE", "REFRESH", "SELECT", "TABLE", "UPDATE",
    "VALUES", "WITH",
];

/// An option as written: its name in lower case, its value, and its location.
struct Written {
    name: String,
    value: Option<String>,
    place: Location,
}

/// Parses the options of an EXPLAIN from tokens without blanks. Returns them with the location
/// where the explained statement begins, or `None` for any other statement.
///
/// # Errors
/// 42601 and 22023 as in PostgreSQL, 0A000 for unsupported forms.
pub(super) fn parse(
    source: &str,
    start: usize,
    tokens: &[&TokenWithSpan],
) -> Result<Option<(Options, Location)>, SqlError> {
    let mut words = Words { source, start, tokens, at: 0 };
    if !words.take("EXPLAIN") {
        return Ok(None);
    }
    let written = match words.has_options() {
        true => words.explain_options()?,
        false => words.plain_options(),
    };
    let options = options(source, &written)?;
    let first = words.token();
    let is_known = match first.map(word) {
        Some(Some(first)) => EXPLAINABLE.contains(&first.as_str()),
        Some(None) => first == Some(&Token::LParen),
        None => false,
    };
    if words.take("EXECUTE") {
        return Err(SqlError::unsupported("EXPLAIN EXECUTE"));
    }
    if !is_known {
        return Err(words.unexpected());
    }
    Ok(Some((options, words.place())))
}

impl Explain {
    /// Returns an EXPLAIN of a statement. Returns `None` if the statement has no plan in PostgreSQL
    /// either.
    pub(super) fn of(options: Options, statement: Parsed) -> Option<Self> {
        let query = statement.cursor.as_deref().map(|cursor| match cursor {
            CursorStatement::Declare { query, .. } => Some((**query).clone()),
            _ => None,
        });
        let statement = match query {
            Some(query) => query?,
            None => statement,
        };
        use ast::Statement as S;
        let has_plan = match &*statement.ast {
            S::Query(_) | S::Insert(_) | S::Update(_) | S::Delete(_) => true,
            S::CreateTable(create) => create.query.is_some(),
            _ => false,
        };
        (has_plan && statement.role.is_none()).then_some(Self { options, statement })
    }
}

/// Returns the tokens of the explained statement, which begins at `from`.
pub(super) fn behind(tokens: &[TokenWithSpan], from: Location) -> Vec<TokenWithSpan> {
    let is_of_it = |token: &&TokenWithSpan| {
        let start = token.span.start;
        (start.line, start.column) >= (from.line, from.column)
    };
    tokens.iter().filter(is_of_it).cloned().collect()
}

/// Returns the error of a statement that has no plan.
pub(super) fn without_plan(source: &str, tokens: &[TokenWithSpan]) -> SqlError {
    let word = tokens.first().map(ToString::to_string).unwrap_or_default();
    let message = format!("syntax error at or near \"{word}\"");
    let place = tokens.first().map_or(Location::empty(), |token| token.span.start);
    SqlError::new(code::SYNTAX, message).at(source, place)
}

impl Words<'_> {
    /// Returns whether options in parentheses come next. A query in parentheses begins with another
    /// parenthesis, or with a keyword that is not an option.
    fn has_options(&self) -> bool {
        let second = self.tokens.get(self.at + 1).and_then(|token| word(&token.token));
        let begins = ["SELECT", "VALUES", "WITH", "TABLE"];
        self.token() == Some(&Token::LParen)
            && second.is_some_and(|second| !begins.contains(&second.as_str()))
    }

    fn plain_options(&mut self) -> Vec<Written> {
        let mut written = Vec::new();
        for name in ["ANALYZE", "VERBOSE"] {
            let place = self.place();
            if self.take(name) || name == "ANALYZE" && self.take("ANALYSE") {
                written.push(Written { name: name.to_lowercase(), value: None, place });
            }
        }
        written
    }

    fn explain_options(&mut self) -> Result<Vec<Written>, SqlError> {
        self.take_token(&Token::LParen);
        let written = self.list(Self::explain_option)?;
        match self.take_token(&Token::RParen) {
            true => Ok(written),
            false => Err(self.unexpected()),
        }
    }

    fn explain_option(&mut self) -> Result<Written, SqlError> {
        let place = self.place();
        let Some(Token::Word(name)) = self.token() else { return Err(self.unexpected()) };
        let name = name.value.to_lowercase();
        let name = if name == "analyse" { "analyze".to_owned() } else { name };
        self.at += 1;
        let value = match self.token() {
            Some(Token::Word(word)) => Some(word.value.clone()),
            Some(Token::Number(value, _) | Token::SingleQuotedString(value)) => Some(value.clone()),
            _ => None,
        };
        self.at += usize::from(value.is_some());
        Ok(Written { name, value, place })
    }
}

/// Returns whether an option is on. An option without a value is on.
fn truth(Written { name, value, .. }: &Written) -> Result<bool, SqlError> {
    match value.as_deref().map(str::to_lowercase).as_deref() {
        None | Some("true" | "on" | "1") => Ok(true),
        Some("false" | "off" | "0") => Ok(false),
        Some(_) => Err(SqlError::new(code::SYNTAX, format!("{name} requires a Boolean value"))),
    }
}

fn options(source: &str, written: &[Written]) -> Result<Options, SqlError> {
    let mut options = Options::default();
    let (mut timing, mut summary, mut has_wal) = (None, None, false);
    for option in written {
        match option.name.as_str() {
            "analyze" => options.is_analyzed = truth(option)?,
            "verbose" => options.is_verbose = truth(option)?,
            "costs" => options.has_costs = truth(option)?,
            "timing" => timing = Some(truth(option)?),
            "summary" => summary = Some(truth(option)?),
            "format" => options.format = format(source, option)?,
            // Pangea has no page buffers, no write-ahead log of pages, and no planner settings. For
            // these options it shows nothing, like PostgreSQL if all counts are zero.
            "wal" => has_wal = truth(option)?,
            "buffers" | "settings" => {
                truth(option)?;
            }
            name => {
                let message = format!("unrecognized EXPLAIN option \"{name}\"");
                return Err(SqlError::new(code::SYNTAX, message).at(source, option.place));
            }
        }
    }
    if timing == Some(true) && !options.is_analyzed {
        let message = "EXPLAIN option TIMING requires ANALYZE";
        return Err(SqlError::new(code::INVALID_PARAMETER, message));
    }
    if has_wal && !options.is_analyzed {
        let message = "EXPLAIN option WAL requires ANALYZE";
        return Err(SqlError::new(code::INVALID_PARAMETER, message));
    }
    options.has_timing = timing.unwrap_or(options.is_analyzed);
    options.has_summary = summary.unwrap_or(options.is_analyzed);
    Ok(options)
}

fn format(source: &str, option: &Written) -> Result<Format, SqlError> {
    let Some(value) = &option.value else {
        return Err(SqlError::new(code::SYNTAX, "format requires a parameter"));
    };
    match value.to_lowercase().as_str() {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        "xml" => Ok(Format::Xml),
        "yaml" => {
            let feature = format!("EXPLAIN (FORMAT {})", value.to_uppercase());
            Err(SqlError::unsupported(feature).at(source, option.place))
        }
        _ => {
            let message = format!("unrecognized value for EXPLAIN option \"format\": \"{value}\"");
            Err(SqlError::new(code::INVALID_PARAMETER, message).at(source, option.place))
        }
    }
}
