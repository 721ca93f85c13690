//! Fuzzing of startup packets and session messages, with inputs that are almost valid.

use std::fmt::Debug;

use super::tests::{assert_faithful, bodies, frame, openings};
use super::*;
use crate::fuzzing::{Outcome, Target, run, size};

/// Corrects the length of each frame so that none reaches past the end.
fn mend_messages(bytes: &mut [u8]) {
    let mut at = 1;
    while let Some(len) = bytes.get(at..).and_then(length) {
        let len = len.clamp(LENGTH_BYTES, bytes.len() - at);
        bytes[at..at + LENGTH_BYTES].copy_from_slice(&(len as u32).to_be_bytes());
        at += len + 1;
    }
}

/// The messages decoded from a stream, as text, and how it ended. Each message was checked to
/// re-encode to its input.
type Said = (Vec<String>, Result<(), Malformed>);

/// Decodes the messages in these bytes, which arrive `step` at a time.
fn messages(bytes: &[u8], step: usize) -> Said {
    let mut input = BytesMut::new();
    let mut said = Vec::new();
    for chunk in bytes.chunks(step) {
        input.extend_from_slice(chunk);
        loop {
            let before = input.clone();
            match message(&mut input) {
                Ok(None) => break,
                Ok(Some(Incoming::Message(message))) => {
                    assert_faithful(&message, &before[..before.len() - input.len()]);
                    said.push(format!("{message:?}"));
                }
                Ok(Some(Incoming::NotText { kind, error })) => said.push(format!("{kind} {error}")),
                Err(malformed) => return (said, Err(malformed)),
            }
        }
    }
    (said, Ok(()))
}

fn look_at_messages(bytes: &[u8]) -> Outcome {
    let (said, ended) = messages(bytes, usize::MAX);
    // Checking a quarter of the inputs is enough.
    if bytes.len().is_multiple_of(4) {
        assert_eq!(
            messages(bytes, 5),
            (said.clone(), ended.clone()),
            "the chunks make no difference"
        );
    }
    let mut kinds = said.iter().map(|said| said.split(['(', ' ']).next().unwrap_or_default());
    match ended {
        Ok(()) => Outcome::taken((size(said.len()), kinds.next_back())),
        Err(malformed) => Outcome::refused((size(said.len()), malformed)),
    }
}

#[test]
fn messages_of_a_session() {
    let frames: Vec<Vec<u8>> = bodies().iter().map(|(kind, body)| frame(*kind, body)).collect();
    let all = frames.concat();
    run(Target {
        name: "pgwire-message",
        seeds: [frames, vec![all]].concat(),
        mend: mend_messages,
        look: look_at_messages,
        bytes_max: 16 << 10,
        // A value of four bytes takes 32 in its message, and its text form as much again.
        bytes_per_byte: 512,
    });
}

fn mend_opening(bytes: &mut [u8]) {
    let len = bytes.len() as u32;
    if let Some(place) = bytes.first_chunk_mut() {
        *place = len.to_be_bytes();
    }
}

/// The first words of the debug text; the rest depends on the client's input.
fn alike(of: &impl Debug) -> String {
    format!("{of:?}").split_inclusive(['(', ' ']).take(4).collect()
}

fn look_at_opening(bytes: &[u8]) -> Outcome {
    let mut input = BytesMut::from(bytes);
    let opening = match opening(&mut input) {
        Ok(None) => return Outcome::refused("the message is incomplete"),
        Err(malformed) => return Outcome::refused(alike(&malformed)),
        Ok(Some(opening)) => opening,
    };
    let taken = &bytes[..bytes.len() - input.len()];
    let is_session = matches!(opening, Opening::Session(_));
    let mut said = BytesMut::new();
    match opening {
        Opening::Session(startup) => {
            // Duplicate or unordered parameters are re-encoded once and in order.
            PgWireFrontendMessage::Startup(startup)
                .encode(&mut said)
                .expect("the message can be encoded");
            let understood =
                |mut bytes| super::opening(&mut bytes).expect("the message is understood");
            assert_eq!(
                understood(said),
                understood(BytesMut::from(taken)),
                "the encoding is reversible"
            );
        }
        Opening::Cancel(request) => {
            let request = PgWireFrontendMessage::CancelRequest(request);
            request.encode(&mut said).expect("the message can be encoded");
            assert_eq!(&said[..], taken);
        }
        Opening::Encryption { .. } => assert_eq!(taken.len(), 8),
        Opening::Unsupported { major, .. } => assert_ne!(major, MAJOR),
    }
    Outcome::taken((is_session, input.is_empty()))
}

#[test]
fn openings_of_a_connection() {
    run(Target {
        name: "pgwire-opening",
        seeds: openings(),
        mend: mend_opening,
        look: look_at_opening,
        bytes_max: 16 << 10,
        // A parameter of two empty texts takes a tree node.
        bytes_per_byte: 512,
    });
}
