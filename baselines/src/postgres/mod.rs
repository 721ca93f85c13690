//! PostgreSQL: a primary in the first place, and a synchronous standby in every other.
//!
//! A commit is acknowledged once one standby has it too (`ANY 1`), so that the loss of a place
//! loses no commit. Clients of all regions connect to the primary, because standbys accept no
//! writes. A procedure is one function call, so that it costs a client in another region one round
//! trip.
//!
//! Settings that differ from PostgreSQL's defaults, and why:
//!
//! | setting | why |
//! |---|---|
//! | `synchronous_commit = on`, `synchronous_standby_names = 'ANY 1 (*)'` | a majority of three has each commit |
//! | `fsync = off` | only for [`Durability::Os`] |
//! | `shared_buffers` | all rows fit |
//! | `max_wal_size`, `checkpoint_timeout` | no checkpoint occurs during a run, because the other databases have none there |
//! | `wal_keep_size` | a standby that lags needs no full copy |
//! | `wal_retrieve_retry_interval` | a standby that has lost the primary retries ten times a second, not every five seconds: until one is connected, no commit completes |
//! | `jit = off`, `max_standby_streaming_delay = -1` | statements are short; the check's reads are not cancelled |

mod session;
mod tables;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pangea_core::workload::{Commits, Settings, Workload};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

use crate::access::AccessPoint;
use crate::baseline::{Checked, Durability, Isolation, Options};
use crate::failure::Failure;
use crate::placement::Placement;
use crate::program::{self, Needed, Owner};
use crate::server::{Server, Signals, stop_all};
pub(crate) use session::Session;

const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
const NEEDED: [Needed; 3] = [
    Needed { name: "/usr/lib/postgresql/15/bin/initdb", package: "postgresql-15" },
    Needed { name: "/usr/lib/postgresql/15/bin/postgres", package: "postgresql-15" },
    Needed { name: "/usr/lib/postgresql/15/bin/pg_basebackup", package: "postgresql-15" },
];
/// The name of the database and of its role.
pub const NAME: &str = "pangea";
/// The number of other sessions: loads, checks, standbys, and sessions that are ending.
const OTHER_SESSIONS: u32 = 40;
/// INT is the fast shutdown, QUIT the immediate one.
const SIGNALS: Signals = Signals { clean: Signal::INT, quick: Signal::QUIT };
/// SIGKILL would leave its shared memory behind.
const AT_DEATH: &str = "QUIT";
/// Timeout for servers to serve, and for standbys to follow. A killed server replays its whole log
/// since the load.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// Timeout for a connection; a client that can't reach its server retries.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(50);

/// Checks that PostgreSQL is installed.
pub(crate) fn check() -> Result<(), Failure> {
    NEEDED.iter().try_for_each(|needed| needed.find().map(drop))?;
    Owner::of_server("postgres", "postgresql-15").map(drop)
}

/// A running primary with its standbys.
#[derive(Debug)]
pub struct Postgres {
    /// Declared before the directory, so that the servers end before it is removed.
    servers: Vec<Server>,
    members: Vec<PostgresServer>,
    options: Options,
    directory: TempDir,
}

/// The location and address of a server.
#[derive(Debug)]
struct PostgresServer {
    place: Placement,
    address: SocketAddr,
    owner: Option<Owner>,
    directory: PathBuf,
}

impl Postgres {
    /// Starts the primary, copies it for each standby, and starts the standbys.
    pub(crate) async fn start(places: &[Placement], options: &Options) -> Result<Self, Failure> {
        check()?;
        let owner = Owner::of_server("postgres", "postgresql-15")?;
        let directory = program::temporary("postgres", options.within.as_deref())?;
        let mut members = Vec::new();
        for place in places {
            let [address] = place.free_ports()?;
            let directory = directory.path().join(format!("{}-{}", members.len(), place.name()));
            program::make_dir(&directory, owner.as_ref())?;
            let (place, owner) = (place.clone(), owner.clone());
            members.push(PostgresServer { place, address, owner, directory });
        }
        members[0].make_cluster(places).await?;
        let servers = vec![members[0].serve(options)?];
        // From now on, any failure drops the running servers.
        let mut postgres = Self { servers, members, options: options.clone(), directory };
        postgres.wait_for(0).await?;
        for index in 1..places.len() {
            postgres.members[index].copy(&postgres.members[0]).await?;
            postgres.servers.push(postgres.members[index].serve(options)?);
        }
        for index in 1..places.len() {
            postgres.wait_for(index).await?;
        }
        postgres.make_synchronous().await?;
        postgres.wait_for_standbys().await?;
        Ok(postgres)
    }

    /// Waits until a server accepts connections.
    async fn wait_for(&self, index: usize) -> Result<(), Failure> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let error = match self.config(index).dbname("postgres").connect(NoTls).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            self.servers[index].is_running()?;
            if Instant::now() > deadline {
                let name = &self.servers[index].name;
                return Err(Failure::failed(format!("{name} does not accept connections"), error));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Creates the database, and makes commits wait for standbys.
    async fn make_synchronous(&self) -> Result<(), Failure> {
        let client = connect(self.config(0).dbname("postgres")).await?;
        for statement in [
            &format!("CREATE DATABASE {NAME}"),
            "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'",
            "SELECT pg_reload_conf()",
        ] {
            let done = client.batch_execute(statement).await;
            done.map_err(|error| Failure::failed(statement, error))?;
        }
        Ok(())
    }

    /// Waits until every standby follows and counts as synchronous.
    async fn wait_for_standbys(&self) -> Result<(), Failure> {
        let standbys = self.members.len() - 1;
        let client = connect(self.config(0).dbname("postgres")).await?;
        let query = "SELECT count(*) FROM pg_stat_replication \
                     WHERE sync_state = 'quorum' AND state = 'streaming'";
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let row = client.query_one(query, &[]).await;
            let row = row.map_err(|error| Failure::failed("pg_stat_replication", error))?;
            if row.get::<_, i64>(0) == standbys as i64 {
                return Ok(());
            }
            self.is_running()?;
            if Instant::now() > deadline {
                return Err(Failure::Failed("the standbys do not follow the primary".to_owned()));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn is_running(&self) -> Result<(), Failure> {
        self.servers.iter().try_for_each(Server::is_running)
    }

    /// The connection settings for a place's server.
    fn config(&self, index: usize) -> Config {
        let address = self.members[index].address;
        let mut config = Config::new();
        config.host(address.ip().to_string()).port(address.port());
        config.user(NAME).dbname(NAME).connect_timeout(CONNECT_DEADLINE);
        config
    }

    /// The access for a client in any place: the primary.
    pub(crate) fn access_point(&self) -> AccessPoint {
        let isolation = match self.options.isolation {
            Isolation::ReadCommitted => "read\\ committed",
            Isolation::Serializable => "serializable",
        };
        let mut config = self.config(0);
        config.options(format!("-c default_transaction_isolation={isolation}"));
        AccessPoint::Postgres(Box::new(config))
    }

    pub(crate) async fn load(
        &self,
        workload: &Workload,
        progress: impl FnMut(u64, u64),
    ) -> Result<(), Failure> {
        tables::load(&self.config(0), workload, progress).await
    }

    pub(crate) async fn check(
        &self,
        workload: &Workload,
        settings: &Settings,
        commits: &Commits,
    ) -> Result<Checked, Failure> {
        let mut clients = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            clients.push((server.name.clone(), connect(&self.config(index)).await?));
        }
        tables::check(&clients, workload, settings, commits).await
    }

    /// Checks that the standbys have the same rows as the primary, in all user tables.
    pub(crate) async fn check_equal(&self) -> Result<Checked, Failure> {
        let mut clients = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            clients.push((server.name.clone(), connect(&self.config(index)).await?));
        }
        tables::check_equal(&clients).await
    }

    pub(crate) fn address(&self, place: usize) -> SocketAddr {
        self.members[place].address
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn server_mut(&mut self, place: usize) -> &mut Server {
        &mut self.servers[place]
    }

    /// Restarts a place's server on its files, and waits until the primary serves and all standbys
    /// follow it.
    pub(crate) async fn start_again(&mut self, place: usize) -> Result<(), Failure> {
        self.servers[place] = self.members[place].serve(&self.options)?;
        self.wait_for(place).await?;
        self.wait_for_standbys().await
    }

    /// Stops the primary before the standbys, because its shutdown waits until they have received
    /// everything.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        let standbys = self.servers.split_off(1);
        let stopped = stop_all(self.servers).await;
        let stopped = stopped.and(stop_all(standbys).await);
        let path = self.directory.path().display().to_string();
        let removed = self.directory.close();
        stopped.and(removed.map_err(|error| Failure::failed(format!("can't remove {path}"), error)))
    }
}

/// Connects a client. A separate task drives the connection, and ends with the client.
async fn connect(config: &Config) -> Result<Client, Failure> {
    let connected = config.connect(NoTls).await;
    let (client, connection) =
        connected.map_err(|error| Failure::failed("can't connect to PostgreSQL", error))?;
    drop(tokio::spawn(connection));
    Ok(client)
}

impl PostgresServer {
    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn command(&self, name: &str) -> std::process::Command {
        let program = Path::new(PROGRAMS).join(name);
        let mut command = program::command(&self.place, self.owner.as_ref(), &program, AT_DEATH);
        command.current_dir(&self.directory);
        command
    }

    /// Creates the primary's files, and admits connections from all places.
    async fn make_cluster(&self, places: &[Placement]) -> Result<(), Failure> {
        let mut command = self.command("initdb");
        command.args(["-U", NAME, "--auth=trust", "--locale=C", "--encoding=UTF8", "--no-sync"]);
        command.arg("-D").arg(self.data());
        program::run(command, "initdb").await?;
        let mut entries = String::from("host all all samenet trust\n");
        for place in places {
            let address = place.address();
            let whole = if address.is_ipv4() { 32 } else { 128 };
            for database in ["all", "replication"] {
                entries.push_str(&format!("host {database} {NAME} {address}/{whole} trust\n"));
            }
        }
        let path = self.data().join("pg_hba.conf");
        let written = std::fs::write(&path, entries);
        written.map_err(|error| Failure::failed(format!("can't write {}", path.display()), error))
    }

    /// Copies the primary's files for a standby.
    async fn copy(&self, primary: &Self) -> Result<(), Failure> {
        let mut command = self.command("pg_basebackup");
        command.arg("-h").arg(primary.address.ip().to_string());
        command.arg("-p").arg(primary.address.port().to_string());
        command.args(["-U", NAME, "-R", "-X", "stream", "--checkpoint=fast", "--no-sync"]);
        command.arg("-D").arg(self.data());
        program::run(command, "pg_basebackup").await
    }

    fn serve(&self, options: &Options) -> Result<Server, Failure> {
        let fsync = if options.durability == Durability::Fsync { "on" } else { "off" };
        let settings = [
            format!("listen_addresses={}", self.address.ip()),
            format!("port={}", self.address.port()),
            "unix_socket_directories=".to_owned(),
            format!("fsync={fsync}"),
            "synchronous_commit=on".to_owned(),
            format!("max_connections={}", options.sessions + OTHER_SESSIONS),
            format!("shared_buffers={}MB", options.cache_mb),
            "wal_level=replica".to_owned(),
            "max_wal_senders=16".to_owned(),
            "max_wal_size=16GB".to_owned(),
            "checkpoint_timeout=1h".to_owned(),
            "wal_keep_size=1GB".to_owned(),
            "wal_retrieve_retry_interval=100ms".to_owned(),
            "max_standby_streaming_delay=-1".to_owned(),
            "jit=off".to_owned(),
        ];
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        for setting in &settings {
            command.args(["-c", setting]);
        }
        let name = format!("PostgreSQL in {}", self.place.name());
        Server::start(command, name, &self.directory.join("log"), SIGNALS)
    }
}
