//! What a server answered, as it is shown: tables, command tags, notices and errors.

use super::client::{Reply, Report};

/// Something to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A result, for stdout.
    Result(String),
    /// A word beside it, for stderr.
    Notice(String),
    /// Why a statement failed, for stderr.
    Error(String),
}

/// Everything that came of what was sent at once, in the order in which it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What there is to show.
    pub shown: Vec<Shown>,
    /// The rows of the statement that is being answered.
    rows: Option<Rows>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rows {
    columns: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
}

impl Answer {
    /// Adds an error of this side.
    pub fn fail(&mut self, error: impl Into<String>) {
        self.shown.push(Shown::Error(error.into()));
    }

    /// Adds a word of this side.
    pub fn note(&mut self, note: impl Into<String>) {
        self.shown.push(Shown::Notice(note.into()));
    }

    /// The first error, if there is one.
    pub fn error(&self) -> Option<&str> {
        self.shown.iter().find_map(|shown| match shown {
            Shown::Error(error) => Some(error.as_str()),
            Shown::Result(_) | Shown::Notice(_) => None,
        })
    }

    /// Adds what the server said.
    pub fn add(&mut self, reply: Reply) {
        match reply {
            Reply::Columns(columns) => self.rows = Some(Rows { columns, rows: Vec::new() }),
            Reply::Row(row) => self.rows.get_or_insert_default().rows.push(row),
            // As psql: a count of rows, or what was done.
            Reply::Done(tag) => {
                let text = self.rows.take().map_or(tag, |rows| rows.to_string());
                self.shown.push(Shown::Result(text));
            }
            Reply::Copied(line) => self.shown.push(Shown::Result(line)),
            Reply::Notice(report) => self.note(in_words(&report.severity, &report)),
            Reply::Error(report) => {
                // Rows that came before it are no result.
                self.rows = None;
                self.fail(in_words(&format!("{} {}", report.severity, report.code), &report));
            }
        }
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = crate::table::table(&self.columns);
        for row in &self.rows {
            table.add_row(row.iter().map(|value| value.as_deref().unwrap_or("NULL")));
        }
        let count = self.rows.len();
        write!(f, "{table}\n({count} {})", if count == 1 { "row" } else { "rows" })
    }
}

fn in_words(what: &str, report: &Report) -> String {
    let mut text = format!("{what}: {}", report.message);
    for (name, value) in [("DETAIL", &report.detail), ("HINT", &report.hint)] {
        if let Some(value) = value {
            text += &format!("\n{name}: {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(severity: &str, hint: Option<&str>) -> Report {
        Report {
            severity: severity.to_owned(),
            code: "25P01".to_owned(),
            message: "there is no transaction in progress".to_owned(),
            detail: None,
            hint: hint.map(str::to_owned),
        }
    }

    #[test]
    fn tags_rows_notices_and_errors_are_shown_in_their_order() {
        let mut answer = Answer::default();
        answer.add(Reply::Done("INSERT 0 2".to_owned()));
        answer.add(Reply::Columns(vec!["id".to_owned(), "v".to_owned()]));
        answer.add(Reply::Row(vec![Some("1".to_owned()), None]));
        answer.add(Reply::Done("SELECT 1".to_owned()));
        answer.add(Reply::Notice(report("WARNING", None)));
        answer.add(Reply::Done("COMMIT".to_owned()));
        assert_eq!(answer.error(), None);
        answer.add(Reply::Columns(vec!["lost".to_owned()]));
        answer.add(Reply::Error(report("ERROR", Some("begin one"))));
        let error = "ERROR 25P01: there is no transaction in progress\nHINT: begin one";
        assert_eq!(answer.error(), Some(error));
        let [first, Shown::Result(rows), notice, last, Shown::Error(_)] = &answer.shown[..] else {
            panic!("{answer:?}");
        };
        assert_eq!(*first, Shown::Result("INSERT 0 2".to_owned()));
        assert!(rows.contains("NULL") && rows.ends_with("\n(1 row)"), "{rows}");
        let warning = "WARNING: there is no transaction in progress";
        assert_eq!(*notice, Shown::Notice(warning.to_owned()));
        assert_eq!(*last, Shown::Result("COMMIT".to_owned()));
    }
}
