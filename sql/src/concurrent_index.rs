//! Construction of indexes while other transactions write.
//!
//! ```text
//!   CREATE INDEX   adds the index to the table's record, not ready: only writes use it
//!   sql.index      Fill  adds the entries of existing rows, some thousand at a time
//!   sql.index      Ready all rows are in the index, and queries may read it
//!                  Drop  construction failed: duplicate keys, or the client canceled it
//! ```
//!
//! Each step is a separate program, so that writes can run in between. If the node crashes during
//! the construction, the index remains: not ready, maintained by writes, until a user drops it.

use std::ops::ControlFlow;

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::key::{Direction, KeyRange};
use pangea_core::txn::{Context, Procedure, Scan, Stop};

use crate::catalog::{self, CATALOG, QualifiedName, Relation, Table, enums};
use crate::error::{Failure, SqlError, code};
use crate::exec;
use crate::guarded::{Hold, guarding};

/// The name of the procedure in the registry.
pub(crate) const INDEX: &str = "sql.index";

/// The index of a step. Names may be reused by other relations; the number never is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IndexTarget {
    pub table: QualifiedName,
    pub index: u32,
}

/// A step of the construction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Adds the entries of the rows in a range.
    Fill(KeyRange),
    Ready,
    Drop,
}

const FILL: u8 = 1;
const READY: u8 = 2;
const DROP: u8 = 3;

/// Encodes the arguments of [`INDEX`].
pub(crate) fn encode(target: &IndexTarget, step: &Step) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_bytes(target.table.as_kept().as_bytes());
    out.put_u32(target.index);
    match step {
        Step::Fill(range) => {
            out.put_u8(FILL);
            out.put_bytes(&range.start);
            out.put_u8(u8::from(range.end.is_some()));
            out.put_bytes(range.end.as_deref().unwrap_or_default());
        }
        Step::Ready => out.put_u8(READY),
        Step::Drop => out.put_u8(DROP),
    }
    out
}

fn decode(bytes: &[u8]) -> Result<(IndexTarget, Step), DecodeError> {
    let mut from = Reader::new(bytes);
    let table = QualifiedName::kept(from.bytes("table")?)?;
    let target = IndexTarget { table, index: from.u32("index")? };
    let step = match from.u8("step of an index")? {
        FILL => {
            let start = from.bytes("key")?.to_vec();
            let has_end = from.u8("flag")? != 0;
            let end = Some(from.bytes("key")?.to_vec()).filter(|_| has_end);
            Step::Fill(KeyRange { start, end })
        }
        READY => Step::Ready,
        DROP => Step::Drop,
        _ => return Err(DecodeError::new("step of an index")),
    };
    Ok((target, step))
}

impl IndexTarget {
    /// Returns the table and the position of the index in it, if the index still exists.
    fn find(&self, cx: &mut dyn Context) -> Result<Option<(Table, usize)>, Failure> {
        let in_it = |table: Table| {
            let at = table.indexes.iter().position(|index| index.id.0 == self.index);
            at.map(|at| (table, at))
        };
        if let Some(Relation::Table(table)) = catalog::find(&self.table, cx)?
            && let Some(found) = in_it(table)
        {
            return Ok(Some(found));
        }
        // The table has been renamed or dropped.
        let (range, mut found) = (catalog::relation_keys(), None);
        let scan = Scan { table: CATALOG, range, direction: Direction::Forward };
        cx.scan(&scan, &mut |_, record| {
            if let Ok(Relation::Table(table)) = Relation::decode(record) {
                found = in_it(table);
            }
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some((table, _)) = &mut found {
            enums::attach(table, cx)?;
        }
        Ok(found)
    }
}

/// The procedure that runs one step.
#[derive(Debug)]
pub(crate) struct BuildIndex;

impl BuildIndex {
    fn execute(args: &[u8], cx: &mut dyn Context) -> Result<(), Failure> {
        let (target, step) = decode(args)?;
        let Some((mut table, at)) = target.find(cx)? else {
            if step == Step::Drop {
                return Ok(());
            }
            let table = &target.table;
            let message = format!("the new index of \"{table}\" was dropped before it was ready");
            return Err(SqlError::new(code::UNDEFINED_OBJECT, message).into());
        };
        match step {
            Step::Fill(range) => exec::fill_index(&table, at, range, cx),
            Step::Ready => {
                table.indexes[at].is_ready = true;
                Ok(catalog::put_table(&table, cx)?)
            }
            // Another session may have made it ready, and then owns it.
            Step::Drop if table.indexes[at].is_ready => Ok(()),
            Step::Drop => exec::drop_index(table, at, cx),
        }
    }
}

impl Procedure for BuildIndex {
    fn name(&self) -> &str {
        INDEX
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        guarding(cx, Hold::Reads, |cx| Self::execute(args, cx)).map_err(Stop::from)?;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_survive_their_encoding() {
        let target = IndexTarget { table: QualifiedName::new("s", "t"), index: 7 };
        let ranges = [KeyRange::all(), KeyRange { start: vec![1], end: Some(vec![2, 3]) }];
        let fills = ranges.map(Step::Fill);
        for step in fills.into_iter().chain([Step::Ready, Step::Drop]) {
            let bytes = encode(&target, &step);
            assert_eq!(decode(&bytes), Ok((target.clone(), step)));
            for len in 0..bytes.len() {
                assert!(decode(&bytes[..len]).is_err(), "cut at {len}");
            }
        }
    }
}
