//! A connection to a PostgreSQL server that shows what comes back.

use std::time::Duration;

use tokio_postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};

use crate::failure::Failure;

/// How long to wait for a server that does not answer at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs SQL and prints the results.
pub struct Shell {
    url: String,
    client: Option<Client>,
}

impl Shell {
    /// A shell that connects when it first has to.
    pub fn new(url: String) -> Self {
        Self { url, client: None }
    }

    /// Connects, unless there is a connection.
    ///
    /// # Errors
    /// When the server can't be reached.
    pub async fn connect(&mut self) -> Result<&Client, Failure> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let cant = |why: &dyn std::fmt::Display| {
                Failure::Failed(format!("can't connect to {}: {why}", self.url))
            };
            let connecting = tokio_postgres::connect(&self.url, NoTls);
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
            let connected = connected.map_err(|_| cant(&"no answer"))?;
            let (client, connection) = connected.map_err(|error| cant(&in_words(&error)))?;
            // The end of the connection is seen by the next statement.
            tokio::spawn(async move { drop(connection.await) });
            self.client = Some(client);
        }
        Ok(self.client.as_ref().expect("it was made above"))
    }

    /// Runs statements and prints what they return.
    ///
    /// # Errors
    /// The server's, in PostgreSQL's words, or that it can't be reached.
    pub async fn run(&mut self, sql: &str) -> Result<(), Failure> {
        let client = self.connect().await?;
        let messages = client.simple_query(sql).await;
        let messages = messages.map_err(|error| Failure::Failed(in_words(&error)))?;
        let mut rows = Vec::new();
        let mut columns: Option<Vec<String>> = None;
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(description) => {
                    let names = description.iter().map(|column| column.name().to_owned());
                    columns = Some(names.collect());
                }
                SimpleQueryMessage::Row(row) => rows.push(row),
                SimpleQueryMessage::CommandComplete(count) => match columns.take() {
                    Some(columns) => print_rows(&columns, &std::mem::take(&mut rows)),
                    None => println!("OK, {count} {}", if count == 1 { "row" } else { "rows" }),
                },
                _ => {}
            }
        }
        Ok(())
    }
}

fn print_rows(columns: &[String], rows: &[SimpleQueryRow]) {
    let mut table = crate::table::table(columns);
    for row in rows {
        table.add_row((0..columns.len()).map(|index| row.get(index).unwrap_or("NULL")));
    }
    println!("{table}");
    println!("({} {})", rows.len(), if rows.len() == 1 { "row" } else { "rows" });
}

/// An error as psql shows it.
fn in_words(error: &tokio_postgres::Error) -> String {
    let Some(error) = error.as_db_error() else {
        let source = std::error::Error::source(error);
        return source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    };
    let (severity, code, message) = (error.severity(), error.code().code(), error.message());
    let mut text = format!("{severity} {code}: {message}");
    for (name, value) in [("DETAIL", error.detail()), ("HINT", error.hint())] {
        if let Some(value) = value {
            text += &format!("\n{name}: {value}");
        }
    }
    text
}

/// A statement that is typed in over several lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement(String);

impl Statement {
    /// Whether nothing was typed yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was typed without a semicolon.
    pub fn rest(self) -> Option<String> {
        (!self.is_empty()).then_some(self.0)
    }

    /// Adds a line, and returns the whole when it ends with a semicolon.
    pub fn add(&mut self, line: &str) -> Option<String> {
        if line.trim().is_empty() {
            return None;
        }
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(line);
        self.0.trim_end().ends_with(';').then(|| std::mem::take(&mut self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_ends_with_a_semicolon() {
        let mut statement = Statement::default();
        assert_eq!(statement.add("   "), None);
        assert!(statement.is_empty());
        assert_eq!(statement.add("SELECT 1"), None);
        assert_eq!(statement.add(" + 1;  "), Some("SELECT 1\n + 1;  ".to_owned()));
        assert!(statement.is_empty());
        assert_eq!(statement.clone().rest(), None);
        statement.add("SELECT 2");
        assert_eq!(statement.rest(), Some("SELECT 2".to_owned()));
    }
}
