//! Clients that violate the protocol: each gets an error and is disconnected, and other clients are
//! not affected.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::server::{connect, with_server};

const SEED: u64 = 7;
/// The number of connections that send random bytes.
const RANDOM_CLIENTS: usize = 300;

/// Sends bytes and reads until the server closes the connection. With `is_leaving` the client shuts
/// its side down after sending.
fn talk(address: SocketAddr, bytes: &[u8], is_leaving: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    if is_leaving {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

async fn answer(address: SocketAddr, bytes: Vec<u8>) -> String {
    let answer = tokio::task::spawn_blocking(move || talk(address, &bytes, false)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

pub fn startup(minor: u16) -> Vec<u8> {
    let body = [&[0, 3], &minor.to_be_bytes()[..], b"user\0me\0\0"].concat();
    [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()
}

pub fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// A well-formed frame of each type that has contents.
fn frames() -> Vec<Vec<u8>> {
    vec![
        frame(b'Q', b"select 1\0"),
        frame(b'P', b"n\0select $1\0\0\x01\0\0\0\x17"),
        frame(b'B', b"p\0n\0\0\x01\0\x01\0\x01\0\0\0\x04\0\0\0\x07\0\x01\0\x01"),
        frame(b'D', b"Pp\0"),
        frame(b'E', b"p\0\0\0\0\x05"),
        frame(b'C', b"Pp\0"),
        frame(b'f', b"why\0"),
    ]
}

#[test]
fn what_breaks_the_protocol_is_told_so_and_hurts_no_other_client() {
    with_server(|address, _| async move {
        let other = connect(address).await;
        let old_protocol = [&8u32.to_be_bytes()[..], &131_072u32.to_be_bytes()].concat();
        let session = |bytes: &[u8]| [&startup(0)[..], bytes].concat();
        let cases = [
            (vec![255; 8], "08P01", "invalid length of startup packet"),
            (b"\0\0\0\x09\0\x03\0\0x".to_vec(), "08P01", "invalid string in message"),
            (old_protocol, "0A000", "unsupported frontend protocol 2.0"),
            (b"\0\0\0\x09\0\x03\0\0\0".to_vec(), "28000", "no PostgreSQL user name"),
            (session(b"Q\xff\xff\xff\xff"), "08P01", "invalid message length"),
            (session(b"S\0\0\xff\xff"), "08P01", "invalid message length 65535: at most 10000"),
            (session(b"?\0\0\0\x04"), "08P01", "invalid frontend message type 63"),
            (session(&frame(b'P', b"a\0")), "08P01", "invalid string in message"),
        ];
        for (bytes, code, message) in cases {
            let answer = answer(address, bytes).await;
            assert!(answer.contains("SFATAL\0"), "{message}: {answer:?}");
            assert!(answer.contains(&format!("C{code}\0M{message}")), "{answer:?}");
        }
        assert_eq!(other.query("select 1", &[]).await.unwrap().len(), 1);
    });
}

#[test]
fn a_frame_of_any_type_that_is_cut_short_ends_its_own_connection_alone() {
    with_server(|address, _| async move {
        let other = connect(address).await;
        for whole in frames() {
            let (kind, body) = (whole[0], &whole[5..]);
            let bytes = [startup(0), frame(kind, &body[..body.len() - 1])].concat();
            let answer = answer(address, bytes).await;
            assert!(answer.contains("SFATAL\0VFATAL\0C08P01\0"), "{}: {answer:?}", kind as char);
            assert_eq!(other.query("select 1", &[]).await.unwrap().len(), 1);
        }
    });
}

#[test]
fn random_clients_hurt_no_other() {
    // A task that panics ends its connection, as a bad frame does. Only this flag distinguishes the
    // two.
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        HAS_PANICKED.store(true, Ordering::SeqCst);
        report(panic);
    }));
    with_server(|address, _| async move {
        let other = connect(address).await;
        let mut rng = fastrand::Rng::with_seed(SEED);
        for _ in 0..RANDOM_CLIENTS {
            let mut bytes = startup(0);
            let is_session = rng.bool();
            for frame in frames() {
                bytes.extend(frame);
            }
            let first = if is_session { startup(0).len() } else { 0 };
            for _ in 0..rng.usize(1..6) {
                let at = rng.usize(first..bytes.len());
                bytes[at] = rng.u8(..);
            }
            tokio::task::spawn_blocking(move || talk(address, &bytes, true)).await.unwrap();
        }
        assert_eq!(other.query("select 1", &[]).await.unwrap().len(), 1);
    });
    assert!(!HAS_PANICKED.load(Ordering::SeqCst));
}

#[test]
fn a_client_of_a_newer_minor_version_is_told_the_one_that_is_spoken() {
    with_server(|address, _| async move {
        let bytes = [startup(2), frame(b'X', b"")].concat();
        let answer = tokio::task::spawn_blocking(move || talk(address, &bytes, false)).await;
        // The full version number 3.0 and no unknown options, followed by a normal session.
        assert!(answer.unwrap().starts_with(b"v\0\0\0\x0c\0\x03\0\0\0\0\0\0R\0\0\0\x08\0\0\0\0"));
    });
}
