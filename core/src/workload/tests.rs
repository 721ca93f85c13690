//! Runs every workload on the model: loading, transactions, checks, and malformed arguments.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::model::Model;
use super::*;
use crate::ids::{SnapshotVersion, TableId};
use crate::key::KeyRange;
use crate::store::{RecordHeader, Store, Version};
use crate::txn::Registry;

/// Settings so small that a test loads and runs them quickly.
pub(super) fn small() -> Settings {
    Settings {
        rows: 200,
        value_len: 20,
        zipf: 0.9,
        warehouses: 3,
        scale: tpcc::Scale::TINY,
        hot: 10,
        customers: 100,
        ..Settings::default()
    }
}

/// A loaded workload with some clients.
pub(super) struct Bench {
    pub(super) workload: Workload,
    pub(super) model: Model,
    pub(super) registry: Registry,
    generators: Vec<Generator>,
    rng: fastrand::Rng,
    now: Timestamp,
}

impl Bench {
    pub(super) fn new(name: &str, settings: &Settings) -> Self {
        const CLIENTS: u32 = 12;
        let workload = Workload::named(name, settings).expect("the settings are valid");
        let generator = |index| workload.generator(Client::new(index, CLIENTS, 3));
        let generators = (0..CLIENTS).map(generator).collect();
        let registry = Registry::new(procedures());
        let rng = fastrand::Rng::with_seed(7);
        let (model, now) = (Model::default(), Timestamp::from_us(1_700_000_000_000_000));
        let mut bench = Self { workload, model, registry, generators, rng, now };
        for call in bench.workload.load_calls() {
            bench.run(&call).expect("a load does not abort");
        }
        bench
    }

    pub(super) fn procedure(&self, name: &str) -> &dyn Procedure {
        let id = self.registry.id(name).expect("the procedure is registered");
        self.registry.procedure(id).expect("the id is from the registry")
    }

    pub(super) fn run(&mut self, call: &Call) -> Result<Vec<u8>, Stop> {
        let id = self.registry.id(call.procedure).expect("the procedure is registered");
        let procedure = self.registry.procedure(id).expect("the id is from the registry");
        assert_eq!(procedure.is_read_only(&call.args), call.is_read_only, "{call:?}");
        assert_eq!(procedure.is_bulk(&call.args), call.label == "load", "{call:?}");
        self.model.run(procedure, &call.args)
    }

    pub(super) fn next(&mut self) -> Call {
        let client = self.rng.usize(..self.generators.len());
        self.now.us += 1_000;
        self.generators[client].next(&mut self.rng, self.now)
    }

    /// Runs random transactions. Returns the numbers of commits and aborts by label.
    pub(super) fn run_many(&mut self, count: usize) -> BTreeMap<&'static str, (u32, u32)> {
        let mut ended = BTreeMap::<_, (u32, u32)>::new();
        for _ in 0..count {
            let call = self.next();
            let counts = ended.entry(call.label).or_default();
            match self.run(&call) {
                Ok(_) => counts.0 += 1,
                Err(Stop::Abort(abort)) => {
                    assert_eq!(abort.code, SqlState::RAISE_EXCEPTION, "{abort} of {call:?}");
                    counts.1 += 1;
                }
                Err(Stop::Interrupted) => panic!("the model does not interrupt"),
            }
        }
        ended
    }

    pub(super) fn check(&self) -> Report {
        self.workload.check(&self.model).unwrap_or_else(|violation| panic!("{violation}"))
    }
}

#[test]
fn what_must_hold_holds_after_the_load_and_after_many_transactions() {
    for name in NAMES {
        let mut bench = Bench::new(name, &small());
        assert_eq!(bench.workload.name(), name);
        bench.check();
        let ended = bench.run_many(600);
        assert!(ended.values().map(|(committed, _)| committed).sum::<u32>() > 500, "{ended:?}");
        bench.check();
    }
}

#[test]
fn a_load_is_the_same_in_any_order_and_when_it_is_repeated() {
    for name in NAMES {
        let mut bench = Bench::new(name, &small());
        let loaded = bench.model.clone();
        bench.model = Model::default();
        let calls = bench.workload.load_calls();
        for call in calls.iter().rev().chain(&calls) {
            bench.run(call).expect("a load does not abort");
        }
        assert!(bench.model == loaded, "{name}");
    }
}

#[test]
fn clients_that_are_handed_the_same_dice_do_the_same() {
    for name in NAMES {
        let (mut a, mut b) = (Bench::new(name, &small()), Bench::new(name, &small()));
        for _ in 0..100 {
            assert_eq!(a.next(), b.next(), "{name}");
        }
    }
}

#[test]
fn wrong_names_and_settings_are_refused_in_words() {
    let refused = |name: &str, settings: Settings, words: &str| {
        let error = Workload::named(name, &settings).expect_err("refused").to_string();
        assert!(error.contains(words), "{error:?} does not contain {words:?}");
    };
    refused("tpc-c", small(), "unknown workload \"tpc-c\"");
    refused("ycsb-a", Settings { rows: 0, ..small() }, "rows is 0");
    refused("ycsb-a", Settings { value_len: 7, ..small() }, "value_len is 7");
    refused("ycsb-a", Settings { zipf: f64::NAN, ..small() }, "zipf is NaN");
    refused("ycsb-a", Settings { zipf: -0.1, ..small() }, "zipf is -0.1");
    refused("tpcc", Settings { warehouses: 0, ..small() }, "warehouses is 0");
    let scale = tpcc::Scale { orders: 31, ..tpcc::Scale::TINY };
    refused("tpcc", Settings { scale, ..small() }, "orders is 31; it must be from 10 to 30");
    refused("bank", Settings { accounts: 1, ..small() }, "accounts is 1");
    refused("calvin-micro", Settings { cold: 1, ..small() }, "payload is 0; it must be from 16");
    let too_hot = Settings { payload: 100, hot: 11, ..small() };
    refused("calvin-micro", too_hot, "hot is 11; it must be from 1 to 10");
    refused("list-append", Settings { lists: 0, ..small() }, "lists is 0");
    refused("cycle", Settings { lists: 1, ..small() }, "lists is 1; it must be from 2");
    refused("tiga-micro", Settings { shards: 2, ..small() }, "shards is 2; it must be from 3");
    refused("calvin-micro", Settings { hot: 191, ..small() }, "hot is 191");
    refused("mako-micro", Settings { remote: 101, ..small() }, "remote is 101");
    refused("smallbank", Settings { hot: 101, ..small() }, "hot is 101");
}

#[test]
fn clients_call_the_procedures_that_a_workload_names_and_no_other() {
    for name in NAMES {
        let mut bench = Bench::new(name, &small());
        let called: std::collections::BTreeSet<&str> =
            (0..2_000).map(|_| bench.next().procedure).collect();
        let named = bench.workload.procedures().into_iter().collect();
        assert_eq!(called, named, "{name}");
    }
}

#[test]
fn a_check_reads_a_store_at_a_version_and_nothing_newer() {
    let bench = Bench::new("bank", &small());
    let store = Store::new();
    let apply = |version, key: &[u8], value| {
        let version =
            Version { version: SnapshotVersion(version), header: RecordHeader::default(), value };
        store.apply(bank::ACCOUNTS, key.into(), version);
    };
    bench.model.scan(bank::ACCOUNTS, &KeyRange::all(), &mut |key, value| {
        apply(1, key, Some(value.clone()));
        std::ops::ControlFlow::Continue(())
    });
    apply(2, &0_u32.to_be_bytes(), None);
    store.publish(SnapshotVersion(2));
    let at = |version| bench.workload.check(&Snapshot::new(&store, SnapshotVersion(version)));
    assert_eq!(at(1), Ok(bench.check()));
    let account = |version| {
        let snapshot = Snapshot::new(&store, SnapshotVersion(version));
        snapshot.get(bank::ACCOUNTS, &0_u32.to_be_bytes())
    };
    assert!(account(0).is_none() && account(1).is_some() && account(2).is_none());
    let violation = at(2).expect_err("an account is missing");
    assert_eq!((violation.left, violation.right), (("accounts", 99), ("loaded", 100)));
}

#[test]
fn workloads_keep_to_tables_of_their_own() {
    let mut owner: BTreeMap<TableId, &str> = BTreeMap::new();
    for name in ["ycsb-d", "tpcc", "list-append", "bank", "ranges", "tiga-micro", "smallbank"] {
        let mut bench = Bench::new(name, &small());
        bench.run_many(300);
        for table in (0..1_100).map(TableId).filter(|table| !bench.model.is_empty(*table)) {
            assert!((33..64).contains(&table.0), "{name} writes table {table}");
            assert_eq!(owner.insert(table, name), None, "table {table} is used by {name} only");
        }
    }
    assert_eq!(owner.len(), 17 + 5 + 1 + 4);
}

/// Arguments with a few changed bytes.
fn nearly_args(
    name: &str,
    settings: &Settings,
) -> impl Strategy<Value = (&'static str, Vec<u8>)> + use<> {
    let calls: Vec<Call> = {
        let mut bench = Bench::new(name, settings);
        let ran = (0..200).map(|_| bench.next()).collect::<Vec<_>>();
        bench.workload.load_calls().into_iter().chain(ran).collect()
    };
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 0..4);
    let cut = prop::option::of(any::<prop::sample::Index>());
    (prop::sample::select(calls), changes, cut).prop_map(|(call, changes, cut)| {
        let mut args = call.args.to_vec();
        for (at, byte) in changes {
            if !args.is_empty() {
                let at = at.index(args.len());
                args[at] = byte;
            }
        }
        args.truncate(cut.map_or(args.len(), |cut| cut.index(args.len() + 1)));
        (call.procedure, args)
    })
}

/// Whether a run on a copy of the model aborts. It must not end in another way.
fn aborts(bench: &Bench, procedure: &str, args: &[u8]) -> bool {
    match bench.model.clone().run(bench.procedure(procedure), args) {
        Ok(_) => false,
        Err(Stop::Abort(_)) => true,
        Err(Stop::Interrupted) => panic!("the model does not interrupt"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_as_arguments_never_panic(args: Vec<u8>) {
        let bench = Bench::new("list-append", &small());
        for name in bench.registry.names() {
            aborts(&bench, name, &args);
        }
    }
}

#[test]
fn damaged_arguments_never_panic_and_stay_in_their_footprint() {
    const CASES: u32 = 300;
    let names = ["ycsb-e", "ycsb-f", "tpcc", "list-append", "bank", "ranges", "mako-micro"];
    for name in names.into_iter().chain(["smallbank"]) {
        let settings = Settings { warehouses: 1, ..small() };
        let bench = Bench::new(name, &settings);
        let aborted = Cell::new(0);
        let mut runner = TestRunner::new(ProptestConfig::with_cases(CASES));
        let ran = runner.run(&nearly_args(name, &settings), |(procedure, args)| {
            aborted.set(aborted.get() + u32::from(aborts(&bench, procedure, &args)));
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(aborted.get() > CASES / 10, "{name}: only {} were detected", aborted.get());
    }
}

#[test]
fn malformed_arguments_abort_with_an_internal_error() {
    let mut model = Model::default();
    for procedure in procedures() {
        let result = model.run(&*procedure, &[0xff; 11]);
        let Err(Stop::Abort(abort)) = result else { panic!("{result:?}") };
        assert_eq!(abort.code, SqlState::INTERNAL_ERROR, "{}", procedure.name());
        assert!(abort.message.starts_with("malformed "), "{abort}");
    }
}
