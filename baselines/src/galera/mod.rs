//! MariaDB Galera: a master in every place, each with all rows.
//!
//! A transaction runs where its client is. When it commits, its write set is sent to all nodes in
//! one order, and each node certifies it: of two conflicting transactions, the first in the order
//! commits. A commit therefore costs a round trip to the other places, and readers never wait for
//! it.
//!
//! Settings that differ from MariaDB's defaults, and why:
//!
//! | setting | why |
//! |---|---|
//! | `evs.send_window`, `evs.user_send_window = 512` | the number of write sets in flight should not be below that of clients: the defaults of 4 and 2 are for a local network and limit the throughput over a WAN |
//! | `gcs.fc_limit = 512`, `gcs.fc_factor = 0.9` | a node that lags a little does not stop the others |
//! | `wsrep_slave_threads = 4` | write sets without conflicts are applied in parallel |
//! | `innodb_flush_log_at_trx_commit` | 1 for [`Durability::Fsync`], 2 for `Os` |
//! | `transaction_isolation = READ-COMMITTED` | no gap locks, so that fewer transactions deadlock; the procedures need no more |
//! | `innodb_buffer_pool_size`, `innodb_log_file_size` | all rows fit, and no burst of page writes occurs during a run |
//! | `gcache.size` | a node that lags needs no full copy |
//!
//! The files are created once, by a server that starts a cluster of one and stops. They are then
//! copied to every place, so that all nodes begin in the same state and none needs a full copy from
//! another.

mod session;
mod tables;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use pangea_core::workload::{Commits, Settings, Workload};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::access::AccessPoint;
use crate::baseline::{Checked, Durability, Isolation, Options};
use crate::failure::Failure;
use crate::placement::Placement;
use crate::program::{self, Needed, Owner};
use crate::server::{Server, Signals, stop_all};
pub(crate) use session::Session;
pub(crate) use tables::VALUE_LEN_MAX;

const MARIADBD: Needed = Needed { name: "mariadbd", package: "mariadb-server" };
const INSTALL: Needed = Needed { name: "mariadb-install-db", package: "mariadb-server" };
const PROVIDER: Needed = Needed { name: "/usr/lib/galera/libgalera_smm.so", package: "galera-4" };
/// Programs that the script for state transfers runs.
const RSYNC: Needed = Needed { name: "rsync", package: "rsync" };
const SOCAT: Needed = Needed { name: "socat", package: "socat" };

/// The name of the database and of its user.
const NAME: &str = "pangea";
/// The number of other sessions: loads, checks, and sessions that are ending.
const OTHER_SESSIONS: u32 = 40;
const SIGNALS: Signals = Signals { clean: Signal::TERM, quick: Signal::KILL };
/// Timeout for servers to be synced.
const START_DEADLINE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// Checks that Galera is installed and supports the options.
pub(crate) fn check(options: &Options) -> Result<(), Failure> {
    if options.isolation == Isolation::Serializable {
        let message = "Galera does not support serializable transactions across its nodes";
        return Err(Failure::Usage(message.to_owned()));
    }
    for needed in [MARIADBD, INSTALL, PROVIDER, RSYNC, SOCAT] {
        needed.find()?;
    }
    Owner::of_server("mysql", "mariadb-server").map(drop)
}

/// Running masters.
#[derive(Debug)]
pub struct Galera {
    /// Declared before the directory, so that the servers end before it is removed.
    servers: Vec<Server>,
    members: Vec<GaleraServer>,
    options: Options,
    directory: TempDir,
}

/// The location and addresses of a server.
#[derive(Debug)]
struct GaleraServer {
    place: Placement,
    owner: Option<Owner>,
    directory: PathBuf,
    /// The address for clients.
    sql: SocketAddr,
    /// The address for other members of the group.
    group: SocketAddr,
    /// The address for incremental state transfers, with the write sets that it has missed.
    missed: SocketAddr,
    /// The address for full state transfers.
    copy: SocketAddr,
}

impl Galera {
    /// Creates the files, starts a cluster in the first place, and lets the other servers join it.
    pub(crate) async fn start(places: &[Placement], options: &Options) -> Result<Self, Failure> {
        check(options)?;
        let owner = Owner::of_server("mysql", "mariadb-server")?;
        let directory = program::temporary("galera", options.within.as_deref())?;
        let mut members = Vec::new();
        for place in places {
            let [sql, group, missed, copy] = place.free_ports()?;
            let directory = directory.path().join(format!("{}-{}", members.len(), place.name()));
            program::make_dir(&directory, owner.as_ref())?;
            let (place, owner) = (place.clone(), owner.clone());
            members.push(GaleraServer { place, owner, directory, sql, group, missed, copy });
        }
        members[0].make_files().await?;
        for member in &members[1..] {
            member.copy_files(&members[0]).await?;
        }
        let (servers, options) = (Vec::new(), options.clone());
        let mut galera = Self { servers, members, options, directory };
        let members = galera.members();
        for index in 0..places.len() {
            let joins = if index == 0 { &[][..] } else { &members[..] };
            let server = galera.members[index].serve(joins, &galera.options, None)?;
            galera.servers.push(server);
            // The other servers join the cluster of the first.
            if index == 0 {
                galera.wait_for(0, 1).await?;
            }
        }
        for index in 0..places.len() {
            galera.wait_for(index, places.len()).await?;
        }
        Ok(galera)
    }

    /// The addresses at which the members of the group reach each other.
    fn members(&self) -> Vec<String> {
        self.members.iter().map(|member| member.group.to_string()).collect()
    }

    /// Waits until a server is synced in a cluster of at least `members`.
    async fn wait_for(&self, index: usize, members: usize) -> Result<(), Failure> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let found = match self.connect(index).await {
                Ok(mut conn) => state(&mut conn).await,
                Err(error) => Err(error),
            };
            match &found {
                Ok((state, size)) if state == "Synced" && *size >= members => return Ok(()),
                Ok(_) | Err(_) => {}
            }
            self.servers[index].is_running()?;
            if Instant::now() > deadline {
                let name = &self.servers[index].name;
                let found = match found {
                    Ok((state, size)) => format!("{state}, with {size} members"),
                    Err(error) => error.to_string(),
                };
                return Err(Failure::failed(format!("{name} is not synced"), found));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn connect(&self, index: usize) -> Result<Conn, Failure> {
        connect(self.members[index].sql).await
    }

    /// The access for a client: the master of its place.
    pub(crate) fn access_point(&self, place: usize) -> AccessPoint {
        AccessPoint::Galera(self.members[place].sql)
    }

    pub(crate) async fn load(
        &self,
        workload: &Workload,
        progress: impl FnMut(u64, u64),
    ) -> Result<(), Failure> {
        tables::load(self.members[0].sql, workload, progress).await
    }

    pub(crate) async fn check(
        &self,
        workload: &Workload,
        settings: &Settings,
        commits: &Commits,
    ) -> Result<Checked, Failure> {
        let mut conns = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            conns.push((server.name.clone(), self.connect(index).await?));
        }
        tables::check(conns, workload, settings, commits).await
    }

    pub(crate) fn address(&self, place: usize) -> SocketAddr {
        self.members[place].sql
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn server_mut(&mut self, place: usize) -> &mut Server {
        &mut self.servers[place]
    }

    /// Restarts a place's server on its files, and waits until it is synced with all others.
    ///
    /// As in MariaDB's own service, InnoDB first reports the last write set that it has. With this
    /// position a node receives only the write sets that it has missed; without it, a full copy.
    pub(crate) async fn start_again(&mut self, place: usize) -> Result<(), Failure> {
        let (member, members) = (&self.members[place], self.members());
        let position = member.recover(&self.options).await?;
        self.servers[place] = member.serve(&members, &self.options, Some(&position))?;
        self.wait_for(place, members.len()).await
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        let stopped = stop_all(self.servers).await;
        let path = self.directory.path().display().to_string();
        let removed = self.directory.close();
        stopped.and(removed.map_err(|error| Failure::failed(format!("can't remove {path}"), error)))
    }
}

/// The state of a server, and the size of its cluster.
async fn state(conn: &mut Conn) -> Result<(String, usize), Failure> {
    let query = "SHOW STATUS WHERE Variable_name IN \
                 ('wsrep_local_state_comment', 'wsrep_cluster_size')";
    let rows: Result<Vec<(String, String)>, _> = conn.query(query).await;
    let rows = rows.map_err(|error| Failure::failed("wsrep status", error))?;
    let mut values: BTreeMap<String, String> = rows.into_iter().collect();
    let mut value = |name: &str| values.remove(name).unwrap_or_default();
    let size = value("wsrep_cluster_size").parse().unwrap_or(0);
    Ok((value("wsrep_local_state_comment"), size))
}

/// Connects to a server.
pub(crate) async fn connect(address: SocketAddr) -> Result<Conn, Failure> {
    let options = OptsBuilder::default()
        .ip_or_hostname(address.ip().to_string())
        .tcp_port(address.port())
        .tcp_nodelay(true)
        .prefer_socket(false)
        .user(Some(NAME))
        .db_name(Some(NAME));
    let conn = Conn::new(options).await;
    conn.map_err(|error| Failure::failed("can't connect to MariaDB", error))
}

impl GaleraServer {
    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = program::command(&self.place, self.owner.as_ref(), program, "KILL");
        command.current_dir(&self.directory).arg("--no-defaults");
        command
    }

    /// Creates the files of a cluster of one, with the database and its user.
    async fn make_files(&self) -> Result<(), Failure> {
        let mut command = self.command(&INSTALL.find()?);
        command.args(["--skip-test-db", "--auth-root-authentication-method=normal"]);
        command.arg(format!("--datadir={}", self.data().display()));
        program::run(command, "mariadb-install-db").await?;
        // Each line is one statement.
        let statements = format!(
            "CREATE DATABASE {NAME} CHARACTER SET latin1 COLLATE latin1_bin;\n\
             CREATE USER {NAME}@'%';\nGRANT ALL ON *.* TO {NAME}@'%';\nSHUTDOWN;\n"
        );
        let path = self.directory.join("init.sql");
        let written = std::fs::write(&path, statements);
        written.map_err(|error| Failure::failed("can't write init.sql", error))?;
        program::give(&path, self.owner.as_ref())?;
        let mut command = self.server(&[], "gcache.size=16M")?;
        command.arg(format!("--init-file={}", path.display()));
        program::run(command, "the first start of mariadbd").await
    }

    /// Copies the files of another place, except those that are specific to a node.
    async fn copy_files(&self, from: &Self) -> Result<(), Failure> {
        let mut command = Command::new("cp");
        command.arg("--archive").arg(from.data()).arg(self.data());
        program::run(command, "cp").await?;
        for name in ["gvwstate.dat", "galera.cache", "auto.cnf"] {
            let removed = std::fs::remove_file(self.data().join(name));
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::failed(format!("can't remove {name}"), error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// The command of a server that joins these members, or starts a new cluster if there are none.
    fn server(&self, joins: &[String], provider: &str) -> Result<Command, Failure> {
        let Self { place, directory, sql, group, missed, copy, .. } = self;
        let mut command = self.command(&MARIADBD.find()?);
        if joins.is_empty() {
            command.arg("--wsrep-new-cluster");
        }
        command.args([
            format!("--datadir={}", self.data().display()),
            format!("--socket={}", directory.join("socket").display()),
            format!("--pid-file={}", directory.join("pid").display()),
            format!("--bind-address={}", sql.ip()),
            format!("--port={}", sql.port()),
            "--skip-name-resolve".to_owned(),
            "--local-infile=1".to_owned(),
            "--binlog-format=ROW".to_owned(),
            "--default-storage-engine=InnoDB".to_owned(),
            "--innodb-autoinc-lock-mode=2".to_owned(),
            "--wsrep-on=ON".to_owned(),
            format!("--wsrep-provider={}", PROVIDER.name),
            format!("--wsrep-cluster-name={NAME}"),
            format!("--wsrep-cluster-address=gcomm://{}", joins.join(",")),
            format!("--wsrep-node-name={}", place.name()),
            format!("--wsrep-node-address={}", place.address()),
            "--wsrep-sst-method=rsync".to_owned(),
            format!("--wsrep-sst-receive-address={copy}"),
            format!(
                "--wsrep-provider-options=gmcast.listen_addr=tcp://{group};ist.recv_addr={missed};\
                 {provider}"
            ),
        ]);
        Ok(command)
    }

    /// The InnoDB settings of a server.
    fn storage(options: &Options) -> [String; 3] {
        let flush = if options.durability == Durability::Fsync { 1 } else { 2 };
        [
            format!("--innodb-flush-log-at-trx-commit={flush}"),
            format!("--innodb-buffer-pool-size={}M", options.cache_mb),
            "--innodb-log-file-size=1G".to_owned(),
        ]
    }

    /// The position of the last write set in the files of a killed server.
    async fn recover(&self, options: &Options) -> Result<String, Failure> {
        let log = self.directory.join("recover.log");
        let mut command = self.server(&self.own_address(), "gcache.size=16M")?;
        command.args(Self::storage(options));
        command.arg("--wsrep-recover").arg(format!("--log-error={}", log.display()));
        program::run(command, "mariadbd --wsrep-recover").await?;
        let cant = |why: &dyn std::fmt::Display| {
            Failure::failed(format!("no position in {}", log.display()), why)
        };
        let said = std::fs::read_to_string(&log).map_err(|error| cant(&error))?;
        let position = recovered(&said).ok_or_else(|| cant(&program::last_lines(&said)))?;
        let position = position.to_owned();
        // The file is removed, because the next recovery writes a new one.
        std::fs::remove_file(&log).map_err(|error| cant(&error))?;
        Ok(position)
    }

    /// The server's own address as the cluster to join. It never joins it, but without an address
    /// it would start a new cluster.
    fn own_address(&self) -> [String; 1] {
        [self.group.to_string()]
    }

    /// Starts a server, at a position if it is known.
    fn serve(
        &self,
        joins: &[String],
        options: &Options,
        position: Option<&str>,
    ) -> Result<Server, Failure> {
        // The proportion of its defaults.
        let (suspect, inactive) = (options.suspect_s, 3 * options.suspect_s);
        let provider = format!(
            "evs.send_window=512;evs.user_send_window=512;gcs.fc_limit=512;gcs.fc_factor=0.9;\
             gcache.size=512M;evs.suspect_timeout=PT{suspect}S;evs.inactive_timeout=PT{inactive}S"
        );
        let mut command = self.server(joins, &provider)?;
        command.args(Self::storage(options)).args([
            "--transaction-isolation=READ-COMMITTED".to_owned(),
            "--wsrep-slave-threads=4".to_owned(),
            format!("--max-connections={}", options.sessions + OTHER_SESSIONS),
            "--max-allowed-packet=64M".to_owned(),
        ]);
        command.args(position.map(|position| format!("--wsrep-start-position={position}")));
        let name = format!("MariaDB in {}", self.place.name());
        Server::start(command, name, &self.directory.join("log"), SIGNALS)
    }
}

/// The position in the output of `--wsrep-recover`.
fn recovered(said: &str) -> Option<&str> {
    let found = said.lines().rev().find_map(|line| line.split_once("Recovered position:"));
    found.and_then(|(_, position)| position.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_what_was_said_last() {
        let position = "1b2c3d4e-0001-11ef-9d2a-0242ac120002:1234";
        let said = format!(
            "2026-11-24  7:00:00 0 [Note] WSREP: Recovered position: older:1\n\
             2026-11-24  7:00:01 0 [Note] WSREP: Recovered position: {position}\nMore.\n"
        );
        assert_eq!(recovered(&said), Some(position));
        assert_eq!(recovered("2026-11-24 [ERROR] InnoDB: no such file"), None);
    }
}
