//! Builds a script from the tokens of a file: sections, steps and variables.

use std::path::Path;

use pangea_sweep::plan_error::unknown;

use super::draw::Draw;
use super::expression::Expression;
use super::scan::{self, Token};
use super::value::Value;
use super::{
    BUILT_IN, Check, Define, Rows, Script, ScriptError, Statement, StatementKind, Step, Transaction,
};

/// Values above these limits are probably mistakes.
const WEIGHT_MAX: u32 = 1_000_000;
const ROWS_MAX: i64 = 1_000_000_000;
const TRANSACTIONS_MAX: usize = 1_000;
/// The maximum number of parameters of a prepared statement.
const PARAMETERS_MAX: usize = 65_535;

/// The backslash commands.
const COMMANDS: [&str; 3] = ["set", "sleep", "gset"];
/// The prefix of the variables in checks that count the committed transactions of a kind.
pub(super) const COMMITTED: &str = "committed_";
/// The prefix of the variables in checks that count the transactions with an unknown outcome.
pub(super) const UNKNOWN: &str = "unknown_";

/// Reads a file.
pub(super) fn script(path: &Path, text: &str, defines: &[Define]) -> Result<Script, ScriptError> {
    let tokens = scan::tokens(text)?;
    let first_header = tokens.iter().position(|token| matches!(token, Token::Header { .. }));
    let mut reader = Reader {
        script: Script {
            path: path.to_owned(),
            schema: Vec::new(),
            constants: Vec::new(),
            rows: Vec::new(),
            transactions: Vec::new(),
            checks: Vec::new(),
        },
        defines,
    };
    // Text before the first header belongs to the schema.
    let (before, sections) = tokens.split_at(first_header.unwrap_or(tokens.len()));
    reader.schema(before)?;
    let mut at = 0;
    while let Some(Token::Header { line, word, rest }) = sections.get(at) {
        let body = &sections[at + 1..];
        let end = body.iter().position(|token| matches!(token, Token::Header { .. }));
        let body = &body[..end.unwrap_or(body.len())];
        match *word {
            "schema" if rest.is_empty() => reader.schema(body)?,
            "schema" => return Err(expected(*line, "-- schema", rest)),
            "rows" => reader.rows(*line, rest, body)?,
            "transaction" => reader.transaction(*line, rest, body)?,
            _ => reader.check(*line, rest, body)?,
        }
        at += 1 + body.len();
    }
    reader.finished()
}

fn expected(line: usize, form: &str, found: &str) -> ScriptError {
    ScriptError::new(line, format!("expected `{form}`, found {found:?} after the first word"))
}

struct Reader<'a> {
    script: Script,
    defines: &'a [Define],
}

/// The variables in scope in a part of the file.
struct Scope {
    names: Vec<String>,
    /// Whether a `\gset` has come before: it may set any variable, so that unknown names are
    /// checked when the session opens.
    is_open: bool,
    wanted: Vec<(usize, usize, usize)>,
}

impl Scope {
    fn find(&mut self, name: &str, line: usize, step: usize) -> Result<usize, String> {
        if let Some(slot) = self.names.iter().position(|known| known == name) {
            return Ok(slot);
        }
        if self.is_open {
            self.names.push(name.to_owned());
            self.wanted.push((self.names.len() - 1, line, step));
            return Ok(self.names.len() - 1);
        }
        Err(unknown("variable", name, self.names.iter().map(String::as_str)))
    }

    /// Returns the slot of a variable that is being set, and creates it if necessary.
    fn set(&mut self, name: &str) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }
}

impl Reader<'_> {
    fn scope(&self) -> Scope {
        let built_in = BUILT_IN.into_iter().map(str::to_owned);
        let constants = self.script.constants.iter().map(|(name, _)| name.clone());
        let names = built_in.chain(constants).collect();
        Scope { names, is_open: false, wanted: Vec::new() }
    }

    /// Reads the schema part: statements, and variables for all parts.
    fn schema(&mut self, body: &[Token]) -> Result<(), ScriptError> {
        for token in body {
            match token {
                Token::Statement { line, holes, .. } if !holes.is_empty() => {
                    let message = format!(
                        "the schema is the same for all clients, and has no variables: :{}",
                        holes[0].1
                    );
                    return Err(ScriptError::new(*line, message));
                }
                Token::Statement { line, text, gset: None, .. } => {
                    self.script.schema.push(Statement {
                        line: *line,
                        text: text.clone(),
                        holes: Vec::new(),
                        kind: StatementKind::Control,
                        gset: None,
                    })
                }
                Token::Statement { line, .. } => {
                    return Err(ScriptError::new(*line, "\\gset is only for transactions"));
                }
                Token::Command { line, word, rest } if word == "set" => {
                    self.constant(*line, rest)?
                }
                Token::Command { line, word, .. } => return Err(command(*line, word, &["set"])),
                Token::Header { .. } => unreachable!("headers are between sections"),
            }
        }
        Ok(())
    }

    fn constant(&mut self, line: usize, rest: &str) -> Result<(), ScriptError> {
        let (name, text) = assignment(line, rest)?;
        let wrong = |message: String| ScriptError::new(line, message);
        let scope = self.scope();
        if scope.names.iter().any(|known| known == name) {
            return Err(wrong(format!(
                "{name} is already set, and its value is the same for all parts"
            )));
        }
        let constants = &self.script.constants;
        let mut find = |wanted: &str| {
            let known = constants.iter().position(|(name, _)| name == wanted);
            let names = constants.iter().map(|(name, _)| name.as_str());
            known.ok_or_else(|| unknown("variable", wanted, names))
        };
        let expression = Expression::parse(text, &mut find).map_err(wrong)?;
        let values = constants.iter().map(|(_, value)| value.clone()).collect();
        let value = expression.evaluate(&mut Draw::new(values, 0, 1, 0)).map_err(wrong)?;
        let defined = self.defines.iter().rfind(|define| define.name == name);
        let value = defined.map_or(value, |define| define.value.clone());
        self.script.constants.push((name.to_owned(), value));
        Ok(())
    }

    fn rows(&mut self, line: usize, rest: &str, body: &[Token]) -> Result<(), ScriptError> {
        let (table, count) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if table.is_empty() || count.trim().is_empty() {
            return Err(expected(line, "-- rows TABLE COUNT", rest));
        }
        let wrong =
            |message: String| ScriptError::new(line, format!("the number of rows: {message}"));
        let mut scope = self.scope();
        let mut find = |name: &str| scope.find(name, line, 0);
        let count = Expression::parse(count, &mut find).map_err(wrong)?;
        let mut values = vec![Value::Null; BUILT_IN.len()];
        values.extend(self.script.constants.iter().map(|(_, value)| value.clone()));
        let count = count.evaluate(&mut Draw::new(values, 0, 1, 0)).and_then(|it| it.int());
        let count = count.map_err(wrong)?;
        if !(0..=ROWS_MAX).contains(&count) {
            return Err(wrong(format!("{count}; must be from 0 to {ROWS_MAX}")));
        }
        let row_slot = scope.set("row");
        let mut steps = self.steps(body, &mut scope)?;
        let Some(Step::Run(insert)) = steps.pop() else {
            let message = "expected `\\set` lines and one INSERT .. VALUES (..), found none";
            return Err(ScriptError::new(line, message));
        };
        let is_other = |step: &&Step| !matches!(step, Step::Set(..));
        if let Some(step) = steps.iter().find(is_other) {
            let (Step::Set(line, ..) | Step::Sleep(line, _) | Step::Run(Statement { line, .. })) =
                step;
            return Err(ScriptError::new(
                *line,
                "a rows section has `\\set` lines and one INSERT at the end",
            ));
        }
        let values = values_of(&insert)?;
        let (table, names) = (table.to_owned(), scope.names);
        let count = count as u64;
        self.script.rows.push(Rows { table, count, steps, insert, values, names, row_slot });
        Ok(())
    }

    fn transaction(&mut self, line: usize, rest: &str, body: &[Token]) -> Result<(), ScriptError> {
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (name, weight) = match words[..] {
            [name] => (name, "1"),
            [name, "weight", weight] => (name, weight),
            _ => return Err(expected(line, "-- transaction NAME [weight N]", rest)),
        };
        if !scan::is_name(name) {
            let message = format!("{name:?} is not a name: use letters, digits and _");
            return Err(ScriptError::new(line, message));
        }
        let weight = weight.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
        let weight = weight.ok_or_else(|| {
            ScriptError::new(line, format!("a weight must be a number from 1 to {WEIGHT_MAX}"))
        })?;
        let known = self.script.transactions.iter().find(|known| known.name == name);
        if let Some(known) = known {
            let message = format!("transaction {name} is already in line {}", known.line);
            return Err(ScriptError::new(line, message));
        }
        let mut scope = self.scope();
        let steps = self.steps(body, &mut scope)?;
        is_one_transaction(line, &steps)?;
        let (names, wanted) = (scope.names, scope.wanted);
        // Reports identify kinds of transactions by static names, and the program reads a file only
        // once.
        let name: &'static str = name.to_owned().leak();
        self.script.transactions.push(Transaction { name, weight, line, steps, names, wanted });
        Ok(())
    }

    fn check(&mut self, line: usize, rest: &str, body: &[Token]) -> Result<(), ScriptError> {
        if !scan::is_name(rest) {
            return Err(expected(line, "-- check NAME", rest));
        }
        let mut scope = self.scope();
        for prefix in [COMMITTED, UNKNOWN] {
            let counts = self.script.transactions.iter();
            scope.names.extend(counts.map(|it| format!("{prefix}{}", it.name)));
        }
        let mut steps = self.steps(body, &mut scope)?;
        match (steps.pop(), steps.is_empty()) {
            (Some(Step::Run(query)), true) if query.gset.is_none() => {
                let name = rest.to_owned();
                self.script.checks.push(Check { name, query, names: scope.names });
                Ok(())
            }
            _ => {
                Err(ScriptError::new(line, "a check is one query, which returns no rows or `true`"))
            }
        }
    }

    fn steps(&self, body: &[Token], scope: &mut Scope) -> Result<Vec<Step>, ScriptError> {
        let mut steps = Vec::with_capacity(body.len());
        for token in body {
            let number = steps.len();
            steps.push(match token {
                Token::Statement { line, text, holes, gset } => {
                    let found = holes.iter().map(|(at, name)| {
                        let slot = scope.find(name, *line, number);
                        slot.map(|slot| (*at, slot))
                            .map_err(|message| ScriptError::new(*line, message))
                    });
                    let holes: Vec<(usize, usize)> = found.collect::<Result<_, _>>()?;
                    scope.is_open |= gset.is_some();
                    Step::Run(statement(*line, text, holes, gset.clone())?)
                }
                Token::Command { line, word, rest } => {
                    let mut find = |name: &str| scope.find(name, *line, number);
                    let wrong = |message: String| ScriptError::new(*line, message);
                    match word.as_str() {
                        "set" => {
                            let (name, text) = assignment(*line, rest)?;
                            let value = Expression::parse(text, &mut find).map_err(wrong)?;
                            is_free(*line, name)?;
                            Step::Set(*line, scope.set(name), value)
                        }
                        "sleep" => Step::Sleep(*line, sleep(rest, &mut find).map_err(wrong)?),
                        _ => return Err(command(*line, word, &COMMANDS)),
                    }
                }
                Token::Header { .. } => unreachable!("headers are between sections"),
            });
        }
        Ok(steps)
    }

    /// Returns the script if it has the parts that a benchmark needs.
    fn finished(self) -> Result<Script, ScriptError> {
        let Self { script, defines } = self;
        let count = script.transactions.len();
        if count == 0 {
            let message = "there is no transaction; `-- transaction NAME [weight N]` begins one";
            return Err(ScriptError::new(1, message));
        }
        if count > TRANSACTIONS_MAX {
            return Err(ScriptError::new(
                1,
                format!("{count} transactions; at most {TRANSACTIONS_MAX} are allowed"),
            ));
        }
        let is_idle = |define: &&Define| !script.constants.iter().any(|it| it.0 == define.name);
        if let Some(define) = defines.iter().find(is_idle) {
            let names = script.constants.iter().map(|(name, _)| name.as_str());
            let message = match script.constants.is_empty() {
                true => "the schema part has no `\\set`".to_owned(),
                false => unknown("variable of the schema part", &define.name, names),
            };
            return Err(ScriptError::new(1, format!("--define {define}: {message}")));
        }
        Ok(script)
    }
}

/// Returns the name and the expression of `\set name expression`.
fn assignment(line: usize, rest: &str) -> Result<(&str, &str), ScriptError> {
    let (name, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if !scan::is_name(name) || text.trim().is_empty() {
        let message = format!("expected `\\set NAME EXPRESSION`, found `\\set {rest}`");
        return Err(ScriptError::new(line, message));
    }
    Ok((name, text.trim()))
}

/// Checks that a variable can be set: built-in variables cannot.
fn is_free(line: usize, name: &str) -> Result<(), ScriptError> {
    if BUILT_IN.contains(&name) {
        let message = format!("{name} is a built-in variable, and can't be set");
        return Err(ScriptError::new(line, message));
    }
    Ok(())
}

fn command(line: usize, word: &str, known: &[&str]) -> ScriptError {
    if COMMANDS.contains(&word) {
        return ScriptError::new(line, format!("\\{word} is not allowed here"));
    }
    ScriptError::new(line, unknown("backslash command", word, known.iter().copied()))
}

/// `\sleep NUMBER [us|ms|s]`, in microseconds.
fn sleep(
    rest: &str,
    find: &mut dyn FnMut(&str) -> Result<usize, String>,
) -> Result<Expression, String> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let unit = units.into_iter().find_map(|(unit, us)| {
        let number = rest.strip_suffix(unit)?;
        number.ends_with(|c: char| c.is_whitespace()).then_some((number, us))
    });
    // As in pgbench, a number without a unit is in seconds.
    let (number, us) = unit.unwrap_or((rest, 1_000_000));
    let number = Expression::parse(number, find)?;
    let us = Box::new(Expression::Value(Value::Int(us)));
    Ok(Expression::Binary(super::expression::Operator::Multiply, Box::new(number), us))
}

fn statement(
    line: usize,
    text: &str,
    holes: Vec<(usize, usize)>,
    gset: Option<String>,
) -> Result<Statement, ScriptError> {
    let words: Vec<String> = text.split_whitespace().take(3).map(str::to_ascii_lowercase).collect();
    let first = words.first().map(String::as_str).unwrap_or_default();
    let second = words.get(1).map(String::as_str).unwrap_or_default();
    let kind = match (first, second) {
        ("begin", _) | ("start", "transaction") => StatementKind::Begin,
        ("commit" | "end", _) => StatementKind::Commit,
        ("rollback", "to") => StatementKind::Control,
        ("rollback" | "abort", _) => {
            let message = "a transaction that is rolled back has no outcome to count; end with \
                           COMMIT, or fail (RAISE in a procedure)";
            return Err(ScriptError::new(line, message));
        }
        ("set" | "savepoint" | "release", _) => StatementKind::Control,
        _ => StatementKind::Data,
    };
    if kind != StatementKind::Data && !(holes.is_empty() && gset.is_none()) {
        return Err(ScriptError::new(
            line,
            format!("{first} takes no variables and returns no rows"),
        ));
    }
    if holes.len() > PARAMETERS_MAX {
        return Err(ScriptError::new(line, format!("more than {PARAMETERS_MAX} variables")));
    }
    Ok(Statement { line, text: text.to_owned(), holes, kind, gset })
}

/// Checks that the steps commit as one transaction, so that they can be counted and retried.
fn is_one_transaction(line: usize, steps: &[Step]) -> Result<(), ScriptError> {
    let statements: Vec<&Statement> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Run(statement) => Some(statement),
            Step::Set(..) | Step::Sleep(..) => None,
        })
        .collect();
    let Some(first) = statements.first() else {
        return Err(ScriptError::new(line, "the transaction has no statement"));
    };
    let (mut is_in_block, mut is_over) = (first.kind == StatementKind::Begin, false);
    for statement in &statements[1..] {
        let wrong = |message: &str| Err(ScriptError::new(statement.line, message));
        if is_over || !is_in_block {
            return wrong(
                "a transaction is one statement, or is entirely between BEGIN and COMMIT: a retry \
                 would repeat the statements outside",
            );
        }
        match statement.kind {
            StatementKind::Begin => return wrong("BEGIN within a block"),
            StatementKind::Commit => (is_in_block, is_over) = (false, true),
            StatementKind::Control | StatementKind::Data => {}
        }
    }
    match first.kind {
        StatementKind::Begin if is_in_block => {
            Err(ScriptError::new(first.line, "there is no COMMIT for this BEGIN"))
        }
        StatementKind::Commit | StatementKind::Control => {
            let message = "a transaction is one statement, or begins with BEGIN";
            Err(ScriptError::new(first.line, message))
        }
        StatementKind::Begin | StatementKind::Data => Ok(()),
    }
}

/// Returns the position of the single row of an INSERT's VALUES.
fn values_of(insert: &Statement) -> Result<std::ops::Range<usize>, ScriptError> {
    let wrong = || {
        let message = "expected `INSERT INTO .. VALUES (..)` with one row, which is inserted as \
                       often as the header specifies";
        ScriptError::new(insert.line, message)
    };
    let text = &insert.text;
    let lower = text.to_ascii_lowercase();
    let is_insert = lower.split_whitespace().next() == Some("insert");
    let (mut at, mut depth, mut keyword, mut start) = (0, 0_usize, false, None);
    while let Some(c) = text[at..].chars().next() {
        if let Some(end) = scan::quoted(text, at).map_err(|_| wrong())? {
            at = end;
            continue;
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        match c {
            '(' => {
                start = start.or((keyword && depth == 0).then_some(at));
                depth += 1;
            }
            ')' => {
                depth = depth.checked_sub(1).ok_or_else(wrong)?;
                if let (0, Some(start)) = (depth, start) {
                    let values = start..at + 1;
                    let tail = text[at + 1..].trim_start();
                    let is_within = insert.holes.iter().all(|(hole, _)| values.contains(hole));
                    return match is_insert && is_within && !tail.starts_with(',') {
                        true => Ok(values),
                        false => Err(wrong()),
                    };
                }
            }
            _ if depth == 0
                && lower[at..].starts_with("values")
                && !text[..at].ends_with(is_word)
                && !text[at + 6..].starts_with(is_word) =>
            {
                keyword = true;
                at += 5;
            }
            _ => {}
        }
        at += c.len_utf8();
    }
    Err(wrong())
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
