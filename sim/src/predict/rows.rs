//! A workload's rows, created once for every replica of every prediction.

use std::ops::ControlFlow;

use pangea_core::exec::ordered::{self, Job, ResultDetail};
use pangea_core::ids::{ShardId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::partition::Partitions;
use pangea_core::pool::Sequential;
use pangea_core::store::{RecordHeader, Store, Version};
use pangea_core::txn::{Program, Registry};
use pangea_core::value::Value;
use pangea_core::workload::Workload;

/// The rows before the first transaction. Replicas share the values.
#[derive(Debug)]
pub struct Loaded(Vec<(TableId, Vec<(Key, Value)>)>);

impl Loaded {
    /// Creates a workload's tables.
    ///
    /// # Errors
    /// If a call that loads does not commit.
    pub fn new(workload: &Workload, registry: &Registry) -> Result<Self, String> {
        let store = Store::new();
        let version = SnapshotVersion(1);
        for call in workload.load_calls() {
            let procedure =
                registry.id(call.procedure).expect("workloads only call procedures that exist");
            let program = Program::Call { procedure, args: call.args };
            let job = Job { txn: TxnId::default(), program: &program, footprint: None };
            let (jobs, detail) = ([job], ResultDetail::Outcomes);
            let header = &|_: &Job<'_>| RecordHeader::default();
            let ended =
                ordered::execute(&Sequential, registry, &store, version, &jobs, header, detail);
            for finished in ended {
                finished.outcome.map_err(|abort| format!("{}: {abort}", call.label))?;
            }
        }
        store.settle(&Sequential);
        let tables = store.table_ids().into_iter().map(|table| {
            let mut rows = Vec::with_capacity(store.len(table));
            store.scan(table, &KeyRange::all(), Direction::Forward, version, |key, found| {
                rows.extend(found.value.clone().map(|value| (key.clone(), value)));
                ControlFlow::Continue(())
            });
            (table, rows)
        });
        Ok(Self(tables.collect()))
    }

    /// Returns a replica's tables, with the rows of one shard.
    pub(super) fn store(&self, partitions: &Partitions, shard: ShardId) -> Store {
        let (store, header) = (Store::new(), RecordHeader::default());
        for (table, rows) in &self.0 {
            for (key, value) in rows.iter().filter(|(key, _)| partitions.holds(shard, *table, key))
            {
                let value = Some(value.clone());
                let version = Version { version: SnapshotVersion::ZERO, header, value };
                store.apply(*table, key.clone(), version);
            }
        }
        store.settle(&Sequential);
        store
    }
}
