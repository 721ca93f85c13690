//! Reconnaissances that need rows of other shards (Calvin §3.2.1).
//!
//! A program runs on this node's rows. The rows that it reads on other shards are requested from
//! their nodes, and the program runs again, until it has all of them. A reply contains as many rows
//! as fit in a message, and the rest is requested again.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader};
use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::concerned;
use pangea_core::exec::reconnaissance::{
    KnownRows, LookupKeys, LookupRows, Reconnaissance, reconnoiter,
};
use pangea_core::exec::{declared_footprint, is_bulk, is_divisible};
use pangea_core::ids::{ShardId, SnapshotVersion};
use pangea_core::partition::Partitions;
use pangea_core::protocol::{Cx, Protocol};
use pangea_core::txn::{Abort, Footprint, Program, Registry, SqlState};

use crate::messages::Codec;

/// The maximum number of times that a transaction is ordered again after it left its footprint.
/// After that, the rows that it follows change faster than they can be looked up.
pub(crate) const TRIES_MAX: u32 = 16;

/// The error of a transaction that has left its footprint too often.
pub(crate) fn left_too_often(times: u32) -> Abort {
    let message = format!(
        "could not serialize access: the footprint of the transaction changed {times} times \
         before it ran"
    );
    Abort::new(SqlState::SERIALIZATION_FAILURE, message)
        .with_hint("The transaction might succeed if retried.")
}

/// The footprint that a program declares, if it is narrow enough: otherwise other shards would have
/// to send whole ranges of rows. For a divisible program they send none.
pub(crate) fn narrow_declaration(
    registry: &Registry,
    (partitions, here): (&Partitions, ShardId),
    program: &Program,
) -> Option<Footprint> {
    let Program::Call { procedure, args } = program else { return None };
    let declared = declared_footprint(registry, *procedure, args)?;
    let is_wide = concerned(partitions, &declared, here).len() > 1
        && !is_bulk(registry, *procedure, args)
        && !is_divisible(registry, *procedure, args)
        && declared.ranges.iter().any(|lock| {
            lock.mode.reads() && partitions.shards_of(lock.table, &lock.range).is_some()
        });
    (!is_wide).then_some(declared)
}

/// The footprints of a reconnaissance and of the declaration: a program may touch all that it
/// declares, whatever it touches now.
pub(crate) fn with_declared(declared: Option<Footprint>, found: Footprint) -> Footprint {
    match declared {
        Some(Footprint { mut points, mut ranges }) => {
            points.extend(found.points);
            ranges.extend(found.ranges);
            Footprint::new(points, ranges)
        }
        None => found,
    }
}

/// Reconnaissances that wait for rows. Each has an owner: the state that the protocol adds.
pub(crate) struct Lookups<T> {
    waiting: BTreeMap<u64, Lookup<T>>,
}

/// A reconnaissance.
pub(crate) struct Lookup<T> {
    pub owner: T,
    pub program: Program,
    known: KnownRows,
    /// The requested rows that have not arrived.
    requested: BTreeMap<ShardId, LookupKeys>,
}

/// The result of a run.
pub(crate) enum Looked<T> {
    /// The footprint of the program, at present.
    Found(T, Program, Footprint),
    /// The program accesses too much.
    TooMuch(T, Abort),
    /// These rows have to be requested, under this name.
    Wants(u64, BTreeMap<ShardId, LookupKeys>),
}

impl<T> Default for Lookups<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new() }
    }
}

impl<T> Lookup<T> {
    /// A reconnaissance that knows no rows of other shards yet.
    pub(crate) fn new(owner: T, program: Program) -> Self {
        Self { owner, program, known: KnownRows::default(), requested: BTreeMap::new() }
    }
}

impl<T> Lookups<T> {
    /// The number of reconnaissances that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Runs a program on the rows of version `at` and those that are known. `token` is the name of
    /// the requests if it needs more.
    pub(crate) fn run<P: Protocol>(
        &mut self,
        cx: &Cx<'_, P>,
        registry: &Registry,
        (place, at): ((&Partitions, ShardId), SnapshotVersion),
        token: u64,
        mut lookup: Lookup<T>,
    ) -> Looked<T> {
        cx.begin_work();
        let rows = (&**cx.store, at);
        let result = reconnoiter(registry, &lookup.program, rows, place, &lookup.known);
        cx.end_work(CpuStage::Probe, 1);
        match result {
            Reconnaissance::Footprint(found) => Looked::Found(lookup.owner, lookup.program, found),
            Reconnaissance::TooMuch(abort) => Looked::TooMuch(lookup.owner, abort),
            Reconnaissance::Wants(missing) => {
                lookup.requested.clone_from(&missing);
                self.waiting.insert(token, lookup);
                Looked::Wants(token, missing)
            }
        }
    }

    /// The requests to a shard that are not answered.
    pub(crate) fn requested_of(&self, shard: ShardId) -> impl Iterator<Item = (u64, &LookupKeys)> {
        let waiting = self.waiting.iter();
        waiting.filter_map(move |(token, it)| Some((*token, it.requested.get(&shard)?)))
    }

    /// Takes the rows that a shard sent for a request. Returns the reconnaissance if it can go on,
    /// and `Err` if nobody waits for them.
    pub(crate) fn on_reply(
        &mut self,
        shard: ShardId,
        token: u64,
        rows: LookupRows,
    ) -> Result<Option<Lookup<T>>, ()> {
        let lookup = self.waiting.get_mut(&token).ok_or(())?;
        let keys = lookup.requested.remove(&shard).ok_or(())?;
        lookup.known.learn(shard, &keys, rows);
        let is_whole = lookup.requested.is_empty();
        Ok(if is_whole { self.waiting.remove(&token) } else { None })
    }
}

impl Codec for LookupKeys {
    type Value = LookupKeys;

    fn encode(value: &LookupKeys, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        _: &'static str,
    ) -> Result<LookupKeys, DecodeError> {
        LookupKeys::decode(from)
    }
}

impl Codec for LookupRows {
    type Value = LookupRows;

    fn encode(value: &LookupRows, out: &mut Vec<u8>) {
        value.encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &Bytes,
        _: &'static str,
    ) -> Result<LookupRows, DecodeError> {
        LookupRows::decode(from)
    }
}
