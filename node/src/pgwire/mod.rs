//! PostgreSQL's wire protocol, version 3.0: one task and one [`Session`] for each client.
//!
//! ```text
//!   client ---- startup ----> guard ---> connection ---> client ---- simple_query ----> Session
//!          ---- messages --->                                   ---- parse, bind, .. ->
//!          <--- replies ----- reply <--------------------------- <--- responses -------
//!                        (one write a Query or Sync, not one a message)
//! ```
//!
//! - `guard`: takes frames from the input and validates them before they are decoded. Malformed
//!   input is an error with a description, and never a panic: no client can affect another.
//! - `connection`: a client's socket, and its startup.
//! - `tls`: encryption, if the configuration names a certificate.
//! - `authentication`: checks a client's identity, and whether it may have a session.
//! - `client`: passes messages to the session. When a client disconnects, its session is dropped,
//!   and with it its transaction and the snapshot that it pinned.
//! - `copy`: bulk transfer of rows, in both directions.
//! - `reply`: encodes replies.
//! - `cancel`: cancel requests and statement timeouts.
//! - `patience`: warnings about statements that wait for long.
//!
//! A stop is PostgreSQL's fast shutdown: open sessions end with 57P01, and [`refuse`] answers new
//! ones with 57P03.
//!
//! # Why only the lowest layer of the crate `pgwire` is used
//!
//! Messages and their encodings, in both directions, are those of the crate `pgwire`, its lowest
//! layer. The loop that drives them is our own, because the crate's (`process_socket`, with
//! handlers):
//!
//! - has no hook for the guard: `process_message` only takes a socket with its own decoder. If that
//!   fails, the client gets no error, although PostgreSQL sends FATAL 08P01;
//! - can't be stopped, although PostgreSQL sends FATAL 57P01 to its clients;
//! - delivers one message at a time. Only the next message shows whether an Execute is the only one
//!   before its Sync, and therefore needs no transaction that could conflict;
//! - tracks the transaction's status itself, and writes at each error of a pipeline;
//! - shares its handlers, so that the session would need a lock. It also requires a parser and a
//!   `do_query` of them, which are never called if the handlers override the messages.
//!
//! SCRAM is our own too. The crate's implementation (feature `server-api-ring`) takes its messages
//! from the loop above, and compares proofs as strings with an early exit. It hashes at most one
//! certificate, gives nonexistent users no salt of their own, and depends on nine more crates.

mod authentication;
mod cancel;
mod client;
mod connection;
mod copy;
mod guard;
mod reply;
mod tls;
mod wait_notice;

use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pangea_sql::Shared;
use pangea_sql::engine::Engine;
use pangea_sql::error::{SqlError, code};
use pangea_sql::session::Session;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};

pub use authentication::{Authentication, Security, TIMEOUT_DEFAULT};
use authentication::{Logins, Place, authenticate};
use cancel::{Cancellable, Cancels};
use client::Client;
use connection::{Connection, End};
pub use tls::Tls;

/// The maximum number of clients: each needs a socket and a few tens of kilobytes.
const CLIENTS_MAX: usize = 4_096;
/// The pause after the operating system could not provide another socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The grace period of running statements when the server stops.
const GRACE: Duration = Duration::from_secs(1);

/// Serves clients until `shutdown` is ready. Idle clients are then disconnected, and all others
/// when their statement ends, for which they have a second.
///
/// # Errors
/// When the listener has no address, which means that it is not bound.
pub async fn serve(
    listener: TcpListener,
    engine: Arc<dyn Engine>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_with(Security::default(), listener, engine, shutdown).await
}

/// Serves clients like [`serve`], with these security settings.
///
/// # Errors
/// When the listener has no address, which means that it is not bound.
pub async fn serve_with(
    security: Security,
    listener: TcpListener,
    engine: Arc<dyn Engine>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let shared = Arc::new(Shared::with_results_max(security.results_bytes_max));
    serve_sharing(shared, security, listener, engine, shutdown).await
}

/// Serves clients like [`serve_with`]. Their sessions share state with other sessions.
///
/// # Errors
/// When the listener has no address, which means that it is not bound.
pub async fn serve_sharing(
    shared: Arc<Shared>,
    security: Security,
    listener: TcpListener,
    engine: Arc<dyn Engine>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_up_to(CLIENTS_MAX, shared, security, listener, engine, shutdown).await
}

/// Serves at most `clients_max` clients at a time.
async fn serve_up_to(
    clients_max: usize,
    plans: Arc<Shared>,
    security: Security,
    listener: TcpListener,
    engine: Arc<dyn Engine>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    listener.local_addr()?;
    let mut shutdown = pin!(shutdown);
    let cancels = Arc::new(Cancels::default());
    let (security, logins) = (Arc::new(security), Arc::new(Logins::default()));
    let places = Arc::new(Semaphore::new(clients_max));
    let (stop, stopped) = watch::channel(false);
    let (end, is_ending) = watch::channel(false);
    let mut clients = JoinSet::new();
    let mut number: i32 = 0;
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
            // Reaps the tasks of clients that have disconnected.
            Some(ended) = clients.join_next() => {
                report_panic(ended);
                continue;
            }
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        number = number.checked_add(1).unwrap_or(1);
        let place = places.clone().try_acquire_owned().ok();
        let (engine, plans, cancels) = (engine.clone(), plans.clone(), cancels.clone());
        let is_ending = is_ending.clone();
        let (security, logins) = (security.clone(), logins.clone());
        let process = number;
        let welcome = Welcome { engine, plans, cancels, security, logins, is_ending, process };
        let stopped = stopped.clone();
        clients.spawn(async move {
            // A client's broken connection does not concern the server.
            let _ = welcome.serve(stream, place.is_some(), stopped).await;
            drop(place);
        });
    }
    let _ = stop.send(true);
    let mut all_gone = pin!(async move {
        while let Some(ended) = clients.join_next().await {
            report_panic(ended);
        }
    });
    if tokio::time::timeout(GRACE, &mut all_gone).await.is_err() {
        let _ = end.send(true);
        all_gone.await;
    }
    Ok(())
}

/// Refuses new clients while the node stops, as PostgreSQL does, until this is dropped. The
/// listener is a second handle of that of [`serve`], after its `shutdown` is ready.
pub async fn refuse(security: Security, listener: TcpListener) {
    let cancels = Arc::new(Cancels::default());
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    let (_not_sent, stopped) = watch::channel(false);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (cancels, stopped) = (cancels.clone(), stopped.clone());
        let (tls, timeout) = (security.tls.clone(), security.timeout);
        tokio::spawn(async move {
            let refusing = refuse_client(stream, tls, &cancels, stopped);
            // A client's broken connection does not concern the server.
            let _ = tokio::time::timeout(timeout, refusing).await;
            drop(place);
        });
    }
}

/// Reads a client's startup, and answers that there are no sessions any more.
async fn refuse_client(
    stream: TcpStream,
    tls: Option<Tls>,
    cancels: &Cancels,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut connection = Connection::new(stream, stopped)?;
    let end = match connection.start(cancels, tls.as_ref()).await {
        Ok(None) => return Ok(()),
        Ok(Some(_)) => {
            let message = "the database system is shutting down";
            End::Fatal(SqlError::new(code::UNAVAILABLE, message))
        }
        Err(end) => end,
    };
    connection.end(end).await
}

/// A bug triggered by one client does not affect the others.
fn report_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(
            "a client was disconnected because its task panicked (this is a bug): {error}"
        );
    }
}

/// The state passed to a new client's task.
struct Welcome {
    engine: Arc<dyn Engine>,
    plans: Arc<Shared>,
    cancels: Arc<Cancels>,
    security: Arc<Security>,
    logins: Arc<Logins>,
    is_ending: watch::Receiver<bool>,
    process: i32,
}

impl Welcome {
    /// Reads the startup and authenticates the client; `None` if it requests no session.
    async fn let_in(
        &self,
        connection: &mut Connection,
        has_place: bool,
    ) -> Result<Option<(BTreeMap<String, String>, Place)>, End> {
        let tls = self.security.tls.as_ref();
        let Some(parameters) = connection.start(&self.cancels, tls).await? else {
            return Ok(None);
        };
        let refused = |code, message: &str| Err(End::Fatal(SqlError::new(code, message)));
        if !has_place {
            return refused(code::TOO_MANY_CLIENTS, "sorry, too many clients already");
        }
        if let Some(why) = self.engine.closed_to_sessions() {
            return refused(code::UNAVAILABLE, &why);
        }
        let Some(user) = parameters.get("user") else {
            let message = "no PostgreSQL user name specified in startup packet";
            return refused(code::INVALID_AUTHORIZATION, message);
        };
        let Self { engine, security, logins, .. } = self;
        let place = authenticate(connection, &**engine, security, logins, user).await?;
        Ok(Some((parameters, place)))
    }

    async fn serve(
        self,
        stream: TcpStream,
        has_place: bool,
        stopped: watch::Receiver<bool>,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut connection = Connection::new(stream, stopped)?;
        let letting_in = self.let_in(&mut connection, has_place);
        let (parameters, place) =
            match tokio::time::timeout(self.security.timeout, letting_in).await {
                Err(_) | Ok(Ok(None)) => return Ok(()),
                Ok(Ok(Some(let_in))) => let_in,
                Ok(Err(end)) => return connection.end(end).await,
            };
        // The keyed hash of no data; the key is from the operating system's generator.
        let secret = RandomState::new().build_hasher().finish() as i32;
        let registration = self.cancels.register(self.process, secret);
        let switch = registration.switch().clone();
        let runtime = tokio::runtime::Handle::current();
        let (engine, is_ending) = (self.engine, self.is_ending);
        let engine = Arc::new(Cancellable { engine, switch, is_ending, runtime });
        let session = Session::new(engine.clone(), self.plans, &parameters);
        let session = session.and_then(|session| place.check(&session).map(|()| session));
        let mut session = match session {
            Ok(session) => session,
            Err(error) => return connection.end(End::Fatal(error)).await,
        };
        let switch = registration.switch().clone();
        connection.leave_when(switch.dismissed());
        session.introduce(self.process, Some(connection.address()), Some(switch));
        let mut client = Client::new(session, engine, &mut connection);
        let end = client.run(self.process, secret).await;
        drop(client);
        match end {
            Ok(()) => Ok(()),
            Err(end) => connection.end(end).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use pangea_sql::memory::MemoryEngine;
    use tokio::sync::oneshot;
    use tokio_postgres::NoTls;
    use tokio_postgres::error::SqlState;

    use super::*;

    #[test]
    fn a_client_too_many_is_refused_and_another_takes_the_place_of_one_that_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let (stop, stopped) = oneshot::channel::<()>();
            let stopped = async {
                let _ = stopped.await;
            };
            let server = tokio::spawn(serve_up_to(
                1,
                Arc::default(),
                Security::default(),
                listener,
                Arc::new(MemoryEngine::new()),
                stopped,
            ));
            let config = format!("host=127.0.0.1 port={port} user=me");
            let connect = || tokio_postgres::connect(&config, NoTls);
            let (client, connection) = connect().await.unwrap();
            let connection = tokio::spawn(connection);
            let error = connect().await.err().expect("no connection slot is free");
            assert_eq!(error.code(), Some(&SqlState::TOO_MANY_CONNECTIONS));
            client.batch_execute("select 1").await.unwrap();
            drop(client);
            connection.await.unwrap().unwrap();
            // The server may notice the first client's disconnect a little later.
            while let Err(error) = connect().await {
                assert_eq!(error.code(), Some(&SqlState::TOO_MANY_CONNECTIONS));
                tokio::task::yield_now().await;
            }
            stop.send(()).unwrap();
            server.await.unwrap().unwrap();
        });
    }
}
