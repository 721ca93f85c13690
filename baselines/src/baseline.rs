//! The interface that all baselines have in common.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use pangea_core::txn::Outcome;
use pangea_core::workload::commits::Newest;
use pangea_core::workload::{Commits, Settings, Workload, ycsb};

use crate::access::Access;
use crate::etcd::Etcd;
use crate::failure::Failure;
use crate::galera::Galera;
use crate::placement::Placement;
use crate::postgres::Postgres;
use crate::retries::Retries;
use crate::usage::Meter;

/// The kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// MariaDB Galera: a master in every place.
    Galera,
    /// PostgreSQL: a primary, and a synchronous standby in every other place.
    Postgres,
    /// etcd: a member in every place.
    Etcd,
}

/// The guarantee of a server before a transaction is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The transaction is on its disk.
    Fsync,
    /// The transaction has been handed to its operating system.
    Os,
}

/// The isolation level of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Each statement sees what had committed before it.
    ReadCommitted,
    /// Transactions are equivalent to a serial order.
    Serializable,
}

/// The options of a baseline.
#[derive(Clone, Debug)]
pub struct Options {
    /// The durability of the servers.
    pub durability: Durability,
    /// The default isolation level in PostgreSQL. Galera only runs with read committed, and etcd is
    /// always serializable.
    pub isolation: Isolation,
    /// The longest round trip between two places in milliseconds, which etcd's timeouts are derived
    /// from.
    pub round_trip_ms: u32,
    /// The maximum number of sessions in all places together.
    pub sessions: u32,
    /// The memory for cached tables of a server in MiB, for databases with this setting.
    pub cache_mb: u32,
    /// The time in seconds after which Galera suspects a silent server. Its own default is 5: where
    /// all servers share a busy machine, they would suspect each other.
    pub suspect_s: u32,
    /// The parent of its directory; `None` for the system's temporary directory.
    pub within: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            isolation: Isolation::ReadCommitted,
            round_trip_ms: 0,
            sessions: 512,
            cache_mb: 1_024,
            suspect_s: 5,
            within: None,
        }
    }
}

/// The result of a successful check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// A digest of the rows, which are the same in all places.
    pub digest: u64,
    /// Description of the counts.
    pub facts: String,
}

/// A running database. It is stopped when it is dropped, but only [`Baseline::stop`] reports
/// errors.
#[derive(Debug)]
pub struct Baseline {
    server: Servers,
    retries: Retries,
    meter: Meter,
}

#[derive(Debug)]
enum Servers {
    Galera(Galera),
    Postgres(Postgres),
    Etcd(Etcd),
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Galera, Self::Postgres, Self::Etcd];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Galera => "galera",
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
        }
    }

    /// Checks that the machine has the required programs, and that the workload is supported.
    ///
    /// # Errors
    /// The missing program and its package, or the supported workloads.
    pub fn check(
        self,
        workload: &Workload,
        settings: &Settings,
        options: &Options,
    ) -> Result<(), Failure> {
        let name = workload.name();
        let is_there = match self {
            Self::Etcd => matches!(name, "ycsb-a" | "ycsb-b" | "ycsb-c"),
            Self::Galera | Self::Postgres => {
                matches!(name, "ycsb-a" | "ycsb-b" | "ycsb-c" | "tpcc-nopay")
            }
        };
        if !is_there {
            let there = match self {
                Self::Etcd => {
                    "ycsb-a, ycsb-b and ycsb-c (etcd has no procedures, which TPC-C needs)"
                }
                Self::Galera | Self::Postgres => "ycsb-a, ycsb-b, ycsb-c and tpcc-nopay",
            };
            return Err(Failure::Usage(format!("{self} does not run {name}; it runs {there}")));
        }
        let len_max = crate::galera::VALUE_LEN_MAX;
        if settings.value_len > len_max {
            let len = settings.value_len;
            return Err(Failure::Usage(format!(
                "rows of peers must have {len_max} bytes, not {len}"
            )));
        }
        self.check_installed(options)
    }

    /// Checks that the machine has the required programs, for any workload.
    ///
    /// # Errors
    /// The missing program and its package.
    pub fn check_installed(self, options: &Options) -> Result<(), Failure> {
        match self {
            Self::Galera => crate::galera::check(options),
            Self::Postgres => crate::postgres::check(),
            Self::Etcd => crate::etcd::check(options),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Failure::Usage(format!("unknown baseline {name:?}; known: {names}"))
        })
    }
}

impl Baseline {
    /// Starts a server in each place, and waits until all of them serve.
    ///
    /// Call it on a thread that lives as long as the baseline, because servers end with the thread
    /// that started them. The places' addresses must be reachable from it.
    ///
    /// # Errors
    /// When a server does not start. All others have then been stopped.
    ///
    /// # Panics
    /// When there are fewer than three places.
    pub async fn start(
        kind: Kind,
        places: &[Placement],
        options: &Options,
    ) -> Result<Self, Failure> {
        assert!(places.len() >= 3, "the loss of one place of three leaves a majority");
        let server = match kind {
            Kind::Galera => Servers::Galera(Galera::start(places, options).await?),
            Kind::Postgres => Servers::Postgres(Postgres::start(places, options).await?),
            Kind::Etcd => Servers::Etcd(Etcd::start(places, options).await?),
        };
        let baseline = Self { server, retries: Retries::default(), meter: Meter::default() };
        baseline.meter.set(baseline.pids());
        Ok(baseline)
    }

    /// Creates the workload's tables and procedures, and loads the same rows as Pangea would.
    /// `progress` is called with the number of parts that are done, and their total.
    ///
    /// # Errors
    /// When a row can't be written.
    pub async fn load(
        &self,
        workload: &Workload,
        progress: impl FnMut(u64, u64),
    ) -> Result<(), Failure> {
        match &self.server {
            Servers::Galera(galera) => galera.load(workload, progress).await,
            Servers::Postgres(postgres) => postgres.load(workload, progress).await,
            Servers::Etcd(etcd) => etcd.load(workload, progress).await,
        }
    }

    /// The access to the database for clients of a place: the server of that place, or the primary.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn access(&self, workload: &Workload, place: usize) -> Access {
        assert!(place < self.servers().len(), "place {place} does not exist");
        let access_point = match &self.server {
            Servers::Galera(galera) => galera.access_point(place),
            Servers::Postgres(postgres) => postgres.access_point(),
            Servers::Etcd(etcd) => etcd.access_point(place),
        };
        Access::new(access_point, workload, &self.retries)
    }

    /// The place of the server that the others follow: PostgreSQL's primary, or etcd's leader. All
    /// of Galera's masters are equivalent.
    ///
    /// # Errors
    /// When etcd's members can't be queried.
    pub async fn leader(&self) -> Result<Option<usize>, Failure> {
        match &self.server {
            Servers::Galera(_) => Ok(None),
            Servers::Postgres(_) => Ok(Some(0)),
            Servers::Etcd(etcd) => etcd.leader().await,
        }
    }

    /// Kills a place's server and all its processes with SIGKILL, as a power loss would.
    ///
    /// # Errors
    /// When it does not end.
    ///
    /// # Panics
    /// When there is no such place.
    pub async fn kill(&mut self, place: usize) -> Result<(), Failure> {
        self.server_mut(place).kill().await
    }

    /// Restarts a place's killed server, and waits until the previous state is restored. Call it on
    /// the thread that started the baseline.
    ///
    /// # Errors
    /// When it does not start, or does not find the others.
    ///
    /// # Panics
    /// When there is no such place.
    pub async fn start_again(&mut self, place: usize) -> Result<(), Failure> {
        let started = match &mut self.server {
            Servers::Galera(galera) => galera.start_again(place).await,
            Servers::Postgres(postgres) => postgres.start_again(place).await,
            Servers::Etcd(etcd) => etcd.start_again(place).await,
        };
        self.meter.set(self.pids());
        started
    }

    /// Pauses a place's server and all its processes, until it is resumed.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn pause(&mut self, place: usize) {
        self.server_mut(place).pause();
    }

    /// Resumes a place's paused server.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn resume(&mut self, place: usize) {
        self.server_mut(place).resume();
    }

    /// The counts of retries, in all sessions.
    pub fn retries(&self) -> &Retries {
        &self.retries
    }

    /// Checks that the rows satisfy the workload's conditions, match the transactions that clients
    /// saw commit, and are the same in every place. No client may be running.
    ///
    /// # Errors
    /// The violation.
    pub async fn check(
        &self,
        workload: &Workload,
        settings: &Settings,
        commits: &Commits,
    ) -> Result<Checked, Failure> {
        let mut checked = match &self.server {
            Servers::Galera(galera) => galera.check(workload, settings, commits).await,
            Servers::Postgres(postgres) => postgres.check(workload, settings, commits).await,
            Servers::Etcd(etcd) => etcd.check(settings).await,
        }?;
        if !commits.newest.is_empty() {
            self.check_newest(workload, &commits.newest).await?;
            let more = format!("; {} rows have a newest acknowledged write", commits.newest.len());
            checked.facts.push_str(&more);
        }
        Ok(checked)
    }

    /// Checks the values of rows of YCSB. The places have been found to be equal, so one of them is
    /// queried, in the same way as a client would.
    async fn check_newest(&self, workload: &Workload, newest: &[Newest]) -> Result<(), Failure> {
        let mut session = self.access(workload, 0).open().await?;
        let mut held = BTreeMap::new();
        for some in newest.chunks(ycsb::OPS_PER_TXN) {
            let rows: Vec<u64> = some.iter().map(|it| it.row).collect();
            let read = session.call("ycsb", &ycsb::reads_of(&rows)).await;
            let result = match read.map_err(|lost| Failure::failed("rows of YCSB", lost))? {
                Outcome::Committed { result, .. } => result,
                Outcome::Aborted(abort) => return Err(Failure::failed("rows of YCSB", abort)),
            };
            let marks = ycsb::marks_read(&result, rows.len());
            let marks = marks.map_err(|error| Failure::failed("rows of YCSB", error))?;
            held.extend(rows.into_iter().zip(marks));
        }
        let checked = ycsb::check_newest(newest, |row| held.get(&row).copied().flatten());
        checked.map_err(|violation| Failure::Failed(violation.to_string()))
    }

    /// Checks that every place has the same rows, in all tables created through [`Self::address`].
    /// No client may be running.
    ///
    /// # Errors
    /// The difference; or an error for a baseline other than PostgreSQL, for which custom tables
    /// are not supported.
    pub async fn check_equal(&self) -> Result<Checked, Failure> {
        match &self.server {
            Servers::Postgres(postgres) => postgres.check_equal().await,
            Servers::Galera(_) | Servers::Etcd(_) => Err(Failure::Usage(
                "only PostgreSQL runs workloads with their own tables".to_owned(),
            )),
        }
    }

    /// The meter of each place's resource usage. It also works while a server is killed or
    /// restarted.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// The address of a place's server, for external clients.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn address(&self, place: usize) -> std::net::SocketAddr {
        match &self.server {
            Servers::Galera(galera) => galera.address(place),
            Servers::Postgres(postgres) => postgres.address(place),
            Servers::Etcd(etcd) => etcd.address(place),
        }
    }

    /// The process id of each place's server.
    pub fn pids(&self) -> Vec<u32> {
        self.servers().iter().map(crate::server::Server::pid).collect()
    }

    /// Checks that every server runs.
    ///
    /// # Errors
    /// The first server that has ended, with the end of its output.
    pub fn is_running(&self) -> Result<(), Failure> {
        self.servers().iter().try_for_each(crate::server::Server::is_running)
    }

    /// Stops every server and removes all files.
    ///
    /// # Errors
    /// When a server had ended before, or had to be killed.
    pub async fn stop(self) -> Result<(), Failure> {
        match self.server {
            Servers::Galera(galera) => galera.stop().await,
            Servers::Postgres(postgres) => postgres.stop().await,
            Servers::Etcd(etcd) => etcd.stop().await,
        }
    }

    fn server_mut(&mut self, place: usize) -> &mut crate::server::Server {
        match &mut self.server {
            Servers::Galera(galera) => galera.server_mut(place),
            Servers::Postgres(postgres) => postgres.server_mut(place),
            Servers::Etcd(etcd) => etcd.server_mut(place),
        }
    }

    fn servers(&self) -> &[crate::server::Server] {
        match &self.server {
            Servers::Galera(galera) => galera.servers(),
            Servers::Postgres(postgres) => postgres.servers(),
            Servers::Etcd(etcd) => etcd.servers(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_that_a_peer_does_not_have_are_refused_by_name() {
        let (settings, options) = (Settings::default(), Options::default());
        let refused = |kind: Kind, name: &str| {
            let workload = Workload::named(name, &settings).expect("a workload");
            let error = kind.check(&workload, &settings, &options).unwrap_err();
            assert!(matches!(error, Failure::Usage(_)), "{error}");
            error.to_string()
        };
        assert!(refused(Kind::Etcd, "tpcc-nopay").contains("no procedures, which TPC-C needs"));
        assert!(refused(Kind::Postgres, "tpcc").contains("tpcc-nopay"));
        assert!(refused(Kind::Galera, "ycsb-f").contains("ycsb-a"));
    }

    #[test]
    fn a_name_is_that_of_a_kind() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse::<Kind>(), Ok(kind));
        }
        assert!("mysql".parse::<Kind>().is_err());
    }
}
