//! PostgreSQL's wire protocol, version 3.0: one task and one [`Session`] for each client.
//!
//! ```text
//!   client ---- startup ----> connection ---- simple_query ----------> Session ---> Engine
//!          <--- ready -------            ---- parse, bind, execute -->
//!          ---- messages --->            <--- responses -------------
//!          <--- replies -----   (one write a Query or Sync, not one a message)
//! ```
//!
//! - [`message`]: what clients say. Every length is checked; what is malformed is an error that
//!   names it, and never a panic, so that no client can hurt another.
//! - [`reply`]: what they are told.
//! - [`connection`]: one client from startup to end. A client that vanishes takes its session with
//!   it, and with the session its transaction and the snapshot that it pinned.
//!
//! The codec is written here because the one on the shelf (the crate `pgwire`, 0.42) panics on
//! frames that are cut short and replaces what is not UTF-8.

mod connection;
mod message;
mod reply;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pangea_sql::PlanCache;
use pangea_sql::engine::Engine;
#[cfg(doc)]
use pangea_sql::session::Session;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use connection::Connection;

/// The most clients at a time: each holds a socket and a few tens of kilobytes.
const CLIENTS_MAX: usize = 4_096;
/// How long to wait after the system could not give another socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves clients until `shutdown` is ready, and then tells those that are idle to go.
///
/// # Errors
/// When the listener has no address, which means that it is none.
pub async fn serve<E: Engine>(
    listener: TcpListener,
    engine: E,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    listener.local_addr()?;
    let mut shutdown = pin!(shutdown);
    let plans = Arc::new(PlanCache::default());
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    let (stop, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    let mut number: i32 = 0;
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
            // Clients that have gone are forgotten.
            Some(_) = clients.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        number = number.checked_add(1).unwrap_or(1);
        let place = places.clone().try_acquire_owned().ok();
        let client = Client { engine: engine.clone(), plans: plans.clone(), number };
        let stopped = stopped.clone();
        clients.spawn(async move {
            // A client that breaks off is no matter of the server.
            let _ = client.serve(stream, place.is_some(), stopped).await;
            drop(place);
        });
    }
    let _ = stop.send(true);
    while clients.join_next().await.is_some() {}
    Ok(())
}

struct Client<E> {
    engine: E,
    plans: Arc<PlanCache>,
    number: i32,
}

impl<E: Engine> Client<E> {
    async fn serve(
        self,
        stream: TcpStream,
        has_place: bool,
        stopped: watch::Receiver<bool>,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut connection = Connection::new(stream, stopped);
        let Some(parameters) = connection.start().await? else { return Ok(()) };
        if !has_place {
            return connection.refuse("53300", "sorry, too many clients already").await;
        }
        connection.serve(self.engine, self.plans, &parameters, self.number).await
    }
}
