//! The options of COPY, checked as PostgreSQL checks them.

use sqlparser::tokenizer::Location;

use crate::error::{SqlError, code};

/// The data format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Csv,
    Binary,
}

/// The meaning of the first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// It is a row.
    None,
    /// It contains the column names, which are ignored on input.
    Names,
    /// It contains the column names, which must match on input.
    Match,
}

/// The columns that an option applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Named {
    #[default]
    None,
    All,
    These(Vec<String>),
}

/// The options of a COPY statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub format: Format,
    pub delimiter: u8,
    /// Representation of NULL.
    pub null: String,
    pub header: Header,
    pub quote: u8,
    pub escape: u8,
    pub force_quote: Named,
    pub force_not_null: Named,
    pub force_null: Named,
}

/// The value of an option as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nothing,
    Word(String),
    Star,
    List(Vec<String>),
}

/// An option as written.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub name: String,
    pub value: Value,
    pub location: Location,
}

/// The options collected so far.
#[derive(Debug, Default)]
struct Collected {
    format: Option<Format>,
    delimiter: Option<String>,
    null: Option<String>,
    header: Option<Header>,
    quote: Option<String>,
    escape: Option<String>,
    force_quote: Named,
    force_not_null: Named,
    force_null: Named,
}

/// Checks the options given in the statement `source` and fills in the defaults.
pub(crate) fn checked(given: Vec<Given>, is_from: bool, source: &str) -> Result<Options, SqlError> {
    let mut collected = Collected::default();
    let mut seen: Vec<String> = Vec::new();
    for one in given {
        if seen.contains(&one.name) {
            let error = SqlError::new(code::SYNTAX, "conflicting or redundant options");
            return Err(error.at(source, one.location));
        }
        seen.push(one.name.clone());
        let location = one.location;
        collected.take(one, is_from).map_err(|error| match error.code {
            // PostgreSQL reports a position only for these errors.
            code::INVALID_PARAMETER => error.at(source, location),
            _ if error.message.ends_with("not recognized") => error.at(source, location),
            _ => error,
        })?;
    }
    collected.finish(is_from)
}

impl Collected {
    fn take(&mut self, given: Given, is_from: bool) -> Result<(), SqlError> {
        let Given { name, value, .. } = given;
        match name.as_str() {
            "format" => {
                let format = text(&name, value)?;
                self.format = Some(match format.as_str() {
                    "text" => Format::Text,
                    "csv" => Format::Csv,
                    "binary" => Format::Binary,
                    other => {
                        let message = format!("COPY format \"{other}\" not recognized");
                        return Err(SqlError::new(code::INVALID_PARAMETER, message));
                    }
                });
            }
            // FREEZE promises that the table is new. The promise makes no difference here.
            "freeze" => drop(boolean(&name, &value)?),
            "delimiter" => self.delimiter = Some(text(&name, value)?),
            "null" => self.null = Some(text(&name, value)?),
            "header" => self.header = Some(header(&value, is_from)?),
            "quote" => self.quote = Some(text(&name, value)?),
            "escape" => self.escape = Some(text(&name, value)?),
            "force_quote" if value == Value::Star => self.force_quote = Named::All,
            "force_quote" => self.force_quote = columns(&name, value)?,
            "force_not_null" => self.force_not_null = columns(&name, value)?,
            "force_null" => self.force_null = columns(&name, value)?,
            "encoding" => check_encoding(&text(&name, value)?)?,
            _ => {
                let message = format!("option \"{name}\" not recognized");
                return Err(SqlError::new(code::SYNTAX, message));
            }
        }
        Ok(())
    }

    fn finish(self, is_from: bool) -> Result<Options, SqlError> {
        let format = self.format.unwrap_or(Format::Text);
        self.refuse_in_binary(format)?;
        let is_csv = format == Format::Csv;
        let null = self.null.clone().unwrap_or(if is_csv { "" } else { "\\N" }.to_owned());
        let delimiter = self.delimiter.as_deref().unwrap_or(if is_csv { "," } else { "\t" });
        let delimiter = one_byte(delimiter, "delimiter")?;
        check_delimiter(delimiter, is_csv)?;
        if null.contains(['\r', '\n']) {
            let message = "COPY null representation cannot use newline or carriage return";
            return Err(SqlError::new(code::INVALID_PARAMETER, message));
        }
        if self.quote.is_some() && !is_csv {
            return Err(only("COPY quote available only in CSV mode"));
        }
        let quote = one_byte(self.quote.as_deref().unwrap_or("\""), "quote")?;
        if is_csv && delimiter == quote {
            let message = "COPY delimiter and quote must be different";
            return Err(SqlError::new(code::INVALID_PARAMETER, message));
        }
        if self.escape.is_some() && !is_csv {
            return Err(only("COPY escape available only in CSV mode"));
        }
        let escape = self.escape.as_deref().map_or(Ok(quote), |it| one_byte(it, "escape"))?;
        self.check_forced(is_csv, is_from)?;
        if null.as_bytes().contains(&delimiter) {
            return Err(only("COPY delimiter must not appear in the NULL specification"));
        }
        if is_csv && null.as_bytes().contains(&quote) {
            return Err(only("CSV quote character must not appear in the NULL specification"));
        }
        let header = self.header.unwrap_or(Header::None);
        let Self { force_quote, force_not_null, force_null, .. } = self;
        Ok(Options {
            format,
            delimiter,
            null,
            header,
            quote,
            escape,
            force_quote,
            force_not_null,
            force_null,
        })
    }

    fn refuse_in_binary(&self, format: Format) -> Result<(), SqlError> {
        if format != Format::Binary {
            return Ok(());
        }
        let syntax = |message: &str| Err(SqlError::new(code::SYNTAX, message));
        if self.delimiter.is_some() {
            return syntax("cannot specify DELIMITER in BINARY mode");
        }
        if self.null.is_some() {
            return syntax("cannot specify NULL in BINARY mode");
        }
        if self.header.is_some_and(|header| header != Header::None) {
            return Err(only("cannot specify HEADER in BINARY mode"));
        }
        Ok(())
    }

    fn check_forced(&self, is_csv: bool, is_from: bool) -> Result<(), SqlError> {
        let forced = [
            (&self.force_quote, "force quote", "COPY TO", !is_from),
            (&self.force_not_null, "force not null", "COPY FROM", is_from),
            (&self.force_null, "force null", "COPY FROM", is_from),
        ];
        for (columns, what, direction, fits) in forced {
            if *columns == Named::None {
                continue;
            }
            if !is_csv {
                return Err(only(&format!("COPY {what} available only in CSV mode")));
            }
            if !fits {
                return Err(only(&format!("COPY {what} only available using {direction}")));
            }
        }
        Ok(())
    }
}

fn only(message: &str) -> SqlError {
    SqlError::new(code::FEATURE_NOT_SUPPORTED, message)
}

fn text(name: &str, value: Value) -> Result<String, SqlError> {
    match value {
        Value::Word(text) => Ok(text),
        Value::Star => Ok("*".to_owned()),
        Value::List(words) => Ok(words.join(".")),
        Value::Nothing => Err(SqlError::new(code::SYNTAX, format!("{name} requires a parameter"))),
    }
}

fn boolean(name: &str, value: &Value) -> Result<bool, SqlError> {
    let word = match value {
        Value::Nothing => return Ok(true),
        Value::Word(word) => word.to_ascii_lowercase(),
        Value::Star | Value::List(_) => String::new(),
    };
    match word.as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(SqlError::new(code::SYNTAX, format!("{name} requires a Boolean value"))),
    }
}

fn header(value: &Value, is_from: bool) -> Result<Header, SqlError> {
    if matches!(value, Value::Word(word) if word.eq_ignore_ascii_case("match")) {
        if !is_from {
            return Err(only("cannot use \"match\" with HEADER in COPY TO"));
        }
        return Ok(Header::Match);
    }
    let is_there = boolean("header", value)
        .map_err(|_| SqlError::new(code::SYNTAX, "header requires a Boolean value or \"match\""))?;
    Ok(if is_there { Header::Names } else { Header::None })
}

fn columns(name: &str, value: Value) -> Result<Named, SqlError> {
    match value {
        Value::List(names) => Ok(Named::These(names)),
        _ => {
            let message = format!("argument to option \"{name}\" must be a list of column names");
            Err(SqlError::new(code::INVALID_PARAMETER, message))
        }
    }
}

fn check_encoding(name: &str) -> Result<(), SqlError> {
    let plain = name.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "");
    match plain.as_str() {
        "utf8" | "unicode" => Ok(()),
        _ => Err(SqlError::unsupported(format!("COPY with encoding \"{name}\""))
            .with_hint("Only UTF8 is supported.")),
    }
}

fn one_byte(text: &str, what: &str) -> Result<u8, SqlError> {
    match text.as_bytes() {
        [byte] => Ok(*byte),
        _ => Err(only(&format!("COPY {what} must be a single one-byte character"))),
    }
}

fn check_delimiter(delimiter: u8, is_csv: bool) -> Result<(), SqlError> {
    let refused = |message: &str| Err(SqlError::new(code::INVALID_PARAMETER, message));
    if matches!(delimiter, b'\r' | b'\n') {
        return refused("COPY delimiter cannot be newline or carriage return");
    }
    // Escape sequences contain these characters.
    let is_taken = matches!(delimiter, b'\\' | b'.')
        || delimiter.is_ascii_lowercase()
        || delimiter.is_ascii_digit();
    if is_taken && !is_csv {
        return refused(&format!("COPY delimiter cannot be \"{}\"", char::from(delimiter)));
    }
    Ok(())
}
