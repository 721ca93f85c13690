//! Tests with nodes that pin versions, and nodes that do not exist.

use std::net::TcpListener;
use std::time::Duration;

use super::*;
use crate::client::{Answer, ClientQuery, Pinned, Query};
use crate::transport::tests::{config, loopback};
use crate::transport::{Transport, TransportEvent};

/// Timeout for events that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node that pins every version, with this pin number.
fn node(listen: SocketAddr, number: u64) -> Transport {
    let mut config = config(0, &[], 1);
    config.listen = listen;
    let on_event = move |event| {
        if let TransportEvent::Query(ClientQuery { query: Query::Pin { .. }, reply }) = event {
            reply.send(&Answer::Pinned(Pinned::Held(number)));
        }
    };
    Transport::start(config, Arc::new(on_event)).unwrap()
}

/// An address that accepts connections but never answers, as long as this exists.
fn silent() -> TcpListener {
    TcpListener::bind(loopback(0)).unwrap()
}

fn peer(name: &str, address: SocketAddr) -> Peer {
    Peer::new(name.to_owned(), address, "test".to_owned())
}

async fn held(peers: &[Peer]) -> Result<u64, String> {
    let pinned = pin_on_one(peers, SnapshotVersion(1)).await;
    pinned.map(|hold| hold.number).map_err(|refusal| refusal.reason)
}

/// Each statement used to wait a second for the near node of another shard if it had been down
/// since this node started.
#[tokio::test]
async fn a_node_that_does_not_answer_is_waited_for_once() {
    let (silent, far) = (silent(), node(loopback(0), 7));
    let peers = [peer("near", silent.local_addr().unwrap()), peer("far", far.local_address())];
    assert_eq!(held(&peers).await, Ok(7));
    let began = Instant::now();
    // Runs for longer than a failure is remembered.
    while began.elapsed() < 2 * AWAY_FOR {
        let asked = Instant::now();
        assert_eq!(held(&peers).await, Ok(7));
        assert!(asked.elapsed() < CONNECT_DEADLINE / 2, "{:?}", asked.elapsed());
    }
}

#[tokio::test]
async fn whoever_waits_for_one_node_waits_at_the_same_time() {
    const SESSIONS: usize = 20;
    let silent = silent();
    let peers = Arc::new([peer("near", silent.local_addr().unwrap())]);
    let began = Instant::now();
    let session = |_| {
        let peers = peers.clone();
        tokio::spawn(async move { held(&*peers).await })
    };
    for session in (0..SESSIONS).map(session).collect::<Vec<_>>() {
        let why = session.await.unwrap().unwrap_err();
        assert_eq!(why, "near: can't connect to the node");
    }
    assert!(began.elapsed() < CONNECT_DEADLINE * 3, "{:?}", began.elapsed());
}

#[tokio::test]
async fn the_nearest_is_asked_again_when_it_is_back() {
    let address = silent().local_addr().unwrap();
    let far = node(loopback(0), 7);
    let peers = [peer("near", address), peer("far", far.local_address())];
    assert_eq!(held(&peers).await, Ok(7));
    let _near = node(address, 8);
    let began = Instant::now();
    while held(&peers).await != Ok(8) {
        assert!(began.elapsed() < PATIENCE, "the node is not queried");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
