//! What all peers have in common.

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
use crate::place::Place;
use crate::postgres::Postgres;
use crate::retries::Retries;
use crate::usage::Meter;

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// MariaDB Galera: a master in every place.
    Galera,
    /// PostgreSQL: a primary, and a synchronous standby in every other place.
    Postgres,
    /// etcd: a member in every place.
    Etcd,
}

/// What a server makes sure of before a transaction is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// That its disk has it.
    Fsync,
    /// That its operating system has it.
    Os,
}

/// How much transactions see of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// What has committed, statement by statement.
    ReadCommitted,
    /// Nothing that an order one after the other would not show.
    Serializable,
}

/// How a peer is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// What servers make sure of.
    pub durability: Durability,
    /// PostgreSQL's default for transactions. Galera has read committed alone, etcd is always
    /// serializable.
    pub isolation: Isolation,
    /// The longest round trip between two places: etcd's timeouts follow from it.
    pub round_trip_ms: u32,
    /// Sessions at most, in all places together.
    pub sessions: u32,
    /// What a server may hold of its tables in memory, where it is told how much.
    pub cache_mb: u32,
    /// Where its directory is made, if not among the system's temporary files.
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
            within: None,
        }
    }
}

/// What was found to be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// One number that stands for the rows, which are the same everywhere.
    pub digest: u64,
    /// What was counted, in words.
    pub facts: String,
}

/// A running database. It is gone when it is dropped, but [`Peer::stop`] says what went wrong.
#[derive(Debug)]
pub struct Peer {
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Galera, Self::Postgres, Self::Etcd];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Galera => "galera",
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
        }
    }

    /// Whether the machine has what it takes, and the database has the workload.
    ///
    /// # Errors
    /// What is missing, and which package has it; or which workloads there are.
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
                Self::Etcd => "ycsb-a, ycsb-b and ycsb-c; it has no procedures that TPC-C needs",
                Self::Galera | Self::Postgres => "ycsb-a, ycsb-b, ycsb-c and tpcc-nopay",
            };
            return Err(Failure::Usage(format!("{self} does not run {name} here: {there}")));
        }
        let len_max = crate::galera::VALUE_LEN_MAX;
        if settings.value_len > len_max {
            let len = settings.value_len;
            return Err(Failure::Usage(format!("peers' rows have {len_max} bytes, not {len}")));
        }
        self.check_installed(options)
    }

    /// Whether the machine has what it takes, whatever the work is.
    ///
    /// # Errors
    /// What is missing, and which package has it.
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
            Failure::Usage(format!("there is no peer {name:?}; there are {names}"))
        })
    }
}

impl Peer {
    /// Starts a server in each place, and waits until all of them serve.
    ///
    /// Call it on a thread that lives as long as the peer: servers end with the thread that started
    /// them. The places' addresses must be reachable from it.
    ///
    /// # Errors
    /// When one does not start: then none is left.
    ///
    /// # Panics
    /// When there are fewer than three places.
    pub async fn start(kind: Kind, places: &[Place], options: &Options) -> Result<Self, Failure> {
        assert!(places.len() >= 3, "two of three hold what one of three loses");
        let server = match kind {
            Kind::Galera => Servers::Galera(Galera::start(places, options).await?),
            Kind::Postgres => Servers::Postgres(Postgres::start(places, options).await?),
            Kind::Etcd => Servers::Etcd(Etcd::start(places, options).await?),
        };
        let peer = Self { server, retries: Retries::default(), meter: Meter::default() };
        peer.meter.set(peer.pids());
        Ok(peer)
    }

    /// Makes the workload's tables and procedures, and loads what Pangea would load. `progress` is
    /// told how many parts of how many are done.
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

    /// How clients of a region get to the database: to the server of that place, or to the primary.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn access(&self, workload: &Workload, place: usize) -> Access {
        assert!(place < self.servers().len(), "there is no place {place}");
        let door = match &self.server {
            Servers::Galera(galera) => galera.door(place),
            Servers::Postgres(postgres) => postgres.door(),
            Servers::Etcd(etcd) => etcd.door(place),
        };
        Access::new(door, workload, &self.retries)
    }

    /// The place whose server the others follow: PostgreSQL's primary, etcd's leader. Galera's
    /// masters are all alike.
    ///
    /// # Errors
    /// When etcd's members can't be asked.
    pub async fn leader(&self) -> Result<Option<usize>, Failure> {
        match &self.server {
            Servers::Galera(_) => Ok(None),
            Servers::Postgres(_) => Ok(Some(0)),
            Servers::Etcd(etcd) => etcd.leader().await,
        }
    }

    /// Ends a place's server as a loss of power would: with SIGKILL, and all that it has started.
    ///
    /// # Errors
    /// When it does not go.
    ///
    /// # Panics
    /// When there is no such place.
    pub async fn kill(&mut self, place: usize) -> Result<(), Failure> {
        self.server_mut(place).kill().await
    }

    /// Starts a place's server again that was killed, and waits until all is as it was before. Call
    /// it on the thread that started the peer.
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

    /// Stops a place's server where it is, with all that it has started, until it is resumed.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn pause(&mut self, place: usize) {
        self.server_mut(place).pause();
    }

    /// Lets a place's server go on that was stopped.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn resume(&mut self, place: usize) {
        self.server_mut(place).resume();
    }

    /// What was done again, in all sessions.
    pub fn retries(&self) -> &Retries {
        &self.retries
    }

    /// Whether the rows keep the workload's rules, are what came of what clients saw commit, and
    /// are the same in every place. No client works any more.
    ///
    /// # Errors
    /// What is wrong.
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
            let more = format!("; {} rows hold a newest acknowledged write", commits.newest.len());
            checked.facts.push_str(&more);
        }
        Ok(checked)
    }

    /// Whether rows of YCSB hold what they may. Places have been found to be equal, so one of them
    /// answers for all, as it answers its clients.
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

    /// Whether every place has the same rows, in whatever tables somebody made through
    /// [`Self::address`]. No client works any more.
    ///
    /// # Errors
    /// Where they differ; and for a peer that is not PostgreSQL, in which nobody makes tables.
    pub async fn check_equal(&self) -> Result<Checked, Failure> {
        match &self.server {
            Servers::Postgres(postgres) => postgres.check_equal().await,
            Servers::Galera(_) | Servers::Etcd(_) => {
                Err(Failure::Usage("tables of one's own are PostgreSQL's alone".to_owned()))
            }
        }
    }

    /// What tells how much each place's server took, also while something is done to the peer.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// The address of a place's server, for clients of others.
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

    /// The server's process in each place.
    pub fn pids(&self) -> Vec<u32> {
        self.servers().iter().map(crate::server::Server::pid).collect()
    }

    /// Whether every server runs.
    ///
    /// # Errors
    /// The first that has ended, and what it said last.
    pub fn is_running(&self) -> Result<(), Failure> {
        self.servers().iter().try_for_each(crate::server::Server::is_running)
    }

    /// Stops every server and removes what was made.
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
        assert!(refused(Kind::Etcd, "tpcc-nopay").contains("no procedures that TPC-C needs"));
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
