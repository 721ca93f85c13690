//! `pangea start`: runs one node until it is told to stop.

mod closing_listener;
#[cfg(feature = "planted")]
mod flips;

use std::io::Read;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pangea_node::config::Config;
use pangea_node::driver::Stopped;
use pangea_node::meter::Meter;
use pangea_node::pgwire::{self, Authentication, Security};
use pangea_node::running::{self, Requests, RunningNode};
use pangea_sql::Shared;
use pangea_sql::catalog::BOOTSTRAP;
use pangea_sql::engine::Engine;
use pangea_sql::session::authorization::{has_passwords, set_first_password};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::allocator;
use crate::failure::Failure;
use crate::protocol::{programs, registry, reserved_prefixes};
use crate::signals::Signals;
use closing_listener::ClosingListener;

/// The time for clients to finish when the node stops. The server ends their statements after one
/// second.
const GOODBYE: Duration = Duration::from_millis(1_500);
/// Threads that serve PostgreSQL clients: they read snapshots, besides the node's own threads.
const SQL_THREADS: usize = 2;

/// The environment variable with the initial password of the first superuser. It is not an option,
/// because options are visible in the list of processes.
const PASSWORD_VARIABLE: &str = "PANGEA_SUPERUSER_PASSWORD";

/// The time without contact to peers after which a node reports what it is waiting for: it may be
/// the first node, or the only one.
const PEERS_DEADLINE: Duration = Duration::from_secs(2);

/// The prefix of the line on stdout when the node serves and has agreed with its peers.
pub const READY: &str = "ready:";
/// The prefix of the line on stdout when the node serves, but has not agreed with its peers yet.
pub const UP: &str = "up:";

/// Run one node of a cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea start --config node.toml
  pangea start --config node.toml --log debug 2> node.log
  pangea start --config node.toml --replace

The keys of the file are described in docs/CONFIG.md. When the node serves and has agreed with its
peers, it prints a line with its addresses to stdout, which begins with \"ready:\". If that takes
longer than 2 s, it first prints a line that begins with \"up:\" and names what it waits for. The
log goes to stderr.

With --replace, a node whose disk was lost or damaged rejoins its cluster: it fetches all data from
the other nodes, all of which must be up, and then accepts clients. The previous contents of its
data directory are set aside there, not removed. Give --replace once; a restart without it
continues.

The first superuser, pangea, gets the password in the environment variable
PANGEA_SUPERUSER_PASSWORD, if it does not have one yet.

SIGINT (Ctrl-C), SIGTERM and SIGHUP stop it in order: it finishes its transactions and writes a
checkpoint. The exit code is then 0, and 3 if it ended without this checkpoint, which a program with
other procedures may need. A second signal ends it at once, also with 3.")]
pub struct Arguments {
    /// Configuration file of the node
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Fetch the node's data from the other nodes, because they are lost or damaged on this node
    #[arg(long)]
    replace: bool,
    /// Log level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: tracing::Level,
    /// Also stop when stdin is closed, so that the node ends with the process that started it
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
    /// Meter the CPU time by kind of work, for `pangea calibrate`
    #[arg(long, hide = true)]
    meter: bool,
}

/// Runs a node.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    // This comes first because it re-executes the process, which discards everything done before.
    let not_kept = allocator::keep_freed_memory();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(arguments.log)
        .with_ansi(false)
        // It would be a panic of the thread that writes to a stderr without a reader.
        .log_internal_errors(false)
        .init();
    if let Some(error) = not_kept {
        tracing::warn!(
            %error,
            "freed memory is returned to the system at once, which costs performance"
        );
    }
    let config = Config::read_of(&arguments.config, Some(crate::protocol::NAMES));
    let mut config = config.map_err(|error| Failure::Usage(error.to_string()))?;
    config.is_replaced = arguments.replace;
    running::check(&config).map_err(|error| Failure::Usage(error.to_string()))?;
    let runtime = crate::runtime(SQL_THREADS)?;
    let security = config.security().map_err(Failure::Usage)?;
    let listener = runtime.block_on(listen(&config))?;
    let closing = ClosingListener::new(&listener, &security)?;
    let meter = arguments.meter.then(Arc::<Meter>::default);
    let node = running::start(&config, registry(), meter)
        .map_err(|error| Failure::failed("the node can't start", error))?;
    let serving =
        serve(&config, &*node, (listener, security), (&closing, arguments.stop_with_stdin));
    let served = runtime.block_on(serving);
    stop_at_second_signal(node.requests())?;
    // Remaining clients are disconnected before the node stops.
    runtime.shutdown_timeout(GOODBYE);
    let stopped = node.stop();
    closing.end();
    let stopped = match stopped {
        Ok(Stopped::InOrder) => Ok(()),
        Ok(Stopped::WithoutCheckpoint(why)) => Err(Failure::NoCheckpoint(format!(
            "the node has stopped without its last checkpoint, because {why}"
        ))),
        Err(reason) => Err(Failure::Failed(reason)),
    };
    served.and(stopped)
}

/// Ends a stop that takes too long for the user, who then sends a second signal.
fn stop_at_second_signal(node: Arc<dyn Requests>) -> Result<(), Failure> {
    let runtime = crate::runtime(1)?;
    watch("second-signal", move || {
        let received = runtime.block_on(async {
            // Without handlers a signal ends the process, which is what the user wants as well.
            let Ok(mut signals) = Signals::new() else { return false };
            signals.received().await;
            true
        });
        if received {
            tracing::warn!("a second signal: the node ends without its last checkpoint");
            node.stop_now();
        }
    })
}

/// Binds the node's SQL address.
async fn listen(config: &Config) -> Result<std::net::TcpListener, Failure> {
    let sql = config.me().sql;
    let listener = TcpListener::bind(sql).await.and_then(TcpListener::into_std);
    listener.map_err(|error| {
        let id = config.node.0;
        Failure::Failed(format!(
            "sql = \"{sql}\" of node {id}: can't listen on this address: {error}"
        ))
    })
}

/// Serves SQL until the node is stopped or fails.
async fn serve(
    config: &Config,
    node: &dyn RunningNode,
    (listener, security): (std::net::TcpListener, Security),
    (closing, stop_with_stdin): (&ClosingListener, bool),
) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let goodbye = Arc::new(Notify::new());
    let shutdown = {
        let goodbye = goodbye.clone();
        async move { goodbye.notified().await }
    };
    let engine = node.engine();
    #[cfg(feature = "planted")]
    tokio::spawn(flips::flip_on_signals(engine.clone()));
    tokio::spawn(first_password(engine.clone(), security.authentication));
    let shared = Shared::with_results_max(security.results_bytes_max)
        .with_reserved_prefixes(reserved_prefixes());
    let shared = Arc::new(shared.with_procedures(&programs()));
    let cant = |error| Failure::failed("can't listen for SQL clients", error);
    let listener = TcpListener::from_std(listener).map_err(cant)?;
    let serving = pgwire::serve_sharing(shared, security, listener, engine.clone(), shutdown);
    let mut clients = tokio::spawn(serving);
    let closed = closed(node.requests())?;
    let stdin = if stop_with_stdin { Some(stdin_closed()?) } else { None };
    tokio::select! {
        said = say_how_it_is(config, &*engine) => said?,
        () = signals.received() => tracing::info!("stopping: received a signal"),
        () = stdin_or_never(stdin) => tracing::info!("stopping: stdin was closed"),
        // The reason is returned when the node is stopped.
        () = closed.notified() => return Ok(()),
        ended = &mut clients => {
            let why = ended.map_or_else(|error| error.to_string(), |end| format!("{end:?}"));
            return Err(Failure::failed("the SQL server stopped", why));
        }
    }
    goodbye.notify_one();
    closing.begin();
    // Clients that do not leave on their own are disconnected.
    let _ = tokio::time::timeout(GOODBYE, clients).await;
    Ok(())
}

/// Sets the password of the first superuser, if one is given and the superuser has none.
async fn first_password(engine: Arc<dyn Engine>, authentication: Authentication) {
    let Ok(password) = std::env::var(PASSWORD_VARIABLE) else {
        let must_have_one = authentication == Authentication::ScramSha256;
        if must_have_one && engine.fresh().await.is_ok() && !has_passwords(&*engine) {
            tracing::warn!(
                "nobody can log in: no role has a password. Start a node with \
                 {PASSWORD_VARIABLE} set, which becomes the password of {BOOTSTRAP}"
            );
        }
        return;
    };
    if password.is_empty() {
        tracing::warn!("{PASSWORD_VARIABLE} is empty and is ignored");
        return;
    }
    match set_first_password(&*engine, &password).await {
        Ok(true) => tracing::info!("the password of {BOOTSTRAP} was set from {PASSWORD_VARIABLE}"),
        Ok(false) => {
            tracing::info!("{BOOTSTRAP} already has a password: {PASSWORD_VARIABLE} is ignored")
        }
        Err(error) => tracing::error!("the password of {BOOTSTRAP} could not be set: {error}"),
    }
}

/// Prints that the node is ready, or first what it is waiting for. Returns only if stdout is
/// closed.
async fn say_how_it_is(config: &Config, engine: &dyn Engine) -> Result<(), Failure> {
    if config.me().cache_of.is_some() {
        say_loudly(&format!("{READY} {}; a cache, without tables", addresses(config)))?;
        return std::future::pending().await;
    }
    let mut agreed = pin!(agrees_with_peers(engine));
    if tokio::time::timeout(PEERS_DEADLINE, &mut agreed).await.is_ok() {
        say_loudly(&format!("{READY} {}", addresses(config)))?;
    } else {
        // The node serves anyway: snapshots need no peer.
        let unknown = || "waiting for agreement with the other nodes".to_owned();
        let why = engine.cut_off().unwrap_or_else(unknown);
        say_loudly(&format!("{UP} {}; {why}", addresses(config)))?;
        agreed.await;
        // The reader of the first line may be gone.
        let _ = crate::say(&format!("{READY} {}", addresses(config)));
    }
    std::future::pending().await
}

/// Writes a line to stdout. A node that ends because nobody reads it says so.
fn say_loudly(line: &str) -> Result<(), Failure> {
    crate::say(line).map_err(|failure| match failure {
        Failure::NoReader => Failure::Failed(failure.to_string()),
        failure => failure,
    })
}

/// Waits until the node has agreed with others on the newest state, as a strict read does. A node
/// that does not belong in its cluster, for example because its log was lost, is notified by the
/// first message of its peers. It then ends without ever having printed that it is ready.
async fn agrees_with_peers(engine: &dyn Engine) {
    // A node that has ended responds to no request and is not ready.
    if engine.fresh().await.is_err() {
        std::future::pending().await
    }
}

fn addresses(config: &Config) -> String {
    let (id, node) = (config.node.0, config.me());
    let (region, peer, sql) = (&node.region, node.peer, node.sql);
    format!("node {id} in {region}, sql postgres://pangea@{sql}/pangea, peers {peer}")
}

/// Notified when the node ends on its own.
fn closed(node: Arc<dyn Requests>) -> Result<Arc<Notify>, Failure> {
    let notify = Arc::new(Notify::new());
    let notified = notify.clone();
    watch("closed", move || {
        node.wait_ended();
        notify.notify_one();
    })?;
    Ok(notified)
}

/// Notified when stdin is closed, for example because the process at its other end has ended.
fn stdin_closed() -> Result<Arc<Notify>, Failure> {
    continue_at_death_of_parent();
    let notify = Arc::new(Notify::new());
    let notified = notify.clone();
    watch("stdin", move || {
        let (mut stdin, mut buffer) = (std::io::stdin().lock(), [0; 64]);
        while matches!(stdin.read(&mut buffer), Ok(len) if len > 0) {}
        notify.notify_one();
    })?;
    Ok(notified)
}

/// A process that is stopped by SIGSTOP cannot notice anything, so the system continues it when the
/// process that started it ends.
fn continue_at_death_of_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        if let Err(error) = set_parent_process_death_signal(Some(Signal::CONT)) {
            tracing::warn!("stays stopped if it is stopped when its parent ends: {error}");
        }
    }
}

async fn stdin_or_never(stdin: Option<Arc<Notify>>) {
    match stdin {
        Some(closed) => closed.notified().await,
        None => std::future::pending().await,
    }
}

fn watch(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map(drop).map_err(|error| Failure::failed("can't start a thread", error))
}
