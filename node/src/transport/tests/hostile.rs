//! Inputs that must not affect others: strangers, wrong hellos, malformed frames.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use super::*;
use crate::transport::frame::{self, Kind};
use crate::transport::hello::{ClientHello, Hello, LaneName, PeerHello, SessionId};
use crate::transport::{CLIENTS_MAX, SILENCE_MAX};

/// A valid hello from node 0 to node 1.
fn hello() -> PeerHello {
    PeerHello {
        cluster: "test".to_owned(),
        protocol: "echo".to_owned(),
        fingerprint: 7,
        likeness: Likeness::default(),
        from: NodeId(0),
        to: NodeId(1),
        lane: LaneName::Control,
        session: SessionId { incarnation: 1, attempt: 1 },
    }
}

fn peer_frame(change: impl FnOnce(&mut PeerHello)) -> Vec<u8> {
    let mut hello = hello();
    change(&mut hello);
    frame::encode(Kind::Hello, &Hello::Peer(hello).encode())
}

fn client_frame(cluster: &str) -> Vec<u8> {
    let hello = Hello::Client(ClientHello { cluster: cluster.to_owned() });
    frame::encode(Kind::Hello, &hello.encode())
}

fn with_byte(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    bytes[at] = byte;
    bytes
}

/// Sends `bytes` to a node, and returns its answer after it has closed the connection.
fn say(node: &TestNode, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(node.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// The hello of each stranger, with the expected report to the operator.
fn strangers() -> Vec<(&'static str, Vec<u8>)> {
    let oversized = (1u32 << 30).to_le_bytes();
    let mut endless = frame::encode(Kind::Hello, &[]);
    endless[..4].copy_from_slice(&oversized);
    vec![
        (
            "cluster \"other\" does not match \"test\"",
            peer_frame(|h| h.cluster = "other".to_owned()),
        ),
        (
            "protocol \"calvin\" does not match \"echo\"",
            peer_frame(|h| h.protocol = "calvin".to_owned()),
        ),
        ("nodes differ in `[echo]`", peer_frame(|h| h.fingerprint = 8)),
        ("node n9 is not in this cluster", peer_frame(|h| h.from = NodeId(9))),
        ("the dialer expected node n2, but this is node n1", peer_frame(|h| h.to = NodeId(2))),
        ("n2 must not dial node n1", peer_frame(|h| h.from = NodeId(2))),
        ("n1 must not dial node n1", peer_frame(|h| h.from = NodeId(1))),
        ("cluster \"other\" does not match \"test\"", client_frame("other")),
        ("wire version 200", with_byte(peer_frame(|_| {}), 4, 200)),
        ("unknown kind 200", with_byte(peer_frame(|_| {}), 5, 200)),
        ("unknown flags", with_byte(peer_frame(|_| {}), 7, 0x80)),
        ("wrong checksum", with_byte(peer_frame(|_| {}), 30, 0xff)),
        ("exceeds the limit of 16384", endless),
        ("Message frame instead of a hello", frame::encode(Kind::Message, b"hi")),
        ("magic", frame::encode(Kind::Hello, b"let me in")),
        ("malformed hello", frame::encode(Kind::Hello, b"PANGEA\r\n\xff\xff")),
        ("not Pangea", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("connection closed during the handshake", b"GET".to_vec()),
        ("connection closed during the handshake", Vec::new()),
    ]
}

#[test]
fn strangers_are_told_why_they_are_refused_and_harm_no_session() {
    let nodes = cluster(3, |_| {});
    for (i, (reason, bytes)) in strangers().into_iter().enumerate() {
        let answer = String::from_utf8_lossy(&say(&nodes[1], &bytes)).into_owned();
        assert!(answer.contains(reason), "case {i}: expected {reason:?}: {answer:?}");
        nodes[1].wait(reason, |_, event| match event {
            TransportEvent::Trouble { reason: reported, .. } => {
                reported.contains(reason).then_some(())
            }
            TransportEvent::PeerDown(peer) => panic!("case {i} disconnected {peer}"),
            _ => None,
        });
        for from in [&nodes[0], &nodes[2]] {
            from.send(&nodes[1], Lane::Control, vec![i as u8]);
            assert_eq!(nodes[1].wait_frame().3, [i as u8][..], "after case {i}");
        }
    }
    for node in &nodes {
        node.assert_none("a session ended", |event| matches!(event, TransportEvent::PeerDown(_)));
    }
}

#[test]
fn a_stranger_that_says_nothing_is_shown_out() {
    let node = TestNode::start(config(1, &[], 2));
    let mut silent = TcpStream::connect(node.address()).unwrap();
    let mut slow = TcpStream::connect(node.address()).unwrap();
    // The deadline is for the whole hello: a byte now and then does not extend it.
    slow.write_all(b"P").unwrap();
    for stream in [&mut silent, &mut slow] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("no data for 5 s in the handshake"), "{answer:?}");
    }
}

#[test]
fn clients_that_are_too_many_are_refused_and_a_peer_still_gets_in() {
    let node = TestNode::start(config(1, &[], 2));
    let mut clients: Vec<TcpStream> = Vec::new();
    for _ in 0..CLIENTS_MAX {
        let mut stream = TcpStream::connect(node.address()).unwrap();
        stream.write_all(&client_frame("test")).unwrap();
        let mut welcome = [0; frame::HEADER_LEN];
        stream.read_exact(&mut welcome).unwrap();
        clients.push(stream);
    }
    let answer = String::from_utf8_lossy(&say(&node, &client_frame("test"))).into_owned();
    assert!(answer.contains("limit of 16 clients is reached"), "{answer:?}");
    lanes(&node, attempt(1));
    node.wait("PeerUp", |_, event| matches!(event, TransportEvent::PeerUp(_)).then_some(()));

    drop(clients.pop());
    let until = Instant::now() + PATIENCE;
    while say(&node, &client_frame("test")).windows(7).any(|words| words == b"already") {
        assert!(Instant::now() < until, "a free slot is used again");
    }
}

#[test]
fn a_peer_that_is_refused_tells_its_own_operator_once() {
    let right = TestNode::start(config(1, &[], 2));
    let mut wrong = config(0, &[(NodeId(1), right.address())], 2);
    wrong.cluster = "other".to_owned();
    let wrong = TestNode::start(wrong);
    wrong.wait_trouble("cluster \"other\" does not match \"test\"");
    // Node 0 keeps retrying, and node 1 keeps refusing it.
    (0..5).for_each(|_| right.wait_trouble("cluster \"other\" does not match \"test\""));
    wrong.assert_none("reported twice", |event| matches!(event, TransportEvent::Trouble { .. }));
}

/// Story: a node with a new program was refused by the others, and nothing said how to upgrade.
#[test]
fn a_refusal_of_another_program_says_how_to_upgrade() {
    const ADVICE: &str =
        "To upgrade, stop all nodes in order (SIGTERM), and start all with the new";
    let right = TestNode::start(config(1, &[], 2));
    let other = |change: fn(&mut TransportConfig)| {
        let mut config = config(0, &[(NodeId(1), right.address())], 2);
        config.fingerprint += 1;
        change(&mut config);
        TestNode::start(config)
    };
    let newer = other(|config| config.likeness.code_version += 1);
    newer.wait_trouble(ADVICE);
    drop(newer);
    let differently_set = other(|config| config.likeness.settings = "epoch_ms = 20".to_owned());
    differently_set.wait("a refusal", |_, event| match event {
        TransportEvent::Trouble { reason, .. } if reason.contains("the two nodes differ") => {
            assert!(reason.contains("epoch_ms = 20") && !reason.contains(ADVICE), "{reason}");
            Some(())
        }
        _ => None,
    });
}

/// A hand-written node 0: both lanes of a session with node 1, not yet welcomed.
fn knock(node: &TestNode, session: SessionId) -> [TcpStream; 2] {
    [LaneName::Control, LaneName::Bulk].map(|lane| {
        let mut stream = TcpStream::connect(node.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = peer_frame(|hello| (hello.lane, hello.session) = (lane, session));
        stream.write_all(&hello).unwrap();
        stream
    })
}

/// A hand-written node 0: both lanes of a session with node 1, welcomed.
fn lanes(node: &TestNode, session: SessionId) -> [TcpStream; 2] {
    knock(node, session).map(|mut stream| {
        let mut welcome = [0; frame::HEADER_LEN];
        stream.read_exact(&mut welcome).unwrap();
        assert_eq!(welcome[..], frame::encode(Kind::Welcome, &[])[..]);
        stream
    })
}

fn attempt(attempt: u64) -> SessionId {
    SessionId { incarnation: 1, attempt }
}

#[test]
fn a_peer_that_breaks_the_protocol_loses_its_session_and_no_other() {
    let compressed = |body: &[u8]| {
        let mut bytes = frame::header(Kind::Message, frame::COMPRESSED, body).to_vec();
        bytes.extend_from_slice(body);
        bytes
    };
    let mut oversized = frame::encode(Kind::Message, b"x");
    oversized[3] = 0x7f;
    let cases = [
        ("wrong checksum", with_byte(frame::encode(Kind::Message, b"12345678"), 14, 0)),
        ("wire version 99", with_byte(frame::encode(Kind::Message, b"12345678"), 4, 99)),
        ("exceeds the limit", oversized),
        ("malformed", compressed(b"\x10\0\0\0 not LZ4")),
        ("exceeds the limit", compressed(b"\xff\xff\xff\xff bomb")),
        ("unexpected Submit", frame::encode(Kind::Submit, b"")),
        ("unexpected Hello", peer_frame(|_| {})),
        ("a pong without a ping", frame::encode(Kind::Pong, &[0xff; 8])),
        ("a pong without a ping", frame::encode(Kind::Pong, &[1])),
    ];
    // Node 2 is well-behaved; node 0 is hand-written.
    let honest = TestNode::start(config(2, &[], 3));
    let node = TestNode::start(config(1, &[(NodeId(2), honest.address())], 3));
    node.wait_up(&honest);
    honest.wait_up(&node);
    for (i, (reason, bytes)) in cases.into_iter().enumerate() {
        let [mut control, bulk] = lanes(&node, attempt(i as u64));
        let up = |_, event| matches!(event, TransportEvent::PeerUp(NodeId(0))).then_some(());
        node.wait("PeerUp", up);
        control.write_all(&bytes).unwrap();
        let down = |_, event| match event {
            TransportEvent::PeerDown(peer) => {
                assert_eq!(peer, NodeId(0), "case {i}");
                Some(())
            }
            TransportEvent::Frame { bytes, .. } => panic!("case {i} delivered {bytes:?}"),
            _ => None,
        };
        node.wait("PeerDown", down);
        node.wait_trouble(reason);
        honest.send(&node, Lane::Bulk, vec![i as u8]);
        assert_eq!(node.wait_frame().3, [i as u8][..], "after case {i}");
        drop(bulk);
    }
    honest.assert_none("the correct session ended", |event| {
        matches!(event, TransportEvent::PeerDown(_))
    });
}

#[test]
fn a_peer_that_connects_anew_replaces_its_session_and_an_old_attempt_does_not() {
    let node = TestNode::start(config(1, &[], 2));
    let up = |_, event| matches!(event, TransportEvent::PeerUp(NodeId(0))).then_some(());
    let _first = lanes(&node, attempt(5));
    node.wait("PeerUp", up);
    // The first session's host has vanished: its connections still look alive.
    let began = Instant::now();
    let [mut control, _bulk] = lanes(&node, attempt(6));
    node.wait("PeerDown", |_, event| match event {
        TransportEvent::PeerDown(_) => Some(()),
        TransportEvent::PeerUp(_) => panic!("two sessions at a time"),
        _ => None,
    });
    node.wait("PeerUp", up);
    assert!(began.elapsed() < SILENCE_MAX, "the wait was not in vain");
    for mut late in knock(&node, attempt(5)) {
        assert_eq!(late.read(&mut [0]).unwrap(), 0, "closed without an answer");
    }
    control.write_all(&frame::encode(Kind::Message, b"still connected")).unwrap();
    assert_eq!(node.wait_frame().3, &b"still connected"[..]);
}
