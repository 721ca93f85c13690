//! Versions of the program that nodes run.
//!
//! Each version has one more procedure than the one before, and its procedures of list-append leave
//! their version in the database with each value that they append. A transaction that was
//! acknowledged before any node ran a version must not have been run by it: not even by nodes that
//! apply it again after an upgrade.

use std::sync::Arc;

use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::time::Timestamp;
use pangea_core::txn::{Context, Footprint, LockMode, PointLock, Procedure, Registry, Stop};
use pangea_core::value::Value;
use pangea_core::workload::list_append::{self, Op, decode_ops};
use pangea_core::workload::{self, Rows};

use crate::check::Violation;
use crate::faults::{Fault, FaultKind};
use crate::history::{End, History, Operation};
use crate::settings::Settings;

/// The key of a list and a value that was appended to it, to the version of the program that
/// appended it, a byte.
const VERSIONS: TableId = TableId(64);

/// The procedure that a version of the program adds. Its name precedes all others.
struct Added(String);

impl Procedure for Added {
    fn name(&self) -> &str {
        &self.0
    }

    fn run(&self, _: &[u8], _: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        Ok(Vec::new())
    }
}

/// A procedure of list-append in a version of the program.
struct Versioned {
    procedure: Arc<dyn Procedure>,
    version: u32,
}

impl Procedure for Versioned {
    fn name(&self) -> &str {
        self.procedure.name()
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let result = self.procedure.run(args, cx)?;
        for key in appended(args) {
            cx.put(VERSIONS, key, Value::from(vec![self.version as u8]))?;
        }
        Ok(result)
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Footprint { points, ranges } = self.procedure.footprint(args)?;
        let lock = |key| PointLock { table: VERSIONS, key, mode: LockMode::Exclusive };
        Some(Footprint::new(points.into_iter().chain(appended(args).map(lock)).collect(), ranges))
    }

    fn is_footprint_certain(&self) -> bool {
        self.procedure.is_footprint_certain()
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        self.procedure.is_read_only(args)
    }

    fn is_divisible(&self, args: &[u8]) -> bool {
        self.procedure.is_divisible(args)
    }
}

/// The keys in [`VERSIONS`] of what a call appends.
fn appended(args: &[u8]) -> impl Iterator<Item = Key> {
    decode_ops(args).unwrap_or_default().into_iter().filter_map(|op| match op {
        Op::Append { list, value } => {
            let key = [&list_append::key(list)[..], &value.to_be_bytes()].concat();
            Some(Key::from(&key[..]))
        }
        Op::Read { .. } | Op::ReadRange { .. } => None,
    })
}

fn is_versioned(procedure: &str) -> bool {
    procedure.starts_with("list_")
}

/// The procedures of a version of the program, in a run with upgrades or one without.
pub(super) fn registry_of(version: u32, settings: &Settings) -> Arc<Registry> {
    let has_upgrades = match &settings.rules {
        Some(rules) => rules.iter().any(|rule| matches!(rule.fault, Fault::Upgrade { .. })),
        None => settings.faults.contains(&FaultKind::Upgrade),
    };
    let procedures = workload::procedures().into_iter().map(|procedure| {
        match has_upgrades && is_versioned(procedure.name()) {
            true => Arc::new(Versioned { procedure, version }) as Arc<dyn Procedure>,
            false => procedure,
        }
    });
    let added = (1..=version).map(|number| Arc::new(Added(format!("a{number}"))) as _);
    Arc::new(Registry::new(procedures.chain(added)))
}

/// Checks that no transaction was run by a version of the program that had not `begun` when the
/// transaction was acknowledged. `begun` has the times of the versions from 1 on.
pub(super) fn check(begun: &[Timestamp], kept: &History, rows: &dyn Rows) -> Result<(), Violation> {
    if begun.is_empty() {
        return Ok(());
    }
    for operation in &kept.operations {
        let Operation { call, ended: Some(at), end: End::Committed { txn, .. }, .. } = operation
        else {
            continue;
        };
        if !is_versioned(call.procedure) {
            continue;
        }
        let newest = begun.iter().filter(|begun| *begun <= at).count();
        for key in appended(&call.args) {
            let found = rows.get(VERSIONS, &key).map(|version| usize::from(version[0]));
            // Other checks find rows that are missing.
            if let Some(found) = found.filter(|found| *found > newest) {
                let story = format!(
                    "{txn} was acknowledged when the newest program was {newest}, and run by \
                     {found}"
                );
                return Err(Violation::new("upgrade", "another program", story));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pangea_core::guarantee::Isolation;
    use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
    use pangea_core::key::KeyRange;
    use pangea_core::txn::Visit;
    use pangea_core::workload::Call;

    use super::*;
    use crate::history::CallKind;

    #[test]
    fn versions_differ_in_code_and_only_runs_with_upgrades_have_them() {
        let plain = Settings::default();
        let upgraded = Settings { faults: vec![FaultKind::Upgrade], ..Settings::default() };
        let code = |version, settings| registry_of(version, settings).code();
        assert_eq!(code(0, &plain), Registry::new(workload::procedures()).code());
        assert_eq!(code(0, &plain), code(0, &upgraded), "version 0 is the default");
        assert_ne!(code(0, &upgraded), code(1, &upgraded));
        assert_ne!(code(1, &upgraded), code(2, &upgraded));
    }

    #[test]
    fn a_call_locks_the_rows_with_its_version() {
        let settings = Settings { faults: vec![FaultKind::Upgrade], ..Settings::default() };
        let registry = registry_of(3, &settings);
        let id = registry.id("list_append").expect("a procedure of list-append");
        let procedure = registry.procedure(id).expect("it was found");
        let args = list_append::encode_ops(&[
            Op::Append { list: 1, value: 7 },
            Op::Append { list: 2, value: 8 },
            Op::Read { list: 3 },
        ]);
        let footprint = procedure.footprint(&args).expect("it is declared");
        let keys: Vec<_> = appended(&args).collect();
        assert_eq!(keys.len(), 2);
        for key in keys {
            assert!(footprint.points.iter().any(|lock| {
                (lock.table, &lock.key, lock.mode) == (VERSIONS, &key, LockMode::Exclusive)
            }));
        }
        assert_eq!(procedure.version(), 3);
    }

    #[test]
    fn a_transaction_that_a_later_program_ran_is_a_violation() {
        struct One(u8);
        impl Rows for One {
            fn get(&self, _: TableId, _: &[u8]) -> Option<Value> {
                Some(Value::from(vec![self.0]))
            }

            fn scan(&self, _: TableId, _: &KeyRange, _: &mut Visit<'_>) {}
        }
        let at = |us| Timestamp::from_us(us);
        let args = list_append::encode_ops(&[Op::Append { list: 1, value: 7 }]).into();
        let call = Call { procedure: "list_append", args, label: "append", is_read_only: false };
        let end = End::Committed {
            txn: TxnId::new(NodeId(0), 1),
            version: SnapshotVersion(1),
            result: Vec::new(),
        };
        let operation = Operation {
            client: 0,
            node: NodeId(0),
            how: CallKind::Ordered,
            level: Isolation::Serializable,
            call,
            invoked: at(1),
            ended: Some(at(5)),
            end,
        };
        let history = History { operations: vec![operation] };
        let is_sound = |begun: &[u64], version| {
            let begun: Vec<_> = begun.iter().copied().map(at).collect();
            check(&begun, &history, &One(version)).is_ok()
        };
        assert!(is_sound(&[10], 0) && !is_sound(&[10], 1), "it was acknowledged before");
        assert!(is_sound(&[4], 0) && is_sound(&[4], 1), "either program may have run it");
        assert!(!is_sound(&[4, 10], 2));
    }
}
