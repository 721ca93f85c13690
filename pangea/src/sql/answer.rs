//! Formats a server's replies: tables, command tags, notices and errors.

use super::client::{Column, Reply, Report};

/// Formatted output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A result, for stdout.
    Result(String),
    /// A notice or warning, for stderr.
    Notice(String),
    /// The error of a statement, for stderr.
    Error(String),
}

/// The replies to one query, as they arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The rows of the current statement. The widths of its columns are known only after the last
    /// row.
    rows: Option<Rows>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rows {
    columns: Vec<Column>,
    rows: Vec<Vec<Option<String>>>,
}

impl Answer {
    /// Adds a reply of the server, and returns the output that is complete with it.
    pub fn add(&mut self, reply: Reply) -> Option<Shown> {
        match reply {
            Reply::Columns(columns) => {
                self.rows = Some(Rows { columns, rows: Vec::new() });
                None
            }
            Reply::Row(row) => {
                self.rows.get_or_insert_default().rows.push(row);
                None
            }
            // As in psql: a row count for a result, otherwise the command tag.
            Reply::Done(tag) => {
                Some(Shown::Result(self.rows.take().map_or(tag, |rows| rows.to_string())))
            }
            Reply::Copied(line) => Some(Shown::Result(line)),
            Reply::Notice(report) => Some(Shown::Notice(in_words(&report.severity, &report))),
            Reply::Error(report) => {
                // Rows received before an error are not a result.
                self.rows = None;
                let what = format!("{} {}", report.severity, report.code);
                Some(Shown::Error(in_words(&what, &report)))
            }
        }
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.columns.iter().map(|column| (column.name.as_str(), column.is_number));
        let mut table = crate::table::aligned(columns);
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
        let column = |name: &str, is_number| Column { name: name.to_owned(), is_number };
        let mut answer = Answer::default();
        let mut shown = |reply| answer.add(reply);
        let result = |text: &str| Some(Shown::Result(text.to_owned()));
        assert_eq!(shown(Reply::Done("INSERT 0 2".to_owned())), result("INSERT 0 2"));
        let columns = vec![column("balance", true), column("v", false)];
        assert_eq!(shown(Reply::Columns(columns)), None);
        assert_eq!(shown(Reply::Row(vec![Some("12".to_owned()), None])), None);
        // A notice is shown immediately, even between rows.
        let warning = "WARNING: there is no transaction in progress";
        let notice = shown(Reply::Notice(report("WARNING", None)));
        assert_eq!(notice, Some(Shown::Notice(warning.to_owned())));
        assert_eq!(shown(Reply::Row(vec![Some("3".to_owned()), Some("c".to_owned())])), None);
        let rows =
            " balance   v    \n────────────────\n      12   NULL \n       3   c    \n(2 rows)";
        assert_eq!(shown(Reply::Done("SELECT 2".to_owned())), result(rows));
        assert_eq!(shown(Reply::Done("COMMIT".to_owned())), result("COMMIT"));
        shown(Reply::Columns(vec![column("lost", false)]));
        let error = "ERROR 25P01: there is no transaction in progress\nHINT: begin one";
        let failed = shown(Reply::Error(report("ERROR", Some("begin one"))));
        assert_eq!(failed, Some(Shown::Error(error.to_owned())));
        assert_eq!(shown(Reply::Done("COMMIT".to_owned())), result("COMMIT"));
    }
}
