//! Fuzzing of frames and hellos, with inputs that are almost valid.

use bytes::Bytes;

use super::frame::{self, COMPRESSED, Decoder, Frame, FrameError, HEADER_LEN, Kind};
use super::hello::{ClientHello, ClientWelcome, Hello, LaneName, PeerHello, SessionId};
use super::likeness::Likeness;
use crate::fuzzing::{Outcome, Target, run, size};
use pangea_core::ids::NodeId;

/// The limit of bodies in these tests, so low that lengths above it are common.
const LIMIT: usize = 64 << 10;

const BUFFER_LEN: usize = 8 << 10;

fn frames() -> Vec<Vec<u8>> {
    let small = frame::encode(Kind::Message, b"body");
    let two = [small.clone(), frame::encode(Kind::Ping, &[])].concat();
    let body: Vec<u8> = (0..6_000u32).map(|i| (i / 100) as u8).collect();
    let packed = frame::compress(&body).expect("the text is repetitive");
    let header = frame::header(Kind::Message, COMPRESSED, &packed);
    vec![small, two, frame::encode(Kind::Submit, &[7; 3_000]), [&header[..], &packed].concat()]
}

/// Corrects the last length, and the checksums of all frames that the lengths lead to.
fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(header) = bytes.get(at..).and_then(|rest| rest.first_chunk::<HEADER_LEN>()) {
        let rest = bytes.len() - at - HEADER_LEN;
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let len = len.min(rest);
        bytes[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        let end = at + HEADER_LEN + len;
        let crc = crc32c::crc32c(&bytes[at..at + 8]);
        let crc = crc32c::crc32c_append(crc, &bytes[at + HEADER_LEN..end]);
        bytes[at + 8..at + HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

/// Decodes the frames in these bytes, which arrive `step` at a time, up to the first invalid one.
pub(super) fn cut(
    decoder: &mut Decoder,
    mut bytes: &[u8],
    step: usize,
) -> (Vec<Frame>, Option<FrameError>) {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let space = decoder.space();
        let len = space.len().min(step).min(bytes.len());
        space[..len].copy_from_slice(&bytes[..len]);
        decoder.advance(len);
        bytes = &bytes[len..];
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

fn look_at_frames(input: &[u8]) -> Outcome {
    let cut = |step| cut(&mut Decoder::new(BUFFER_LEN, LIMIT), input, step);
    let (frames, error) = cut(usize::MAX);
    assert_eq!(cut(11), (frames.clone(), error.clone()), "the chunks make no difference");
    let mut encoded = Vec::new();
    let mut unpacked = 0;
    for frame in &frames {
        encoded.extend(frame::header(frame.kind, frame.flags, &frame.body));
        encoded.extend_from_slice(&frame.body);
        match frame::plain_body(frame, LIMIT) {
            Ok(body) => {
                assert!(body.len() <= LIMIT);
                unpacked += usize::from(frame.flags & COMPRESSED != 0);
            }
            Err(error) => return Outcome::refused(error),
        }
    }
    assert!(input.starts_with(&encoded), "the received frames are those that were sent");
    match error {
        Some(error) => Outcome::refused((error, size(frames.len()))),
        None => {
            Outcome::taken((size(frames.len()) > 1, unpacked > 0, encoded.len() == input.len()))
        }
    }
}

#[test]
fn frames_of_a_connection() {
    run(Target {
        name: "frame",
        seeds: frames(),
        mend,
        look: look_at_frames,
        // A frame's header allocates its stated length, up to the limit. There are two decoders,
        // and a growing buffer exists along with its predecessor.
        bytes_max: 3 * LIMIT,
        // A compressed body may be much larger than its block.
        bytes_per_byte: 64,
    });
}

/// A frame of five bytes could state a length of 64 MB, which was then allocated.
fn look_at_compressed(input: &[u8]) -> Outcome {
    let body = Bytes::copy_from_slice(input);
    let frame = Frame { kind: Kind::Message, flags: COMPRESSED, body };
    match frame::plain_body(&frame, frame::BULK_FRAME_MAX) {
        Ok(body) => {
            if let Some(packed) = frame::compress(&body) {
                let frame = Frame { body: packed, ..frame };
                assert_eq!(frame::plain_body(&frame, body.len()), Ok(body.clone()));
            }
            Outcome::taken(size(body.len()).leading_zeros())
        }
        Err(error) => Outcome::refused(error),
    }
}

#[test]
fn compressed_bodies() {
    let bodies: [Vec<u8>; 3] =
        [vec![0; 40_000], b"abcdefgh".repeat(300), (0..3_000u32).map(|i| (i / 9) as u8).collect()];
    let pack = |body: &Vec<u8>| frame::compress(body).expect("the text is repetitive").to_vec();
    run(Target {
        name: "compressed-body",
        seeds: bodies.iter().map(pack).collect(),
        mend: |_| {},
        look: look_at_compressed,
        bytes_max: 64 << 10,
        // LZ4 expands a byte to at most 255, and the body is compressed again here.
        bytes_per_byte: 4 * 255,
    });
}

fn hellos() -> Vec<Vec<u8>> {
    let peer = PeerHello {
        cluster: "here".to_owned(),
        protocol: "minerva".to_owned(),
        fingerprint: 1 << 60,
        likeness: Likeness {
            procedures: "a.first\nbank.audit".to_owned(),
            settings: "epoch_ms = 15".to_owned(),
            ..Likeness::default()
        },
        from: NodeId(0),
        to: NodeId(300),
        lane: LaneName::Bulk,
        session: SessionId { incarnation: 1 << 50, attempt: 3 },
    };
    let client = ClientHello { cluster: "here".to_owned() };
    vec![Hello::Peer(peer).encode(), Hello::Client(client).encode()]
}

fn look_at_hello(input: &[u8]) -> Outcome {
    let welcome = postcard::from_bytes::<ClientWelcome>(input);
    if let Ok(welcome) = &welcome {
        let encoded = postcard::to_allocvec(welcome).expect("the hello can be encoded");
        assert_eq!(postcard::from_bytes(&encoded).as_ref(), Ok(welcome));
    }
    match Hello::decode(input) {
        Ok(hello) => {
            assert_eq!(Hello::decode(&hello.encode()).as_ref(), Ok(&hello));
            Outcome::taken(matches!(hello, Hello::Peer(_)))
        }
        Err(refusal) => Outcome::refused((refusal, welcome.is_ok())),
    }
}

#[test]
fn hellos_of_peers_and_clients() {
    run(Target {
        name: "hello",
        seeds: hellos(),
        mend: |_| {},
        look: look_at_hello,
        bytes_max: 4 << 10,
        bytes_per_byte: 16,
    });
}
