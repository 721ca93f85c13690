//! Embedded nodes: the same nodes that `pangea start` runs, with the same ports and files, within a
//! program.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pangea_baselines::free_ports;
use pangea_core::txn::{Outcome, Procedure, Program, Registry};
use pangea_node::config::Config;
use pangea_node::driver::Stopped;
use pangea_node::pgwire;
use pangea_node::running::{self, RunningNode};
use pangea_sql::Shared;
use pangea_sql::catalog::BOOTSTRAP;
use pangea_sql::error::{SqlError, code};
use pangea_sql::native::{Native, Rows, SqlProcedure};
use pangea_sql::session::Session;
use pangea_sql::types::datum::Datum;
use serde::Serialize;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::protocol::{self, NAMES};

/// Threads that serve the PostgreSQL clients of all nodes.
const SQL_THREADS: usize = 2;
/// The time limit for clients to finish when a cluster stops.
const GOODBYE: Duration = Duration::from_millis(1_500);

/// An error of a cluster or of a statement.
#[derive(Debug)]
pub enum Error {
    /// The cluster could not be started or stopped.
    Cluster(String),
    /// A statement failed.
    Sql(Box<SqlError>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(why) => f.write_str(why),
            Self::Sql(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<SqlError> for Error {
    fn from(error: SqlError) -> Self {
        Self::Sql(Box::new(error))
    }
}

fn failed(what: &str, why: impl fmt::Display) -> Error {
    Error::Cluster(format!("{what}: {why}"))
}

/// The configuration of a cluster.
pub struct Builder {
    protocol: String,
    regions: Vec<String>,
    directory: Option<PathBuf>,
    config: Option<Config>,
    natives: Vec<Arc<Native>>,
    procedures: Vec<Arc<dyn Procedure>>,
}

impl Builder {
    /// Sets the protocol's name. The default is the first known protocol.
    #[must_use]
    pub fn protocol(mut self, name: &str) -> Self {
        name.clone_into(&mut self.protocol);
        self
    }

    /// Starts one node in each of these regions, instead of the default three.
    #[must_use]
    pub fn regions(mut self, names: &[&str]) -> Self {
        self.regions = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Stores the state in this directory. The default is memory only, which is lost when the
    /// program ends.
    #[must_use]
    pub fn directory(mut self, path: &Path) -> Self {
        self.directory = Some(path.to_owned());
        self
    }

    /// Runs only the node that this configuration describes. The other nodes of its cluster run
    /// elsewhere, in programs with the same procedures. This overrides all other settings except
    /// procedures.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Adds a procedure that clients call by `CALL`. It hides a stored procedure of the same name.
    #[must_use]
    pub fn procedure(mut self, procedure: impl SqlProcedure) -> Self {
        self.natives.push(Native::new(procedure));
        self
    }

    /// Adds a procedure without SQL, for [`Cluster::call_raw`] and native clients.
    #[must_use]
    pub fn raw_procedure(mut self, procedure: impl Procedure + 'static) -> Self {
        self.procedures.push(Arc::new(procedure));
        self
    }

    /// Starts the cluster.
    ///
    /// # Errors
    /// If the configuration is invalid, two procedures have the same name, or a node cannot start.
    pub fn start(self) -> Result<Cluster, Error> {
        let registry = self.registry()?;
        let mut temporary = None;
        let configs = match &self.config {
            Some(config) => vec![config.clone()],
            None => self.configs(&mut temporary)?,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(SQL_THREADS)
            .enable_all()
            .build()
            .map_err(|error| failed("can't start threads", error))?;
        let mut cluster = Cluster { nodes: Vec::new(), runtime, temporary };
        for config in &configs {
            let (natives, registry) = (&self.natives[..], registry.clone());
            cluster.nodes.push(start_node(config, registry, natives, &cluster.runtime)?);
        }
        Ok(cluster)
    }

    /// Returns the procedures of `pangea start` and those of the program.
    fn registry(&self) -> Result<Arc<Registry>, Error> {
        let mut procedures = protocol::procedures();
        for native in &self.natives {
            procedures.push(native.clone());
        }
        procedures.extend(self.procedures.iter().cloned());
        let mut names: Vec<&str> = procedures.iter().map(|it| it.name()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("procedure {:?} is defined twice", twice[0]);
            return Err(Error::Cluster(message));
        }
        Ok(Arc::new(Registry::new(procedures)))
    }

    fn configs(&self, temporary: &mut Option<TempDir>) -> Result<Vec<Config>, Error> {
        let (directory, durability) = match &self.directory {
            Some(directory) => (directory.clone(), "fsync"),
            None => {
                let made = tempfile::tempdir();
                let made =
                    made.map_err(|error| failed("can't create a temporary directory", error))?;
                (temporary.insert(made).path().to_owned(), "memory")
            }
        };
        let ports = free_addresses(2 * self.regions.len())?;
        let place = |(at, region): (usize, &String)| {
            let (peer, sql) = (ports[2 * at], ports[2 * at + 1]);
            Place { id: at, region: region.clone(), peer, sql }
        };
        let nodes: Vec<Place> = self.regions.iter().enumerate().map(place).collect();
        let config = |node: usize| {
            let data_dir = directory.join(&self.regions[node]);
            let (protocol, regions) = (&self.protocol, &self.regions);
            let (cluster, workers) = ("pangea", 1);
            let nodes = &nodes;
            let file =
                File { cluster, protocol, node, data_dir, durability, workers, regions, nodes };
            let text = toml::to_string(&file).expect("it can be written as TOML");
            Config::parse("the program's cluster", &text)
        };
        let configs: Result<Vec<_>, _> = (0..nodes.len()).map(config).collect();
        configs.map_err(|error| Error::Cluster(error.to_string()))
    }
}

/// The format of a configuration file.
#[derive(Serialize)]
struct File<'a> {
    cluster: &'a str,
    protocol: &'a str,
    node: usize,
    data_dir: PathBuf,
    durability: &'a str,
    workers: usize,
    regions: &'a [String],
    nodes: &'a [Place],
}

#[derive(Serialize)]
struct Place {
    id: usize,
    region: String,
    peer: SocketAddr,
    sql: SocketAddr,
}

/// Returns loopback addresses with ports that are currently free.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, Error> {
    free_ports(Ipv4Addr::LOCALHOST.into(), count)
        .map_err(|error| failed("no free port on 127.0.0.1", error))
}

/// Nodes that run in this program. They stop when this is dropped.
pub struct Cluster {
    nodes: Vec<Embedded>,
    runtime: Runtime,
    /// The directory of the nodes' files, if it is temporary.
    temporary: Option<TempDir>,
}

impl Cluster {
    /// Returns a builder. By default it describes a cluster of three nodes in this program, in
    /// memory.
    pub fn builder() -> Builder {
        Builder {
            protocol: NAMES[0].to_owned(),
            regions: ["a", "b", "c"].map(str::to_owned).to_vec(),
            directory: None,
            config: None,
            natives: Vec::new(),
            procedures: Vec::new(),
        }
    }

    /// Returns the number of its nodes that run in this program.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the address for PostgreSQL clients of a node.
    ///
    /// # Panics
    /// If the node does not run in this program.
    pub fn sql_address(&self, node: usize) -> SocketAddr {
        self.nodes[node].sql
    }

    /// Opens a session with a node, as the bootstrap superuser.
    ///
    /// # Errors
    /// If the node cannot open the session.
    ///
    /// # Panics
    /// If the node does not run in this program.
    pub fn connect(&self, node: usize) -> Result<Connection<'_>, Error> {
        let parameters = BTreeMap::from([("user".to_owned(), BOOTSTRAP.to_owned())]);
        let Embedded { node, shared, .. } = &self.nodes[node];
        let session = Session::new(node.engine(), shared.clone(), &parameters)?;
        Ok(Connection { session, runtime: &self.runtime })
    }

    /// Calls a procedure without SQL on a node, and returns its result.
    ///
    /// # Errors
    /// If the procedure does not exist, the call aborted, or its outcome is unknown to the node.
    ///
    /// # Panics
    /// If the node does not run in this program.
    pub fn call_raw(&self, node: usize, name: &str, args: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.runtime.block_on(self.nodes[node].call_raw(name, args))?)
    }

    /// Stops its nodes and waits until they have stopped.
    ///
    /// # Errors
    /// The error of a node that failed earlier.
    pub fn stop(self) -> Result<(), Error> {
        let Self { nodes, runtime, temporary } = self;
        nodes.iter().for_each(|node| node.goodbye.notify_one());
        runtime.shutdown_timeout(GOODBYE);
        nodes.iter().for_each(|node| node.node.begin_stop());
        // The log of a node without its last checkpoint has a warning.
        let stopped: Result<Vec<Stopped>, String> =
            nodes.into_iter().map(|it| it.node.stop()).collect();
        drop(temporary);
        stopped.map(drop).map_err(Error::Cluster)
    }
}

/// A session with a node.
pub struct Connection<'a> {
    session: Session,
    runtime: &'a Runtime,
}

impl Connection<'_> {
    /// Runs a statement with these values of `$1`, `$2` and so on, and returns all of its rows.
    ///
    /// # Errors
    /// If the statement fails.
    pub fn query(&mut self, sql: &str, params: &[Datum]) -> Result<Rows, Error> {
        Ok(self.runtime.block_on(self.session.query(sql, params))?)
    }

    /// Calls a procedure, in Rust or stored, and returns its row, which is empty if the procedure
    /// returns none.
    ///
    /// # Errors
    /// If the call fails.
    pub fn call(&mut self, procedure: &str, args: &[Datum]) -> Result<Vec<Datum>, Error> {
        let places: Vec<_> = (1..=args.len()).map(|at| format!("${at}")).collect();
        let name = procedure.replace('"', "\"\"");
        let sql = format!("call \"{name}\"({})", places.join(", "));
        Ok(self.query(&sql, args)?.rows.into_iter().next().unwrap_or_default())
    }
}

/// A node and its SQL server.
struct Embedded {
    node: Box<dyn RunningNode>,
    shared: Arc<Shared>,
    sql: SocketAddr,
    goodbye: Arc<Notify>,
}

impl Embedded {
    async fn call_raw(&self, name: &str, args: &[u8]) -> Result<Vec<u8>, SqlError> {
        let engine = self.node.engine();
        let Some(procedure) = engine.registry().id(name) else {
            let message = format!("procedure {name:?} does not exist");
            return Err(SqlError::new(code::UNDEFINED_FUNCTION, message));
        };
        let program = Program::Call { procedure, args: args.to_vec().into() };
        let isolation = engine.isolations().default_level();
        match engine.commit(program, isolation).await {
            Ok(Outcome::Committed { result, .. }) => Ok(result.to_vec()),
            Ok(Outcome::Aborted(abort)) => Err(abort.into()),
            Err(error) => Err(SqlError::new(code::OUTCOME_UNKNOWN, error.to_string())),
        }
    }
}

/// Starts a node and its SQL server.
fn start_node(
    config: &Config,
    registry: Arc<Registry>,
    natives: &[Arc<Native>],
    runtime: &Runtime,
) -> Result<Embedded, Error> {
    running::check(config).map_err(|error| Error::Cluster(error.to_string()))?;
    let security = config.security().map_err(Error::Cluster)?;
    let sql = config.me().sql;
    let listener = runtime.block_on(tokio::net::TcpListener::bind(sql));
    let listener = listener.map_err(|error| failed(&format!("can't listen on {sql}"), error))?;
    let sql = listener.local_addr().map_err(|error| failed("can't get the SQL address", error))?;
    let node = running::start(config, registry, None);
    let node = node.map_err(|error| failed("the node can't start", error))?;
    let shared = Shared::with_results_max(security.results_bytes_max)
        .with_reserved_prefixes(protocol::reserved_prefixes());
    let shared = Arc::new(shared.with_procedures(natives));
    let goodbye = Arc::new(Notify::new());
    let stopped = goodbye.clone();
    let shutdown = async move { stopped.notified().await };
    let serving =
        pgwire::serve_sharing(shared.clone(), security, listener, node.engine(), shutdown);
    runtime.spawn(serving);
    Ok(Embedded { node, shared, sql, goodbye })
}
