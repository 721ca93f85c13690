//! A node of another shard: the connection to it, and versions that it keeps.
//!
//! ```text
//!   New --> Connecting --> Connected        from then on it connects again by itself
//!               |
//!               +--------> Away --> Connecting      some time later, beside what goes on
//! ```
//!
//! Connections are made by tasks of their own. A session waits for one where nobody has tried yet,
//! or where no other node can be asked: not for one that has failed a moment ago.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pangea_core::ids::SnapshotVersion;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::client::Client;

/// How long a connection may take to be made.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);
/// Who could not be connected to is not tried again for so long.
const AWAY_FOR: Duration = Duration::from_secs(1);
/// How long another node may take to come to a version that this one has.
const HOLD_DEADLINE: Duration = Duration::from_secs(10);
/// How often it is asked again whether it has.
const HOLD_POLL: Duration = Duration::from_millis(1);
/// So many answers with rows may be under way from one node: each is of some megabytes, and who
/// does not read what it asked for is cut off.
const ANSWERS_MAX: usize = 8;

pub(super) struct Peer {
    name: String,
    address: SocketAddr,
    cluster: String,
    way: Arc<watch::Sender<Way>>,
    /// So many answers with rows may be under way.
    room: Arc<Semaphore>,
}

/// How far the connection is.
enum Way {
    New,
    /// Somebody is at it. Who was away before may be so still.
    Connecting {
        was_away: bool,
    },
    /// It was made. It may be lost now, and then it is made again.
    Made(Client),
    Away {
        since: Instant,
        reason: String,
    },
}

/// What a node keeps of a version, and the connection that it does so for.
pub(super) struct Hold {
    pub client: Client,
    pub number: u64,
    pub room: Arc<Semaphore>,
}

/// Has the first of a shard's nodes that answers keep a version: one that is connected, or that
/// nobody has tried to connect to, and else one that was away.
///
/// # Errors
/// When none does, with what each said.
pub(super) async fn hold_on_one(peers: &[Peer], at: SnapshotVersion) -> Result<Hold, String> {
    let mut why = Vec::new();
    // Whoever was away is tried again in any case, and is the nearest once more when it is back.
    let (away, others): (Vec<&Peer>, Vec<&Peer>) = peers.iter().partition(|peer| {
        let was_away = peer.was_away();
        if was_away {
            peer.connect();
        }
        was_away
    });
    for peer in others.into_iter().chain(away) {
        match peer.hold(at).await {
            Ok(hold) => return Ok(hold),
            Err(reason) => why.push(format!("{}: {reason}", peer.name)),
        }
    }
    Err(why.join("; "))
}

impl Peer {
    pub fn new(name: String, address: SocketAddr, cluster: String) -> Self {
        let (way, room) = (watch::channel(Way::New).0, Semaphore::new(ANSWERS_MAX));
        Self { name, address, cluster, way: Arc::new(way), room: Arc::new(room) }
    }

    async fn hold(&self, at: SnapshotVersion) -> Result<Hold, String> {
        let client = self.client().await?;
        let deadline = Instant::now() + HOLD_DEADLINE;
        loop {
            match self.ask(&client, at).await? {
                Some(number) => {
                    let room = self.room.clone();
                    return Ok(Hold { client, number, room });
                }
                None if Instant::now() >= deadline => {
                    return Err(format!("it has not come to version {at}"));
                }
                None => tokio::time::sleep(HOLD_POLL).await,
            }
        }
    }

    /// Asks once. What comes too late is let go.
    async fn ask(&self, client: &Client, at: SnapshotVersion) -> Result<Option<u64>, String> {
        let asking = client.clone();
        let mut asked = tokio::spawn(async move { asking.hold(at).await });
        match tokio::time::timeout(HOLD_DEADLINE, &mut asked).await {
            Ok(Ok(answer)) => answer.map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                let client = client.clone();
                tokio::spawn(async move {
                    if let Ok(Ok(Some(number))) = asked.await {
                        // A connection that was lost has let it go.
                        let _ = client.release(number).await;
                    }
                });
                Err("it does not answer".to_owned())
            }
        }
    }

    /// Whether the last connection that was tried was not made.
    fn was_away(&self) -> bool {
        matches!(&*self.way.borrow(), Way::Away { .. } | Way::Connecting { was_away: true })
    }

    /// The connection, once one that is being made is there.
    async fn client(&self) -> Result<Client, String> {
        self.connect();
        let mut known = self.way.subscribe();
        let known = known.wait_for(|way| !matches!(way, Way::Connecting { .. })).await;
        match known.as_deref() {
            Ok(Way::Made(client)) if client.is_connected() => Ok(client.clone()),
            // It connects again by itself.
            Ok(Way::Made(_)) => Err("it is not connected".to_owned()),
            Ok(Way::Away { reason, .. }) => Err(reason.clone()),
            Ok(Way::New | Way::Connecting { .. }) | Err(_) => Err("the node ends".to_owned()),
        }
    }

    /// Begins to connect, unless that is done, or on its way, or was in vain a moment ago.
    fn connect(&self) {
        let is_begun = self.way.send_if_modified(|way| {
            let was_away = match way {
                Way::New => false,
                Way::Away { since, .. } if since.elapsed() >= AWAY_FOR => true,
                Way::Away { .. } | Way::Connecting { .. } | Way::Made(_) => return false,
            };
            *way = Way::Connecting { was_away };
            true
        });
        if !is_begun {
            return;
        }
        let (way, address, cluster) = (self.way.clone(), self.address, self.cluster.clone());
        tokio::spawn(async move {
            let connecting = Client::connect(address, &cluster);
            let connected = match tokio::time::timeout(CONNECT_DEADLINE, connecting).await {
                Ok(connected) => connected.map_err(|error| error.to_string()),
                Err(_) => Err("it can't be connected to".to_owned()),
            };
            let away = |reason| Way::Away { since: Instant::now(), reason };
            way.send_replace(connected.map_or_else(away, Way::Made));
        });
    }
}

#[cfg(test)]
mod tests;
