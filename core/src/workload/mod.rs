//! Workloads: the transactions of benchmarks and simulations.
//!
//! A [`Workload`] consists of data and programs: the loading of its tables, the transactions of its
//! clients, and the invariants of its data in any snapshot. The programs are ordinary
//! [`Procedure`]s. The rest is for drivers (the simulator, `pangea bench`):
//!
//! ```text
//!   named("tpcc", settings) --> Workload --load_calls()--> Call, Call, ...    once, in any order
//!                                  |-----generator(client)--> Generator --next(rng, now)--> Call
//!                                  `-----check(rows)--> Report | Violation    on any snapshot
//!                                        `--check_commits(rows, commits)     after all calls ended
//! ```
//!
//! **Clients.** A run has a number of clients; client `i` has its home in region `i % regions`.
//! Each has its own [`Generator`] with all of its state, so drivers in several processes need not
//! communicate. TPC-C distributes warehouses over regions in the same way (warehouse `w`, from 1,
//! to region `(w - 1) % regions`). It gives each terminal a home warehouse of its region. Most
//! transactions therefore stay in the region of their data, and remote ones cross regions as TPC-C
//! specifies. [`counters`] distributes shards in the same way. The other workloads have no home
//! data: every client accesses all keys.
//!
//! **Determinism.** The transactions of a client depend only on the random generator that is passed
//! in. The effects of a program depend only on its arguments, including dates and values. [`rng`]
//! is the only source of randomness.
//!
//! | workload | tables | programs |
//! |---|---|---|
//! | [`ycsb`] | 62 | `ycsb`, `ycsb_load` |
//! | [`tpcc`] | 40 to 56 | `tpcc_new_order`, `tpcc_payment`, ... |
//! | [`list_append`] | 61, 63 | `list_append`, `list_follow`, `list_add` |
//! | [`bank`] | 60 | `bank_transfer`, `bank_audit`, `bank_load` |
//! | [`registers`] | 59 | `registers` |
//! | [`catalog`] | 37 to 39 | `catalog`, `catalog_load` |
//! | [`counters`] | 58 | `counters`, `counters_load` |
//! | [`references`] | 32, 57 | `references` |
//! | [`smallbank`] | 33 to 36 | `smallbank`, `smallbank_load` |
//! | [`tallies`] | 31 | `tallies`, `tallies_load` |
//!
//! Table numbers are below 64, so that they take one byte in every encoded write.
//!
//! ```
//! use pangea_core::time::Timestamp;
//! use pangea_core::txn::Registry;
//! use pangea_core::workload::model::Model;
//! use pangea_core::workload::{Client, Settings, Workload, procedures};
//!
//! let workload = Workload::named("bank", &Settings::default())?;
//! let (registry, mut database) = (Registry::new(procedures()), Model::default());
//! let mut client = workload.generator(Client::new(0, 1, 1));
//! let mut rng = fastrand::Rng::with_seed(1);
//! let mut calls = workload.load_calls();
//! calls.extend((0..100).map(|_| client.next(&mut rng, Timestamp::default())));
//! for call in calls {
//!     let procedure = registry.id(call.procedure).and_then(|id| registry.procedure(id));
//!     let _committed = database.run(procedure.expect("registered"), &call.args).is_ok();
//! }
//! println!("{}", workload.check(&database)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bank;
pub mod catalog;
mod check;
pub mod commits;
pub mod counters;
mod definition;
pub mod list_append;
pub mod model;
mod reach;
pub mod references;
pub mod registers;
pub mod rng;
pub mod smallbank;
pub mod tallies;
pub mod tpcc;
pub mod ycsb;
pub mod zipf;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use check::{Divided, Report, Rows, Snapshot, Violation};
pub use commits::{Commits, Ledger, Watch};
pub use reach::Reach;

use crate::codec::{DecodeError, Reader, Writer};
use crate::guarantee::Isolation;
use crate::partition::Partitions;
use crate::time::Timestamp;
use crate::txn::{Abort, Procedure, SqlState, Stop};
use definition::{Definition, Facts, Generate};
use rng::WorkloadRng;

/// A call of a procedure.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The procedure's name in the registry.
    pub procedure: &'static str,
    /// The arguments, in the procedure's encoding.
    pub args: Bytes,
    /// The kind of transaction, for reports, such as `payment`.
    pub label: &'static str,
    /// Whether it can run on a snapshot without being ordered. Agrees with the procedure.
    pub is_read_only: bool,
}

/// A client of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's number, from 0.
    pub index: u32,
    /// The number of clients of the run, in all regions.
    pub clients: u32,
    /// The number of regions of the run.
    pub regions: u32,
}

impl Client {
    /// Client number `index` of `clients`, which are distributed over `regions` round robin.
    ///
    /// # Panics
    /// If `index` is not below `clients`, or there is no region.
    pub fn new(index: u32, clients: u32, regions: u32) -> Self {
        assert!(index < clients, "client {index} of {clients}");
        assert!(regions > 0, "there must be a region");
        Self { index, clients, regions }
    }

    /// The client's home region.
    pub fn region(self) -> u32 {
        self.index % self.regions
    }

    /// The client's number among the clients of its region, from 0.
    pub fn index_in_region(self) -> u32 {
        self.index / self.regions
    }
}

/// Declares the workloads, by their types.
macro_rules! workloads {
    ($($(#[$doc:meta])* $variant:ident($definition:ty),)*) => {
        /// A workload: data, programs, and invariants.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Workload {
            $($(#[$doc])* $variant($definition),)*
        }

        #[derive(Clone, Debug)]
        enum Kind {
            $($variant(<$definition as Definition>::Generator),)*
        }

        /// The names of each workload.
        const NAMES_EACH: &[&[&str]] = &[$(<$definition>::NAMES),*];

        impl Workload {
            fn find(name: &str, settings: &Settings) -> Option<Result<Self, InvalidSettings>> {
                $(if <$definition>::NAMES.contains(&name) {
                    return Some(<$definition>::named(name, settings).map(Self::$variant));
                })*
                None
            }

            fn facts(&self) -> &dyn Facts {
                match self {
                    $(Self::$variant(it) => it,)*
                }
            }

            /// The transactions of one client.
            pub fn generator(&self, client: Client) -> Generator {
                Generator(match self {
                    $(Self::$variant(it) => Kind::$variant(Definition::generator(it, client)),)*
                })
            }
        }

        impl Generator {
            /// The next transaction. Its date is `now`.
            pub fn next(&mut self, rng: &mut fastrand::Rng, now: Timestamp) -> Call {
                let dice = &mut WorkloadRng::new(rng.u64(..));
                match &mut self.0 {
                    $(Kind::$variant(it) => it.next_call(dice, now),)*
                }
            }
        }

        /// Whether the histories of the workload with this name can be recorded: no two of its
        /// transactions write the same value.
        pub fn is_recorded(name: &str) -> bool {
            $(<$definition>::IS_RECORDED && <$definition>::NAMES.contains(&name))||*
        }

        /// All procedures of all workloads, for a node's registry.
        pub fn procedures() -> Vec<Arc<dyn Procedure>> {
            [$(<$definition>::programs()),*].concat()
        }
    };
}

workloads! {
    /// Yahoo's cloud serving benchmark.
    Ycsb(ycsb::Ycsb),
    /// Wholesale order entry.
    Tpcc(tpcc::Tpcc),
    /// Lists whose element order reveals the order of transactions.
    ListAppend(list_append::ListAppend),
    /// Bank accounts with a constant sum.
    Bank(bank::Bank),
    /// Savings and checking accounts.
    SmallBank(smallbank::SmallBank),
    /// The microbenchmarks of Calvin, Mako and Tiga.
    Counters(counters::Counters),
    /// Registers and rows that are inserted and deleted.
    Registers(registers::Registers),
    /// A table with an index, whose schema changes.
    Catalog(catalog::Catalog),
    /// Parents, and children that exist only beside theirs.
    References(references::References),
    /// Rows to which transactions add.
    Tallies(tallies::Tallies),
}

/// Size and skew of a workload. Each workload uses only its own settings.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Settings {
    /// The seed from which loads draw their rows.
    pub seed: u64,
    /// YCSB: loaded rows. Microbenchmarks: rows of a shard.
    pub rows: u64,
    /// YCSB: length of a value in bytes.
    pub value_len: u32,
    /// YCSB, list-append and microbenchmarks: the exponent of Zipf's law, 0 for uniform.
    pub zipf: f64,
    /// TPC-C: number of warehouses.
    pub warehouses: u32,
    /// TPC-C: number of rows in a warehouse.
    pub scale: tpcc::Scale,
    /// TPC-C: whether remote warehouses are in the terminal's own region, so that regions never
    /// conflict.
    pub own_region: bool,
    /// List-append: lists in use at a time. Registers, index, ddl and tallies: rows. References:
    /// parents.
    pub lists: u32,
    /// Bank: number of accounts.
    pub accounts: u32,
    /// Microbenchmarks: shards over which rows are distributed. TPC-C with only New-Order: shards
    /// over which warehouses are distributed.
    pub shards: u32,
    /// Calvin's microbenchmark: hot rows of a shard; the contention index is 1 divided by this
    /// number. SmallBank: customers with nine of ten transactions.
    pub hot: u32,
    /// The percentage that leaves the home shard: of transactions in Calvin's microbenchmark, of
    /// operations in Mako's.
    pub remote: u32,
    /// Calvin's microbenchmark: additional bytes of each counter. If it is not 0, nine of ten
    /// counters are cold.
    pub payload: u32,
    /// Calvin's microbenchmark: the percentage of transactions with a cold counter.
    pub cold: u32,
    /// SmallBank: number of customers.
    pub customers: u32,
    /// YCSB and TPC-C: the percentage of transactions that are long.
    pub long: u32,
    /// YCSB and TPC-C: the size of a long transaction: a multiple of the usual number of
    /// operations, or a number of new orders.
    pub long_times: u32,
}

impl Default for Settings {
    /// The sizes used in the literature.
    fn default() -> Self {
        Self {
            seed: 1,
            rows: 2_000_000,
            value_len: 1_000,
            zipf: 0.0,
            warehouses: 8,
            scale: tpcc::Scale::FULL,
            own_region: false,
            lists: 16,
            accounts: 100,
            shards: 3,
            hot: 100,
            remote: 5,
            payload: 0,
            cold: 0,
            customers: 18_000,
            long: 0,
            long_times: 50,
        }
    }
}

/// An error for settings that a workload cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSettings(pub String);

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidSettings {}

/// The number of [`NAMES`].
const NAMES_COUNT: usize = {
    let (mut count, mut at) = (0, 0);
    while at < NAMES_EACH.len() {
        count += NAMES_EACH[at].len();
        at += 1;
    }
    count
};

/// The names accepted by [`Workload::named`].
pub const NAMES: [&str; NAMES_COUNT] = {
    let mut all = [""; NAMES_COUNT];
    let (mut count, mut at) = (0, 0);
    while at < NAMES_EACH.len() {
        let mut own = 0;
        while own < NAMES_EACH[at].len() {
            all[count] = NAMES_EACH[at][own];
            (count, own) = (count + 1, own + 1);
        }
        at += 1;
    }
    all
};

impl Workload {
    /// Creates the workload with this name on command lines.
    ///
    /// # Errors
    /// If there is no workload of that name, or a setting is out of its bounds.
    pub fn named(name: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::find(name, settings).unwrap_or_else(|| {
            Err(InvalidSettings(format!("unknown workload {name:?}; known: {}", NAMES.join(", "))))
        })
    }

    /// The name on command lines and in reports.
    pub fn name(&self) -> &'static str {
        self.facts().name()
    }

    /// The weakest isolation level at which the conditions of [`Workload::check`] hold.
    pub fn weakest_level(&self) -> Isolation {
        self.facts().weakest_level()
    }

    /// Whether it exists only for the simulator's checkers of histories.
    pub fn is_of_histories(&self) -> bool {
        self.facts().is_of_histories()
    }

    /// The calls that load the tables: each once, in any order, before the first call of a client.
    /// Each writes about ten thousand rows at most. A repeated call writes the same rows again.
    pub fn load_calls(&self) -> Vec<Call> {
        self.facts().load_calls()
    }

    /// The partitioning of its tables over `shards` shards: related keys are on one shard, and
    /// tables that are never written are on all.
    pub fn partitions(&self, shards: u16) -> Partitions {
        self.facts().partitions(shards)
    }

    /// The procedures that its clients call.
    pub fn procedures(&self) -> Vec<&'static str> {
        self.facts().procedures()
    }

    /// Checks the invariants that hold between any two transactions.
    ///
    /// # Errors
    /// The first violated rule, its location, and both of its numbers.
    pub fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        self.facts().check(rows)
    }

    /// The facts to record about its calls for [`Self::check_commits`].
    pub fn watch(&self) -> Watch {
        self.facts().watch()
    }

    /// Checks whether the facts counted in `rows` match the transactions committed since the load.
    /// Detects lost and duplicated transactions in workloads whose data show them. The histories
    /// for Elle and the bank's transfers do not.
    ///
    /// # Errors
    /// The violated rule, with both numbers.
    pub fn check_commits(
        &self,
        report: &Report,
        rows: &dyn Rows,
        commits: &Commits,
    ) -> Result<(), Violation> {
        let fact = |name: &str| report.facts.get(name).copied().unwrap_or(0);
        let rule = check::Rule { rule: "acknowledged commits", place: &self.name() };
        self.facts().check_commits(&rule, &fact, rows, commits)
    }
}

/// Generates one client's transactions, one after the other.
#[derive(Clone, Debug)]
pub struct Generator(Kind);

/// Returns the mix with one of the workload's names.
fn mix<M: Copy>(all: &[M], name_of: fn(M) -> &'static str, name: &str) -> M {
    let found = all.iter().find(|mix| name_of(**mix) == name);
    *found.expect("it is one of the workload's names")
}

/// The stop of a program whose arguments or rows are malformed.
fn malformed(error: DecodeError) -> Stop {
    Stop::Abort(Abort::new(SqlState::INTERNAL_ERROR, error.to_string()))
}

/// The maximum number of operations that a program with a list of operations accepts.
const OPS_ACCEPTED_MAX: u64 = 1_000;

/// The arguments of a program that runs a list of operations.
fn encode_ops<T>(ops: &[T], encode: impl Fn(&T, &mut Vec<u8>)) -> Vec<u8> {
    let mut args = Vec::new();
    args.put_varint(ops.len() as u64);
    ops.iter().for_each(|op| encode(op, &mut args));
    args
}

/// Decodes the bytes that [`encode_ops`] wrote.
fn decode_ops<T>(
    args: &[u8],
    decode: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let from = &mut Reader::new(args);
    let count = from.count("operations")? as u64;
    bounded(count, 0, OPS_ACCEPTED_MAX, "count of operations")?;
    let ops = (0..count).map(|_| decode(from)).collect::<Result<_, DecodeError>>()?;
    ended(from, "operations")?;
    Ok(ops)
}

/// Requires the input to end here.
fn ended(from: &Reader<'_>, what: &'static str) -> Result<(), DecodeError> {
    if from.is_empty() { Ok(()) } else { Err(DecodeError::new(what)) }
}

/// Requires a decoded number to be within its bounds.
fn bounded(number: u64, min: u64, max: u64, what: &'static str) -> Result<u64, DecodeError> {
    if (min..=max).contains(&number) { Ok(number) } else { Err(DecodeError::new(what)) }
}

/// Requires a setting to be within its bounds.
fn setting(name: &str, value: u64, min: u64, max: u64) -> Result<(), InvalidSettings> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(InvalidSettings(format!("{name} is {value}; it must be from {min} to {max}")))
}

/// Requires an exponent of Zipf's law to be within its bounds.
fn setting_zipf(zipf: f64) -> Result<(), InvalidSettings> {
    const ZIPF_MAX: f64 = 5.0;
    if (0.0..=ZIPF_MAX).contains(&zipf) {
        return Ok(());
    }
    Err(InvalidSettings(format!("zipf is {zipf}; it must be from 0 to {ZIPF_MAX}")))
}

#[cfg(test)]
mod tests;
