//! The result of a script: the transactions, the results of their statements, and their outcomes.

use futures_util::future::join_all;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, SimpleQueryMessage};

use crate::script::{Expected, SESSIONS, Script, Step};

/// The result of a statement: its rows as text, or the number of rows written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The rows, in order.
    Rows(Vec<Vec<Option<String>>>),
    /// The number of rows written.
    Count(u64),
}

/// A transaction as its client observed it.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// The session, by its letter.
    pub name: String,
    /// Each statement and its result.
    pub statements: Vec<(String, Seen)>,
    /// Whether it committed.
    pub is_committed: bool,
}

/// Whether transaction blocks take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The database's own isolation.
    Asked,
    /// `begin`, `commit` and `rollback` are not sent, so that the statements of several
    /// transactions interleave. The checks must detect the result.
    None,
}

/// Runs a statement with a single result.
pub async fn ask(client: &Client, sql: &str) -> Result<Seen, Error> {
    let mut rows = Vec::new();
    let mut count = 0;
    let mut is_query = false;
    for message in client.simple_query(sql).await? {
        match message {
            SimpleQueryMessage::RowDescription(_) => is_query = true,
            SimpleQueryMessage::Row(row) => {
                rows.push((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
            }
            SimpleQueryMessage::CommandComplete(written) => count = written,
            _ => {}
        }
    }
    Ok(if is_query { Seen::Rows(rows) } else { Seen::Count(count) })
}

/// The result of a run of a script.
#[derive(Debug, Default)]
pub struct History {
    /// The transactions, in the order in which they began.
    pub transactions: Vec<Transaction>,
    /// Deviations from the script.
    pub wrong: Vec<String>,
    /// The open transaction of each session.
    open: [Option<usize>; SESSIONS.len()],
}

impl History {
    /// Runs a script with a client for each of its sessions.
    pub async fn of(
        script: &Script,
        clients: &[Client],
        regions: &[String],
        isolation: Isolation,
    ) -> Self {
        let mut history = Self::default();
        let mut steps = &script.steps[..];
        while !steps.is_empty() {
            let joined = steps.iter().take_while(|step| step.is_joined).count();
            let (now, rest) = steps.split_at(joined + 1);
            steps = rest;
            let answers = now.iter().map(|step| async move {
                let is_ours = isolation == Isolation::None
                    && ["begin", "commit", "rollback"].contains(&step.sql.as_str());
                let sql = if is_ours { "" } else { &step.sql };
                ask(&clients[step.session], sql).await
            });
            for (step, answer) in now.iter().zip(join_all(answers).await) {
                if isolation == Isolation::Asked {
                    history.check(step, &answer, regions);
                }
                history.on_answer(step, answer);
            }
        }
        assert_eq!(history.open, [None; SESSIONS.len()], "a script ends its transactions");
        history
    }

    fn on_answer(&mut self, step: &Step, answer: Result<Seen, Error>) {
        let open = &mut self.open[step.session];
        let name = SESSIONS[step.session].0;
        match step.sql.as_str() {
            "begin" => {
                *open = Some(self.transactions.len());
                let name = name.to_string();
                self.transactions.push(Transaction { name, ..Transaction::default() });
            }
            "commit" | "rollback" => {
                let at = open.take().expect("only a started statement ends");
                self.transactions[at].is_committed = step.sql == "commit" && answer.is_ok();
            }
            sql if sql.starts_with("set ") => {}
            sql => {
                let Ok(seen) = answer else { return };
                let statement = (sql.to_owned(), seen);
                match *open {
                    Some(at) => self.transactions[at].statements.push(statement),
                    None => self.transactions.push(Transaction {
                        name: name.to_string(),
                        statements: vec![statement],
                        is_committed: true,
                    }),
                }
            }
        }
    }

    /// Compares a result with the script's expectation.
    fn check(&mut self, step: &Step, answer: &Result<Seen, Error>, regions: &[String]) {
        let refusal = answer.as_ref().err().filter(|error| {
            step.sql == "commit" && error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
        });
        let is_expected = match (&step.expected, answer) {
            (Expected::Success | Expected::Commit | Expected::Either, Ok(_)) => true,
            (Expected::Values(values), Ok(Seen::Rows(rows))) => {
                let values = values.iter().map(|value| vec![Some(value.clone())]);
                values.eq(rows.iter().cloned())
            }
            (Expected::Either, Err(_)) => refusal.is_some(),
            (Expected::Refused(winner), Err(_)) => refusal.is_some_and(|error| {
                let detail = error.as_db_error().and_then(|error| error.detail());
                names(detail.unwrap_or_default(), &regions[SESSIONS[*winner].1])
            }),
            _ => false,
        };
        if !is_expected {
            let (name, sql) = (SESSIONS[step.session].0, &step.sql);
            self.wrong.push(format!("{name}: {sql}\n    {answer:?}, not {:?}", step.expected));
        }
    }
}

/// Returns whether the detail of a serialization failure names the changed row and the region that
/// changed it.
fn names(detail: &str, region: &str) -> bool {
    let names_row = detail.contains("Key (id)=(") || detail.contains("A row in index t_tag");
    names_row && detail.contains(" of table t ") && detail.contains(&format!("of region {region}."))
}
