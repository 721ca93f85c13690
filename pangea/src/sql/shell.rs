//! A connection that is made when it is first needed, and one thing at a time that runs on it,
//! beside everything else.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio_postgres::Config;

use super::answer::{Answer, Shown};
use super::client::{Canceller, Client, Status};

/// How much of an answer may wait to be shown before no more of it is read.
const SHOWN_MAX: usize = 16;

/// What can be asked to cancel, once there is a connection.
type Cancellers = Arc<Mutex<Option<Arc<Canceller>>>>;

/// Runs SQL at one server.
pub struct Shell {
    config: Config,
    client: Option<Client>,
    running: Option<Running>,
}

/// Statements that wait for their answer.
struct Running {
    task: JoinHandle<Option<Client>>,
    shown: Receiver<Shown>,
    canceller: Cancellers,
    /// Whether the server was asked to cancel.
    is_cancelled: bool,
}

/// What became of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The server was asked to, and its answer is still awaited.
    Asked,
    /// The connection was given up, as the server was asked before or can't be.
    GivenUp,
}

impl Shell {
    /// A shell that connects when it first has to.
    pub fn new(config: Config) -> Self {
        Self { config, client: None, running: None }
    }

    /// Connects now.
    ///
    /// # Errors
    /// Why the server can't be reached.
    pub async fn connect(&mut self) -> Result<(), String> {
        self.client = Some(connect(&self.config).await?);
        Ok(())
    }

    /// Where the transaction is, as far as it is known.
    pub fn status(&self) -> Status {
        self.client.as_ref().map_or(Status::Idle, Client::status)
    }

    /// Whether an answer is awaited.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Runs SQL beside everything else.
    pub fn start(&mut self, sql: String) {
        assert!(self.running.is_none(), "one thing runs at a time");
        let canceller = Cancellers::default();
        let (config, client) = (self.config.clone(), self.client.take());
        let (sender, shown) = channel(SHOWN_MAX);
        let task = tokio::spawn(run(config, client, canceller.clone(), sql, sender));
        self.running = Some(Running { task, shown, canceller, is_cancelled: false });
    }

    /// Waits for more of the answer to what runs. When there is none, it has ended. May be dropped
    /// and asked for again.
    pub async fn next(&mut self) -> Option<Shown> {
        let running = self.running.as_mut().expect("something runs");
        if let Some(shown) = running.shown.recv().await {
            return Some(shown);
        }
        let ended = (&mut running.task).await;
        self.running = None;
        self.client = ended.expect("a query does not panic, and is given up only here");
        None
    }

    /// Asks the server to cancel what runs. What it was asked to cancel before is given up, with
    /// the connection.
    pub async fn cancel(&mut self) -> Cancelled {
        let running = self.running.as_mut().expect("something runs");
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

    /// Ends the connection, whatever runs on it.
    pub fn give_up(&mut self) {
        if let Some(running) = self.running.take() {
            running.task.abort();
        }
        self.client = None;
    }
}

async fn connect(config: &Config) -> Result<Client, String> {
    let cant = |why| format!("can't connect: {why}");
    Client::connect(config).await.map_err(cant)
}

/// Runs SQL and tells what comes of it: the connection, if there still is one.
async fn run(
    config: Config,
    client: Option<Client>,
    canceller: Cancellers,
    sql: String,
    shown: Sender<Shown>,
) -> Option<Client> {
    let mut client = match ready(&config, client, &shown).await {
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
    // The server has often said why.
    if !has_failed {
        tell(&shown, Shown::Error(format!("the connection was lost: {error}"))).await;
    }
    let what_of_it = if before.is_open() {
        "The open transaction is lost with the connection."
    } else {
        "Whether the statement took effect is not known."
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

/// Where nobody listens any more, the statement is being given up.
async fn tell(shown: &Sender<Shown>, what: Shown) {
    let _ = shown.send(what).await;
}

/// The connection that there is, or a new one.
async fn ready(
    config: &Config,
    client: Option<Client>,
    shown: &Sender<Shown>,
) -> Result<Client, String> {
    let Some(mut client) = client else { return connect(config).await };
    if !client.is_lost().await {
        return Ok(client);
    }
    if client.status().is_open() {
        return Err("the connection was lost, and the open transaction with it; this statement \
                    was not run"
            .to_owned());
    }
    let client = connect(config).await?;
    let note = "The connection was lost. This is a new one, with the default settings.";
    tell(shown, Shown::Notice(note.to_owned())).await;
    Ok(client)
}
