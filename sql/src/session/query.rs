//! Statements of a program that embeds the node: values in, rows out, without a wire protocol.

use super::command::Command;
use super::{Response, Session};
use crate::error::{SqlError, code};
use crate::native::{Rows, as_type};
use crate::syntax;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;

impl Session {
    /// Runs a statement with these values of `$1`, `$2` and so on, and returns all of its rows.
    ///
    /// # Errors
    /// If the statement fails, a value is not of its parameter's type, or the statement is a COPY.
    pub async fn query(&mut self, text: &str, params: &[Datum]) -> Result<Rows, SqlError> {
        self.show_active(Some(text));
        let done = self.query_whole(text, params).await;
        self.stream = None;
        self.copy.take();
        self.show_idle();
        done.map_err(|error| self.fail(error))
    }

    async fn query_whole(&mut self, text: &str, params: &[Datum]) -> Result<Rows, SqlError> {
        self.begin_statement();
        let one: Result<[_; 1], _> = syntax::parse(text)?.try_into();
        let [parsed] = one.map_err(|_| SqlError::new(code::SYNTAX, "one statement at a time"))?;
        let command = Command::new(parsed)?;
        self.refuse_when_failed(&command)?;
        let (types, _) = self.describe_command(&command, &vec![None; params.len()]).await?;
        if types.len() != params.len() {
            let (wanted, given) = (types.len(), params.len());
            let message = format!("{given} values for {wanted} parameters");
            return Err(SqlError::new(code::PROTOCOL_VIOLATION, message));
        }
        let typed = types.iter().zip(params).enumerate();
        let values = typed.map(|(at, (base, value))| as_type(at, *base, value));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let rows = |columns: Vec<OutputColumn>, rows: Vec<Vec<Datum>>| {
            let count = rows.len() as u64;
            Rows { columns, rows, count }
        };
        match self.run(&command, &types, &values).await? {
            Response::Empty => Ok(rows(Vec::new(), Vec::new())),
            Response::Rows { columns, rows: found, .. } => Ok(rows(columns, found)),
            Response::Stream { columns } => Ok(rows(columns, self.all_rows()?.0)),
            Response::Command { tag } => {
                let count = tag.rsplit(' ').next().and_then(|count| count.parse().ok());
                Ok(Rows { count: count.unwrap_or(0), ..rows(Vec::new(), Vec::new()) })
            }
            Response::CopyIn(_) | Response::CopyOut(_) => {
                Err(SqlError::unsupported("COPY without a client"))
            }
            Response::Error(error) => Err(error),
        }
    }
}
