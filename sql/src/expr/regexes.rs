//! Regular expressions: PostgreSQL's advanced ones, to the extent that the crate `regex` agrees
//! with them.
//!
//! A pattern is translated. Escapes with another meaning are rewritten in the crate's syntax.
//! Constructs that the crate does not have are rejected by name: back references, look-around,
//! collating elements.
//!
//! Both then agree on whether a pattern matches, but not on the part of the text that it matches:
//! among the matches at one position PostgreSQL takes the longest, and the crate takes the first
//! that the pattern reaches. Functions that return a match therefore reject patterns with
//! alternatives or with quantifiers that are not greedy. The remaining patterns differ only if an
//! optional part takes text that a longer match needs after it, as in `a?(ab)?`.

use std::cell::RefCell;
use std::sync::Arc;

use regex::{Captures, Regex, RegexBuilder};

use super::functions::{Function, text};
use super::signatures::{Signature, of};
use super::strings::bounded;
use crate::error::{SqlError, code};
use crate::types::SqlType::{self, Bool, Int4, Text};
use crate::types::datum::Datum;
use crate::types::{TEXTS, check_parted};

/// The memory limit of a compiled pattern, in bytes: patterns come from clients.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// A function over regular expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegexFunction {
    Matches { is_negated: bool, is_case_blind: bool },
    Like,
    Match,
    Replace,
    Count,
    Substring,
    Split,
}

use RegexFunction as R;

const fn regex(
    name: &'static str,
    args: &'static [SqlType],
    result: SqlType,
    function: RegexFunction,
) -> Signature {
    of(name, args, result, Function::Regex(function))
}

const TWO: &[SqlType] = &[Text, Text];
const THREE: &[SqlType] = &[Text, Text, Text];

pub(super) const SIGNATURES: &[Signature] = &[
    regex("regexp_like", TWO, Bool, R::Like),
    regex("regexp_like", THREE, Bool, R::Like),
    regex("regexp_match", TWO, TEXTS, R::Match),
    regex("regexp_match", THREE, TEXTS, R::Match),
    regex("regexp_replace", THREE, Text, R::Replace),
    regex("regexp_replace", &[Text, Text, Text, Text], Text, R::Replace),
    regex("regexp_count", TWO, Int4, R::Count),
    regex("regexp_substr", TWO, Text, R::Substring),
    regex("substring", TWO, Text, R::Substring),
    regex("regexp_split_to_array", TWO, TEXTS, R::Split),
    regex("regexp_split_to_array", THREE, TEXTS, R::Split),
];

/// The options that flag letters select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flags {
    is_global: bool,
    is_case_blind: bool,
    is_literal: bool,
    /// `.` and complements do not match a newline.
    is_dot_narrow: bool,
    /// `^` and `$` match at each line.
    is_by_line: bool,
}

impl Flags {
    fn read(letters: &str) -> Result<Self, SqlError> {
        let mut flags = Self::default();
        for letter in letters.chars() {
            match letter {
                'g' => flags.is_global = true,
                'i' => flags.is_case_blind = true,
                'c' => flags.is_case_blind = false,
                'q' => flags.is_literal = true,
                'n' | 'm' => (flags.is_dot_narrow, flags.is_by_line) = (true, true),
                'p' => (flags.is_dot_narrow, flags.is_by_line) = (true, false),
                'w' => (flags.is_dot_narrow, flags.is_by_line) = (false, true),
                's' => (flags.is_dot_narrow, flags.is_by_line) = (false, false),
                't' => {}
                'x' | 'b' | 'e' => {
                    let feature = format!("the regular expression option \"{letter}\"");
                    return Err(SqlError::unsupported(feature));
                }
                other => {
                    let message = format!("invalid regular expression option: \"{other}\"");
                    return Err(SqlError::new(code::INVALID_PARAMETER, message));
                }
            }
        }
        Ok(flags)
    }
}

/// Evaluates the function.
pub(super) fn call(function: RegexFunction, args: &[Datum]) -> Result<Datum, SqlError> {
    let string = |at: usize| text(&args[at]);
    let (subject, pattern) = (string(0), string(1));
    let letters = match function {
        R::Replace => args.get(3),
        _ => args.get(2),
    };
    let mut flags = Flags::read(letters.map_or("", text))?;
    if let R::Matches { is_case_blind, .. } = function {
        flags.is_case_blind = is_case_blind;
    }
    if flags.is_global && function != R::Replace {
        let name = match function {
            R::Like => "regexp_like()",
            R::Match => "regexp_match()",
            _ => "regexp_split_to_array()",
        };
        let message = format!("{name} does not support the \"global\" option");
        let error = SqlError::new(code::INVALID_PARAMETER, message);
        let hint = "Use the regexp_matches function instead.";
        return Err(if function == R::Match { error.with_hint(hint) } else { error });
    }
    let is_shown = !matches!(function, R::Matches { .. } | R::Like);
    let regex = compiled(pattern, flags, is_shown)?;
    Ok(match function {
        R::Matches { is_negated, .. } => Datum::Bool(regex.is_match(subject) != is_negated),
        R::Like => Datum::Bool(regex.is_match(subject)),
        R::Match => match regex.captures(subject) {
            None => Datum::Null,
            Some(found) => {
                let first = usize::from(regex.captures_len() > 1);
                Datum::array((first..regex.captures_len()).map(|at| group(&found, at)).collect())
            }
        },
        // Returns the first group if the pattern has one.
        R::Substring => match regex.captures(subject) {
            None => Datum::Null,
            Some(found) => {
                let is_group = regex.captures_len() > 1 && pattern.contains('(');
                let is_plain = args.len() == 2;
                group(&found, usize::from(is_group && is_plain))
            }
        },
        R::Count => Datum::Int(matches(&regex, subject).count() as i64),
        R::Split => {
            check_parted(subject)?;
            Datum::array(split(&regex, subject))
        }
        R::Replace => Datum::Text(replace(&regex, subject, string(2), flags.is_global)?),
    })
}

fn group(found: &Captures<'_>, at: usize) -> Datum {
    found.get(at).map_or(Datum::Null, |part| Datum::Text(part.as_str().to_owned()))
}

/// Returns the matches from left to right. As in PostgreSQL, an empty match may follow right after
/// another match.
fn matches<'a>(regex: &'a Regex, subject: &'a str) -> impl Iterator<Item = Captures<'a>> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let found = regex.captures_at(subject, next?)?;
        let whole = found.get(0)?;
        let step = subject[whole.end()..].chars().next().map(char::len_utf8);
        next =
            if whole.is_empty() { step.map(|step| whole.end() + step) } else { Some(whole.end()) };
        Some(found)
    })
}

/// Returns the parts between matches. An empty match at either end of the text, or right after
/// another match, does not split.
fn split(regex: &Regex, subject: &str) -> Vec<Datum> {
    let mut parts = Vec::new();
    let mut start = 0;
    for found in matches(regex, subject).filter_map(|found| found.get(0)) {
        let is_idle = found.is_empty() && (found.start() == start || found.end() == subject.len());
        if is_idle {
            continue;
        }
        parts.push(Datum::Text(subject[start..found.start()].to_owned()));
        start = found.end();
    }
    parts.push(Datum::Text(subject[start..].to_owned()));
    parts
}

fn replace(regex: &Regex, subject: &str, with: &str, is_global: bool) -> Result<String, SqlError> {
    let mut out = String::with_capacity(subject.len());
    let mut start = 0;
    let limit = if is_global { usize::MAX } else { 1 };
    for found in matches(regex, subject).take(limit) {
        let whole = found.get(0).expect("a match has a whole");
        out.push_str(&subject[start..whole.start()]);
        let mut chars = with.chars().peekable();
        while let Some(c) = chars.next() {
            let escaped = chars.peek().copied().filter(|_| c == '\\');
            match escaped {
                Some('&') => out.push_str(whole.as_str()),
                Some('\\') => out.push('\\'),
                Some(digit @ '1'..='9') => {
                    let at = digit.to_digit(10).unwrap_or(0) as usize;
                    out.push_str(found.get(at).map_or("", |part| part.as_str()));
                }
                _ => {
                    out.push(c);
                    continue;
                }
            }
            chars.next();
        }
        bounded(out.len())?;
        start = whole.end();
    }
    out.push_str(&subject[start..]);
    Ok(out)
}

/// A compiled regex with its key: pattern, flags, and whether matches are returned.
type Compiled = (String, Flags, bool, Arc<Regex>);

thread_local! {
    /// The pattern compiled last: most statements use one pattern for all their rows. The cache
    /// affects only how long a match takes, never its result.
    static LAST: RefCell<Option<Compiled>> = const { RefCell::new(None) };
}

fn compiled(pattern: &str, flags: Flags, is_shown: bool) -> Result<Arc<Regex>, SqlError> {
    let known = LAST.with_borrow(|last| match last {
        Some((known, with, shown, regex))
            if known == pattern && *with == flags && *shown == is_shown =>
        {
            Some(regex.clone())
        }
        _ => None,
    });
    if let Some(regex) = known {
        return Ok(regex);
    }
    let mut with = flags;
    let mut body = pattern;
    // A pattern may begin with embedded options.
    if let Some((letters, rest)) = pattern.strip_prefix("(?").and_then(|p| p.split_once(')'))
        && !letters.is_empty()
        && letters.bytes().all(|byte| byte.is_ascii_lowercase())
    {
        let own = Flags::read(letters)?;
        with.is_case_blind |= own.is_case_blind;
        with.is_dot_narrow |= own.is_dot_narrow;
        with.is_by_line |= own.is_by_line;
        body = rest;
    }
    let translated = match with.is_literal {
        true => regex::escape(body),
        false => Translation::of(body, with.is_dot_narrow, is_shown)?,
    };
    let regex = RegexBuilder::new(&translated)
        .case_insensitive(with.is_case_blind)
        .dot_matches_new_line(!with.is_dot_narrow)
        .multi_line(with.is_by_line)
        .size_limit(COMPILED_BYTES_MAX)
        .build()
        .map_err(|error| invalid(explained(&error)))?;
    let regex = Arc::new(regex);
    LAST.set(Some((pattern.to_owned(), flags, is_shown, regex.clone())));
    Ok(regex)
}

fn invalid(what: &str) -> SqlError {
    SqlError::new(code::REGULAR_EXPRESSION, format!("invalid regular expression: {what}"))
}

/// Describes the error with PostgreSQL's message.
fn explained(error: &regex::Error) -> &'static str {
    let regex::Error::Syntax(said) = error else { return "regular expression is too complex" };
    let known = [
        ("repetition operator missing expression", "quantifier operand invalid"),
        ("unclosed group", "parentheses () not balanced"),
        ("unopened group", "parentheses () not balanced"),
        ("unclosed character class", "brackets [] not balanced"),
        ("invalid character class range", "invalid character range"),
        ("repetition", "invalid repetition count(s)"),
    ];
    known.iter().find(|(part, _)| said.contains(part)).map_or("invalid escape \\ sequence", |k| k.1)
}

/// A pattern that is being translated to the crate's syntax.
struct Translation<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    out: String,
}

impl<'a> Translation<'a> {
    fn of(pattern: &'a str, is_dot_narrow: bool, is_shown: bool) -> Result<String, SqlError> {
        if pattern.starts_with("***") {
            return Err(SqlError::unsupported("a regular expression that begins with ***"));
        }
        let out = String::with_capacity(pattern.len() + 8);
        let mut this = Self { chars: pattern.chars().peekable(), out };
        let mut is_quantified = false;
        while let Some(c) = this.chars.next() {
            let was_quantified = std::mem::take(&mut is_quantified);
            match c {
                '\\' => this.escape(false)?,
                '[' => this.bracket(is_dot_narrow)?,
                '(' => this.group()?,
                '|' if is_shown => {
                    return Err(SqlError::unsupported(
                        "a regular expression with alternatives here",
                    ));
                }
                '?' if was_quantified && is_shown => {
                    let feature = "a regular expression with a quantifier that is not greedy here";
                    return Err(SqlError::unsupported(feature));
                }
                '*' | '+' if was_quantified => return Err(invalid("quantifier operand invalid")),
                '*' | '+' | '?' => {
                    is_quantified = !was_quantified;
                    this.out.push(c);
                }
                '{' if this.chars.peek().is_some_and(char::is_ascii_digit) => {
                    this.out.push('{');
                    for c in this.chars.by_ref() {
                        this.out.push(c);
                        if c == '}' {
                            break;
                        }
                    }
                    is_quantified = true;
                }
                '{' | '}' => this.out.extend(['\\', c]),
                c => this.out.push(c),
            }
        }
        Ok(this.out)
    }

    fn group(&mut self) -> Result<(), SqlError> {
        self.out.push('(');
        if self.chars.peek() != Some(&'?') {
            return Ok(());
        }
        self.chars.next();
        match self.chars.next() {
            Some(':') => self.out.push_str("?:"),
            Some('=' | '!' | '<') => {
                return Err(SqlError::unsupported("look-around in a regular expression"));
            }
            _ => return Err(invalid("quantifier operand invalid")),
        }
        Ok(())
    }

    fn escape(&mut self, is_in_bracket: bool) -> Result<(), SqlError> {
        let Some(c) = self.chars.next() else { return Err(invalid("invalid escape \\ sequence")) };
        match c {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' | 'n' | 't' | 'r' | 'f' | 'v' | 'a' => {
                self.out.extend(['\\', c]);
            }
            'b' => self.out.push_str("\\x08"),
            'e' => self.out.push_str("\\x1B"),
            'y' if !is_in_bracket => self.out.push_str("\\b"),
            'Y' if !is_in_bracket => self.out.push_str("\\B"),
            'm' if !is_in_bracket => self.out.push_str("\\b{start}"),
            'M' if !is_in_bracket => self.out.push_str("\\b{end}"),
            'A' if !is_in_bracket => self.out.push_str("\\A"),
            'Z' if !is_in_bracket => self.out.push_str("\\z"),
            '1'..='9' if !is_in_bracket => {
                return Err(SqlError::unsupported("a back reference in a regular expression"));
            }
            'u' => self.out.push_str("\\u"),
            'x' | 'c' | 'U' | 'B' | '0' => {
                let feature = format!("the escape \\{c} in a regular expression");
                return Err(SqlError::unsupported(feature));
            }
            c if c.is_ascii_alphanumeric() => return Err(invalid("invalid escape \\ sequence")),
            c => self.out.push_str(&regex::escape(&c.to_string())),
        }
        Ok(())
    }

    fn bracket(&mut self, is_dot_narrow: bool) -> Result<(), SqlError> {
        self.out.push('[');
        if self.chars.peek() == Some(&'^') {
            self.chars.next();
            self.out.push('^');
            // A complement does not match a newline if a dot does not.
            if is_dot_narrow {
                self.out.push_str("\\n");
            }
        }
        let mut is_first = true;
        loop {
            let Some(c) = self.chars.next() else {
                return Err(invalid("brackets [] not balanced"));
            };
            match c {
                ']' if !is_first => break,
                ']' => self.out.push_str("\\]"),
                '\\' => self.escape(true)?,
                '[' => match self.chars.peek() {
                    Some(':') => self.class()?,
                    Some('.' | '=') => {
                        let feature = "a collating element in a regular expression";
                        return Err(SqlError::unsupported(feature));
                    }
                    _ => self.out.push_str("\\["),
                },
                '&' | '~' | '^' => self.out.extend(['\\', c]),
                '-' if is_first || self.chars.peek() == Some(&']') => self.out.push_str("\\-"),
                c => self.out.push(c),
            }
            is_first = false;
        }
        self.out.push(']');
        Ok(())
    }

    /// Translates `[:alpha:]`, after its first bracket.
    fn class(&mut self) -> Result<(), SqlError> {
        self.chars.next();
        let mut name = String::new();
        loop {
            match self.chars.next() {
                Some(':') => break,
                Some(c) => name.push(c),
                None => return Err(invalid("brackets [] not balanced")),
            }
        }
        let known = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print",
            "punct", "space", "upper", "word", "xdigit",
        ];
        if self.chars.next() != Some(']') || !known.contains(&name.as_str()) {
            return Err(invalid("invalid character class"));
        }
        self.out.push_str(&format!("[:{name}:]"));
        Ok(())
    }
}
