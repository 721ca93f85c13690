//! Scripts of statements, and the features that they cover.
//!
//! ```text
//!   # Section: Types                   a part of docs/SQL.md
//!   # Feature: smallint, integer       a row of its table; the following statements belong to it
//!   # Note: ..                         a remark for users
//!
//!   query i                            the types of the columns, one letter each (answer.rs)
//!   select 1 + 1                       the first statement is the example in docs/SQL.md,
//!   ----                               or the one after `# Example`
//!   2
//!
//!   # Difference: ..                   a known difference, proved by two statements:
//!   skipif pangea
//!   query i                            PostgreSQL's answer,
//!   select ..
//!   ----
//!   1
//!
//!   onlyif pangea
//!   statement error (0A000)            and Pangea's
//!   select ..
//! ```

use std::path::{Path, PathBuf};

use sqllogictest::{
    Condition, Connection, ExpectedError, QueryExpect, Record, StatementExpect, parse_with_name,
};

use super::answer::{Answer, Failure, Letter};

/// A directive of a script.
pub type Step = Record<Letter>;

/// A file of statements.
pub struct Script {
    /// Its file name without the extension.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// Its content.
    pub steps: Vec<Step>,
}

/// Returns the scripts, sorted by name.
pub fn scripts() -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql/tests/corpus/features");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.into_iter().map(Script::read).collect()
}

impl Script {
    fn read(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).unwrap();
        let shown = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap_or(&path);
        let steps = parse_with_name(&text, shown.display().to_string());
        let steps = steps.unwrap_or_else(|error| panic!("{error}"));
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Self { name, path, steps }
    }
}

/// A statement of a script.
pub struct Statement<'a> {
    /// Its location in the script.
    pub place: String,
    /// The session that runs it.
    pub connection: &'a Connection,
    /// The engines that run it.
    pub conditions: &'a [Condition],
    /// Its text.
    pub sql: &'a str,
    /// The expected SQLSTATE of its error.
    pub code: Option<&'a str>,
}

impl<'a> Statement<'a> {
    /// Returns the statement of a step, if it has one.
    pub fn of(step: &'a Step) -> Option<Self> {
        match step {
            Record::Statement { loc, connection, conditions, sql, expected, .. } => {
                let code = match expected {
                    StatementExpect::Error(ExpectedError::SqlState(code)) => Some(code.as_str()),
                    _ => None,
                };
                Some(Self { place: loc.to_string(), connection, conditions, sql, code })
            }
            Record::Query { loc, connection, conditions, sql, .. } => {
                Some(Self { place: loc.to_string(), connection, conditions, sql, code: None })
            }
            _ => None,
        }
    }

    /// Returns whether an engine runs it.
    pub fn is_for(&self, engine: &str) -> bool {
        self.conditions.iter().all(|condition| match condition {
            Condition::OnlyIf { label } => label == engine,
            Condition::SkipIf { label } => label != engine,
        })
    }
}

/// Returns the step with an answer as its expectation.
pub fn expecting(step: &Step, answer: Result<Answer, Failure>) -> Step {
    let statement = Statement::of(step).expect("steps with a statement have answers");
    let (Record::Statement { loc, .. } | Record::Query { loc, .. }) = step else {
        panic!("steps with a statement have a place")
    };
    let (loc, connection) = (loc.clone(), statement.connection.clone());
    let (conditions, sql) = (statement.conditions.to_vec(), statement.sql.to_owned());
    let expected = match answer {
        Ok(Answer::Rows { types, mut lines }) => {
            let sort_mode = match step {
                Record::Query { expected: QueryExpect::Results { sort_mode, .. }, .. } => {
                    *sort_mode
                }
                _ => None,
            };
            if sort_mode.is_some() {
                lines.sort();
            }
            let (result_mode, label) = (None, None);
            let expected =
                QueryExpect::Results { types, sort_mode, result_mode, label, results: lines };
            return Record::Query { loc, conditions, connection, sql, expected, retry: None };
        }
        Ok(Answer::Done(None)) => StatementExpect::Ok,
        Ok(Answer::Done(Some(count))) => StatementExpect::Count(count),
        Err(failure) => StatementExpect::Error(ExpectedError::SqlState(failure.code)),
    };
    Record::Statement { loc, conditions, connection, sql, expected, retry: None }
}

/// Returns the text of a script.
pub fn text(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        // Directives of the next statement are not part of the text of this one.
        let shown = step.to_string();
        text.push_str(shown.trim_end_matches('\n'));
        text.push('\n');
        if Statement::of(step).is_some() {
            text.push('\n');
        }
    }
    format!("{}\n", text.trim_end())
}

/// A known difference.
#[derive(Debug)]
pub struct Difference {
    /// The description for users.
    pub what: String,
    /// Whether Pangea refuses a statement that PostgreSQL accepts.
    pub is_refused: bool,
}

/// A row of the page.
#[derive(Debug)]
pub struct Feature {
    /// The heading of its section of the page.
    pub section: String,
    /// Its name.
    pub name: String,
    /// Remarks for users.
    pub notes: Vec<String>,
    /// One of its statements.
    pub example: String,
    /// Number of its statements that PostgreSQL answers identically.
    pub same: usize,
    /// The known differences.
    pub differences: Vec<Difference>,
}

/// Returns the features of a script. Panics if the script is malformed.
pub fn features(script: &Script) -> Vec<Feature> {
    let mut features: Vec<Feature> = Vec::new();
    let mut section = String::new();
    let mut is_example = true;
    let mut difference = None;
    let mut refused_to_pangea = None;
    for step in &script.steps {
        if let Record::Comment(lines) = step {
            for line in lines.iter().map(|line| line.trim()) {
                let after =
                    |start: &str| line.strip_prefix(start).map(str::trim).map(str::to_owned);
                if let Some(name) = after("Section:") {
                    section = name;
                } else if let Some(name) = after("Feature:") {
                    features.push(Feature::new(&section, name));
                    is_example = true;
                } else if let Some(note) = after("Note:") {
                    features.last_mut().expect("notes are on a feature").notes.push(note);
                } else if let Some(what) = after("Difference:") {
                    difference = Some(what);
                } else if line == "Example" {
                    is_example = true;
                }
            }
        }
        let Some(statement) = Statement::of(step) else { continue };
        let place = &statement.place;
        let feature = features.last_mut().unwrap_or_else(|| panic!("{place}: of no feature"));
        if std::mem::take(&mut is_example) {
            feature.example = statement.sql.to_owned();
        }
        match (statement.is_for("pangea"), statement.is_for("postgres")) {
            (true, true) => feature.same += 1,
            (false, true) => refused_to_pangea = Some((statement.sql, statement.code)),
            (true, false) => {
                let twin = refused_to_pangea.take().filter(|(sql, _)| *sql == statement.sql);
                let (_, code) = twin.unwrap_or_else(|| panic!("{place}: differs from what?"));
                let what = difference.take().unwrap_or_else(|| panic!("{place}: in what?"));
                let is_refused = match statement.code {
                    Some("0A000") => true,
                    refused => refused.is_some() && code.is_none(),
                };
                feature.differences.push(Difference { what, is_refused });
            }
            (false, false) => panic!("{place}: nobody runs it"),
        }
    }
    assert!(refused_to_pangea.is_none(), "{}: what does Pangea answer?", script.name);
    features
}

impl Feature {
    fn new(section: &str, name: String) -> Self {
        assert!(!section.is_empty(), "{name}: a section comes first");
        let (notes, differences) = (Vec::new(), Vec::new());
        let (section, example) = (section.to_owned(), String::new());
        Self { section, name, notes, example, same: 0, differences }
    }
}
