//! Replicas in memory, for tests of the reads of programs and of how often programs run.

use std::sync::Arc;

use pangea_core::exec::Overlay;
use pangea_core::exec::optimistic::probe;
use pangea_core::exec::ordered::{Finished, Job, ResultDetail, execute};
use pangea_core::exec::reconnaissance::{KnownRows, Reconnaissance, reconnoiter};
use pangea_core::ids::{NodeId, ShardId, TxnId};
use pangea_core::partition::{Partitions, Rule};
use pangea_core::pool::Sequential;
use pangea_core::store::{Store, Version};
use pangea_core::txn::{Footprint, Program, Registry, Write};

use crate::SYSTEM_TABLES;
use crate::copy::Rows;
use crate::expr::Env;
use crate::settings::search_path::DEFAULT;
use crate::statement::{Arguments, STATEMENT};
use pangea_core::store::RecordHeader;

/// A replica, with its cached plans.
pub(crate) struct Replica {
    pub registry: Registry,
    pub store: Store,
    /// Number of transactions executed so far.
    txns: u64,
}

/// Returns a registry without cached plans.
pub(crate) fn cold() -> Registry {
    Registry::new(crate::procedures())
}

/// Returns a statement as a program. A COPY has rows.
pub(crate) fn program(sql: &str, rows: Option<&Rows>) -> Program {
    let user: Arc<str> = Arc::from("me");
    let (session_user, search_path) = (user.clone(), Arc::from(DEFAULT));
    let env = Env { user, session_user, search_path, is_trusted: true, ..Env::nobody() };
    let args = Arguments::encode_parts(sql, &[], &env, (false, rows));
    let procedure = cold().id(STATEMENT).expect("SQL's procedures");
    Program::Call { procedure, args: args.into() }
}

impl Replica {
    /// Returns an empty replica.
    pub fn new() -> Self {
        Self { registry: cold(), store: Store::new(), txns: 0 }
    }

    /// Runs programs in the given order.
    pub fn run(&mut self, programs: &[(Program, Option<Footprint>)]) -> Vec<Finished> {
        let job = |(at, (program, footprint)): (usize, &'_ (Program, Option<Footprint>))| {
            let number = self.txns + 1 + at as u64;
            (TxnId::new(NodeId(0), number), program.clone(), footprint.clone())
        };
        let jobs: Vec<_> = programs.iter().enumerate().map(job).collect();
        let jobs: Vec<Job<'_>> = jobs
            .iter()
            .map(|(txn, program, footprint)| Job {
                txn: *txn,
                program,
                footprint: footprint.as_ref(),
            })
            .collect();
        self.txns += jobs.len() as u64;
        let version = self.store.published().next();
        let header = |job: &Job<'_>| RecordHeader::new(job.txn);
        let (registry, store) = (&self.registry, &self.store);
        let finished =
            execute(&Sequential, registry, store, version, &jobs, &header, ResultDetail::Writes);
        self.store.publish(version);
        finished
    }

    /// Runs statements that must commit, and returns their writes.
    pub fn have(&mut self, statements: &[&str]) -> Vec<Write> {
        let mut writes = Vec::new();
        for sql in statements {
            let done = self.run(&[(program(sql, None), None)]).remove(0);
            assert!(done.outcome.is_ok(), "{sql}: {:?}", done.outcome);
            writes.extend(done.writes);
        }
        writes
    }

    /// Returns the footprint of a statement on this replica, with the plans cached in `registry`.
    pub fn footprint(&self, registry: &Registry, sql: &str) -> Footprint {
        let (program, at) = (program(sql, None), self.store.published());
        probe(registry, &program, &self.store, at, &Overlay::new())
    }
}

/// Two shards. Tables are partitioned by a hash of their keys.
pub(crate) struct Shards {
    partitions: Partitions,
    stores: [Store; 2],
}

impl Shards {
    /// Returns shards with the writes of these statements.
    pub fn with(statements: &[&str]) -> Self {
        let partitions = Partitions::new(2, Rule::OF_WHOLE_KEY);
        let everywhere = |all: Partitions, table| all.with(table, Rule::Everywhere);
        let partitions = SYSTEM_TABLES.into_iter().fold(partitions, everywhere);
        let stores = [Store::new(), Store::new()];
        for (at, write) in Replica::new().have(statements).into_iter().enumerate() {
            for (shard, store) in (0..).map(ShardId).zip(&stores) {
                if partitions.holds(shard, write.table, &write.key) {
                    let header = RecordHeader::new(TxnId::new(NodeId(0), at as u64 + 1));
                    let version = store.published().next();
                    let row = Version { version, header, value: write.value.clone() };
                    store.apply(write.table, write.key.clone(), row);
                    store.publish(version);
                }
            }
        }
        Self { partitions, stores }
    }

    /// Returns how often the first shard runs a program until its footprint is known. Returns
    /// `None` if it takes more than `most` runs.
    pub fn runs(&self, program: &Program, most: usize) -> Option<usize> {
        let (registry, mut known) = (cold(), KnownRows::default());
        let at = |shard: ShardId| {
            let store = &self.stores[usize::from(shard.0)];
            (store, store.published())
        };
        for runs in 1..=most {
            let (here, place) = (at(ShardId(0)), (&self.partitions, ShardId(0)));
            match reconnoiter(&registry, program, here, place, &known) {
                Reconnaissance::Footprint(_) => return Some(runs),
                Reconnaissance::TooMuch(abort) => panic!("{abort:?}"),
                Reconnaissance::Wants(wants) => {
                    for (shard, wanted) in wants {
                        let (store, version) = at(shard);
                        let found = wanted.look(store, version);
                        known.learn(shard, &wanted, found);
                    }
                }
            }
        }
        None
    }
}
