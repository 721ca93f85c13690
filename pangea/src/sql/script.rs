//! Splits the input into statements, which end with a semicolon, and commands. A command starts
//! with a backslash and extends to the end of its line or to the next backslash.
//!
//! Neither character counts within quotes or comments: `'a;b'`, `E'it\'s'`, `"a;b"`, `$$ ; $$`, `--
//! ;` and `/* ; /* ; */ */`, as in PostgreSQL.

/// A part of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A statement, with its semicolon.
    Sql(String),
    /// A command, with its backslash.
    Command(String),
}

/// The lexical context at the end of the text so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum OpenConstruct {
    #[default]
    Nothing,
    /// A string, which may have backslash escapes.
    Text { has_escapes: bool },
    /// A name in double quotes.
    Name,
    /// A dollar-quoted string, with its delimiter.
    Dollars(String),
    /// Nested comments, with their depth.
    Comment(usize),
}

/// Lines, up to the end of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    text: String,
    open: OpenConstruct,
    /// Whether the text contains more than space and comments.
    has_content: bool,
}

impl Script {
    /// Returns whether no statement has begun.
    pub fn is_empty(&self) -> bool {
        !self.has_content && self.open == OpenConstruct::Nothing
    }

    /// Returns the mark in the prompt for the context of the next line, as in psql.
    pub fn mark(&self) -> char {
        match &self.open {
            OpenConstruct::Nothing if self.has_content => '-',
            OpenConstruct::Nothing => '=',
            OpenConstruct::Text { .. } => '\'',
            OpenConstruct::Name => '"',
            OpenConstruct::Dollars(_) => '$',
            OpenConstruct::Comment(_) => '*',
        }
    }

    /// Returns the statement that has begun and has no semicolon.
    pub fn rest(self) -> Option<String> {
        (!self.is_empty()).then_some(self.text)
    }

    /// Adds a line, and returns the parts that are complete with it, in order.
    pub fn add(&mut self, line: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let taken = match &self.open {
                OpenConstruct::Nothing if first == '\\' => {
                    let end = rest[1..].find('\\').map_or(rest.len(), |at| at + 1);
                    // A command needs no semicolon, but may have one.
                    let command = rest[..end].trim_end_matches([' ', '\t', '\r', ';']);
                    parts.push(Part::Command(command.to_owned()));
                    rest = &rest[end..];
                    continue;
                }
                OpenConstruct::Nothing => self.step_plain(rest),
                within => {
                    let (taken, next) = step_within(within, rest);
                    self.open = next;
                    taken
                }
            };
            self.text.push_str(&rest[..taken]);
            rest = &rest[taken..];
            if first == ';' && self.open == OpenConstruct::Nothing && self.text.ends_with(';') {
                let sql = std::mem::take(&mut self.text).trim().to_owned();
                if std::mem::take(&mut self.has_content) {
                    parts.push(Part::Sql(sql));
                }
            }
        }
        if self.is_empty() {
            self.text.clear();
        } else {
            self.text.push('\n');
        }
        parts
    }

    /// Consumes a token at the front of `rest`, outside of quotes. Returns its length.
    fn step_plain(&mut self, rest: &str) -> usize {
        let first = rest.chars().next().expect("the text is not empty");
        if rest.starts_with("--") {
            return rest.len();
        }
        if rest.starts_with("/*") {
            self.open = OpenConstruct::Comment(1);
            return 2;
        }
        self.has_content |= !first.is_whitespace() && first != ';';
        let is_of_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        match first {
            '\'' => {
                let mut before = self.text.chars().rev();
                let has_escapes = matches!(before.next(), Some('e' | 'E'))
                    && !before.next().is_some_and(is_of_word);
                self.open = OpenConstruct::Text { has_escapes };
            }
            '"' => self.open = OpenConstruct::Name,
            '$' if !self.text.chars().next_back().is_some_and(is_of_word) => {
                if let Some(mark) = dollar_mark(rest) {
                    self.open = OpenConstruct::Dollars(mark.to_owned());
                    return mark.len();
                }
            }
            _ => {}
        }
        first.len_utf8()
    }
}

/// Returns the delimiter of a dollar-quoted string at the front of `rest`: `$$` or `$word$`.
fn dollar_mark(rest: &str) -> Option<&str> {
    let end = rest[1..].find('$')? + 1;
    let word = &rest[1..end];
    let is_word = word.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_number = word.starts_with(|c: char| c.is_ascii_digit());
    (is_word && !is_number).then(|| &rest[..=end])
}

/// Consumes a token at the front of `rest`, within quotes or a comment. Returns its length and the
/// context after it.
fn step_within(within: &OpenConstruct, rest: &str) -> (usize, OpenConstruct) {
    let first = rest.chars().next().expect("the text is not empty");
    let skip = |len: usize| rest.chars().take(len).map(char::len_utf8).sum();
    let stay = |len: usize| (len, within.clone());
    match within {
        OpenConstruct::Nothing => stay(skip(1)),
        OpenConstruct::Text { has_escapes: true } if first == '\\' => stay(skip(2)),
        OpenConstruct::Text { .. } if rest.starts_with("''") => stay(2),
        OpenConstruct::Name if rest.starts_with("\"\"") => stay(2),
        OpenConstruct::Text { .. } if first == '\'' => (1, OpenConstruct::Nothing),
        OpenConstruct::Name if first == '"' => (1, OpenConstruct::Nothing),
        OpenConstruct::Dollars(mark) if rest.starts_with(mark.as_str()) => {
            (mark.len(), OpenConstruct::Nothing)
        }
        OpenConstruct::Comment(depth) if rest.starts_with("/*") => {
            (2, OpenConstruct::Comment(depth + 1))
        }
        OpenConstruct::Comment(1) if rest.starts_with("*/") => (2, OpenConstruct::Nothing),
        OpenConstruct::Comment(depth) if rest.starts_with("*/") => {
            (2, OpenConstruct::Comment(depth - 1))
        }
        OpenConstruct::Text { .. }
        | OpenConstruct::Name
        | OpenConstruct::Dollars(_)
        | OpenConstruct::Comment(_) => stay(skip(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sql(text: &str) -> Part {
        Part::Sql(text.to_owned())
    }

    fn command(text: &str) -> Part {
        Part::Command(text.to_owned())
    }

    fn parts(lines: &[&str]) -> Vec<Part> {
        let mut script = Script::default();
        let parts = lines.iter().flat_map(|line| script.add(line)).collect();
        assert_eq!(script.rest(), None, "{lines:?}");
        parts
    }

    #[test]
    fn statements_and_commands_on_a_line_come_in_their_order() {
        assert_eq!(parts(&["select 1; \\q"]), [sql("select 1;"), command("\\q")]);
        assert_eq!(parts(&["a; b ;;  "]), [sql("a;"), sql("b ;")]);
        assert_eq!(parts(&["\\heal \\status"]), [command("\\heal"), command("\\status")]);
        assert_eq!(
            parts(&["\\kill us-east; ", "\\q;;"]),
            [command("\\kill us-east"), command("\\q")]
        );
        assert_eq!(parts(&["select 1", " + 1;"]), [sql("select 1\n + 1;")]);
        assert_eq!(parts(&["   ", ";", "-- nothing;", "/* ;", "; */"]), []);
    }

    #[test]
    fn a_semicolon_or_backslash_in_quotes_or_a_comment_is_none() {
        for text in [
            "select 'a;\\b';",
            "select 'it''s; ok';",
            "select E'it\\'s; ok''\\'';",
            "select type';' from t;",
            "select \"a;\\\"\"b\";",
            "select $$;\\$$;",
            "select $a$ $b$; $a$;",
            "select 1 -- ; \\q",
            "select /* ; /* ; */ ; */ 1;",
        ] {
            let lines = [text, ";"];
            let lines = if text.contains("--") { &lines[..] } else { &lines[..1] };
            assert_eq!(parts(lines), [sql(&lines.join("\n"))], "{text}");
        }
        // A parameter is not a dollar quote.
        assert_eq!(parts(&["select $1; select $1;"]).len(), 2);
        assert_eq!(parts(&["select a$b; select a$b;"]).len(), 2);
    }

    #[test]
    fn the_prompt_shows_what_is_open() {
        for (line, mark) in [
            ("", '='),
            ("select 1", '-'),
            ("select 'a", '\''),
            ("select \"a", '"'),
            ("select $x$ a", '$'),
            ("/* a", '*'),
            ("select 1; -- a", '='),
        ] {
            let mut script = Script::default();
            script.add(line);
            assert_eq!(script.mark(), mark, "{line}");
            assert_eq!(script.is_empty(), mark == '=', "{line}");
        }
        let mut script = Script::default();
        assert_eq!(script.add("select 2"), []);
        assert_eq!(script.rest(), Some("select 2\n".to_owned()));
    }
}
