//! Tests of clients against a transport with a toy driver.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pangea_core::ids::{NodeId, SnapshotVersion, TableId, TxnId};
use pangea_core::key::{Direction, KeyRange};
use pangea_core::protocol::Status;
use pangea_core::time::Span;
use pangea_core::txn::{Abort, Outcome, SqlState};

use super::*;
use crate::transport::frame::{self, Kind};
use crate::transport::tests::{cluster, config, loopback};
use crate::transport::{
    CLIENT_FRAME_MAX, ClientHello, Hello, LinkSettings, Transport, TransportEvent,
};

/// The toy's outcome: commits its arguments, at a version equal to their length.
fn committed(result: &[u8]) -> Outcome {
    let version = SnapshotVersion(result.len() as u64);
    Outcome::Committed { txn: TxnId::new(NodeId(0), 1), version, result: result.to_vec() }
}

fn run(call: ClientCall, held: &mut Vec<ClientReply>) {
    let ClientCall { procedure, args, reply } = call;
    match &*procedure {
        "echo" => reply.outcome(committed(&args)),
        "abort" => {
            let abort = Abort::new(SqlState::RAISE_EXCEPTION, "as requested");
            reply.outcome(Outcome::Aborted(abort));
        }
        "hold" => held.push(reply),
        "drop" => drop(reply),
        "large" => reply.outcome(committed(&vec![0; args.len() * 1024])),
        other => reply.refuse(format!("unknown procedure {other}")),
    }
}

fn answer(query: ClientQuery) {
    let ClientQuery { query, reply } = query;
    let row = |key: &[u8]| Row { key: key.to_vec(), version: SnapshotVersion(4), value: vec![1] };
    let answer = match query {
        Query::Status => {
            Answer::Status(Status { version: SnapshotVersion(5), ..Status::default() })
        }
        Query::Digest { version } => {
            Answer::Digest { version: version.unwrap_or(SnapshotVersion(5)), digest: 99 }
        }
        Query::Fresh => Answer::Fresh(SnapshotVersion(6)),
        Query::Table { start, .. } => Answer::Rows { rows: vec![row(&start)], is_end: true },
        other => panic!("the transport answers {other:?}"),
    };
    reply.send(&answer);
}

/// A node of a cluster of one. Its driver handles a whole frame of calls and answers the last one
/// first.
struct ToyProtocol {
    transport: Transport,
    submits: Arc<AtomicUsize>,
    troubles: Arc<Mutex<Vec<String>>>,
}

impl ToyProtocol {
    fn start(listen: SocketAddr) -> Self {
        let submits = Arc::new(AtomicUsize::new(0));
        let troubles = Arc::new(Mutex::new(Vec::new()));
        let (sender, work) = channel::<Vec<ClientCall>>();
        // Ends when the transport drops its callback, which owns the sender.
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for calls in work {
                calls.into_iter().rev().for_each(|call| run(call, &mut held));
            }
        });
        let mut config = config(0, &[], 1);
        config.listen = listen;
        let (count, reported) = (submits.clone(), troubles.clone());
        let on_event = move |event| match event {
            TransportEvent::Submit(calls) => {
                assert!(!calls.is_empty());
                count.fetch_add(1, Ordering::Relaxed);
                send(&sender, calls);
            }
            TransportEvent::Query(query) => answer(query),
            TransportEvent::Trouble { reason, .. } => reported.lock().unwrap().push(reason),
            other => panic!("{other:?} in a cluster of one"),
        };
        let transport = Transport::start(config, Arc::new(on_event)).unwrap();
        Self { transport, submits, troubles }
    }

    fn address(&self) -> SocketAddr {
        self.transport.local_address()
    }

    async fn client(&self) -> Client {
        Client::connect(self.address(), "test").await.unwrap()
    }
}

fn send(sender: &Sender<Vec<ClientCall>>, calls: Vec<ClientCall>) {
    sender.send(calls).expect("the toy's worker lives as long as its transport");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bug_that_one_client_meets_disconnects_it_and_no_other() {
    let toy = ToyProtocol::start(loopback(0));
    let (one, other) = (toy.client().await, toy.client().await);
    assert!(
        one.query(&Query::LatencySamples).await.is_err(),
        "the toy has no such query, and panics"
    );
    assert_eq!(other.fresh().await.unwrap(), SnapshotVersion(6));
    // The connection may be closed before the report.
    let reported = async || {
        while toy.troubles.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        toy.troubles.lock().unwrap().join("; ")
    };
    let reported =
        tokio::time::timeout(Duration::from_secs(30), reported()).await.expect("a report");
    assert!(
        reported.contains("thread client failed") && reported.contains("is a bug"),
        "{reported}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_calls_share_a_connection_and_each_gets_its_own_answer() {
    const TASKS: u64 = 4_000;
    const CALLS: u64 = 5;
    let toy = ToyProtocol::start(loopback(0));
    let client = toy.client().await;
    let call = |task: u64| {
        let client = client.clone();
        async move {
            for i in 0..CALLS {
                let args = (task << 32 | i).to_le_bytes();
                assert_eq!(client.call("echo", &args).await, Ok(committed(&args)));
            }
        }
    };
    let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(call(task))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let frames = toy.submits.load(Ordering::Relaxed) as u64;
    println!("{} calls in {frames} frames", TASKS * CALLS);
    assert!(frames * 10 < TASKS * CALLS, "{frames} frames: pending calls share a frame");
}

#[tokio::test]
async fn each_way_that_a_call_can_end_is_told_apart() {
    let toy = ToyProtocol::start(loopback(0));
    let client = toy.client().await;
    assert_eq!((client.node(), client.region(), client.protocol()), (NodeId(0), "a", "echo"));
    let aborted = client.call("abort", b"").await.unwrap();
    assert!(matches!(aborted, Outcome::Aborted(abort) if abort.message == "as requested"));
    let refused = Err(ClientError::Refused("unknown procedure fly".to_owned()));
    assert_eq!(client.call("fly", b"").await, refused);
    let dropped = tokio::time::timeout(Duration::from_secs(20), client.call("drop", b"")).await;
    assert!(dropped.expect("the call is answered nevertheless").unwrap_err().is_ambiguous());

    let (largest, over) = (CLIENT_FRAME_MAX / 1024 - 1, CLIENT_FRAME_MAX / 1024);
    let outcome = client.call("large", &vec![0; largest]).await.unwrap();
    assert_eq!(outcome, committed(&vec![0; largest * 1024]));
    let error = client.call("large", &vec![0; over]).await.unwrap_err();
    assert!(error.is_ambiguous() && error.to_string().contains("exceeds the limit"), "{error}");
    let error = client.call("echo", &vec![0; CLIENT_FRAME_MAX]).await.unwrap_err();
    assert!(matches!(error, ClientError::NotSent(_)), "{error}");

    // Calls that do not fit one frame together are sent in several.
    let args = vec![7; CLIENT_FRAME_MAX / 3];
    let calls = [(); 4].map(|()| client.call("echo", &args));
    let [a, b, c, d] = calls;
    let (a, b, c, d) = tokio::join!(a, b, c, d);
    assert!([a, b, c, d].iter().all(|outcome| *outcome == Ok(committed(&args))));
}

#[tokio::test]
async fn a_lost_connection_is_ambiguous_for_what_was_sent_and_comes_back_by_itself() {
    let toy = ToyProtocol::start(loopback(0));
    let client = toy.client().await;
    let address = toy.address();
    let held = tokio::spawn({
        let client = client.clone();
        async move { client.call("hold", b"").await }
    });
    // The unanswered call has been submitted once a later one has an answer.
    while toy.submits.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    client.call("echo", b"").await.unwrap();
    let stopping = std::thread::spawn(move || drop(toy));
    assert!(held.await.unwrap().unwrap_err().is_ambiguous());
    let error = client.call("echo", b"").await.unwrap_err();
    assert!(matches!(error, ClientError::NotSent(_)), "{error}");
    assert!(!client.is_connected());
    stopping.join().unwrap();

    let toy = ToyProtocol::start(address);
    client.connected().await;
    assert_eq!(client.call("echo", b"again").await, Ok(committed(b"again")));
    drop(toy);
}

#[tokio::test]
async fn queries_reach_the_driver_and_its_answers_come_back() {
    let toy = ToyProtocol::start(loopback(0));
    let client = toy.client().await;
    assert_eq!(client.status().await.unwrap().version, SnapshotVersion(5));
    assert_eq!(client.digest(None).await, Ok((SnapshotVersion(5), 99)));
    assert_eq!(client.digest(Some(SnapshotVersion(3))).await, Ok((SnapshotVersion(3), 99)));
    assert_eq!(client.fresh().await, Ok(SnapshotVersion(6)));
    let (version, range) = (Some(SnapshotVersion(5)), KeyRange::prefix(b"k"));
    let (rows, is_end) =
        client.table(TableId(1), version, range, Direction::Forward, 10).await.unwrap();
    assert_eq!((rows[0].key.as_slice(), is_end), (&b"k"[..], true));
    assert_eq!(client.links().await, Ok(Vec::new()));
}

#[tokio::test]
async fn links_are_seen_cut_healed_and_changed_through_a_client() {
    let nodes = cluster(2, |_| {});
    let client = Client::connect(nodes[0].address(), "test").await.unwrap();
    client.cut(NodeId(1)).await.unwrap();
    let links = client.links().await.unwrap();
    assert!(links.len() == 1 && links[0].peer == NodeId(1) && links[0].is_cut && links[0].is_up);
    client.heal().await.unwrap();
    assert!(!client.links().await.unwrap()[0].is_cut);

    let settings = LinkSettings { one_way: Span::from_ms(7), ..LinkSettings::default() };
    client.set_link(NodeId(1), settings).await.unwrap();
    assert_eq!(client.links().await.unwrap()[0].settings, settings);
    let refused = |error: Result<(), ClientError>| {
        assert!(matches!(error, Err(ClientError::Refused(_))), "{error:?}");
    };
    refused(client.cut(NodeId(0)).await);
    refused(client.set_link(NodeId(9), settings).await);
    let not_ours = client.query(&Query::Cut { from: NodeId(5), to: NodeId(1) }).await;
    refused(not_ours.map(|_| ()));
    assert!(!client.links().await.unwrap()[0].is_cut);
}

#[tokio::test]
async fn a_client_of_another_cluster_is_told_so() {
    let toy = ToyProtocol::start(loopback(0));
    let error = Client::connect(toy.address(), "other").await.unwrap_err();
    assert!(error.to_string().contains("cluster \"other\" does not match \"test\""), "{error}");
}

/// A hand-written client, already welcomed.
fn by_hand(toy: &ToyProtocol) -> TcpStream {
    let mut stream = TcpStream::connect(toy.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let hello = Hello::Client(ClientHello { cluster: "test".to_owned() });
    stream.write_all(&frame::encode(Kind::Hello, &hello.encode())).unwrap();
    let mut header = [0; 12];
    stream.read_exact(&mut header).unwrap();
    let body_len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    stream.read_exact(&mut vec![0; body_len as usize]).unwrap();
    stream
}

#[tokio::test]
async fn a_client_that_breaks_the_protocol_is_disconnected_and_no_other() {
    let toy = ToyProtocol::start(loopback(0));
    let client = toy.client().await;
    let mut oversized = frame::encode(Kind::Submit, b"");
    oversized[3] = 2;
    let mut corrupt = frame::encode(Kind::Query, b"12345678");
    corrupt[13] ^= 1;
    let cases = [
        ("malformed names", frame::encode(Kind::Submit, b"\xff\xff\xff")),
        ("malformed name index", frame::encode(Kind::Submit, b"\x01\x01a\x01\x00\x01\x00")),
        ("malformed end of calls", frame::encode(Kind::Submit, b"\x00\x00\x00")),
        ("malformed query", frame::encode(Kind::Query, b"\x00\xff")),
        ("unexpected Message", frame::encode(Kind::Message, b"")),
        ("exceeds the limit", oversized),
        ("wrong checksum", corrupt),
    ];
    for (reason, bytes) in cases {
        let mut stream = by_hand(&toy);
        stream.write_all(&bytes).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{reason}: the connection is closed");
        assert_eq!(client.call("echo", b"x").await, Ok(committed(b"x")), "after {reason}");
        let troubles = std::mem::take(&mut *toy.troubles.lock().unwrap());
        assert!(troubles.len() == 1 && troubles[0].contains(reason), "{reason}: {troubles:?}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_disconnected_and_no_other() {
    let toy = ToyProtocol::start(loopback(0));
    let client = toy.client().await;
    let mut greedy = by_hand(&toy);
    let mut calls = wire::SubmitBuffer::default();
    for request in 0..(2 * UNREAD_BYTES_MAX as u64) >> 20 {
        calls.push(request, "large", &[0; 1 << 10]);
    }
    greedy.write_all(&frame::encode(Kind::Submit, &calls.into_body())).unwrap();
    while toy.submits.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    // The worker answers in order, so it has answered all of them by now.
    assert_eq!(client.call("echo", b"x").await, Ok(committed(b"x")));
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    // The connection is closed or reset before all requested answers have arrived.
    while let Ok(len @ 1..) = greedy.read(&mut buffer) {
        received += len;
    }
    assert!(received < 2 * UNREAD_BYTES_MAX, "{received} bytes");
    assert_eq!(client.call("echo", b"x").await, Ok(committed(b"x")));
}
