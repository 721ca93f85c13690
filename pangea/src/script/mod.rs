//! A user's own workload: one SQL file with tables, rows, transactions and checks.
//!
//! ```text
//!   FILE.sql --read--> Script --load--> tables and rows, by INSERTs of many rows
//!                         |----clients--> Call, Call, ...      which transaction, drawn from what
//!                         |----Session--> runs a call: \set, statements, again after 40001
//!                         `----check----> the file's own questions
//! ```
//!
//! The language is that of pgbench's scripts where it has a word: `\set`, `random_zipfian`,
//! `\gset`, `:client_id`. What it has no word for stands in headers, which are comments:
//! `-- transaction pay weight 3`. docs/WORKLOADS.md describes it.
//!
//! - [`scan`]: a file as headers, backslash commands and statements, with their lines;
//! - [`read`]: what those mean;
//! - [`expression`], [`draw`], [`value`]: what `\set` computes;
//! - [`session`]: one client's session;
//! - [`load`]: schema and rows;
//! - [`check`]: the questions at the end.
//!
//! **Determinism.** Everything that a call draws follows from the numbers in it, so that an attempt
//! after a 40001 has the parameters of the one before.

pub mod check;
mod clients;
mod draw;
mod expression;
pub mod load;
mod read;
mod scan;
mod session;
mod value;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
pub use clients::{Clients, Retries, Seat};
use expression::Expression;
pub use session::{Session, rehearse};
use value::Value;

/// A file is read into memory; a larger one is no script.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Variables that are there without `\set`, in the order of their slots.
pub(crate) const BUILT_IN: [&str; 5] =
    ["client_id", "clients", "region", "region_number", "regions"];

/// A user's workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// The file, as it is named in messages.
    pub path: PathBuf,
    /// What makes the tables and procedures.
    schema: Vec<Statement>,
    /// Variables of the schema part, which all parts see: names and values, after [`BUILT_IN`].
    constants: Vec<(String, Value)>,
    rows: Vec<Rows>,
    transactions: Vec<Transaction>,
    checks: Vec<Check>,
}

/// Rows that are loaded.
#[derive(Clone, Debug, PartialEq)]
struct Rows {
    /// Which table, as the header says.
    table: String,
    count: u64,
    /// Before each row.
    steps: Vec<Step>,
    /// The INSERT, whose one row of VALUES is this part of the text.
    insert: Statement,
    values: std::ops::Range<usize>,
    /// Names of all variables that it sees.
    names: Vec<String>,
    /// The one that has the row's number.
    row_slot: usize,
}

/// A transaction of the mix.
#[derive(Clone, Debug, PartialEq)]
struct Transaction {
    /// It lives as long as the program: reports know kinds of transactions by such names.
    name: &'static str,
    weight: u32,
    line: usize,
    steps: Vec<Step>,
    names: Vec<String>,
    /// Variables that some `\gset` must set, and where they are used: slot, line, step.
    wanted: Vec<(usize, usize, usize)>,
}

/// A question at the end.
#[derive(Clone, Debug, PartialEq)]
struct Check {
    name: String,
    query: Statement,
    names: Vec<String>,
}

/// One thing that a transaction does.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// `\set`: the line, the slot, and what it gets.
    Set(usize, usize, Expression),
    /// `\sleep`: the line, and microseconds.
    Sleep(usize, Expression),
    /// A statement.
    Run(Statement),
}

/// A statement of SQL, with holes where variables are.
#[derive(Clone, Debug, PartialEq)]
struct Statement {
    line: usize,
    text: String,
    /// Where in the text, and which variable's slot.
    holes: Vec<(usize, usize)>,
    kind: StatementKind,
    /// The prefix of the variables that get the columns of its one row.
    gset: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatementKind {
    /// `BEGIN`.
    Begin,
    /// `COMMIT`.
    Commit,
    /// Something without parameters or rows: `SET`, `SAVEPOINT`.
    Control,
    /// Anything else: it is prepared.
    Data,
}

/// A variable that the command line sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Define {
    name: String,
    value: Value,
}

impl std::str::FromStr for Define {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not of the form items=1000");
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        if !scan::is_name(name) {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), value: Value::of_word(value.trim()) })
    }
}

impl fmt::Display for Define {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// Something wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub line: usize,
    pub message: String,
}

impl Wrong {
    pub fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

impl Script {
    /// Whether a workload's name is that of such a file.
    pub fn is_named(workload: &str) -> bool {
        Path::new(workload).extension().is_some_and(|it| it.eq_ignore_ascii_case("sql"))
    }

    /// Reads a file. `defines` stand above what its schema part sets.
    ///
    /// # Errors
    /// When it can't be read, or what is wrong in it, with its line.
    pub fn read(path: &Path, defines: &[Define]) -> Result<Self, Failure> {
        let cant = |error: &dyn fmt::Display| {
            Failure::Usage(format!("--workload {}: {error}", path.display()))
        };
        let size = std::fs::metadata(path).map_err(|error| cant(&error))?.len();
        if size > FILE_BYTES_MAX {
            return Err(cant(&format_args!("it has {size} bytes, and {FILE_BYTES_MAX} at most")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| cant(&error))?;
        Self::parse(path, &text, defines).map_err(|Wrong { line, message }| {
            Failure::Usage(format!("{}:{line}: {message}", path.display()))
        })
    }

    fn parse(path: &Path, text: &str, defines: &[Define]) -> Result<Self, Wrong> {
        read::script(path, text, defines)
    }

    /// How many statements each session prepares, at most.
    pub fn statements(&self) -> u32 {
        let steps = self.transactions.iter().map(|transaction| transaction.steps.len());
        u32::try_from(steps.sum::<usize>()).unwrap_or(u32::MAX)
    }

    /// A message about a line of the file.
    fn at(&self, line: usize, what: impl fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path.display())
    }

    /// What everybody's variables begin with.
    fn constants(&self, seat: &Seat) -> Vec<Value> {
        let mut values = seat.values();
        values.extend(self.constants.iter().map(|(_, value)| value.clone()));
        values
    }
}

impl Statement {
    /// The text with `$1`, `$2` and so on in the holes.
    fn rendered(&self) -> String {
        let mut text = String::with_capacity(self.text.len() + 4 * self.holes.len());
        self.render(0..self.text.len(), 0, &mut text);
        text
    }

    /// The text with values in the holes, as literals: what is asked once needs no parameters,
    /// whose types a server would have to guess.
    fn inlined(&self, values: &[Value]) -> String {
        let (mut text, mut at) = (String::with_capacity(self.text.len()), 0);
        for (hole, slot) in &self.holes {
            text.push_str(&self.text[at..*hole]);
            text.push_str(&values[*slot].literal());
            at = *hole;
        }
        text.push_str(&self.text[at..]);
        text
    }

    /// Appends a part of the text, whose holes are numbered from `before + 1` on.
    fn render(&self, part: std::ops::Range<usize>, before: usize, out: &mut String) {
        let mut at = part.start;
        // A variable may be the last thing that there is.
        let within = self.holes.iter().filter(|(hole, _)| (part.start..=part.end).contains(hole));
        for (number, (hole, _)) in within.enumerate() {
            out.push_str(&self.text[at..*hole]);
            out.push('$');
            out.push_str(&(before + number + 1).to_string());
            at = *hole;
        }
        out.push_str(&self.text[at..part.end]);
    }

    /// Which line of the file a server's complaint about the rendered text is of.
    fn line_of(&self, error: &tokio_postgres::Error) -> usize {
        let position = error.as_db_error().and_then(|error| match error.position() {
            Some(tokio_postgres::error::ErrorPosition::Original(at)) => Some(*at as usize),
            _ => None,
        });
        let text = self.rendered();
        let before = text.chars().take(position.unwrap_or(1).saturating_sub(1));
        self.line + before.filter(|c| *c == '\n').count()
    }
}

/// What a server said of a statement.
fn in_words(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(known) => {
            let hint = known.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{}{hint}, SQLSTATE {}", known.message(), known.code().code())
        }
        None => error.to_string(),
    }
}
