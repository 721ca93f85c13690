//! Small changes to valid bytes.

use fastrand::Rng;

/// The maximum length of inputs.
const LEN_MAX: usize = 16 << 10;

/// The maximum length of a part that is removed, repeated or taken from another input.
const PART_MAX: usize = 64;

/// Numbers at the limits of ranges.
const EDGES: [u64; 18] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    1 << 24,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    1 << 48,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Changes an input in one way. Parts may be copied from `others`.
pub fn change(input: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.usize(..=input.len());
    let end = (at + rng.usize(1..=PART_MAX)).min(input.len());
    match rng.u8(..10) {
        0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
        1 if at < input.len() => input[at] = edge(rng) as u8,
        2 => {
            let added: Vec<u8> = (0..rng.usize(1..9)).map(|_| byte(rng)).collect();
            input.splice(at..at, added);
        }
        3 => drop(input.drain(at..end)),
        4 => {
            let part = input[at..end].to_vec();
            input.splice(at..at, part);
        }
        5 => {
            let other = &others[rng.usize(..others.len())];
            let from = rng.usize(..=other.len());
            let upto = (from + rng.usize(1..=PART_MAX)).min(other.len());
            // The part replaces another one, or is inserted.
            let end = if rng.bool() { end } else { at };
            input.splice(at..end, other[from..upto].iter().copied());
        }
        6 | 7 => put_number(input, at, rng),
        8 => {
            let upto = (at + rng.usize(0..3)).min(input.len());
            input.splice(at..upto, varint(edge(rng)));
        }
        _ => input.truncate(at),
    }
    input.truncate(LEN_MAX);
}

/// Replaces a number of two, four or eight bytes, or increments or decrements it.
fn put_number(input: &mut [u8], at: usize, rng: &mut Rng) {
    let width = [2, 4, 8][rng.usize(..3)];
    let Some(place) = input.get_mut(at..at + width) else { return };
    let is_little_endian = rng.bool();
    if is_little_endian {
        place.reverse();
    }
    let before = place.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let number = match rng.u8(..3) {
        0 => before.wrapping_add(rng.u64(1..9)),
        1 => before.wrapping_sub(rng.u64(1..9)),
        _ => edge(rng),
    };
    place.copy_from_slice(&number.to_be_bytes()[8 - width..]);
    if is_little_endian {
        place.reverse();
    }
}

fn edge(rng: &mut Rng) -> u64 {
    let edge = EDGES[rng.usize(..EDGES.len())];
    if rng.bool() { edge } else { edge.wrapping_sub(rng.u64(..4)) }
}

fn byte(rng: &mut Rng) -> u8 {
    [0, 0xff, rng.u8(..)][rng.usize(..3)]
}

/// Encodes a number as the codec's varint.
fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}
