//! A running baseline with clients, and the model that it is compared with.

use std::path::Path;
use std::time::Instant;

use pangea_baselines::{Baseline, Checked, Durability, Kind, Options, Placement};
use pangea_core::time::Timestamp;
use pangea_core::txn::{Outcome, Registry};
use pangea_core::workload::commits::{CallOutcome, Written};
use pangea_core::workload::model::Model;
use pangea_core::workload::{Call, Client, Ledger, Settings, Workload, procedures};
use tempfile::TempDir;

/// The number of regions, with one client each.
const REGIONS: u32 = 3;
/// The date used in all calls.
const NOW: Timestamp = Timestamp::from_us(1_700_000_000_000_000);

/// A baseline on loopback.
pub struct Run {
    pub baseline: Baseline,
    /// The parent of the baseline's directory.
    pub directory: TempDir,
    settings: Settings,
    began: Instant,
    ledger: Ledger,
}

/// Whether a process exists.
pub fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

impl Run {
    /// Starts a baseline.
    pub async fn start(kind: Kind, settings: &Settings, options: Options) -> Self {
        let directory = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir()
            .expect("a directory");
        let within = Some(directory.path().to_owned());
        // These tests do not measure disks.
        let durability = if kind == Kind::Etcd { Durability::Fsync } else { Durability::Os };
        let options = Options { within, durability, ..options };
        let workload = Workload::named("ycsb-a", settings).expect("a workload");
        kind.check(&workload, settings, &options).unwrap_or_else(|error| panic!("{error}"));
        let names: Vec<String> = ["us", "eu", "ap"].map(String::from).to_vec();
        let baseline = Baseline::start(kind, &Placement::loopback(&names), &options).await;
        let baseline = baseline.unwrap_or_else(|error| panic!("{error}"));
        Self {
            baseline,
            directory,
            settings: settings.clone(),
            began: Instant::now(),
            ledger: Ledger::default(),
        }
    }

    fn workload(&self, name: &str) -> Workload {
        Workload::named(name, &self.settings).expect("a workload")
    }

    /// Creates and loads a workload's tables.
    pub async fn tables(&mut self, name: &str) {
        let mut seen = Vec::new();
        let progress = |done, all| seen.push((done, all));
        self.baseline.load(&self.workload(name), progress).await.expect("the load succeeds");
        let all = self.workload(name).load_calls().len() as u64;
        assert_eq!(seen, (0..=all).map(|done| (done, all)).collect::<Vec<_>>());
        self.ledger = Ledger::default();
    }

    /// Runs a client in each region concurrently, each with this number of calls.
    pub async fn work(&mut self, name: &str, calls: u32) {
        let workload = self.workload(name);
        let began = self.began;
        let clients =
            (0..REGIONS).map(|index| work(&self.baseline, &workload, began, index, calls));
        for calls in futures_util::future::join_all(clients).await {
            for Committed { label, written, from, at } in calls {
                self.ledger.add(label, &written, from, CallOutcome::Committed { at });
            }
        }
    }

    /// Checks the baseline's rows.
    pub async fn check(&self, name: &str) -> Result<Checked, String> {
        let workload = self.workload(name);
        let checked = self.baseline.check(&workload, &self.settings, &self.ledger.commits()).await;
        checked.map_err(|error| error.to_string())
    }

    /// Makes calls one after the other, from the regions round robin, and on the model too. Then
    /// every table must have the model's rows. `read` reads a table.
    pub async fn one_by_one(
        &mut self,
        name: &str,
        calls: u32,
        read: impl AsyncFn(&Baseline, &str) -> Vec<String>,
    ) {
        let workload = self.workload(name);
        let (registry, mut model) = (Registry::new(procedures()), Model::default());
        let mut run = |call: &Call| {
            let procedure = registry.id(call.procedure).and_then(|id| registry.procedure(id));
            model.run_unchecked(procedure.expect("the key is known"), &call.args).is_ok()
        };
        workload.load_calls().iter().for_each(|call| assert!(run(call)));
        let mut rng = fastrand::Rng::with_seed(7);
        let mut clients = Vec::new();
        for index in 0..REGIONS {
            let session =
                self.baseline.access(&workload, index as usize).open().await.expect("a session");
            let generator = workload.generator(Client::new(index, REGIONS, REGIONS));
            clients.push((session, generator));
        }
        let mut aborted = 0;
        for number in 0..calls {
            let (session, generator) = &mut clients[(number % REGIONS) as usize];
            let call = generator.next(&mut rng, NOW);
            let from = ns_since(self.began);
            let outcome = session.call(call.procedure, &call.args).await.expect("an outcome");
            let is_committed = matches!(outcome, Outcome::Committed { .. });
            assert_eq!(is_committed, run(&call), "{call:?}: {outcome:?}");
            aborted += u32::from(!is_committed);
            if is_committed {
                let fate = CallOutcome::Committed { at: ns_since(self.began) };
                self.ledger.add(call.label, &workload.watch().written(&call), from, fate);
            }
        }
        assert!(aborted < calls / 4, "{aborted} of {calls} were aborted");
        let mut compared = 0;
        for (table, mut expected) in pangea_baselines::rows_of(&model) {
            let mut found = read(&self.baseline, table).await;
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found.len(), expected.len(), "{table}");
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "{table}");
            }
            compared += found.len();
        }
        assert!(compared > 1_000, "{compared} rows");
    }
}

/// A committed call: its writes, and the times of its start and end.
struct Committed {
    label: &'static str,
    written: Written,
    from: u64,
    at: u64,
}

fn ns_since(began: Instant) -> u64 {
    began.elapsed().as_nanos() as u64
}

async fn work(
    baseline: &Baseline,
    workload: &Workload,
    began: Instant,
    index: u32,
    calls: u32,
) -> Vec<Committed> {
    let mut session = baseline.access(workload, index as usize).open().await.expect("a session");
    let mut generator = workload.generator(Client::new(index, REGIONS, REGIONS));
    let mut rng = fastrand::Rng::with_seed(u64::from(index));
    let mut committed = Vec::new();
    for _ in 0..calls {
        let call = generator.next(&mut rng, NOW);
        let (written, from) = (workload.watch().written(&call), ns_since(began));
        match session.call(call.procedure, &call.args).await.expect("an outcome") {
            Outcome::Committed { result, .. } => {
                let at = ns_since(began);
                committed.push(Committed { label: call.label, written, from, at });
                assert!(call.procedure != "ycsb" || result.len() <= 10 * 103, "{result:?}");
            }
            // One New-Order in a hundred names an item that does not exist.
            Outcome::Aborted(abort) => assert_eq!(abort.code.as_str(), "P0001", "{abort:?}"),
        }
    }
    assert!(session.is_connected());
    committed
}

/// The rows of a PostgreSQL table, as lines.
pub async fn sql_rows(client: &tokio_postgres::Client, table: &str) -> Vec<String> {
    let query = format!("COPY {table} TO STDOUT");
    let parts = client.copy_out(&query).await.expect("the copy succeeds");
    let parts: Vec<_> = futures_util::StreamExt::collect(parts).await;
    let bytes: Vec<u8> =
        parts.into_iter().flat_map(|part| part.expect("the copy succeeds")).collect();
    let text = String::from_utf8(bytes).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// A MariaDB row as a line.
pub fn line_of_mariadb(row: Vec<mysql_async::Value>) -> String {
    let column = |value: mysql_async::Value| match value {
        mysql_async::Value::NULL => "\\N".to_owned(),
        mysql_async::Value::Bytes(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("{other:?} is not text"),
    };
    row.into_iter().map(column).collect::<Vec<_>>().join("\t")
}
