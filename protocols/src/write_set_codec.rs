//! Write sets encoded relative to arguments: a value that a client has sent is already in the
//! arguments, and is not sent, compressed and logged twice.
//!
//! ```text
//!   +-------+----+--------------------+----+--------+-----+-------+-----+--
//!   | count | 0  | write, as it is    | at | length | table | key   | ..
//!   | var   | u8 |                    | var| var    | var   |       |
//!   +-------+----+--------------------+----+--------+-----+-------+-----+--
//!             in full                   the value is `length` bytes of the
//!                                       arguments, from byte `at - 1` on
//! ```
//!
//! Programs mostly write values in the order in which they were given. Therefore a value is
//! searched for near the end of the previous one, at a few hundred positions at most. No value
//! begins before that end, so all of them together are no longer than the arguments, whoever sent
//! the bytes.

use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::TableId;
use pangea_core::key::Key;
use pangea_core::txn::Write;
use pangea_core::value::Value;

const WHAT: &str = "write";

/// The maximum number of writes for which memory is reserved before they are decoded.
const RESERVED_MAX: usize = 32;

/// Shorter values are not worth the search.
const LEN_MIN: usize = 64;

/// The maximum distance of a value from the end of the previous one, in bytes.
const NEAR: usize = 256;

/// Appends the writes of a call with these arguments to `out`.
pub(crate) fn encode(writes: &[Write], args: &[u8], out: &mut Vec<u8>) {
    out.put_varint(writes.len() as u64);
    let mut from = 0;
    for write in writes {
        let value = write.value.as_deref().filter(|value| value.len() >= LEN_MIN);
        let Some((at, len)) = value.and_then(|value| Some((find(args, from, value)?, value.len())))
        else {
            out.put_u8(0);
            write.encode(out);
            continue;
        };
        from = at + len;
        out.put_varint(at as u64 + 1);
        out.put_varint(len as u64);
        out.put_varint(write.table.0.into());
        out.put_bytes(&write.key);
    }
}

/// Decodes the writes that [`encode`] wrote.
///
/// # Errors
/// Returns an error if the bytes are malformed.
pub(crate) fn decode(from: &mut Reader<'_>, args: &[u8]) -> Result<Vec<Write>, DecodeError> {
    let count = from.count("write set")?;
    // Only as much as a short program needs is reserved, because a count may be anything.
    let mut writes = Vec::with_capacity(count.min(RESERVED_MAX));
    let mut passed = 0;
    for _ in 0..count {
        let at = from.varint(WHAT)?;
        writes.push(match at.checked_sub(1) {
            None => Write::decode(from)?,
            Some(at) => decode_given(at, from, args, &mut passed)?,
        });
    }
    Ok(writes)
}

/// Decodes a write whose value is in the arguments from byte `at` on, which must not be before
/// `passed`, the end of the previous value.
fn decode_given(
    at: u64,
    from: &mut Reader<'_>,
    args: &[u8],
    passed: &mut usize,
) -> Result<Write, DecodeError> {
    let malformed = || DecodeError::new(WHAT);
    let end = at.checked_add(from.varint(WHAT)?).ok_or_else(malformed)?;
    let table = u32::try_from(from.varint(WHAT)?).map_err(|_| malformed())?;
    let key = Key::from(from.bytes(WHAT)?);
    let (at, end) =
        usize::try_from(at).ok().zip(usize::try_from(end).ok()).ok_or_else(malformed)?;
    let value = args.get(at..end).filter(|_| at >= *passed).ok_or_else(malformed)?;
    *passed = end;
    Ok(Write { table: TableId(table), key, value: Some(Value::copy_from(value)) })
}

/// The position of a value in the arguments, near `from`.
fn find(args: &[u8], from: usize, value: &[u8]) -> Option<usize> {
    let near = &args[from..args.len().min(from + NEAR + value.len())];
    // Eight bytes are compared at once, and nearly always differ.
    let start = value.first_chunk::<8>();
    let is_it = |window: &[u8]| window.first_chunk() == start && window == value;
    near.windows(value.len()).position(is_it).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(writes: &[Write], args: &[u8]) -> usize {
        let mut bytes = Vec::new();
        encode(writes, args, &mut bytes);
        let from = &mut Reader::new(&bytes);
        assert_eq!(decode(from, args).unwrap(), writes);
        assert!(from.is_empty());
        for len in 0..bytes.len() {
            assert!(decode(&mut Reader::new(&bytes[..len]), args).is_err(), "truncated to {len}");
        }
        bytes.len()
    }

    fn write(key: u8, value: Option<&[u8]>) -> Write {
        Write { table: TableId(3), key: Key::from(&[key][..]), value: value.map(Value::copy_from) }
    }

    #[test]
    fn a_value_of_the_arguments_is_not_repeated() {
        let args: Vec<u8> = (0..2_000u32).map(|i| (i * i / 7) as u8).collect();
        let (one, two) = (&args[10..1_010], &args[1_015..2_000]);
        let all = [write(1, Some(one)), write(2, None), write(3, Some(two)), write(4, Some(b"x"))];
        assert!(round_trip(&all, &args) < 40);
        let reversed = [write(1, Some(two)), write(2, Some(one))];
        assert!(
            round_trip(&reversed, &args) > 1_000,
            "the second value is not searched for before the first"
        );
    }

    #[test]
    fn a_value_beyond_the_arguments_is_refused() {
        let args = [7u8; 100];
        let mut bytes = Vec::new();
        encode(&[write(1, Some(&args[..80]))], &args, &mut bytes);
        assert!(decode(&mut Reader::new(&bytes), &args[..79]).is_err());
        for (at, len) in [(u64::MAX, 1), (1, u64::MAX), (102, 0), (51, 51)] {
            let mut bytes = Vec::new();
            bytes.put_varint(1);
            bytes.put_varint(at);
            bytes.put_varint(len);
            bytes.put_varint(3);
            bytes.put_bytes(b"k");
            assert!(decode(&mut Reader::new(&bytes), &args).is_err(), "{len} at {at}");
        }
    }

    #[test]
    fn values_that_overlap_are_refused() {
        let args = [7u8; 100];
        let bytes = |places: [(u64, u64); 2]| {
            let mut bytes = Vec::new();
            bytes.put_varint(2);
            for (at, len) in places {
                bytes.put_varint(at + 1);
                bytes.put_varint(len);
                bytes.put_varint(3);
                bytes.put_bytes(b"k");
            }
            bytes
        };
        let read = |places| decode(&mut Reader::new(&bytes(places)), &args);
        assert_eq!(read([(0, 60), (60, 40)]).unwrap().len(), 2, "consecutive places");
        for places in [[(0, 60), (0, 60)], [(0, 60), (59, 41)], [(50, 50), (0, 50)]] {
            assert!(read(places).is_err(), "{places:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_values_are_they_come_back(
            args in prop::collection::vec(0u8..3, 0..300),
            cuts in prop::collection::vec((0usize..300, 0usize..100, any::<bool>()), 0..6),
        ) {
            let cut = |&(at, len, is_own): &(usize, usize, bool)| {
                let at = at.min(args.len());
                let value = &args[at..(at + len).min(args.len())];
                let value = if is_own { [value, b"own"].concat() } else { value.to_vec() };
                write(1, Some(&value))
            };
            let writes: Vec<Write> = cuts.iter().map(cut).collect();
            round_trip(&writes, &args);
        }
    }
}
