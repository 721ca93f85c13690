//! A lazily opened connection that runs one query at a time, concurrently with everything else.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio_postgres::Config;

use super::answer::{Answer, Shown};
use super::client::{Canceller, Client, Status};

/// The number of unread results above which no more is read from the connection.
const SHOWN_MAX: usize = 16;

/// The canceller of the query, once the connection is open.
type Cancellers = Arc<Mutex<Option<Arc<Canceller>>>>;

/// Runs SQL at one server.
pub struct Shell {
    server: Server,
    client: Option<Client>,
    running: Option<Running>,
}

/// A running query.
struct Running {
    task: JoinHandle<Option<Client>>,
    shown: Receiver<Shown>,
    canceller: Cancellers,
    /// Whether a cancel request was sent.
    is_cancelled: bool,
}

/// The effect of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// A cancel request was sent, and the query's result is still awaited.
    Asked,
    /// The connection was dropped, because a request was sent before or could not be sent.
    GivenUp,
}

impl Shell {
    /// Creates a shell that connects on first use.
    pub fn new(config: Config) -> Self {
        Self::of(Server { config, name: None })
    }

    /// Creates a shell for a server whose name appears in errors.
    pub fn named(name: &str, config: Config) -> Self {
        Self::of(Server { config, name: Some(name.to_owned()) })
    }

    fn of(server: Server) -> Self {
        Self { server, client: None, running: None }
    }

    /// Connects now.
    ///
    /// # Errors
    /// The reason why the server cannot be reached.
    pub async fn connect(&mut self) -> Result<(), String> {
        self.client = Some(self.server.connect().await?);
        Ok(())
    }

    /// Returns the transaction status, as far as it is known.
    pub fn status(&self) -> Status {
        self.client.as_ref().map_or(Status::Idle, Client::status)
    }

    /// Returns whether a query is running.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Runs SQL concurrently.
    pub fn start(&mut self, sql: String) {
        assert!(self.running.is_none(), "a query is already running");
        let canceller = Cancellers::default();
        let (server, client) = (self.server.clone(), self.client.take());
        let (sender, shown) = channel(SHOWN_MAX);
        let task = tokio::spawn(run(server, client, canceller.clone(), sql, sender));
        self.running = Some(Running { task, shown, canceller, is_cancelled: false });
    }

    /// Waits for more results of the running query. Returns `None` when it has ended. It is
    /// cancel-safe: the future may be dropped and created again.
    pub async fn next(&mut self) -> Option<Shown> {
        let running = self.running.as_mut().expect("a query is running");
        if let Some(shown) = running.shown.recv().await {
            return Some(shown);
        }
        let ended = (&mut running.task).await;
        self.running = None;
        self.client =
            ended.expect("a query does not panic, and is not aborted while it is awaited");
        None
    }

    /// Sends a cancel request for the running query. If a request was sent before, drops the
    /// connection.
    pub async fn cancel(&mut self) -> Cancelled {
        let running = self.running.as_mut().expect("a query is running");
        let canceller = running.canceller.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (false, Some(canceller)) = (running.is_cancelled, canceller) {
            running.is_cancelled = true;
            if canceller.cancel().await.is_ok() {
                return Cancelled::Asked;
            }
        }
        self.give_up();
        Cancelled::GivenUp
    }

    /// Drops the connection, and any query that is running on it.
    pub fn give_up(&mut self) {
        if let Some(running) = self.running.take() {
            running.task.abort();
        }
        self.client = None;
    }
}

/// The server to connect to.
#[derive(Clone)]
struct Server {
    config: Config,
    name: Option<String>,
}

impl Server {
    async fn connect(&self) -> Result<Client, String> {
        let cant = |why| match &self.name {
            Some(name) => format!("can't connect to {name}: {why}"),
            None => format!("can't connect: {why}"),
        };
        Client::connect(&self.config).await.map_err(cant)
    }
}

/// Runs SQL and sends its results to `shown`. Returns the connection, if it is still open.
async fn run(
    server: Server,
    client: Option<Client>,
    canceller: Cancellers,
    sql: String,
    shown: Sender<Shown>,
) -> Option<Client> {
    let mut client = match ready(&server, client, &shown).await {
        Ok(client) => client,
        Err(error) => {
            tell(&shown, Shown::Error(error)).await;
            return None;
        }
    };
    *canceller.lock().unwrap_or_else(PoisonError::into_inner) = client.canceller();
    let before = client.status();
    let mut has_failed = false;
    let Err(error) = query(&mut client, &sql, &shown, &mut has_failed).await else {
        return Some(client);
    };
    // The server has often sent the reason.
    if !has_failed {
        tell(&shown, Shown::Error(format!("the connection was lost: {error}"))).await;
    }
    let what_of_it = if before.is_open() {
        "The open transaction is lost with the connection."
    } else {
        "It is not known whether the statement took effect."
    };
    tell(&shown, Shown::Notice(what_of_it.to_owned())).await;
    None
}

async fn query(
    client: &mut Client,
    sql: &str,
    shown: &Sender<Shown>,
    has_failed: &mut bool,
) -> std::io::Result<()> {
    let mut answer = Answer::default();
    client.query(sql).await?;
    while let Some(reply) = client.reply().await? {
        if let Some(more) = answer.add(reply) {
            *has_failed |= matches!(more, Shown::Error(_));
            tell(shown, more).await;
        }
    }
    Ok(())
}

/// If the receiver is gone, the query is being abandoned.
async fn tell(shown: &Sender<Shown>, what: Shown) {
    let _ = shown.send(what).await;
}

/// Returns the existing connection, or a new one.
async fn ready(
    server: &Server,
    client: Option<Client>,
    shown: &Sender<Shown>,
) -> Result<Client, String> {
    let Some(mut client) = client else { return server.connect().await };
    if !client.is_lost().await {
        return Ok(client);
    }
    if client.status().is_open() {
        return Err("the connection was lost, and the open transaction with it; this statement \
                    was not run"
            .to_owned());
    }
    let client = server.connect().await?;
    let note = "The connection was lost. This is a new session, with the default settings.";
    tell(shown, Shown::Notice(note.to_owned())).await;
    Ok(client)
}
