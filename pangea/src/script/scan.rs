//! Splits a file into headers, backslash commands and statements, each with its line.

use super::ScriptError;

/// A token of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// `-- transaction pay weight 3`: the words after the dashes.
    Header { line: usize, word: &'static str, rest: String },
    /// `\set id random(1, 10)`: the word after the backslash, and the rest.
    Command { line: usize, word: String, rest: String },
    /// A statement without its semicolon, with the names of the variables in its holes, and the
    /// prefix of the `\gset` that ends it, if any.
    Statement { line: usize, text: String, holes: Vec<(usize, String)>, gset: Option<String> },
}

/// The first words of headers.
pub(super) const HEADERS: [&str; 4] = ["schema", "rows", "transaction", "check"];

/// Returns whether the text is a valid name of a variable or a transaction.
pub(super) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Splits a file into tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, ScriptError> {
    let mut scanner = Scanner { text, at: 0 };
    let mut tokens = Vec::new();
    while let Some(token) = scanner.next()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn line(&self) -> usize {
        line_of(self.text, self.at)
    }

    fn is_line_start(&self) -> bool {
        self.at == 0 || self.text[..self.at].ends_with('\n')
    }

    /// Consumes the rest of the line.
    fn take_line(&mut self) -> &'a str {
        let line = self.rest().lines().next().unwrap_or_default();
        self.at += line.len();
        line
    }

    fn next(&mut self) -> Result<Option<Token>, ScriptError> {
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { return Ok(None) };
            if c.is_whitespace() || c == ';' {
                self.at += c.len_utf8();
            } else if rest.starts_with("--") {
                let (line, is_first) = (self.line(), self.is_line_start());
                let comment = self.take_line();
                if let Some((word, rest)) = is_first.then(|| header(comment)).flatten() {
                    return Ok(Some(Token::Header { line, word, rest: rest.to_owned() }));
                }
                if is_first {
                    no_slip(line, comment)?;
                }
            } else if rest.starts_with("/*") {
                self.at = self.end_of(self.at)?.expect("a comment begins here");
            } else if c == '\\' {
                return Ok(Some(self.command()));
            } else {
                return self.statement().map(Some);
            }
        }
    }

    /// Reads a backslash command. A backslash at the end of a line continues it on the next line.
    fn command(&mut self) -> Token {
        let line = self.line();
        self.at += 1;
        let mut whole = self.take_line().to_owned();
        while let Some(part) = whole.strip_suffix('\\') {
            whole = format!("{part} ");
            self.at = (self.at + 1).min(self.text.len());
            whole.push_str(self.take_line());
            if self.rest().is_empty() {
                break;
            }
        }
        let whole = whole.trim();
        let (word, rest) = whole.split_once(char::is_whitespace).unwrap_or((whole, ""));
        Token::Command { line, word: word.to_owned(), rest: rest.trim().to_owned() }
    }

    fn statement(&mut self) -> Result<Token, ScriptError> {
        let line = self.line();
        let (mut text, mut holes, mut gset) = (String::new(), Vec::new(), None);
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { break };
            if c == ';' {
                self.at += 1;
                break;
            }
            if rest.starts_with("--") && self.is_line_start() && header(rest).is_some() {
                let header_line = self.line();
                let message = format!(
                    "the statement that begins here has no `;` before the \
                                       header in line {header_line}"
                );
                return Err(ScriptError::new(line, message));
            }
            if let Some(end) = self.end_of(self.at)? {
                text.push_str(&self.text[self.at..end]);
                self.at = end;
            } else if c == '\\' {
                gset = Some(self.gset()?);
                break;
            } else if rest.starts_with("::") {
                text.push_str("::");
                self.at += 2;
            } else if let Some(name) = variable(rest) {
                holes.push((text.len(), name.to_owned()));
                self.at += 1 + name.len();
            } else {
                text.push(c);
                self.at += c.len_utf8();
            }
        }
        let last_hole = holes.last().map_or(0, |(at, _)| *at);
        text.truncate(text.trim_end().len().max(last_hole));
        Ok(Token::Statement { line, text, holes, gset })
    }

    fn gset(&mut self) -> Result<String, ScriptError> {
        let Token::Command { line, word, rest } = self.command() else {
            unreachable!("a backslash begins a command")
        };
        if word != "gset" || !(rest.is_empty() || is_name(&rest)) {
            let message = format!(
                "expected `;` or `\\gset [PREFIX]` at the end of a statement, \
                                   found `\\{word} {rest}`"
            );
            return Err(ScriptError::new(line, message.trim_end().to_owned()));
        }
        Ok(rest)
    }

    /// Returns the end of the quoted text or comment that begins at `at`, if any.
    fn end_of(&self, at: usize) -> Result<Option<usize>, ScriptError> {
        match quoted(self.text, at) {
            Ok(end) => Ok(end),
            Err(what) => {
                let message = format!("{what} that begins here is not terminated");
                Err(ScriptError::new(line_of(self.text, at), message))
            }
        }
    }
}

/// Returns the line of a position, from 1.
fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Returns the name of a variable, if the text begins with a colon and a name.
fn variable(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(':')?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| is_name(name))
}

/// Returns the first word of a header, and the rest.
fn header(comment: &str) -> Option<(&'static str, &str)> {
    let line = comment.lines().next().unwrap_or_default();
    let words = line.strip_prefix("-- ")?.trim();
    let (first, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let word = HEADERS.into_iter().find(|header| *header == first)?;
    Some((word, rest.trim()))
}

/// Rejects a comment that is almost a header: the section that it was to begin would otherwise
/// become part of another.
fn no_slip(line: usize, comment: &str) -> Result<(), ScriptError> {
    let words: Vec<&str> = comment.trim_start_matches('-').split_whitespace().collect();
    let Some(first) = words.first() else { return Ok(()) };
    let first = first.to_lowercase();
    let near = |header: &&str| (1..=2).contains(&strsim::osa_distance(header, &first));
    let is_short = (2..=4).contains(&words.len()) && words[1..].iter().all(|it| it.len() < 40);
    let is_cased = HEADERS.contains(&first.as_str()) && is_short;
    let slip = match HEADERS.into_iter().find(|header| *header == first).filter(|_| is_cased) {
        Some(header) => Some(header),
        // Short words are similar to many others.
        None if is_short && (first.len() > 4 || near_by_one(&first)) => {
            HEADERS.into_iter().find(near)
        }
        None => None,
    };
    match slip {
        None => Ok(()),
        Some(meant) => Err(ScriptError::new(
            line,
            format!(
                "this is not a header; did you mean `-- {meant}`? If it is a comment, indent it"
            ),
        )),
    }
}

/// Returns whether a word differs from the first word of a header by one edit.
fn near_by_one(word: &str) -> bool {
    HEADERS.into_iter().any(|header| strsim::osa_distance(header, word) == 1)
}

/// Returns the end of the string, quoted name or comment that begins at `at`, if any.
///
/// # Errors
/// The kind of the text that is not terminated.
pub(super) fn quoted(text: &str, at: usize) -> Result<Option<usize>, &'static str> {
    let rest = &text[at..];
    let found = |end: Option<usize>, what| end.map(|end| Some(at + end)).ok_or(what);
    match rest.as_bytes() {
        [b'\'', ..] => {
            // E'..' has backslash escapes.
            let is_escaped = text[..at].ends_with(['E', 'e'])
                && !text[..at - 1].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            found(string_end(rest, '\'', is_escaped), "the string")
        }
        [b'"', ..] => found(string_end(rest, '"', false), "the quoted name"),
        [b'-', b'-', ..] => Ok(Some(at + rest.find('\n').unwrap_or(rest.len()))),
        [b'/', b'*', ..] => found(comment_end(rest), "the comment"),
        [b'$', ..] if !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') => {
            match rest[1..].find('$').map(|end| &rest[..end + 2]) {
                Some(tag) if tag.len() == 2 || is_name(&tag[1..tag.len() - 1]) => {
                    let end = rest[tag.len()..].find(tag).map(|end| end + 2 * tag.len());
                    found(end, "the dollar-quoted string")
                }
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// Returns the end of a string, in which a doubled quote stands for the quote itself.
fn string_end(rest: &str, quote: char, is_escaped: bool) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if is_escaped && c == '\\' {
            chars.next();
        } else if c == quote {
            match chars.peek() {
                Some((_, next)) if *next == quote => drop(chars.next()),
                _ => return Some(at + 1),
            }
        }
    }
    None
}

/// Returns the end of a comment, which may contain nested comments.
fn comment_end(rest: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements(text: &str) -> Vec<(usize, String, Vec<String>)> {
        let tokens = tokens(text).unwrap().into_iter();
        tokens
            .filter_map(|token| match token {
                Token::Statement { line, text, holes, .. } => {
                    Some((line, text, holes.into_iter().map(|(_, name)| name).collect()))
                }
                _ => None,
            })
            .collect()
    }

    #[test]
    fn variables_are_found_outside_of_what_is_quoted() {
        let text = "select :a, ':b', \":c\", $$ :d; $$, $t$ :e $t$, 1::int, E'\\':f', -- :g\n :h;";
        let found = statements(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].2, ["a", "h"]);
        assert!(found[0].1.contains("1::int") && found[0].1.contains("$$ :d; $$"));
    }

    #[test]
    fn statements_end_at_semicolons_and_know_their_lines() {
        let found = statements("-- schema\ncreate table t (a int);\n\n/* ; /* x */ */ select 1\n;");
        assert_eq!((found[0].0, found[1].0), (2, 4));
        assert_eq!(found[1].1, "select 1");
    }

    #[test]
    fn commands_are_lines_and_gset_ends_a_statement() {
        let text = "\\set a random(1, \\\n  10)\nselect 1 as x \\gset p_\n";
        let found = tokens(text).unwrap();
        let rest = "a random(1,    10)".to_owned();
        assert_eq!(found[0], Token::Command { line: 1, word: "set".to_owned(), rest });
        let Token::Statement { line: 3, gset, .. } = &found[1] else { panic!("{found:?}") };
        assert_eq!(gset.as_deref(), Some("p_"));
    }

    #[test]
    fn what_does_not_end_and_what_is_nearly_a_header_is_refused_by_its_line() {
        for (text, line, said) in [
            ("select 1;\nselect 'x;", 2, "the string that begins here is not terminated"),
            ("select $$x", 1, "dollar-quoted string"),
            ("\n/* x", 2, "the comment that begins here"),
            ("select 1\n-- check total\nselect 2;", 1, "has no `;` before the header in line 2"),
            ("-- transacton pay weight 3\n", 1, "did you mean `-- transaction`?"),
            ("--transaction pay\n", 1, "did you mean `-- transaction`?"),
            ("-- Check total\n", 1, "did you mean `-- check`?"),
            ("select 1 \\gest\n", 1, "`\\gset [PREFIX]`"),
        ] {
            let wrong = tokens(text).unwrap_err();
            assert!(wrong.line == line && wrong.message.contains(said), "{text}: {wrong:?}");
        }
        let fine =
            "-- Orders of a small shop, and what it takes to check them.\n-- show\n select 1;";
        assert_eq!(statements(fine).len(), 1);
    }
}
