//! The procedure `sql.replay`: a second run of an interactive transaction, at its place in the
//! order.
//!
//! A transaction whose reads are no longer current would otherwise fail with 40001. Its statements
//! run again with the same parameters, times and sequence numbers. If each statement returns the
//! result that its client has received, the transaction commits, because no client can notice the
//! difference. Otherwise it fails with the original error.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::txn::{Context, Procedure, SqlState, Stop};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Failure, SqlError};
use crate::exec::{self, Executed};
use crate::expr::Env;
use crate::notice::Notice;
use crate::plan::cache::PlanCache;
use crate::rows;
use crate::statement::Arguments;
use crate::types::datum::Datum;
use crate::vocabulary::column::OutputColumn;
use crate::vocabulary::deferred::Deferred;
use std::cell::RefCell;

/// The name of the procedure in the registry.
pub(crate) const REPLAY: &str = "sql.replay";

/// The version of the argument encoding.
const VERSION: u8 = 2;

/// A statement of a transaction, and the digest of the result that its client received.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Statement {
    /// Encoded [`Arguments`].
    pub args: Vec<u8>,
    pub digest: u128,
}

/// Returns the digest of a result.
pub(crate) fn digest(columns: &[OutputColumn], executed: &Executed) -> u128 {
    let mut streamed = StreamedResult::new(columns, &executed.notices);
    streamed.rows(&executed.rows);
    streamed.digest(executed.count)
}

/// The digest of a result that is returned in batches.
pub(crate) struct StreamedResult {
    hash: Box<Xxh3>,
    bytes: Vec<u8>,
    rows: u64,
}

impl StreamedResult {
    pub(crate) fn new(columns: &[OutputColumn], notices: &[Notice]) -> Self {
        let mut bytes = Vec::new();
        for column in columns {
            bytes.put_bytes(column.name.as_bytes());
            bytes.put_u32(column.ty.base.oid());
        }
        notices.iter().for_each(|notice| notice.encode(&mut bytes));
        Self { hash: Box::default(), bytes, rows: 0 }
    }

    pub(crate) fn rows(&mut self, rows: &[Vec<Datum>]) {
        for row in rows {
            rows::encode(row, &mut self.bytes);
            self.hash.update(&self.bytes);
            self.bytes.clear();
        }
        self.rows += rows.len() as u64;
    }

    /// Returns the number of rows so far.
    pub(crate) fn count(&self) -> u64 {
        self.rows
    }

    pub(crate) fn digest(mut self, count: u64) -> u128 {
        self.bytes.put_varint(count);
        self.hash.update(&self.bytes);
        self.hash.digest128()
    }
}

/// Encodes the arguments of [`REPLAY`].
pub(crate) fn encode(statements: &[Statement]) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_varint(statements.len() as u64);
    for Statement { args, digest } in statements {
        out.put_bytes(args);
        out.put_u64((digest >> 64) as u64);
        out.put_u64(*digest as u64);
    }
    out
}

fn decode(bytes: &[u8]) -> Result<Vec<Statement>, DecodeError> {
    let mut from = Reader::new(bytes);
    if from.u8("version of a replay")? != VERSION {
        return Err(DecodeError::new("version of a replay"));
    }
    let statement = |from: &mut Reader<'_>| {
        let args = from.bytes("statement")?.to_vec();
        let digest = u128::from(from.u64("digest")?) << 64 | u128::from(from.u64("digest")?);
        Ok(Statement { args, digest })
    };
    (0..from.count("statements")?).map(|_| statement(&mut from)).collect()
}

/// The implementation of the procedure.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    plans: PlanCache,
}

impl Replay {
    fn execute(&self, args: &[u8], cx: &mut dyn Context) -> Result<(), Failure> {
        let mut deferred = Vec::new();
        for (at, statement) in decode(args)?.into_iter().enumerate() {
            match self.again(&statement, &mut deferred, cx) {
                Ok(digest) if digest == statement.digest => {}
                // The statement succeeded in its first run.
                Ok(_) | Err(Failure::Sql(_)) => return Err(changed(at).into()),
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            }
        }
        exec::check_deferred(&deferred, &Env::nobody(), cx)
    }

    /// Runs a statement, and returns the digest of its result.
    fn again(
        &self,
        statement: &Statement,
        deferred: &mut Vec<Deferred>,
        cx: &mut dyn Context,
    ) -> Result<u128, Failure> {
        let mut args = Arguments::decode(&statement.args)?;
        let planned = args.plan(&self.plans, cx)?;
        args.env.deferred = Some(RefCell::default());
        let executed = exec::run(&planned, None, &args.env, cx)?;
        deferred.extend(args.env.deferred.take().unwrap_or_default().into_inner());
        Ok(digest(&planned.columns, &executed))
    }
}

/// The error of a statement that returns another result than its client received.
fn changed(at: usize) -> SqlError {
    let message = "could not serialize access due to concurrent update";
    let detail = format!(
        "Statement {} of the transaction returned another result at the transaction's place in \
         the commit order.",
        at + 1
    );
    SqlError::new(SqlState::SERIALIZATION_FAILURE, message).with_detail(detail)
}

impl Procedure for Replay {
    fn name(&self) -> &str {
        REPLAY
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        self.execute(args, cx).map_err(Stop::from)?;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SqlType;

    #[test]
    fn statements_survive_their_encoding() {
        let one = Statement { args: vec![1, 2, 3], digest: u128::MAX - 7 };
        let statements = vec![one.clone(), Statement { args: Vec::new(), ..one }];
        let bytes = encode(&statements);
        assert_eq!(decode(&bytes), Ok(statements));
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn results_that_differ_have_digests_that_differ() {
        let column = |name: &str, ty: SqlType| OutputColumn::new(name, ty);
        let columns = [column("a", SqlType::Int4)];
        let of = |rows: Vec<Vec<Datum>>, count| {
            digest(&columns, &Executed { rows, count, ..Executed::default() })
        };
        let row = |value: i64| vec![Datum::Int(value)];
        let all = [
            of(vec![], 0),
            of(vec![], 1),
            of(vec![row(1)], 1),
            of(vec![row(2)], 1),
            of(vec![row(1), row(2)], 2),
            of(vec![row(2), row(1)], 2),
            of(vec![vec![Datum::Null]], 1),
            digest(&[column("a", SqlType::Int8)], &Executed::default()),
            digest(&[column("b", SqlType::Int4)], &Executed::default()),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
    }
}
