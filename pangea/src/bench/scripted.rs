//! The same benchmark of a user's own workload: a SQL file ([`crate::script`]).
//!
//! Phases, counts and faults are those of the other workloads. What differs: the tables are made
//! by the file, every client has a session of PostgreSQL's protocol, all transactions run once and
//! are undone before anything counts, and the file's own questions are asked at the end. A peer
//! that is PostgreSQL takes the same file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pangea_core::choice::Guarantee;
use pangea_core::workload;
use pangea_peers::{Kind, Peer, Place};
use tokio_postgres::Config;

use super::check::{Checked, failed_check};
use super::faults::Happened;
use super::report::Report;
use super::usage::Usage;
use super::{Arguments, END_DEADLINE, Measured, Ours, Run, Subject, bar, measure_all, peer};
use crate::cluster::{Cluster, Member, replicas};
use crate::drive::{self, Connection, Drive};
use crate::failure::Failure;
use crate::protocol::{GuaranteeOf, with_protocol};
use crate::script::{self, Clients, Retries, Script, Seat, Session};
use crate::signals::Signals;

impl Arguments {
    /// The user's own workload, where the workload is one.
    ///
    /// # Errors
    /// What is wrong with the file, with its line, or with options that say nothing of it.
    pub fn script(&self) -> Result<Option<Arc<Script>>, Failure> {
        let (name, _) = self.names();
        if !Script::is_named(name) {
            if let Some(define) = self.defines.first() {
                let message =
                    format!("--define {define}: only a SQL file has variables, not {name}");
                return Err(Failure::Usage(message));
            }
            return Ok(None);
        }
        if let Some(option) = self.sizes.given() {
            let message = format!(
                "--{option} says nothing of a SQL file, whose sizes are its variables: --define"
            );
            return Err(Failure::Usage(message));
        }
        Ok(Some(Arc::new(Script::read(Path::new(name), &self.defines)?)))
    }
}

/// Why something that needs a workload's own procedures can't have a SQL file.
pub fn not_simulated(file: &str) -> Failure {
    Failure::Usage(format!(
        "--workload {file}: a SQL file is measured for real alone, by `pangea bench`; simulations \
         and calibrations run the workloads that are built in"
    ))
}

/// Looks whether a peer can be given the file.
///
/// # Errors
/// When it is not PostgreSQL.
pub fn check_peer(kind: Kind) -> Result<(), Failure> {
    match kind {
        Kind::Postgres => Ok(()),
        Kind::Galera | Kind::Etcd => Err(Failure::Usage(format!(
            "--peer {kind} does not speak PostgreSQL's SQL; a SQL file runs on --peer postgres \
             and on Pangea"
        ))),
    }
}

/// Runs a file's benchmark.
pub fn run(arguments: &Arguments, script: &Arc<Script>) -> Result<Report, Failure> {
    if let Some(kind) = arguments.peer {
        check_peer(kind)?;
        return run_peer(arguments, kind, script);
    }
    let plan = arguments.plan()?;
    let runtime = crate::runtime(1)?;
    let run = async |cluster: &mut Cluster| {
        let measured = measure(arguments, cluster, script).await?;
        Ok(Report::new(arguments, &cluster.plan, measured))
    };
    runtime.block_on(Cluster::run_while(plan, arguments.place(), run))
}

/// Loads, rehearses, warms up, measures and checks on a cluster of ours.
///
/// # Errors
/// What the file says that a node refuses; when a node is gone, a call has no answer, or a check
/// fails.
pub async fn measure(
    arguments: &Arguments,
    cluster: &mut Cluster,
    script: &Arc<Script>,
) -> Result<Measured, Failure> {
    let clients = cluster.clients().await?;
    cluster.usable(&clients).await?;
    let guarantee = with_protocol(&cluster.plan.protocol, GuaranteeOf(&cluster.plan.options))??;
    let server = |member: &Member| {
        let mut config = member.sql_config();
        // What SQL reads is the session's choice; it makes that of the protocol's settings.
        if guarantee == Guarantee::StrictSerializable {
            config.options("-c reads=strict");
        }
        config
    };
    let servers: Vec<Config> = cluster.members.iter().map(server).collect();
    let work = Work::new(arguments, script, &cluster.plan.regions, servers);
    work.schema().await?;
    replicas::settled(&clients).await?;
    let load_secs = work.rows().await?;
    replicas::settled(&clients).await?;
    let drive = work.start().await?;
    let faults = arguments.check_faults(&cluster.plan)?;
    let ours = Ours { cluster, clients: &clients, faults: &faults };
    let mut subject = Scripted { inner: ours, retries: work.retries.clone() };
    let runs = measure_all(arguments, &drive, &mut subject).await?;
    let committed = drive.end(END_DEADLINE).await?;
    let (version, digest) = replicas::equal(&clients).await?;
    let facts = work.check(committed.as_ref()).await?;
    let (version, digest) = (Some(version.0), format!("{digest:016x}"));
    Ok(measured(runs, load_secs, Checked { digest, version, workload: facts }))
}

fn measured(mut runs: Vec<Run>, load_secs: f64, checked: Checked) -> Measured {
    runs.sort_by(|a, b| b.throughput_per_sec().total_cmp(&a.throughput_per_sec()));
    Measured { runs, load_secs, checked }
}

/// Starts PostgreSQL with its standbys, gives the primary the work, and stops them.
fn run_peer(arguments: &Arguments, kind: Kind, script: &Arc<Script>) -> Result<Report, Failure> {
    let (plan, options) = (peer::plan(arguments, kind)?, peer::options(arguments)?);
    let places = Place::loopback(&plan.regions);
    let runtime = crate::runtime(1)?;
    let measured = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let work = async {
            let peer = Peer::start(kind, &places, &options).await?;
            let measured = measure_peer(arguments, &plan.regions, &peer, script).await;
            // Whatever was asked of a server that has ended failed for that.
            let measured = measured.map_err(|failure| match peer.is_running() {
                Ok(()) => failure,
                Err(ended) => Failure::failed(ended, failure),
            })?;
            peer.stop().await?;
            Ok(measured)
        };
        tokio::select! {
            done = work => done,
            () = signals.received() => Err(Failure::Interrupted("interrupted".to_owned())),
        }
    })?;
    Ok(Report::new(arguments, &plan, measured))
}

async fn measure_peer(
    arguments: &Arguments,
    regions: &[String],
    peer: &Peer,
    script: &Arc<Script>,
) -> Result<Measured, Failure> {
    // Standbys take no writes: clients of all regions talk to the primary.
    let mut config = Config::new();
    let address = peer.address(0);
    config.host(address.ip().to_string()).port(address.port());
    config.user(pangea_peers::postgres::NAME).dbname(pangea_peers::postgres::NAME);
    if arguments.isolation == Some(super::Isolation::Serializable) {
        config.options("-c default_transaction_isolation=serializable");
    }
    let work = Work::new(arguments, script, regions, vec![config; regions.len()]);
    work.schema().await?;
    let load_secs = work.rows().await?;
    let drive = work.start().await?;
    let theirs = peer::Theirs { peer };
    let mut subject = Scripted { inner: theirs, retries: work.retries.clone() };
    let runs = measure_all(arguments, &drive, &mut subject).await?;
    let committed = drive.end(END_DEADLINE).await?;
    let facts = work.check(committed.as_ref()).await?;
    let equal = peer.check_equal().await.map_err(|error| failed_check(&error))?;
    let facts = format!("{}; {facts}", equal.facts);
    let digest = format!("{:016x}", equal.digest);
    Ok(measured(runs, load_secs, Checked { digest, version: None, workload: facts }))
}

/// A file, and where its clients find their servers.
struct Work<'a> {
    arguments: &'a Arguments,
    script: &'a Arc<Script>,
    servers: Vec<(Config, Seat)>,
    retries: Arc<Retries>,
}

impl<'a> Work<'a> {
    fn new(
        arguments: &'a Arguments,
        script: &'a Arc<Script>,
        regions: &[String],
        configs: Vec<Config>,
    ) -> Self {
        let count = regions.len() as u32;
        // A region has a seat even where it has no client.
        let clients = arguments.clients.max(count);
        let seat = |(index, region): (usize, &String)| Seat {
            client: workload::Client::new(index as u32, clients, count),
            region: region.clone(),
        };
        let seats = regions.iter().enumerate().map(seat);
        let servers = configs.into_iter().zip(seats).collect();
        Self { arguments, script, servers, retries: Arc::default() }
    }

    async fn schema(&self) -> Result<(), Failure> {
        let (config, seat) = &self.servers[0];
        script::load::schema(self.script, config, &seat.region).await
    }

    /// Loads the rows, and says how many seconds that took.
    async fn rows(&self) -> Result<f64, Failure> {
        let began = Instant::now();
        let bar = bar("{prefix:>8} {wide_bar} {pos}/{len} rows", "load");
        let progress = |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        };
        script::load::rows(self.script, &self.servers, self.arguments.seed, progress).await?;
        bar.finish_and_clear();
        Ok(began.elapsed().as_secs_f64())
    }

    /// Runs every transaction once without effect, and lets the clients begin.
    async fn start(&self) -> Result<Drive, Failure> {
        let (config, seat) = &self.servers[0];
        script::rehearse(self.script, config, seat, self.arguments.seed).await?;
        let mut connections = Vec::with_capacity(self.servers.len());
        for (region, (config, seat)) in self.servers.iter().enumerate() {
            // Clients are dealt over the regions in turn, and each region has a session.
            let regions = self.servers.len();
            let count = (self.arguments.clients as usize + regions - 1 - region) / regions;
            let mut sessions = Vec::with_capacity(count.max(1));
            for _ in 0..count.max(1) {
                let session = Session::open(self.script, config, seat, &self.retries).await?;
                sessions.push(Connection::Script(session));
            }
            connections.push(sessions);
        }
        let settings = drive::Settings {
            clients: self.arguments.clients,
            seed: self.arguments.seed,
            pace: self.arguments.pace(),
        };
        let calls = |client: workload::Client| -> Box<dyn drive::Calls> {
            Box::new(Clients::new(self.script.clone(), client))
        };
        Ok(Drive::start_calls(&calls, &connections, &settings))
    }

    async fn check(&self, committed: Option<&script::Committed>) -> Result<String, Failure> {
        let (config, seat) = &self.servers[0];
        script::check::run(self.script, config, seat, committed).await
    }
}

/// Servers whose clients do things again by themselves.
struct Scripted<S> {
    inner: S,
    retries: Arc<Retries>,
}

impl<S: Subject> Subject for Scripted<S> {
    async fn used(&mut self) -> Result<(Usage, BTreeMap<String, u64>), Failure> {
        self.inner.used().await
    }

    async fn harm(&mut self, began: Instant) -> Result<Vec<Happened>, Failure> {
        self.inner.harm(began).await
    }

    fn is_harmed(&self) -> bool {
        self.inner.is_harmed()
    }

    fn retried(&mut self) -> BTreeMap<String, u64> {
        self.retries.take()
    }
}
