//! A connection that is made when it is first needed, and one thing at a time that runs on it,
//! beside everything else.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use tokio_postgres::Config;

use super::answer::Answer;
use super::client::{Canceller, Client, Status};

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
    task: JoinHandle<(Option<Client>, Answer)>,
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
        let task = tokio::spawn(run(config, client, canceller.clone(), sql));
        self.running = Some(Running { task, canceller, is_cancelled: false });
    }

    /// Waits for the answer to what runs. May be dropped and asked for again.
    pub async fn answer(&mut self) -> Answer {
        let running = self.running.as_mut().expect("something runs");
        let ended = (&mut running.task).await;
        self.running = None;
        let (client, answer) = ended.expect("a query does not panic, and is given up only here");
        self.client = client;
        answer
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

async fn run(
    config: Config,
    client: Option<Client>,
    canceller: Cancellers,
    sql: String,
) -> (Option<Client>, Answer) {
    let mut answer = Answer::default();
    let mut client = match ready(&config, client, &mut answer).await {
        Ok(client) => client,
        Err(error) => {
            answer.fail(error);
            return (None, answer);
        }
    };
    *canceller.lock().unwrap_or_else(PoisonError::into_inner) = client.canceller();
    let before = client.status();
    let Err(error) = client.query(&sql, |reply| answer.add(reply)).await else {
        return (Some(client), answer);
    };
    // The server has often said why.
    if answer.error().is_none() {
        answer.fail(format!("the connection was lost: {error}"));
    }
    answer.note(if before.is_open() {
        "The open transaction is lost with the connection."
    } else {
        "Whether the statement took effect is not known."
    });
    (None, answer)
}

/// The connection that there is, or a new one.
async fn ready(
    config: &Config,
    client: Option<Client>,
    answer: &mut Answer,
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
    answer.note("The connection was lost. This is a new one, with the default settings.");
    Ok(client)
}
