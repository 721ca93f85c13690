//! A node of another shard: the connection to it, and the versions that it pins.
//!
//! ```text
//!   New --> Connecting --> Connected        from then on the client reconnects automatically
//!               |
//!               +--------> Away --> Connecting      some time later, concurrently with sessions
//! ```
//!
//! Connections are made by separate tasks. A session waits for one if none has been attempted yet,
//! or if no other node can be used. It does not wait for one that failed a moment ago.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pangea_core::ids::SnapshotVersion;
use pangea_core::store::PinError;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::client::{Client, Pinned};

/// Timeout for making a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);
/// The delay before connecting again to a node after a failure.
const AWAY_FOR: Duration = Duration::from_secs(1);
/// Timeout for another node to reach a version that this one has.
const PIN_DEADLINE: Duration = Duration::from_secs(10);
/// The interval between queries whether it has.
const PIN_POLL: Duration = Duration::from_millis(1);
/// The maximum number of answers with rows in flight from one node. Each has some megabytes, and a
/// client that does not read its answers is disconnected.
const ANSWERS_MAX: usize = 8;

pub(super) struct Peer {
    name: String,
    address: SocketAddr,
    cluster: String,
    state: Arc<watch::Sender<ConnectionState>>,
    /// Limits the answers with rows in flight.
    room: Arc<Semaphore>,
}

/// The state of the connection.
enum ConnectionState {
    New,
    /// A connection attempt is in progress. A node that was away before may still be.
    Connecting {
        was_away: bool,
    },
    /// The connection was made. If it is lost, the client reconnects.
    Made(Client),
    Away {
        since: Instant,
        reason: String,
    },
}

/// A version pinned on a node, and the connection that the pin belongs to.
pub(super) struct RemotePin {
    pub client: Client,
    pub number: u64,
    pub room: Arc<Semaphore>,
}

/// Why a version is not pinned.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub reason: String,
    /// The oldest version that can be pinned, if the nodes that answer have removed rows.
    pub oldest: Option<SnapshotVersion>,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self { reason, oldest: None }
    }
}

/// Pins a version on the first of a shard's nodes that answers. Nodes that are connected or that
/// have never been tried come first, and nodes that were away last.
///
/// # Errors
/// When no node pins it, with the reason of each.
pub(super) async fn pin_on_one(peers: &[Peer], at: SnapshotVersion) -> Result<RemotePin, Refusal> {
    let mut why = Vec::new();
    let mut oldest: Option<SnapshotVersion> = None;
    // Nodes that were away are retried in any case, so that the nearest one is used again when it
    // is back.
    let (away, reachable): (Vec<&Peer>, Vec<&Peer>) = peers.iter().partition(|peer| {
        let was_away = peer.was_away();
        if was_away {
            peer.connect();
        }
        was_away
    });
    for peer in reachable.into_iter().chain(away) {
        match peer.pin(at).await {
            Ok(hold) => return Ok(hold),
            Err(refusal) => {
                why.push(format!("{}: {}", peer.name, refusal.reason));
                oldest = oldest.into_iter().chain(refusal.oldest).min();
            }
        }
    }
    Err(Refusal { reason: why.join("; "), oldest })
}

impl Peer {
    pub fn new(name: String, address: SocketAddr, cluster: String) -> Self {
        let (state, room) = (watch::channel(ConnectionState::New).0, Semaphore::new(ANSWERS_MAX));
        Self { name, address, cluster, state: Arc::new(state), room: Arc::new(room) }
    }

    async fn pin(&self, at: SnapshotVersion) -> Result<RemotePin, Refusal> {
        let client = self.client().await?;
        let deadline = Instant::now() + PIN_DEADLINE;
        loop {
            match self.ask(&client, at).await? {
                Pinned::Held(number) => {
                    let room = self.room.clone();
                    return Ok(RemotePin { client, number, room });
                }
                Pinned::Reclaimed(oldest) => {
                    let reason = PinError::Reclaimed { oldest }.to_string();
                    return Err(Refusal { reason, oldest: Some(oldest) });
                }
                Pinned::NotReached if Instant::now() >= deadline => {
                    return Err(format!("the node has not reached version {at}").into());
                }
                Pinned::NotReached => tokio::time::sleep(PIN_POLL).await,
            }
        }
    }

    /// Sends one query. A pin that arrives after the timeout is released.
    async fn ask(&self, client: &Client, at: SnapshotVersion) -> Result<Pinned, String> {
        let asking = client.clone();
        let mut asked = tokio::spawn(async move { asking.pin(at).await });
        match tokio::time::timeout(PIN_DEADLINE, &mut asked).await {
            Ok(Ok(answer)) => answer.map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                let client = client.clone();
                tokio::spawn(async move {
                    if let Ok(Ok(Pinned::Held(number))) = asked.await {
                        // Losing the connection releases the pin as well.
                        let _ = client.unpin(number).await;
                    }
                });
                Err("the node does not answer".to_owned())
            }
        }
    }

    /// Whether the last connection attempt failed.
    fn was_away(&self) -> bool {
        matches!(
            &*self.state.borrow(),
            ConnectionState::Away { .. } | ConnectionState::Connecting { was_away: true }
        )
    }

    /// Returns the connection, and waits for one that is being made.
    async fn client(&self) -> Result<Client, String> {
        self.connect();
        let mut known = self.state.subscribe();
        let known =
            known.wait_for(|state| !matches!(state, ConnectionState::Connecting { .. })).await;
        match known.as_deref() {
            Ok(ConnectionState::Made(client)) if client.is_connected() => Ok(client.clone()),
            // The client reconnects automatically.
            Ok(ConnectionState::Made(_)) => Err("the node is not connected".to_owned()),
            Ok(ConnectionState::Away { reason, .. }) => Err(reason.clone()),
            Ok(ConnectionState::New | ConnectionState::Connecting { .. }) | Err(_) => {
                Err("the node is stopping".to_owned())
            }
        }
    }

    /// Begins to connect, unless a connection exists, is being made, or failed a moment ago.
    fn connect(&self) {
        let is_begun = self.state.send_if_modified(|state| {
            let was_away = match state {
                ConnectionState::New => false,
                ConnectionState::Away { since, .. } if since.elapsed() >= AWAY_FOR => true,
                ConnectionState::Away { .. }
                | ConnectionState::Connecting { .. }
                | ConnectionState::Made(_) => return false,
            };
            *state = ConnectionState::Connecting { was_away };
            true
        });
        if !is_begun {
            return;
        }
        let (state, address, cluster) = (self.state.clone(), self.address, self.cluster.clone());
        tokio::spawn(async move {
            let connecting = Client::connect(address, &cluster);
            let connected = match tokio::time::timeout(CONNECT_DEADLINE, connecting).await {
                Ok(connected) => connected.map_err(|error| error.to_string()),
                Err(_) => Err("can't connect to the node".to_owned()),
            };
            let away = |reason| ConnectionState::Away { since: Instant::now(), reason };
            state.send_replace(connected.map_or_else(away, ConnectionState::Made));
        });
    }
}

#[cfg(test)]
mod tests;
