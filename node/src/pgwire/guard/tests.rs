//! Frames of every type: complete, truncated, extended and randomly mutated.

use super::*;

/// The number of mutated frames: enough to detect a missing check many times over.
const MUTATIONS: usize = 20_000;
const SEED: u64 = 42;

pub(super) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (body.len() + LENGTH_BYTES) as u32;
    [&[kind][..], &len.to_be_bytes(), body].concat()
}

fn packet(body: &[u8]) -> Vec<u8> {
    let len = (body.len() + LENGTH_BYTES) as u32;
    [&len.to_be_bytes()[..], body].concat()
}

/// A frame of each type, with a value in every field.
pub(super) fn bodies() -> Vec<(u8, Vec<u8>)> {
    let bind = [
        &b"p\0s\0"[..],
        &[0, 1, 0, 1],
        &[0, 2, 0, 0, 0, 1, b'x', 255, 255, 255, 255],
        &[0, 2, 0, 1, 0, 0],
    ]
    .concat();
    vec![
        (b'Q', "select 'é'\0".into()),
        (b'P', b"n\0select $1\0\0\x02\0\0\0\x17\0\0\0\x19".to_vec()),
        (b'B', bind),
        (b'D', b"Sn\0".to_vec()),
        (b'C', b"Pn\0".to_vec()),
        (b'E', b"p\0\0\0\0\x05".to_vec()),
        (b'H', Vec::new()),
        (b'S', Vec::new()),
        (b'X', Vec::new()),
        (b'd', b"data".to_vec()),
        (b'c', Vec::new()),
        (b'f', b"why\0".to_vec()),
    ]
}

/// A startup packet of each kind.
pub(super) fn openings() -> Vec<Vec<u8>> {
    let version = 196_608u32.to_be_bytes();
    vec![
        packet(&[&version[..], b"user\0me\0options\0-c x=y\0_pq_.x\0\0\0"].concat()),
        packet(&[80_877_102u32, 7, 9].map(u32::to_be_bytes).concat()),
        packet(&80_877_103u32.to_be_bytes()),
        packet(&80_877_104u32.to_be_bytes()),
        packet(&131_072u32.to_be_bytes()),
    ]
}

/// Decodes a message. Invalid text counts as malformed.
fn read(bytes: &[u8]) -> Result<Option<PgWireFrontendMessage>, Malformed> {
    match message(&mut BytesMut::from(bytes))? {
        Some(Incoming::Message(message)) => Ok(Some(message)),
        Some(Incoming::NotText { error, .. }) => Err(Malformed(error.message)),
        None => Ok(None),
    }
}

/// Asserts that a decoded message re-encodes to its input, byte for byte.
pub(super) fn assert_faithful(message: &PgWireFrontendMessage, sent: &[u8]) {
    let mut said = BytesMut::new();
    message.encode(&mut said).unwrap();
    assert_eq!(&said[..], sent, "{message:?}");
}

#[test]
fn every_type_is_read_whole_and_leaves_what_follows() {
    for (kind, body) in bodies() {
        let sent = frame(kind, &body);
        let mut input = BytesMut::from(&[&sent[..], b"Q\0\0"].concat()[..]);
        let Ok(Some(Incoming::Message(message))) = message(&mut input) else {
            panic!("{sent:?} is understood")
        };
        assert_faithful(&message, &sent);
        assert_eq!(&input[..], b"Q\0\0", "after {message:?}");
    }
}

#[test]
fn a_frame_that_is_not_whole_yet_is_waited_for() {
    for (kind, body) in bodies() {
        let sent = frame(kind, &body);
        for len in 0..sent.len() {
            assert!(matches!(read(&sent[..len]), Ok(None)), "{} at {len}", char::from(kind));
        }
    }
}

#[test]
fn a_frame_that_ends_within_a_field_or_after_the_last_is_malformed() {
    for (kind, body) in bodies() {
        // CopyData may contain any bytes.
        let is_free = kind == b'd';
        for len in 0..body.len() {
            let is_read = read(&frame(kind, &body[..len])).is_ok();
            assert_eq!(is_read, is_free, "{} cut at {len}", char::from(kind));
        }
        let is_read = read(&frame(kind, &[&body[..], b"\0"].concat())).is_ok();
        assert_eq!(is_read, is_free, "{} with an extra byte", char::from(kind));
    }
}

#[test]
fn random_changes_never_panic_and_are_never_misread() {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let (mut read_count, mut malformed_count) = (0, 0);
    for _ in 0..MUTATIONS {
        let bodies = bodies();
        let (kind, mut body) = bodies[rng.usize(..bodies.len())].clone();
        for _ in 0..rng.usize(1..4) {
            let random = rng.u8(..);
            match rng.u8(..3) {
                0 if !body.is_empty() => {
                    let at = rng.usize(..body.len());
                    body[at] = *rng.choice(&[0, 1, 127, 128, 255, random]).unwrap();
                }
                1 if !body.is_empty() => drop(body.remove(rng.usize(..body.len()))),
                _ => body.insert(rng.usize(..=body.len()), random),
            }
        }
        let sent = frame(kind, &body);
        match read(&sent) {
            Ok(message) => {
                assert_faithful(&message.expect("the frame is complete"), &sent);
                read_count += 1;
            }
            Err(_) => malformed_count += 1,
        }
    }
    assert!(read_count > 1_000 && malformed_count > 1_000, "{read_count} {malformed_count}");
}

#[test]
fn what_is_wrong_is_said() {
    let many = [&b"\0\0"[..], &[0xff; 2]].concat();
    let cases: [(Vec<u8>, &str); 12] = [
        (b"?".to_vec(), "invalid frontend message type 63"),
        (frame(b'p', b"secret\0"), "invalid frontend message type 112"),
        (b"S\0\0\0\x03".to_vec(), "invalid message length 3: at most 10000"),
        (b"S\0\0\x27\x11".to_vec(), "invalid message length 10001: at most 10000"),
        (b"Q\xff\xff\xff\xff".to_vec(), "invalid message length 4294967295: at most 67108864"),
        (frame(b'Q', b"select"), "invalid string in message"),
        (frame(b'Q', b"\xff\0"), "invalid byte sequence for encoding \"UTF8\": 0xff"),
        (frame(b'D', b"Xn\0"), "invalid target 88 of a message"),
        (frame(b'P', &many), "insufficient data left in message"),
        (frame(b'B', &many), "insufficient data left in message"),
        (frame(b'B', b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0"), "invalid length of a parameter"),
        (frame(b'S', b"\0"), "invalid message format"),
    ];
    for (sent, what) in cases {
        assert_eq!(read(&sent).unwrap_err(), Malformed::new(what), "{sent:?}");
    }
}

#[test]
fn a_frame_whose_text_is_none_is_taken_whole_and_leaves_what_follows() {
    let mut input = BytesMut::from(&[&frame(b'P', b"\xff\0a\xc3(\0\0\0")[..], b"S"].concat()[..]);
    let Ok(Some(Incoming::NotText { kind, error })) = message(&mut input) else {
        panic!("the message is complete, and not UTF-8")
    };
    assert_eq!((kind, error.code.as_str(), &input[..]), (b'P', "22021", &b"S"[..]));
    assert!(error.message.ends_with(": 0xff"), "the first text is reported: {error}");
    let cut = message(&mut BytesMut::from(&frame(b'P', b"\xff\0a\0")[..]));
    assert_eq!(cut.unwrap_err(), Malformed::new("insufficient data left in message"));
}

#[test]
fn openings_are_read_whole_or_not_at_all() {
    let version = 196_608u32.to_be_bytes();
    let session = packet(&[&version[..], b"user\0me\0database\0\0\0"].concat());
    let cancel = packet(&[80_877_102u32, 7, 9].map(u32::to_be_bytes).concat());
    let ssl = packet(&80_877_103u32.to_be_bytes());
    for sent in [&session, &cancel, &ssl] {
        for len in 0..sent.len() {
            assert_eq!(opening(&mut BytesMut::from(&sent[..len])), Ok(None), "at {len}");
            let cut = opening(&mut BytesMut::from(&packet(&sent[4..][..len.max(4) - 4])[..]));
            assert!(cut.is_err(), "{sent:?} cut at {len}: {cut:?}");
        }
    }
    let read = |sent: &[u8]| opening(&mut BytesMut::from(sent)).unwrap().unwrap();
    let Opening::Session(startup) = read(&session) else { panic!("a session was requested") };
    let parameters = startup.parameters.into_iter().collect::<Vec<_>>();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(parameters, [pair("database", ""), pair("user", "me")]);
    let Opening::Cancel(request) = read(&cancel) else { panic!("a cancel was requested") };
    assert_eq!((request.pid, request.secret_key.as_i32()), (7, Some(9)));
    assert_eq!(read(&ssl), Opening::Encryption { is_tls: true });
    let gss = packet(&80_877_104u32.to_be_bytes());
    assert_eq!(read(&gss), Opening::Encryption { is_tls: false });
    let old = packet(&131_072u32.to_be_bytes());
    assert_eq!(read(&old), Opening::Unsupported { major: 2, minor: 0 });
}

#[test]
fn random_changes_of_openings_never_panic() {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let version = 196_608u32.to_be_bytes();
    let bodies = [
        [&version[..], b"user\0me\0options\0-c x=y\0\0"].concat(),
        [80_877_102u32, 7, 9].map(u32::to_be_bytes).concat(),
        80_877_103u32.to_be_bytes().to_vec(),
    ];
    let (mut read_count, mut malformed_count) = (0, 0);
    for _ in 0..MUTATIONS {
        let mut body = bodies[rng.usize(..bodies.len())].clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..body.len());
            body[at] = rng.u8(..);
        }
        body.truncate(rng.usize(1..=body.len()));
        match opening(&mut BytesMut::from(&packet(&body)[..])) {
            Ok(opening) => {
                assert!(opening.is_some(), "the packet is complete");
                read_count += 1;
            }
            Err(_) => malformed_count += 1,
        }
    }
    assert!(read_count > 1_000 && malformed_count > 1_000, "{read_count} {malformed_count}");
}
