//! Statements generated from seeds, run on Pangea and on PostgreSQL.
//!
//! `kinds.rs` has templates of expressions, `queries.rs` and `writes.rs` combine them, and
//! `tables.rs` has the tables. PostgreSQL's answer to a generated statement is the only correct
//! one: no value depends on the order of rows that tie, and no template fails for some values. Rows
//! are compared in order if the statement orders them, and otherwise in any order.

mod kinds;
mod queries;
mod tables;
mod writes;

use std::ops::Range;

use super::answer::{Answer, Engine, Failure};
use super::memory::Memory;
use super::pangea::{Database, Pangea};
use super::postgres::{Postgres, Server};
use queries::{Generated, Generator};

/// The seeds of each run.
const SEEDS: Range<u64> = 0..3_000;

/// Environment variable with seeds to run instead of [`SEEDS`], such as `5000..9000`.
const VARIABLE: &str = "PANGEA_CORPUS_SEEDS";

/// Maximum number of differences that are reported.
const TOLD_MAX: usize = 10;

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var(VARIABLE) else { return SEEDS };
    let bounds = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let (first, end) = bounds.unwrap_or_else(|| panic!("{VARIABLE}={text} is not such as 5..9"));
    first..end
}

struct Both {
    pangea: Pangea<Memory>,
    postgres: Postgres,
}

/// Returns an answer for comparison. Rows without an order are sorted.
fn comparable(answer: Result<Answer, Failure>, is_ordered: bool) -> Result<Answer, String> {
    let mut answer = answer.map_err(|failure| failure.code)?;
    if let Answer::Rows { lines, .. } = &mut answer
        && !is_ordered
    {
        lines.sort();
    }
    Ok(answer)
}

impl Both {
    fn new(server: &Server) -> Self {
        server.create_database("generated");
        let pangea = Database::new(Memory::default(), "generated").connect().unwrap();
        let mut both = Self { pangea, postgres: server.connect("generated").unwrap() };
        for sql in tables::statements() {
            assert_eq!(both.pangea.answer(&sql), both.postgres.answer(&sql), "{sql}");
        }
        both.postgres.answer("set statement_timeout = '5s'").unwrap();
        both
    }

    /// Returns the difference between the answers, or `None` if they agree.
    fn difference(&mut self, statement: &Generated) -> Option<String> {
        let theirs = self.postgres.answer(&statement.sql);
        let ours = self.pangea.answer(&statement.sql);
        let shown = format!("PostgreSQL: {}\nPangea:     {}", show(&theirs), show(&ours));
        let [theirs, ours] = [theirs, ours].map(|it| comparable(it, statement.is_ordered));
        // A statement that takes PostgreSQL too long is not compared.
        let is_late = theirs.as_ref().is_err_and(|code| code == "57014");
        (ours != theirs && !is_late).then_some(shown)
    }

    fn run(&mut self, seed: u64) -> Option<(String, String)> {
        let mut generator = Generator::new(seed);
        if !seed.is_multiple_of(5) {
            let statement = generator.statement();
            return self.difference(&statement).map(|what| (statement.sql, what));
        }
        let write = generator.write();
        let mut found = None;
        for (sql, is_told) in [("begin", false), (&write.sql, true), ("rollback", false)] {
            let statement = Generated { sql: sql.to_owned(), is_ordered: false };
            let difference = self.difference(&statement);
            assert!(is_told || difference.is_none(), "{sql}: {difference:?}");
            found = found.or(difference);
        }
        found.map(|what| (write.sql, what))
    }
}

fn show(answer: &Result<Answer, Failure>) -> String {
    match answer {
        Err(failure) => failure.to_string(),
        Ok(answer) => format!("{answer:?}").chars().take(500).collect(),
    }
}

#[test]
fn generated_statements_are_answered_as_postgresql_does() {
    let Some(server) = Server::start() else { return };
    let mut both = Both::new(&server);
    let mut differences = Vec::new();
    for seed in seeds() {
        if let Some((sql, what)) = both.run(seed) {
            let replay = format!("{VARIABLE}={seed}..{}", seed + 1);
            differences.push(format!("{replay}\n{sql}\n{what}\n"));
        }
    }
    // The shortest statement is the easiest to debug.
    differences.sort_by_key(String::len);
    let count = differences.len();
    differences.truncate(TOLD_MAX);
    assert!(differences.is_empty(), "{count} of {:?}:\n{}", seeds(), differences.join("\n"));
}
