//! Pangea, on an engine in memory that answers immediately, or on nodes.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pangea_sql::Shared;
use pangea_sql::engine::Engine as Node;
use pangea_sql::error::SqlError;
use pangea_sql::session::{Response, Session};
use pangea_sql::types::datum::Datum;
use pangea_sql::types::{SqlType, text};

use super::answer::{Answer, Engine, Failure, Letter, copied, line, rows_written, with_copied};

/// The environment of sessions.
pub trait Ground: Send + Sync {
    /// A node.
    type Node: Node;

    /// Returns a node for the next session, and the state that its sessions share.
    fn node(&self) -> (Self::Node, Arc<Shared>);

    /// Waits for a future of a session.
    fn wait<T>(&self, future: impl Future<Output = T>) -> T;
}

/// A database.
pub struct Database<G> {
    ground: Arc<G>,
    name: String,
}

impl<G: Ground> Database<G> {
    /// Returns an empty database.
    pub fn new(ground: G, name: &str) -> Self {
        Self { ground: Arc::new(ground), name: name.to_owned() }
    }

    /// Opens a session.
    pub fn connect(&self) -> Result<Pangea<G>, Failure> {
        let parameters = [("user", "pangea"), ("database", self.name.as_str())];
        let parameters: BTreeMap<String, String> =
            parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let (node, shared) = self.ground.node();
        let session = Session::new(Arc::new(node), shared, &parameters).map_err(failure)?;
        Ok(Pangea { session, ground: self.ground.clone() })
    }
}

/// A session.
pub struct Pangea<G: Ground> {
    session: Session,
    ground: Arc<G>,
}

fn failure(error: SqlError) -> Failure {
    Failure { code: error.code.to_string(), message: error.message }
}

impl<G: Ground> Engine for Pangea<G> {
    const NAME: &'static str = "pangea";

    fn answer(&mut self, sql: &str) -> Result<Answer, Failure> {
        // A panic fails only its statement, so the others still run.
        catch_unwind(AssertUnwindSafe(|| self.run(sql))).unwrap_or_else(|_| {
            let message = "the statement panicked".to_owned();
            Err(Failure { code: "panic".to_owned(), message })
        })
    }
}

impl<G: Ground> Pangea<G> {
    fn run(&mut self, sql: &str) -> Result<Answer, Failure> {
        let (sql, data) = with_copied(sql);
        let mut responses = self.ground.wait(self.session.simple_query(sql));
        let mut answer = Ok(Answer::Done(None));
        while let Some(last) = responses.pop() {
            answer = match last {
                Response::Empty => return Ok(Answer::Done(None)),
                Response::Command { tag } => return Ok(Answer::Done(rows_written(&tag))),
                Response::Error(error) => return Err(failure(error)),
                Response::Rows { columns, rows, .. } => {
                    let types: Vec<SqlType> = columns.iter().map(|column| column.ty.base).collect();
                    return Ok(self.rows(&types, &rows));
                }
                Response::Stream { columns } => {
                    let types: Vec<SqlType> = columns.iter().map(|column| column.ty.base).collect();
                    let rows = self.session.all_rows().map_err(failure)?.0;
                    return Ok(self.rows(&types, &rows));
                }
                Response::CopyIn(_) => self.copy_in(data.unwrap_or_default()),
                Response::CopyOut(_) => self.copy_out(),
            };
            responses = self.ground.wait(self.session.continue_query());
        }
        answer
    }

    fn rows(&self, types: &[SqlType], rows: &[Vec<Datum>]) -> Answer {
        let value = |(datum, base): (&Datum, &SqlType)| {
            (!datum.is_null()).then(|| text::format(*base, datum, self.session.zone()))
        };
        let lines = rows.iter().map(|row| line(row.iter().zip(types).map(value))).collect();
        Answer::Rows { types: types.iter().map(|base| Letter::of(base.oid())).collect(), lines }
    }

    fn copy_in(&mut self, data: &str) -> Result<Answer, Failure> {
        let mut data = data.to_owned();
        if !data.is_empty() {
            data.push('\n');
        }
        self.ground.wait(self.session.copy_data(data.as_bytes())).map_err(failure)?;
        let tag = self.ground.wait(self.session.copy_done()).map_err(failure)?;
        Ok(Answer::Done(rows_written(&tag)))
    }

    fn copy_out(&mut self) -> Result<Answer, Failure> {
        let mut bytes = Vec::new();
        loop {
            let output = self.session.copy_next().map_err(failure)?;
            bytes.extend(output.messages.bytes);
            if output.tag.is_some() {
                let (types, lines) = copied(&bytes);
                return Ok(Answer::Rows { types, lines });
            }
        }
    }
}
