//! A user's own workload: one SQL file with tables, rows, transactions and checks.
//!
//! ```text
//!   FILE.sql --read--> Script --load--> tables and rows, by INSERTs of many rows
//!                         |----clients--> Call, Call, ...      a transaction and its random seed
//!                         |----Session--> runs a call: \set, statements, retries after 40001
//!                         `----check----> the file's own checks
//! ```
//!
//! The language follows pgbench's scripts if pgbench has the feature: `\set`, `random_zipfian`,
//! `\gset`, `:client_id`. Other features are in headers, which are comments: `-- transaction pay
//! weight 3`. docs/WORKLOADS.md describes the language.
//!
//! - [`scan`]: splits a file into headers, backslash commands and statements, with their lines;
//! - [`read`]: the meaning of these tokens;
//! - [`expression`], [`draw`], [`value`]: the expressions of `\set`;
//! - [`session`]: one client's session;
//! - [`load`]: schema and rows;
//! - [`check`]: the checks at the end.
//!
//! **Determinism.** All values that a call draws are a function of the numbers in it. Therefore a
//! retry after a 40001 has the same parameters as the first attempt.

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
pub use clients::{ClientIdentity, Clients, Retries};
use expression::Expression;
pub use session::{Session, rehearse};
use value::Value;

/// A file is read into memory; a larger file is not a script.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Variables that exist without `\set`, in the order of their slots.
pub(crate) const BUILT_IN: [&str; 5] =
    ["client_id", "clients", "region", "region_number", "regions"];

/// A user's workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// The path of the file, for messages.
    pub path: PathBuf,
    /// The statements that create the tables and procedures.
    schema: Vec<Statement>,
    /// Variables of the schema part, which all parts see: names and values, after [`BUILT_IN`].
    constants: Vec<(String, Value)>,
    rows: Vec<Rows>,
    transactions: Vec<Transaction>,
    checks: Vec<Check>,
}

/// Rows to load.
#[derive(Clone, Debug, PartialEq)]
struct Rows {
    /// The name of the table, from the header.
    table: String,
    count: u64,
    /// The steps before each row.
    steps: Vec<Step>,
    /// The INSERT. `values` is the position of its single row of VALUES in the text.
    insert: Statement,
    values: std::ops::Range<usize>,
    /// The names of all variables in scope.
    names: Vec<String>,
    /// The slot of the row's number.
    row_slot: usize,
}

/// A transaction of the mix.
#[derive(Clone, Debug, PartialEq)]
struct Transaction {
    /// A static string, because reports identify kinds of transactions by static names.
    name: &'static str,
    weight: u32,
    line: usize,
    steps: Vec<Step>,
    names: Vec<String>,
    /// Variables that a `\gset` must set, and their uses: slot, line, step.
    wanted: Vec<(usize, usize, usize)>,
}

/// A check at the end.
#[derive(Clone, Debug, PartialEq)]
struct Check {
    name: String,
    query: Statement,
    names: Vec<String>,
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// `\set`: the line, the slot, and the expression.
    Set(usize, usize, Expression),
    /// `\sleep`: the line, and the duration in microseconds.
    Sleep(usize, Expression),
    /// A statement.
    Run(Statement),
}

/// An SQL statement, with holes for its variables.
#[derive(Clone, Debug, PartialEq)]
struct Statement {
    line: usize,
    text: String,
    /// The position in the text and the slot of each variable.
    holes: Vec<(usize, usize)>,
    kind: StatementKind,
    /// The prefix of the variables that receive the columns of its single row.
    gset: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatementKind {
    /// `BEGIN`.
    Begin,
    /// `COMMIT`.
    Commit,
    /// A statement without parameters or rows: `SET`, `SAVEPOINT`.
    Control,
    /// Any other statement: it is prepared.
    Data,
}

/// A variable that is set on the command line.
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

/// An error in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptError {
    pub line: usize,
    pub message: String,
}

impl ScriptError {
    pub fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

impl Script {
    /// Returns whether the name of a workload is that of an SQL file.
    pub fn is_named(workload: &str) -> bool {
        Path::new(workload).extension().is_some_and(|it| it.eq_ignore_ascii_case("sql"))
    }

    /// Reads a file. `defines` override variables of the schema part.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid; the message has the line.
    pub fn read(path: &Path, defines: &[Define]) -> Result<Self, Failure> {
        let cant = |error: &dyn fmt::Display| {
            Failure::Usage(format!("--workload {}: {error}", path.display()))
        };
        let size = std::fs::metadata(path).map_err(|error| cant(&error))?.len();
        if size > FILE_BYTES_MAX {
            return Err(cant(&format_args!(
                "it has {size} bytes; at most {FILE_BYTES_MAX} are allowed"
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| cant(&error))?;
        Self::parse(path, &text, defines).map_err(|ScriptError { line, message }| {
            Failure::Usage(format!("{}:{line}: {message}", path.display()))
        })
    }

    fn parse(path: &Path, text: &str, defines: &[Define]) -> Result<Self, ScriptError> {
        read::script(path, text, defines)
    }

    /// Returns the maximum number of statements that each session prepares.
    pub fn statements(&self) -> u32 {
        let steps = self.transactions.iter().map(|transaction| transaction.steps.len());
        u32::try_from(steps.sum::<usize>()).unwrap_or(u32::MAX)
    }

    /// Returns a message about a line of the file.
    fn at(&self, line: usize, what: impl fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path.display())
    }

    /// Returns the initial values of all variables.
    fn constants(&self, identity: &ClientIdentity) -> Vec<Value> {
        let mut values = identity.values();
        values.extend(self.constants.iter().map(|(_, value)| value.clone()));
        values
    }
}

impl Statement {
    /// Returns the text with `$1`, `$2` and so on in the holes.
    fn rendered(&self) -> String {
        let mut text = String::with_capacity(self.text.len() + 4 * self.holes.len());
        self.render(0..self.text.len(), 0, &mut text);
        text
    }

    /// Returns the text with values in the holes, as literals. A statement that runs once needs no
    /// parameters, whose types the server would have to infer.
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

    /// Appends a part of the text, with its holes numbered from `before + 1`.
    fn render(&self, part: std::ops::Range<usize>, before: usize, out: &mut String) {
        let mut at = part.start;
        // A variable may be at the very end of the part.
        let within = self.holes.iter().filter(|(hole, _)| (part.start..=part.end).contains(hole));
        for (number, (hole, _)) in within.enumerate() {
            out.push_str(&self.text[at..*hole]);
            out.push('$');
            out.push_str(&(before + number + 1).to_string());
            at = *hole;
        }
        out.push_str(&self.text[at..part.end]);
    }

    /// Returns the line of the file that a server's error about the rendered text refers to.
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

/// Returns a server's error as text.
fn in_words(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(known) => {
            let hint = known.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("{}{hint}, SQLSTATE {}", known.message(), known.code().code())
        }
        None => error.to_string(),
    }
}
