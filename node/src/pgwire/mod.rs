//! PostgreSQL's wire protocol, version 3.0: one task and one [`Session`] for each client.
//!
//! ```text
//!   client ---- startup ----> guard ---> connection ---> client ---- simple_query ----> Session
//!          ---- messages --->                                   ---- parse, bind, .. ->
//!          <--- replies ----- reply <--------------------------- <--- responses -------
//!                        (one write a Query or Sync, not one a message)
//! ```
//!
//! - `guard`: takes frames from the input and walks them before they are decoded. What is
//!   malformed is an error that names it, and never a panic: no client can hurt another.
//! - `connection`: a client's socket, and its startup.
//! - `tls`: encryption, where the node's file names a certificate.
//! - `authentication`: who a client is, and whether it may have a session.
//! - `client`: messages to the session. A client that vanishes takes its session with it, and
//!   with the session its transaction and the snapshot that it pinned.
//! - `copy`: a client's rows in bulk, both ways.
//! - `reply`: what clients are told.
//! - `cancel`: requests to stop waiting, and statements whose time is over.
//! - `patience`: what a client is told when its statement waits for long.
//!
//! # What is the crate's and what is ours
//!
//! Messages and their bytes, in both directions, are those of the crate `pgwire`, its lowest layer.
//! The loop that drives them is ours, because the crate's own (`process_socket`, with handlers):
//!
//! - has no place for the guard: `process_message` takes a socket with its own decoder and no
//!   other, and when that fails the client is not told why, where PostgreSQL says FATAL 08P01;
//! - can't be told to stop, where PostgreSQL says FATAL 57P01 to its clients;
//! - hands over one message at a time, and whether an Execute is alone before its Sync, and so
//!   needs no transaction that could conflict, is seen from the message after it;
//! - keeps the transaction's status by its own reckoning, and writes at each error of a pipeline;
//! - shares its handlers, so that the session would need a lock, and demands of them a parser and a
//!   `do_query` that handlers which override the messages never call.
//!
//! So is SCRAM, which the crate has behind its feature `server-api-ring`: its part takes messages
//! of the loop above, compares proofs as texts that end early, hashes at most one certificate and
//! gives users that there are not no salt of their own; and with it come nine more crates.

mod authentication;
mod cancel;
mod client;
mod connection;
mod copy;
mod guard;
mod patience;
mod reply;
mod tls;

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

/// The most clients at a time: each holds a socket and a few tens of kilobytes.
const CLIENTS_MAX: usize = 4_096;
/// How long to wait after the system could not give another socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long statements that run when the server stops may go on.
const GRACE: Duration = Duration::from_secs(1);

/// Serves clients until `shutdown` is ready. Then clients that are idle are told to go, and the
/// others when their statement has ended, which it must within a second.
///
/// # Errors
/// When the listener has no address, which means that it is none.
pub async fn serve(
    listener: TcpListener,
    engine: Arc<dyn Engine>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_with(Security::default(), listener, engine, shutdown).await
}

/// Serves clients as [`serve`] does, and asks of them what is said.
///
/// # Errors
/// When the listener has no address, which means that it is none.
pub async fn serve_with(
    security: Security,
    listener: TcpListener,
    engine: Arc<dyn Engine>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let shared = Arc::new(Shared::with_results_max(security.results_bytes_max));
    serve_sharing(shared, security, listener, engine, shutdown).await
}

/// Serves clients as [`serve_with`] does, whose sessions share something with others.
///
/// # Errors
/// When the listener has no address, which means that it is none.
pub async fn serve_sharing(
    shared: Arc<Shared>,
    security: Security,
    listener: TcpListener,
    engine: Arc<dyn Engine>,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_up_to(CLIENTS_MAX, shared, security, listener, engine, shutdown).await
}

/// Serves so many clients at a time.
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
            // Clients that have gone are forgotten.
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
            // A client that breaks off is no matter of the server.
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

/// A bug that one client met is no end of the others.
fn report_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!("a client was disconnected: its task panicked (this is a bug): {error}");
    }
}

/// What the server gives a client.
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
    /// Finds out who a client is and what it asked for; nothing where it wants no session.
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
        // A keyed hash of nothing, under a key that the system drew.
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
            let error = connect().await.err().expect("there is no place");
            assert_eq!(error.code(), Some(&SqlState::TOO_MANY_CONNECTIONS));
            client.batch_execute("select 1").await.unwrap();
            drop(client);
            connection.await.unwrap().unwrap();
            // The server may be a little later to see that the first one left.
            while let Err(error) = connect().await {
                assert_eq!(error.code(), Some(&SqlState::TOO_MANY_CONNECTIONS));
                tokio::task::yield_now().await;
            }
            stop.send(()).unwrap();
            server.await.unwrap().unwrap();
        });
    }
}
