//! The benchmark of a user's own workload: an SQL file ([`crate::script`]).
//!
//! Phases, statistics and faults are those of the other workloads. These are the differences. The
//! file creates the tables. Every client has a session of PostgreSQL's protocol. Every transaction
//! is run once and rolled back before the measurement. The file's own checks run at the end.
//! PostgreSQL as a baseline runs the same file, and both run in a lab.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pangea_baselines::Kind;
use pangea_core::guarantee::{Guarantee, Isolation};
use pangea_core::workload::{self, Commits};
use tokio_postgres::Config;

use super::baseline::BaselineTarget;
use super::check::{Checked, failed_check};
use super::environment::BenchEnvironment;
use super::faults;
use super::measure::{Measured, PangeaTarget, drive_settings, measure_all};
use super::usage_probe::UsageProbe;
use super::{Arguments, Via, bar};
use crate::cluster::{Cluster, Member, Plan, replicas};
use crate::failure::Failure;
use crate::load_generator::{self, AccessPoint, Drive};
use crate::protocol::{GuaranteeOf, with_protocol};
use crate::script::{self, ClientIdentity, Clients, Retries, Script};

impl Arguments {
    /// Returns the user's own workload, if the workload is an SQL file.
    ///
    /// # Errors
    /// The problem with the file, and its line; or options that do not apply to the workload.
    pub fn script(&self) -> Result<Option<Arc<Script>>, Failure> {
        let (name, _) = self.names();
        if !Script::is_named(name) {
            if let Some(define) = self.defines.first() {
                let message =
                    format!("--define {define}: only an SQL file has variables, not {name}");
                return Err(Failure::Usage(message));
            }
            return Ok(None);
        }
        if let Some(option) = self.sizes.given() {
            let message = format!(
                "--{option} does not apply to an SQL file, whose sizes are variables: use --define"
            );
            return Err(Failure::Usage(message));
        }
        if self.via == Via::Process {
            return Err(Failure::Usage(format!(
                "--via process: clients of {name} use PostgreSQL sessions; leave it out"
            )));
        }
        Ok(Some(Arc::new(Script::read(Path::new(name), &self.defines)?)))
    }
}

/// Returns the error if an SQL file is given where a workload with procedures is required.
pub fn not_simulated(file: &str) -> Failure {
    Failure::Usage(format!(
        "--workload {file}: an SQL file can only be measured, by `pangea bench`; simulations and \
         calibrations run the built-in workloads"
    ))
}

/// Checks that a baseline can run the file.
///
/// # Errors
/// If the baseline is not PostgreSQL.
pub fn check_baseline(kind: Kind) -> Result<(), Failure> {
    match kind {
        Kind::Postgres => Ok(()),
        Kind::Galera | Kind::Etcd => Err(Failure::Usage(format!(
            "--baseline {kind} does not support PostgreSQL's SQL; an SQL file runs only on \
             --baseline postgres and on Pangea"
        ))),
    }
}

/// Loads, rehearses, warms up, measures and checks on a Pangea cluster on loopback.
///
/// # Errors
/// If a node rejects a statement of the file, a node has ended, a call has no outcome, or a check
/// fails.
pub async fn measure(
    arguments: &Arguments,
    cluster: &mut Cluster,
    script: &Arc<Script>,
) -> Result<Measured, Failure> {
    ours(arguments, &BenchEnvironment::loopback(), cluster, script).await
}

/// Does the same in any environment.
pub(super) async fn ours(
    arguments: &Arguments,
    environment: &BenchEnvironment,
    cluster: &mut Cluster,
    script: &Arc<Script>,
) -> Result<Measured, Failure> {
    let clients = cluster.clients().await?;
    cluster.usable(&clients).await?;
    let guarantee = with_protocol(&cluster.plan.protocol, GuaranteeOf(&cluster.plan.options))??;
    let server = |member: &Member| {
        let mut config = member.sql_config();
        // The consistency of SQL reads is a setting of the session; it is set here to match the
        // protocol's settings.
        if guarantee == Guarantee::StrictSerializable {
            config.options("-c reads=strict");
        }
        config
    };
    let servers: Vec<Config> = cluster.members.iter().map(server).collect();
    let plan = &cluster.plan;
    let region_of = |node: usize| plan.regions[plan.region_of(node)].clone();
    let regions: Vec<String> = (0..servers.len()).map(region_of).collect();
    let work = Work::new(arguments, script, (&regions, plan), servers)?;
    work.schema().await?;
    replicas::settled(&clients).await?;
    let load_secs = work.rows().await?;
    replicas::settled(&clients).await?;
    let drive = work.start(environment).await?;
    let faults = faults::check(&arguments.faults, &cluster.plan, arguments.secs)?;
    let probe = UsageProbe::of_nodes(environment, cluster.process_handles(), &clients);
    let probe = probe.with_retries(work.retries.clone());
    let (places, shards) = (cluster.plan.places(), cluster.plan.shards_of_nodes());
    let watched = arguments.mark_checkpoints.then(|| Duration::from_secs(arguments.secs));
    let mut ours = PangeaTarget { places, environment, cluster, clients: &clients, watched };
    let (runs, commits) = measure_all(arguments, drive, &faults, &mut ours, &probe).await?;
    let (version, digests) = replicas::equal_by_shard(&clients, &shards).await?;
    let facts = work.check(&commits).await?;
    let digests: Vec<String> = digests.iter().map(|it| format!("{it:016x}")).collect();
    let (version, digest) = (Some(version.0), digests.join(" "));
    Ok(Measured::new(runs, load_secs, Checked { digest, version, workload: facts }))
}

/// Does the same on PostgreSQL with its standbys. Standbys accept no writes, so the clients of all
/// regions use the primary.
///
/// # Errors
/// Those of a Pangea cluster.
pub(super) async fn theirs(
    arguments: &Arguments,
    theirs: &mut BaselineTarget<'_>,
    script: &Arc<Script>,
) -> Result<Measured, Failure> {
    let BaselineTarget { environment, ref mut baseline, plan } = *theirs;
    let mut config = Config::new();
    let address = baseline.address(0);
    config.host(address.ip().to_string()).port(address.port());
    config.user(pangea_baselines::postgres::NAME).dbname(pangea_baselines::postgres::NAME);
    if arguments.isolation == Some(Isolation::Serializable) {
        config.options("-c default_transaction_isolation=serializable");
    }
    let configs = vec![config; plan.regions.len()];
    let work = Work::new(arguments, script, (&plan.regions, plan), configs)?;
    work.schema().await?;
    let load_secs = work.rows().await?;
    let drive = work.start(environment).await?;
    let faults = faults::check(&arguments.faults, plan, arguments.secs)?;
    let probe = UsageProbe::of_baseline(environment, baseline).with_retries(work.retries.clone());
    let mut subject = BaselineTarget { environment, baseline, plan };
    let (runs, commits) = measure_all(arguments, drive, &faults, &mut subject, &probe).await?;
    let facts = work.check(&commits).await?;
    let equal = subject.baseline.check_equal().await.map_err(|error| failed_check(&error))?;
    let facts = format!("{}; {facts}", equal.facts);
    let digest = format!("{:016x}", equal.digest);
    Ok(Measured::new(runs, load_secs, Checked { digest, version: None, workload: facts }))
}

/// A file, and the servers of its clients.
struct Work<'a> {
    arguments: &'a Arguments,
    script: &'a Arc<Script>,
    servers: Vec<(Config, ClientIdentity)>,
    retries: Arc<Retries>,
    /// The servers that have clients, if not all have.
    homes: Option<Vec<usize>>,
}

impl<'a> Work<'a> {
    fn new(
        arguments: &'a Arguments,
        script: &'a Arc<Script>,
        (regions, plan): (&[String], &Plan),
        configs: Vec<Config>,
    ) -> Result<Self, Failure> {
        let homes = arguments.homes(plan)?;
        let count = regions.len() as u32;
        // A region has a seat even if it has no client.
        let clients = arguments.clients.max(count);
        let identity = |(index, region): (usize, &String)| ClientIdentity {
            client: workload::Client::new(index as u32, clients, count),
            region: region.clone(),
        };
        let seats = regions.iter().enumerate().map(identity);
        let servers = configs.into_iter().zip(seats).collect();
        Ok(Self { arguments, script, servers, retries: Arc::default(), homes })
    }

    async fn schema(&self) -> Result<(), Failure> {
        let (config, identity) = &self.servers[0];
        script::load::schema(self.script, config, &identity.region).await
    }

    /// Loads the rows and returns the seconds that it took.
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

    /// Runs every transaction once without effect, and starts the clients.
    async fn start(&self, environment: &BenchEnvironment) -> Result<Drive, Failure> {
        let (config, identity) = &self.servers[0];
        script::rehearse(self.script, config, identity, self.arguments.seed).await?;
        let access_point = |(config, identity): &(Config, ClientIdentity)| AccessPoint::Script {
            script: self.script.clone(),
            config: Box::new(config.clone()),
            identity: identity.clone(),
            retries: self.retries.clone(),
        };
        let access_points = self.servers.iter().map(access_point).collect();
        let runtimes = environment.runtimes(self.servers.len());
        let clients = self.arguments.clients;
        let connections =
            load_generator::sessions(access_points, &runtimes, clients, self.homes.as_deref())
                .await?;
        let calls = |client: workload::Client| -> Box<dyn load_generator::Calls> {
            Box::new(Clients::new(self.script.clone(), client))
        };
        let settings = drive_settings(self.arguments, self.homes.clone());
        Ok(Drive::start_calls(&calls, &connections, &runtimes, &settings))
    }

    async fn check(&self, commits: &Commits) -> Result<String, Failure> {
        let (config, identity) = &self.servers[0];
        script::check::run(self.script, config, identity, commits).await
    }
}
