//! The microbenchmarks of three papers: transactions that read and increment a few counters.
//!
//! There is one table of counters, partitioned over shards. Clients have a home shard, that of
//! their region. A transaction reads its counters, aborts if one of them is negative (none ever
//! is), and then increments those that it should increment. One of Tiga's benchmark only increments
//! them: each increment needs its own counter alone, so the program is divisible over shards
//! ([`Procedure::is_divisible`]).
//!
//! | mix | transactions | counters |
//! |---|---|---|
//! | `calvin-micro` | increments of 10 (Calvin, §6.2) | of a shard, one of `hot` and 9 others |
//! | `mako-micro` | half 4 reads, half 4 increments (Mako, §7.1) | of the home shard, most often |
//! | `tiga-micro` | increments of 3 (Tiga, §5.1) | one of each of three shards, by Zipf's law |
//!
//! In Calvin's benchmark the contention index is 1 / `hot`. `remote` percent of its transactions
//! span two shards, with one of `hot` and four other counters in each. In Mako's, `remote` percent
//! of the operations leave the home shard. The sum of the counters shows the number of committed
//! increments.
//!
//! With a `payload`, Calvin's counters have that many additional bytes, and nine of ten records of
//! a shard are *cold*. `cold` percent of the transactions have a cold record in place of a record
//! of the home shard; no other transaction accesses cold records (§4). If memory is limited, their
//! values are not in it.
//!
//! ```text
//!   records of a shard:  [ hot | others, used by most accesses | cold ...................... ]
//!                         0     hot                             rows / 10                rows
//! ```

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::commits::Commits;
use super::definition::{Definition, Facts, Generate};
use super::rng::{WorkloadRng, scatter};
use super::zipf::Zipf;
use super::{
    Call, Client, InvalidSettings, Settings, bounded, ended, malformed, setting, setting_zipf,
};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::partition::{self, Partitions};
use crate::time::Timestamp;
use crate::txn::{
    Abort, Context, Footprint, LockMode, PointLock, Procedure, RangeLock, SqlState, Stop,
};
use crate::value::Value;

/// Shard and record, big-endian, to counter, little-endian.
pub const COUNTERS: TableId = TableId(58);

/// The number of records of a transaction in Calvin's benchmark.
const CALVIN_RECORDS: usize = 10;
/// The number of operations of a transaction in Mako's benchmark.
const MAKO_OPS: usize = 4;
/// The number of shards, and so of records, of a transaction in Tiga's benchmark.
const TIGA_SHARDS: usize = 3;
/// The maximum number of rows that one load call writes.
const LOAD_ROWS: u64 = 10_000;
/// The maximum number of bytes that one load call writes.
const LOAD_BYTES: u64 = 10_000_000;
/// If there are cold records, one of this many records of a shard is not cold.
const WARM_PART: u64 = 10;
/// Longer than an inline value, because inline values are never evicted.
const PAYLOAD_MIN: u64 = 16;
const PAYLOAD_MAX: u64 = 100_000;
const SHARDS_MAX: u64 = 1_000;
const ROWS_MAX: u64 = 1 << 30;

/// The paper of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Calvin's microbenchmark.
    Calvin,
    /// Mako's microbenchmark.
    Mako,
    /// Tiga's microbenchmark.
    Tiga,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Self; 3] = [Self::Calvin, Self::Mako, Self::Tiga];

    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calvin => "calvin-micro",
            Self::Mako => "mako-micro",
            Self::Tiga => "tiga-micro",
        }
    }
}

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Counters {
    mix: Mix,
    shards: u16,
    rows: u32,
    hot: u32,
    remote: u64,
    zipf: f64,
    /// The additional bytes of each counter.
    payload: u32,
    /// The percentage of transactions with a cold record.
    cold: u64,
}

/// One counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The shard.
    pub shard: u16,
    /// The record's number in the shard.
    pub row: u32,
}

/// What a transaction does with its counters. The numbers are those in its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Returns their values.
    Read = 0,
    /// Increments them, and returns their values before.
    ReadAndIncrement = 1,
    /// Increments them, and returns nothing.
    Increment = 2,
}

impl Counters {
    /// Creates a mix over the numbers of shards and rows in the settings.
    ///
    /// # Errors
    /// If a setting is out of its bounds.
    pub fn new(mix: Mix, settings: &Settings) -> Result<Self, InvalidSettings> {
        let Settings { shards, rows, hot, remote, zipf, payload, cold, .. } = *settings;
        let shards_min = if mix == Mix::Tiga { TIGA_SHARDS as u64 } else { 1 };
        setting("shards", shards.into(), shards_min, SHARDS_MAX)?;
        setting("rows", rows, CALVIN_RECORDS as u64 + 1, ROWS_MAX)?;
        setting("remote", remote.into(), 0, 100)?;
        let (payload, cold) = if mix == Mix::Calvin { (payload, cold) } else { (0, 0) };
        setting("cold", cold.into(), 0, 100)?;
        if payload > 0 || cold > 0 {
            setting("payload", payload.into(), PAYLOAD_MIN, PAYLOAD_MAX)?;
            let rows_min = WARM_PART * (CALVIN_RECORDS as u64 + 1);
            setting("rows", rows, rows_min, ROWS_MAX)?;
        }
        if mix == Mix::Calvin {
            let warm = if payload > 0 { rows / WARM_PART } else { rows };
            setting("hot", hot.into(), 1, warm - CALVIN_RECORDS as u64)?;
        }
        setting_zipf(zipf)?;
        let (shards, rows) = (shards as u16, rows as u32);
        let (remote, cold) = (remote.into(), cold.into());
        Ok(Self { mix, shards, rows, hot, remote, zipf, payload, cold })
    }

    /// The number of records of a shard that are not cold. They come first.
    fn warm_rows(&self) -> u32 {
        if self.payload > 0 { self.rows / WARM_PART as u32 } else { self.rows }
    }

    /// The number of counters that a transaction increments.
    fn increments_of(&self, label: &str) -> i64 {
        match (self.mix, label) {
            (Mix::Calvin, _) => CALVIN_RECORDS as i64,
            (Mix::Mako, "increment") => MAKO_OPS as i64,
            (Mix::Mako, _) => 0,
            (Mix::Tiga, _) => TIGA_SHARDS as i64,
        }
    }
}

impl Definition for Counters {
    const NAMES: &'static [&'static str] =
        &[Mix::Calvin.name(), Mix::Mako.name(), Mix::Tiga.name()];

    type Generator = Generator;

    fn named(name: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(super::mix(&Mix::ALL, Mix::name, name), settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Run), Arc::new(Load)]
    }

    fn generator(&self, client: Client) -> Generator {
        let home = (client.region() % u32::from(self.shards)) as u16;
        Generator { home, zipf: Zipf::new(self.rows.into(), self.zipf), counters: self.clone() }
    }
}

impl Facts for Counters {
    fn name(&self) -> &'static str {
        self.mix.name()
    }

    fn load_calls(&self) -> Vec<Call> {
        let record_bytes = size_of::<i64>() as u64 + u64::from(self.payload);
        let step = (LOAD_BYTES / record_bytes).clamp(1, LOAD_ROWS);
        let shard = |shard| {
            let starts = (0..u64::from(self.rows)).step_by(step as usize);
            starts.map(move |start| {
                let mut args = Vec::new();
                args.put_varint(u64::from(shard));
                args.put_varint(start);
                args.put_varint(u64::from(self.rows).min(start + step));
                // Omitted without a payload, because the logs of older versions contain such calls.
                if self.payload > 0 {
                    args.put_varint(u64::from(self.payload));
                }
                let (procedure, args) = ("counters_load", Bytes::from(args));
                Call { procedure, args, label: "load", is_read_only: false }
            })
        };
        (0..self.shards).flat_map(shard).collect()
    }

    /// By the clients' home shards.
    fn partitions(&self, shards: u16) -> Partitions {
        let starts = (1..shards).map(|shard| shard.to_be_bytes().to_vec()).collect();
        let by_hash = Partitions::new(shards, partition::Rule::Hash { prefix_bytes: 2 });
        by_hash.with(COUNTERS, partition::Rule::Ranges { starts })
    }

    fn procedures(&self) -> Vec<&'static str> {
        vec!["counters"]
    }

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        let rule = Rule { rule: "counters", place: &"the table" };
        let (mut count, mut increments, mut negative, mut unreadable) = (0, 0, 0, 0);
        let mut other_payload = 0;
        let mut by_shard = BTreeMap::<[u8; 2], i64>::new();
        rows.scan(COUNTERS, &KeyRange::all(), &mut |key, value| {
            let counter = decode(value);
            count += 1;
            let of_counter = counter.as_ref().map_or(0, |(counter, _)| *counter);
            increments += of_counter;
            if let Some(shard) = key.first_chunk() {
                *by_shard.entry(*shard).or_default() += of_counter;
            }
            negative += i64::from(counter.as_ref().is_ok_and(|(counter, _)| *counter < 0));
            unreadable += i64::from(counter.is_err());
            let is_payload = |found: &[u8]| {
                let (place, len) = (key.len().min(found.len()), self.payload as usize);
                found.len() == len && found[..place] == key[..place]
            };
            other_payload += i64::from(counter.is_ok_and(|(_, found)| !is_payload(found)));
            ControlFlow::Continue(())
        });
        rule.equal(("unreadable counters", unreadable), ("allowed", 0))?;
        rule.equal(("counters with another's payload", other_payload), ("allowed", 0))?;
        let loaded = i64::from(self.shards) * i64::from(self.rows);
        rule.equal(("counters", count), ("loaded", loaded))?;
        rule.equal(("negative counters", negative), ("allowed", 0))?;
        if self.mix == Mix::Tiga {
            // Each transaction increments one counter in each of three shards, or none.
            let (most, each) = (by_shard.into_values().max().unwrap_or(0), TIGA_SHARDS as i64);
            rule.equal(("increments without two others", increments % each), ("allowed", 0))?;
            let alone = (each * most - increments).max(0);
            rule.equal(("increments of one shard alone", alone), ("allowed", 0))?;
        }
        let mut report = Report::default();
        report.count("counters", count);
        report.count(INCREMENTS, increments);
        Ok(report)
    }

    fn check_commits(
        &self,
        rule: &Rule<'_>,
        fact: &dyn Fn(&str) -> i64,
        _: &dyn Rows,
        commits: &Commits,
    ) -> Result<(), Violation> {
        let increments = commits.sum(|label| self.increments_of(label));
        let found = ("the sum of all counters", fact(INCREMENTS));
        rule.within(found, "increments committed", increments)
    }
}

impl Generate for Generator {
    fn next_call(&mut self, dice: &mut WorkloadRng, _: Timestamp) -> Call {
        self.next(dice)
    }
}

/// The name of the sum of all counters in a report.
const INCREMENTS: &str = "increments";

/// Generates one client's transactions.
#[derive(Clone, Debug)]
pub struct Generator {
    counters: Counters,
    home: u16,
    zipf: Zipf,
}

impl Generator {
    fn next(&mut self, dice: &mut WorkloadRng) -> Call {
        let mut of = Vec::with_capacity(CALVIN_RECORDS);
        let (label, what) = match self.counters.mix {
            Mix::Calvin => (self.calvin(dice, &mut of), What::ReadAndIncrement),
            Mix::Mako => self.mako(dice, &mut of),
            Mix::Tiga => {
                self.tiga(dice, &mut of);
                ("increment", What::Increment)
            }
        };
        let args = Bytes::from(encode_args(&of, what));
        Call { procedure: "counters", args, label, is_read_only: what == What::Read }
    }

    fn calvin(&self, dice: &mut WorkloadRng, of: &mut Vec<Counter>) -> &'static str {
        let Counters { hot, rows, remote, cold, .. } = self.counters;
        let warm = self.counters.warm_rows();
        let other = dice.percent(remote).then(|| self.other_shard(dice)).flatten();
        let shards = [Some(self.home), other].into_iter().flatten();
        let each = CALVIN_RECORDS / if other.is_some() { 2 } else { 1 };
        for shard in shards {
            of.push(Counter { shard, row: dice.below(hot.into()) as u32 });
            for _ in 1..each {
                distinct(of, || {
                    let row = u64::from(hot) + dice.below(u64::from(warm - hot));
                    Counter { shard, row: row as u32 }
                });
            }
        }
        // Not drawn without cold records, so that such runs draw the same numbers as before.
        if cold > 0 && dice.percent(cold) {
            let row = u64::from(warm) + dice.below(u64::from(rows - warm));
            of[1] = Counter { shard: self.home, row: row as u32 };
            return "cold";
        }
        if other.is_some() { "multi-shard" } else { "one-shard" }
    }

    fn mako(&self, dice: &mut WorkloadRng, of: &mut Vec<Counter>) -> (&'static str, What) {
        for _ in 0..MAKO_OPS {
            distinct(of, || {
                let is_remote = dice.percent(self.counters.remote);
                let other = if is_remote { self.other_shard(dice) } else { None };
                Counter { shard: other.unwrap_or(self.home), row: self.row(dice) }
            });
        }
        match dice.percent(50) {
            true => ("increment", What::ReadAndIncrement),
            false => ("read", What::Read),
        }
    }

    fn tiga(&self, dice: &mut WorkloadRng, of: &mut Vec<Counter>) {
        let shards = u64::from(self.counters.shards);
        while of.len() < TIGA_SHARDS {
            let shard = dice.below(shards) as u16;
            if of.iter().all(|counter| counter.shard != shard) {
                of.push(Counter { shard, row: self.row(dice) });
            }
        }
    }

    /// A shard other than the home shard, if there is one.
    fn other_shard(&self, dice: &mut WorkloadRng) -> Option<u16> {
        let shards = u64::from(self.counters.shards);
        let step = (shards > 1).then(|| dice.between(1, shards - 1))?;
        Some(((u64::from(self.home) + step) % shards) as u16)
    }

    /// A row drawn by Zipf's law. Frequent rows are not adjacent.
    fn row(&self, dice: &mut WorkloadRng) -> u32 {
        (scatter(self.zipf.draw(dice)) % u64::from(self.counters.rows)) as u32
    }
}

/// Adds a counter that is not in the list yet.
fn distinct(of: &mut Vec<Counter>, mut draw: impl FnMut() -> Counter) {
    loop {
        let drawn = draw();
        if !of.contains(&drawn) {
            return of.push(drawn);
        }
    }
}

fn key(counter: Counter) -> Key {
    let [a, b] = counter.shard.to_be_bytes();
    let [c, d, e, f] = counter.row.to_be_bytes();
    Key::from(&[a, b, c, d, e, f][..])
}

/// A counter and its payload.
fn decode(value: &[u8]) -> Result<(i64, &[u8]), DecodeError> {
    let (counter, payload) = value.split_first_chunk().ok_or(DecodeError::new("counter"))?;
    Ok((i64::from_le_bytes(*counter), payload))
}

fn encode(counter: i64, payload: &[u8]) -> Value {
    match payload {
        [] => Value::copy_from(&counter.to_le_bytes()),
        _ => Value::copy_from(&[&counter.to_le_bytes(), payload].concat()),
    }
}

fn encode_args(of: &[Counter], what: What) -> Vec<u8> {
    let encode = |counter: &Counter, out: &mut Vec<u8>| {
        out.put_varint(u64::from(counter.shard));
        out.put_varint(u64::from(counter.row));
    };
    let mut args = vec![what as u8];
    args.extend(super::encode_ops(of, encode));
    args
}

fn decode_args(args: &[u8]) -> Result<(Vec<Counter>, What), DecodeError> {
    let (what, rest) = match args.split_first() {
        Some((0, rest)) => (What::Read, rest),
        Some((1, rest)) => (What::ReadAndIncrement, rest),
        Some((2, rest)) => (What::Increment, rest),
        _ => return Err(DecodeError::new("counters: what to do")),
    };
    let decode = |from: &mut Reader<'_>| {
        let shard = bounded(from.varint("shard")?, 0, SHARDS_MAX - 1, "shard")? as u16;
        let row = bounded(from.varint("row")?, 0, ROWS_MAX - 1, "row")? as u32;
        Ok(Counter { shard, row })
    };
    Ok((super::decode_ops(rest, decode)?, what))
}

/// Reads counters, or increments them, or both. Returns the values that it has read.
#[derive(Clone, Copy, Debug)]
pub struct Run;

impl Run {
    /// Reads all counters before it increments any.
    fn read(cx: &mut dyn Context, of: &[Counter], increments: bool) -> Result<Vec<u8>, Stop> {
        let mut found = Vec::with_capacity(of.len());
        for counter in of {
            let Some(value) = cx.get(COUNTERS, &key(*counter))? else {
                let Counter { shard, row } = counter;
                let message = format!("counter {row} does not exist in shard {shard}");
                return Err(Abort::new(SqlState::NO_DATA_FOUND, message).into());
            };
            decode(&value).map_err(malformed)?;
            found.push(value);
        }
        let counters =
            || found.iter().map(|value| decode(value).expect("the counter was decoded before"));
        if counters().any(|(counter, _)| counter < 0) {
            return Err(Abort::new(SqlState::RAISE_EXCEPTION, "a counter is negative").into());
        }
        let mut result = Vec::with_capacity(1 + 2 * found.len());
        result.put_varint(found.len() as u64);
        for (at, (counter, payload)) in counters().enumerate() {
            result.put_varint(counter as u64);
            if increments {
                // A counter that is named twice is incremented twice.
                let more = 1 + of[..at].iter().filter(|earlier| **earlier == of[at]).count();
                let value = encode(counter.saturating_add(more as i64), payload);
                cx.put(COUNTERS, key(of[at]), value)?;
            }
        }
        Ok(result)
    }

    /// Increments counters, each by itself. What is no counter stays as it is: the run may have the
    /// rows of one shard alone, and must not abort.
    fn increment(cx: &mut dyn Context, of: &[Counter]) -> Result<Vec<u8>, Stop> {
        for counter in of {
            let at = key(*counter);
            let value = cx.get(COUNTERS, &at)?;
            if let Some(Ok((counter, payload))) = value.as_deref().map(decode) {
                cx.put(COUNTERS, at, encode(counter.saturating_add(1), payload))?;
            }
        }
        Ok(Vec::new())
    }
}

impl Procedure for Run {
    fn name(&self) -> &str {
        "counters"
    }

    /// 1: there are divisible increments.
    fn version(&self) -> u32 {
        1
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let (of, what) = decode_args(args).map_err(malformed)?;
        match what {
            What::Read => Self::read(cx, &of, false),
            What::ReadAndIncrement => Self::read(cx, &of, true),
            What::Increment => Self::increment(cx, &of),
        }
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok((of, what)) = decode_args(args) else { return Some(Footprint::default()) };
        let mode = if what == What::Read { LockMode::Shared } else { LockMode::Exclusive };
        let lock = |counter| PointLock { table: COUNTERS, key: key(counter), mode };
        Some(Footprint::new(of.into_iter().map(lock).collect(), Vec::new()))
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        decode_args(args).is_ok_and(|(_, what)| what == What::Read)
    }

    fn is_divisible(&self, args: &[u8]) -> bool {
        decode_args(args).is_ok_and(|(_, what)| what == What::Increment)
    }
}

/// Creates the counters of a shard. The arguments are the shard, the first row and the end of the
/// rows.
#[derive(Clone, Copy, Debug)]
pub struct Load;

impl Load {
    /// The shard, the rows and the length of their payload.
    fn decode(args: &[u8]) -> Result<(u16, std::ops::Range<u32>, usize), DecodeError> {
        let from = &mut Reader::new(args);
        let shard = bounded(from.varint("shard")?, 0, SHARDS_MAX - 1, "shard")? as u16;
        let start = bounded(from.varint("row")?, 0, ROWS_MAX, "row")?;
        let end = bounded(from.varint("row")?, start, ROWS_MAX.min(start + LOAD_ROWS), "row")?;
        let payload = if from.is_empty() { 0 } else { from.varint("payload")? };
        let payload = bounded(payload, 0, PAYLOAD_MAX, "payload")?;
        bounded((end - start) * payload, 0, LOAD_BYTES, "size of a load")?;
        ended(from, "load arguments")?;
        Ok((shard, start as u32..end as u32, payload as usize))
    }
}

impl Procedure for Load {
    fn name(&self) -> &str {
        "counters_load"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let (shard, rows, len) = Self::decode(args).map_err(malformed)?;
        for row in rows {
            let key = key(Counter { shard, row });
            // The payload identifies its record.
            let payload: Vec<u8> = key.iter().copied().cycle().take(len).collect();
            cx.put(COUNTERS, key, encode(0, &payload))?;
        }
        Ok(Vec::new())
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok((shard, rows, _)) = Self::decode(args) else { return Some(Footprint::default()) };
        let at = |row| key(Counter { shard, row }).as_bytes().to_vec();
        let range = KeyRange { start: at(rows.start), end: Some(at(rows.end)) };
        let lock = RangeLock { table: COUNTERS, range, mode: LockMode::Exclusive };
        Some(Footprint::new(Vec::new(), vec![lock]))
    }

    fn is_bulk(&self, _: &[u8]) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
