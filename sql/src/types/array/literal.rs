//! The syntax of array literals, `{1,NULL,"a b"}`: braces, commas, quotes.

use super::check_dimensions;
use crate::error::{SqlError, code};

/// The dimensions, and the texts of the elements in order. `None` is an unquoted NULL.
type Words = (Vec<usize>, Vec<Option<String>>);

/// Returns whether a character is a blank between the parts of an array in PostgreSQL.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}')
}

/// Appends the text of an element, quoted if needed.
pub(super) fn put_quoted(text: &str, out: &mut String) {
    let is_special = |c: char| matches!(c, '{' | '}' | ',' | '"' | '\\') || is_blank(c);
    let is_plain = !text.is_empty() && !text.eq_ignore_ascii_case("null");
    if is_plain && !text.contains(is_special) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        if c == '"' || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

/// The token that was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Open,
    Close,
    Comma,
    Word,
}

/// The state of the parser.
struct Reading {
    /// Length of each dimension, once one of its subarrays is complete.
    dims: Vec<Option<usize>>,
    /// Number of parts read of each open dimension.
    counts: Vec<usize>,
    /// Whether elements were found. All of them must be at one depth.
    has_words: bool,
    after: After,
}

/// Parses the texts of a literal.
///
/// # Errors
/// If it is malformed.
pub(super) fn read(text: &str) -> Result<Words, SqlError> {
    let malformed = |detail: String| {
        let message = format!("malformed array literal: \"{text}\"");
        SqlError::new(code::INVALID_TEXT, message).with_detail(detail)
    };
    let body = text.trim_start_matches(is_blank);
    if body.starts_with('[') {
        return Err(SqlError::unsupported("an array literal with bounds"));
    }
    if !body.starts_with('{') {
        let detail = "Array value must start with \"{\" or dimension information.";
        return Err(malformed(detail.to_owned()));
    }
    read_body(body, &malformed)
}

fn read_body(body: &str, malformed: &dyn Fn(String) -> SqlError) -> Result<Words, SqlError> {
    let mut reading =
        Reading { dims: vec![], counts: vec![], has_words: false, after: After::Comma };
    let mut words = Vec::new();
    let mut rest = body;
    loop {
        rest = rest.trim_start_matches(is_blank);
        let Some(c) = rest.chars().next() else {
            return Err(malformed("Unexpected end of input.".to_owned()));
        };
        match c {
            '{' => reading.open().map_err(|e| e.unwrap_or_else(|| unexpected('{', malformed)))?,
            '}' => match reading.close(words.is_empty()) {
                Ok(()) if reading.counts.is_empty() => break,
                Ok(()) => {}
                Err(Some(detail)) => return Err(malformed(detail.to_owned())),
                Err(None) => return Err(unexpected('}', malformed)),
            },
            ',' if matches!(reading.after, After::Word | After::Close) => {
                reading.after = After::Comma;
            }
            ',' => return Err(unexpected(',', malformed)),
            _ => {
                let (word, after) = read_word(rest, malformed)?;
                reading.word().map_err(|detail| malformed(detail.to_owned()))?;
                words.push(word);
                rest = after;
                continue;
            }
        }
        rest = &rest[1..];
    }
    if !rest[1..].trim_start_matches(is_blank).is_empty() {
        return Err(malformed("Junk after closing right brace.".to_owned()));
    }
    if words.is_empty() {
        return Ok((vec![], vec![]));
    }
    Ok((reading.dims.into_iter().map(Option::unwrap_or_default).collect(), words))
}

fn unexpected(c: char, malformed: &dyn Fn(String) -> SqlError) -> SqlError {
    malformed(format!("Unexpected \"{c}\" character."))
}

impl Reading {
    fn count(&mut self) {
        if let Some(count) = self.counts.last_mut() {
            *count += 1;
        }
    }

    fn open(&mut self) -> Result<(), Option<SqlError>> {
        // A brace next to elements, or at a greater depth than the elements before it.
        let is_too_deep = self.has_words && self.counts.len() >= self.dims.len();
        if !matches!(self.after, After::Open | After::Comma) || is_too_deep {
            return Err(None);
        }
        self.count();
        self.counts.push(0);
        if self.dims.len() < self.counts.len() {
            check_dimensions(self.counts.len()).map_err(Some)?;
            self.dims.push(None);
        }
        self.after = After::Open;
        Ok(())
    }

    fn close(&mut self, is_empty: bool) -> Result<(), Option<&'static str>> {
        let is_bare = self.after == After::Open && is_empty && self.counts.len() == 1;
        if !matches!(self.after, After::Word | After::Close) && !is_bare {
            return Err(None);
        }
        let Some(count) = self.counts.pop() else { return Err(None) };
        let expected = self.dims[self.counts.len()].get_or_insert(count);
        if *expected != count {
            let detail = "Multidimensional arrays must have sub-arrays with matching dimensions.";
            return Err(Some(detail));
        }
        self.after = After::Close;
        Ok(())
    }

    fn word(&mut self) -> Result<(), &'static str> {
        if !matches!(self.after, After::Open | After::Comma) {
            return Err("Unexpected array element.");
        }
        if self.counts.len() < self.dims.len() {
            return Err("Multidimensional arrays must have sub-arrays with matching dimensions.");
        }
        self.count();
        self.has_words = true;
        self.after = After::Word;
        Ok(())
    }
}

/// Parses the text of an element. Returns it with the rest of the literal.
fn read_word<'a>(
    text: &'a str,
    malformed: &dyn Fn(String) -> SqlError,
) -> Result<(Option<String>, &'a str), SqlError> {
    let end = || malformed("Unexpected end of input.".to_owned());
    let mut word = String::new();
    let mut chars = text.char_indices();
    if text.starts_with('"') {
        chars.next();
        loop {
            match chars.next().ok_or_else(end)?.1 {
                '"' => break,
                '\\' => word.push(chars.next().ok_or_else(end)?.1),
                c => word.push(c),
            }
        }
        let rest = chars.as_str();
        let next = rest.trim_start_matches(is_blank).chars().next();
        return match next {
            Some(',' | '}') | None => Ok((Some(word), rest)),
            Some('{') => Err(unexpected('{', malformed)),
            Some(_) => Err(malformed("Unexpected array element.".to_owned())),
        };
    }
    // Escaped characters are retained, even a blank at the end.
    let (mut kept, mut has_escape) = (0, false);
    loop {
        let (at, c) = chars.next().ok_or_else(end)?;
        match c {
            ',' | '}' | '{' => {
                if c == '{' {
                    return Err(unexpected('{', malformed));
                }
                word.truncate(kept);
                let is_null = !has_escape && word.eq_ignore_ascii_case("null");
                return Ok((if is_null { None } else { Some(word) }, &text[at..]));
            }
            '"' => return Err(malformed("Unexpected array element.".to_owned())),
            '\\' => {
                word.push(chars.next().ok_or_else(end)?.1);
                (kept, has_escape) = (word.len(), true);
            }
            c => {
                word.push(c);
                if !is_blank(c) {
                    kept = word.len();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_literals_say_what_is_wrong() {
        let cases = [
            ("1", "Array value must start with \"{\" or dimension information."),
            ("{1,2", "Unexpected end of input."),
            ("{\"a", "Unexpected end of input."),
            ("{1}}", "Junk after closing right brace."),
            ("{1,{2}}", "Unexpected \"{\" character."),
            ("{1,,2}", "Unexpected \",\" character."),
            ("{1,}", "Unexpected \"}\" character."),
            ("{{},{}}", "Unexpected \"}\" character."),
            ("{\"a\"b}", "Unexpected array element."),
            (
                "{{1,2},{3}}",
                "Multidimensional arrays must have sub-arrays with matching dimensions.",
            ),
        ];
        for (text, detail) in cases {
            let error = read(text).unwrap_err();
            assert_eq!(error.detail.as_deref(), Some(detail), "{text}");
        }
        let (dims, words) = read(" { a b , \"c \\\" \" , d\\  ,null, \"null\" } ").unwrap();
        assert_eq!(dims, [5]);
        let shown: Vec<Option<&str>> = words.iter().map(Option::as_deref).collect();
        assert_eq!(shown, [Some("a b"), Some("c \" "), Some("d "), None, Some("null")]);
    }
}
