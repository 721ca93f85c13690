//! Rows that refer to others: parents, and children that exist only beside their parent.
//!
//! A child and the deletion of its parent write different rows, so a level below serializable
//! notices no conflict between them by itself. As SQL does for foreign keys, the programs name
//! [guards](crate::txn::Guards): the addition of a child, that the parent still exists; the
//! deletion of a parent, that no child has appeared. With them, no child is ever without its
//! parent, at any isolation level.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::definition::{Definition, Facts, Generate};
use super::rng::WorkloadRng;
use super::{Call, Client, InvalidSettings, Settings, bounded, ended, malformed, setting};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Direction, Key, KeyRange};
use crate::partition::{self, Partitions};
use crate::time::Timestamp;
use crate::txn::{Context, Footprint, LockMode, PointLock, Procedure, RangeLock, Scan, Stop};
use crate::value::Value;

/// Parent, big-endian, to a number that its changes set.
pub const PARENTS: TableId = TableId(57);
/// Parent and child, big-endian, to an empty value.
pub const CHILDREN: TableId = TableId(32);

/// The maximum number of different parents.
const PARENTS_MAX: u64 = 10_000;
/// The number of different children of a parent.
const CHILDREN_EACH: u64 = 4;

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct References {
    parents: u64,
}

/// The operation of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Adds a parent, or changes it.
    PutParent { parent: u64, number: u64 },
    /// Deletes a parent that has no children.
    DeleteParent { parent: u64 },
    /// Adds a child to a parent that exists.
    AddChild { parent: u64, child: u64 },
    /// Deletes a child.
    DeleteChild { parent: u64, child: u64 },
}

impl Op {
    const PUT_PARENT: u8 = 0;
    const DELETE_PARENT: u8 = 1;
    const ADD_CHILD: u8 = 2;
    const DELETE_CHILD: u8 = 3;

    fn encode(self) -> Vec<u8> {
        let (kind, numbers) = match self {
            Self::PutParent { parent, number } => (Self::PUT_PARENT, vec![parent, number]),
            Self::DeleteParent { parent } => (Self::DELETE_PARENT, vec![parent]),
            Self::AddChild { parent, child } => (Self::ADD_CHILD, vec![parent, child]),
            Self::DeleteChild { parent, child } => (Self::DELETE_CHILD, vec![parent, child]),
        };
        let mut args = vec![kind];
        numbers.into_iter().for_each(|number| args.put_varint(number));
        args
    }

    fn decode(args: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(args);
        let kind = from.u8("operation")?;
        let parent = bounded(from.varint("parent")?, 0, PARENTS_MAX - 1, "parent")?;
        let child =
            |from: &mut Reader<'_>| bounded(from.varint("child")?, 0, CHILDREN_EACH - 1, "child");
        let op = match kind {
            Self::PUT_PARENT => Self::PutParent { parent, number: from.varint("number")? },
            Self::DELETE_PARENT => Self::DeleteParent { parent },
            Self::ADD_CHILD => Self::AddChild { parent, child: child(from)? },
            Self::DELETE_CHILD => Self::DeleteChild { parent, child: child(from)? },
            _ => return Err(DecodeError::new("operation")),
        };
        ended(from, "operation")?;
        Ok(op)
    }

    fn label(self) -> &'static str {
        match self {
            Self::PutParent { .. } | Self::DeleteParent { .. } => "parent",
            Self::AddChild { .. } | Self::DeleteChild { .. } => "child",
        }
    }
}

impl References {
    /// Creates the workload with the number of parents given by the setting `lists`.
    ///
    /// # Errors
    /// If the number is zero or too large.
    pub fn new(settings: &Settings) -> Result<Self, InvalidSettings> {
        setting("lists", settings.lists.into(), 1, PARENTS_MAX)?;
        Ok(Self { parents: settings.lists.into() })
    }
}

impl Definition for References {
    const NAMES: &'static [&'static str] = &["references"];

    type Generator = Self;

    fn named(_: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Run)]
    }

    fn generator(&self, _: Client) -> Self {
        self.clone()
    }
}

impl Facts for References {
    fn name(&self) -> &'static str {
        Self::NAMES[0]
    }

    fn is_of_histories(&self) -> bool {
        true
    }

    /// A parent is on one shard with its children.
    fn partitions(&self, shards: u16) -> Partitions {
        Partitions::new(shards, partition::Rule::Hash { prefix_bytes: size_of::<u64>() })
    }

    fn procedures(&self) -> Vec<&'static str> {
        vec!["references"]
    }

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        let rule = Rule { rule: "references", place: &"the tables" };
        let mut parents = BTreeSet::new();
        rows.scan(PARENTS, &KeyRange::all(), &mut |key, _| {
            parents.insert(key.to_vec());
            ControlFlow::Continue(())
        });
        let (mut children, mut orphans) = (0, 0);
        rows.scan(CHILDREN, &KeyRange::all(), &mut |key, _| {
            children += 1;
            let parent = key.get(..size_of::<u64>());
            orphans += i64::from(!parent.is_some_and(|parent| parents.contains(parent)));
            ControlFlow::Continue(())
        });
        rule.equal(("children without a parent", orphans), ("allowed", 0))?;
        let mut report = Report::default();
        report.count("parents", parents.len() as i64);
        report.count("children", children);
        Ok(report)
    }
}

impl Generate for References {
    fn next_call(&mut self, dice: &mut WorkloadRng, _: Timestamp) -> Call {
        let (parent, child) = (dice.below(self.parents), dice.below(CHILDREN_EACH));
        let op = match dice.below(10) {
            0..3 => Op::PutParent { parent, number: dice.below(1_000) },
            3..5 => Op::DeleteParent { parent },
            5..8 => Op::AddChild { parent, child },
            _ => Op::DeleteChild { parent, child },
        };
        let (args, label) = (Bytes::from(op.encode()), op.label());
        Call { procedure: "references", args, label, is_read_only: false }
    }
}

fn parent_key(parent: u64) -> Key {
    Key::from(&parent.to_be_bytes()[..])
}

fn child_key(parent: u64, child: u64) -> Key {
    Key::from(&[parent.to_be_bytes(), child.to_be_bytes()].concat()[..])
}

fn children_of(parent: u64) -> KeyRange {
    KeyRange::prefix(&parent.to_be_bytes())
}

/// Runs one operation. It changes nothing if a parent is missing or has children, or if a child
/// does not exist. The result is 1 if it has written, and otherwise 0.
#[derive(Clone, Copy, Debug)]
pub struct Run;

impl Run {
    fn add_child(cx: &mut dyn Context, parent: u64, child: u64) -> Result<bool, Stop> {
        let key = parent_key(parent);
        if cx.get(PARENTS, &key)?.is_none() {
            return Ok(false);
        }
        if let Some(guards) = cx.guards() {
            guards.existence(PARENTS, &key)?;
        }
        cx.put(CHILDREN, child_key(parent, child), Value::copy_from(&[]))?;
        Ok(true)
    }

    fn delete_parent(cx: &mut dyn Context, parent: u64) -> Result<bool, Stop> {
        let (key, range) = (parent_key(parent), children_of(parent));
        let mut has_children = false;
        let scan = Scan { table: CHILDREN, range: range.clone(), direction: Direction::Forward };
        cx.scan(&scan, &mut |_, _| {
            has_children = true;
            ControlFlow::Break(())
        })?;
        if has_children || cx.get(PARENTS, &key)?.is_none() {
            return Ok(false);
        }
        if let Some(guards) = cx.guards() {
            guards.range(CHILDREN, &range)?;
        }
        cx.delete(PARENTS, key)?;
        Ok(true)
    }

    fn delete_child(cx: &mut dyn Context, parent: u64, child: u64) -> Result<bool, Stop> {
        let key = child_key(parent, child);
        let exists = cx.get(CHILDREN, &key)?.is_some();
        if exists {
            cx.delete(CHILDREN, key)?;
        }
        Ok(exists)
    }
}

impl Procedure for Run {
    fn name(&self) -> &str {
        "references"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let has_written = match Op::decode(args).map_err(malformed)? {
            Op::PutParent { parent, number } => {
                cx.put(PARENTS, parent_key(parent), Value::copy_from(&number.to_le_bytes()))?;
                true
            }
            Op::DeleteParent { parent } => Self::delete_parent(cx, parent)?,
            Op::AddChild { parent, child } => Self::add_child(cx, parent, child)?,
            Op::DeleteChild { parent, child } => Self::delete_child(cx, parent, child)?,
        };
        Ok(vec![u8::from(has_written)])
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(op) = Op::decode(args) else { return Some(Footprint::default()) };
        let of_parent = |parent, mode| PointLock { table: PARENTS, key: parent_key(parent), mode };
        let of_child = |parent, child| {
            let (key, mode) = (child_key(parent, child), LockMode::Exclusive);
            PointLock { table: CHILDREN, key, mode }
        };
        Some(match op {
            Op::PutParent { parent, .. } => {
                Footprint::new(vec![of_parent(parent, LockMode::Exclusive)], Vec::new())
            }
            Op::DeleteParent { parent } => {
                let (range, mode) = (children_of(parent), LockMode::Shared);
                let children = RangeLock { table: CHILDREN, range, mode };
                Footprint::new(vec![of_parent(parent, LockMode::Exclusive)], vec![children])
            }
            Op::AddChild { parent, child } => {
                let parent_lock = of_parent(parent, LockMode::Shared);
                Footprint::new(vec![parent_lock, of_child(parent, child)], Vec::new())
            }
            Op::DeleteChild { parent, child } => {
                Footprint::new(vec![of_child(parent, child)], Vec::new())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::model::Model;
    use crate::workload::tests::{Bench, small};

    #[test]
    fn a_parent_with_children_stays_and_a_child_without_a_parent_is_not_added() {
        let mut bench = Bench::new("references", &small());
        let mut run = |op: Op| bench.model.run(&Run, &op.encode()).expect("it commits")[0] == 1;
        let (parent, child) = (3, 1);
        assert!(!run(Op::AddChild { parent, child }), "there is no parent");
        assert!(run(Op::PutParent { parent, number: 1 }));
        assert!(run(Op::AddChild { parent, child }));
        assert!(!run(Op::DeleteParent { parent }), "it has a child");
        assert!(run(Op::PutParent { parent, number: 2 }));
        assert!(run(Op::DeleteChild { parent, child }));
        assert!(!run(Op::DeleteChild { parent, child }), "it is gone");
        assert!(run(Op::DeleteParent { parent }));
        assert!(!run(Op::DeleteParent { parent }), "it is gone");
    }

    #[test]
    fn a_child_without_its_parent_is_found() {
        let workload = References::new(&small()).unwrap();
        let mut model = Model::default();
        model.put(PARENTS, parent_key(3), Some(Value::copy_from(&[0; 8])));
        model.put(CHILDREN, child_key(3, 1), Some(Value::copy_from(&[])));
        workload.check(&model).unwrap();
        model.put(CHILDREN, child_key(2, 1), Some(Value::copy_from(&[])));
        let violation = workload.check(&model).unwrap_err().to_string();
        assert!(violation.contains("children without a parent"), "{violation}");
    }

    #[test]
    fn operations_are_decoded_as_they_were_encoded() {
        for op in [
            Op::PutParent { parent: 300, number: 9 },
            Op::DeleteParent { parent: 3 },
            Op::AddChild { parent: 3, child: 2 },
            Op::DeleteChild { parent: 3, child: 0 },
        ] {
            assert_eq!(Op::decode(&op.encode()), Ok(op));
        }
        assert!(Op::decode(&[9, 0]).is_err());
        assert!(Op::decode(&Op::AddChild { parent: 1, child: CHILDREN_EACH }.encode()).is_err());
    }
}
