//! The encoding of frames, independent of sockets.
//!
//! ```text
//!   0        4         5      6        8        12
//!   | length | version | kind | flags  | CRC32C | body: length bytes |
//!     u32      u8        u8     u16      u32
//! ```
//!
//! All numbers are little-endian. The checksum covers the first eight bytes and the body as
//! transmitted: TCP's sixteen bits miss one error in some thousands, and middleboxes recompute
//! them. With [`COMPRESSED`] set, the body is the original length (u32) and one LZ4 block.
//!
//! A length above the connection's limit is rejected before memory is reserved for it. Other
//! versions, unknown kinds and unknown flags are rejected too, because the following bytes could
//! not be interpreted.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

/// The version of the wire format of a connection, including the hello and protocols' messages.
pub const WIRE_VERSION: u8 = 19;

/// The length of the header before a frame's body.
pub(crate) const HEADER_LEN: usize = 12;

/// The maximum frame on the control lane; acknowledgements and votes are far smaller.
pub const CONTROL_FRAME_MAX: usize = 4 << 20;
/// The maximum frame on the bulk lane: a batch is 4 MB, and a chunk of a checkpoint may be larger.
pub const BULK_FRAME_MAX: usize = 64 << 20;
/// The maximum frame to or from a client.
pub const CLIENT_FRAME_MAX: usize = 16 << 20;
/// The maximum frame before the other side is known.
pub(crate) const HELLO_FRAME_MAX: usize = 16 << 10;

/// Flag: the body is compressed.
pub(crate) const COMPRESSED: u16 = 1;

/// A shorter body is sent uncompressed, because LZ4 could save less than a packet.
const COMPRESS_LEN_MIN: usize = 1 << 10;
/// The fraction (one in this number) that compression must save. Otherwise the frame is sent
/// uncompressed, which saves the receiver the work.
const COMPRESS_GAIN: usize = 8;
/// The maximum expansion of LZ4: bytes of output for one byte of input.
const LZ4_GAIN_MAX: usize = 255;

/// The minimum length of a read. For less space a new buffer is started, to save system calls.
const READ_LEN_MIN: usize = 4 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The identity of the side that connected; always its first frame.
    Hello,
    /// The connection is accepted.
    Welcome,
    /// The connection is refused; the body is the reason as text.
    Refused,
    /// A protocol's message.
    Message,
    /// Requests a `Pong` with the same body.
    Ping,
    /// The answer to a ping.
    Pong,
    /// A client's calls.
    Submit,
    /// A client's query.
    Query,
    /// Answers to a client.
    Answers,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Welcome,
        Self::Refused,
        Self::Message,
        Self::Ping,
        Self::Pong,
        Self::Submit,
        Self::Query,
        Self::Answers,
    ];

    fn to_byte(self) -> u8 {
        self as u8 + 1
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }
}

/// A complete received frame with a valid checksum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    pub kind: Kind,
    pub flags: u16,
    /// The body as transmitted.
    pub body: Bytes,
}

/// An invalid frame. The bytes after it can't be interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    Version(u8),
    Kind(u8),
    Flags(u16),
    TooLarge { len: usize, limit: usize },
    Checksum,
    Compression,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "frame of wire version {version}, but this node uses {WIRE_VERSION} (or the other \
                 side is not Pangea)"
            ),
            Self::Kind(kind) => write!(f, "frame of unknown kind {kind}"),
            Self::Flags(flags) => write!(f, "frame with unknown flags {flags:#06x}"),
            Self::TooLarge { len, limit } => {
                write!(f, "frame of {len} bytes exceeds the limit of {limit}")
            }
            Self::Checksum => f.write_str("frame has a wrong checksum"),
            Self::Compression => f.write_str("frame has a malformed compressed body"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The header for `body`.
///
/// # Panics
/// When the body is longer than the largest limit.
pub(crate) fn header(kind: Kind, flags: u16, body: &[u8]) -> [u8; HEADER_LEN] {
    assert!(body.len() <= BULK_FRAME_MAX, "a frame was checked against its limit");
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[4] = WIRE_VERSION;
    header[5] = kind.to_byte();
    header[6..8].copy_from_slice(&flags.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..8]), body);
    header[8..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Encodes a whole frame in one buffer, for small or rare frames.
pub(crate) fn encode(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_LEN + body.len());
    frame.extend_from_slice(&header(kind, 0, body));
    frame.extend_from_slice(body);
    frame
}

/// Compresses a body; `None` if that saves too little.
pub(crate) fn compress(body: &[u8]) -> Option<Bytes> {
    if body.len() < COMPRESS_LEN_MIN {
        return None;
    }
    let mut out = vec![0; 4 + lz4_flex::block::get_maximum_output_size(body.len())];
    out[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    let len = 4 + lz4_flex::block::compress_into(body, &mut out[4..]).ok()?;
    if len > body.len() - body.len() / COMPRESS_GAIN {
        return None;
    }
    out.truncate(len);
    // The frame may wait in a delay queue, which should not retain the unused capacity.
    out.shrink_to_fit();
    Some(Bytes::from(out))
}

/// The body of a frame, decompressed if necessary, of at most `limit` bytes.
///
/// # Errors
/// When the compressed form is malformed, or its stated length exceeds `limit`.
pub(crate) fn plain_body(frame: &Frame, limit: usize) -> Result<Bytes, FrameError> {
    if frame.flags & COMPRESSED == 0 {
        return Ok(frame.body.clone());
    }
    let (len, block) = frame.body.split_first_chunk().ok_or(FrameError::Compression)?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > limit {
        return Err(FrameError::TooLarge { len, limit });
    }
    // This check precedes the allocation, because a few bytes may state a huge length.
    if len > block.len() * LZ4_GAIN_MAX {
        return Err(FrameError::Compression);
    }
    match lz4_flex::block::decompress(block, len) {
        Ok(body) if body.len() == len => Ok(Bytes::from(body)),
        _ => Err(FrameError::Compression),
    }
}

/// Splits received bytes into frames. Bytes are read into [`Decoder::space`], and a frame's body is
/// a slice of the buffer that it was read into. Only the start of a frame that did not fit its
/// buffer is copied.
pub(crate) struct Decoder {
    /// Initialised over its whole length; the first `filled` bytes have been received.
    buffer: BytesMut,
    filled: usize,
    buffer_len: usize,
    limit: usize,
}

struct Header {
    body_len: usize,
    kind: Kind,
    flags: u16,
    crc: u32,
}

impl Header {
    fn parse(bytes: &[u8; HEADER_LEN], limit: usize) -> Result<Self, FrameError> {
        let [l0, l1, l2, l3, version, kind, f0, f1, c0, c1, c2, c3] = *bytes;
        if version != WIRE_VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = Kind::from_byte(kind).ok_or(FrameError::Kind(kind))?;
        let flags = u16::from_le_bytes([f0, f1]);
        if flags & !COMPRESSED != 0 {
            return Err(FrameError::Flags(flags));
        }
        let body_len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if body_len > limit {
            return Err(FrameError::TooLarge { len: body_len, limit });
        }
        Ok(Self { body_len, kind, flags, crc: u32::from_le_bytes([c0, c1, c2, c3]) })
    }
}

impl Decoder {
    /// Creates a decoder that reads into buffers of `buffer_len` bytes, and rejects bodies above
    /// `limit`.
    pub(crate) fn new(buffer_len: usize, limit: usize) -> Self {
        assert!(buffer_len > HEADER_LEN, "a header fits the buffer");
        Self { buffer: BytesMut::new(), filled: 0, buffer_len, limit }
    }

    /// Changes the limit above which bodies are rejected.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The buffer for the next bytes; never empty. Call it only after [`Decoder::next_frame`] has
    /// returned `None`, because the length of a buffered header has then been checked.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let need = self.frame_len();
        let is_short = self.filled < HEADER_LEN && self.buffer.len() < self.filled + READ_LEN_MIN;
        if self.buffer.len() < need || is_short {
            let mut next = BytesMut::zeroed(self.buffer_len.max(need));
            next[..self.filled].copy_from_slice(&self.buffer[..self.filled]);
            self.buffer = next;
        }
        assert!(self.filled < self.buffer.len(), "complete frames are removed before more is read");
        &mut self.buffer[self.filled..]
    }

    /// Records that `len` bytes have been read into [`Decoder::space`].
    pub(crate) fn advance(&mut self, len: usize) {
        self.filled += len;
        assert!(self.filled <= self.buffer.len(), "no more is read than there is space");
    }

    /// Returns the next frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// When the next bytes are not a valid frame. The decoder is then unusable.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(header) = self.buffer[..self.filled].first_chunk() else { return Ok(None) };
        let header = Header::parse(header, self.limit)?;
        let len = HEADER_LEN + header.body_len;
        if self.filled < len {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(len);
        self.filled -= len;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&frame[..8]), &frame[HEADER_LEN..]);
        if crc != header.crc {
            return Err(FrameError::Checksum);
        }
        frame.advance(HEADER_LEN);
        Ok(Some(Frame { kind: header.kind, flags: header.flags, body: frame.freeze() }))
    }

    /// The length of the frame if its header is buffered, otherwise of a header.
    fn frame_len(&self) -> usize {
        match self.buffer[..self.filled].first_chunk::<4>() {
            Some(len) if self.filled >= HEADER_LEN => {
                HEADER_LEN + u32::from_le_bytes(*len) as usize
            }
            _ => HEADER_LEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fuzz::cut;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_arrive_whole_however_the_bytes_are_cut(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9000), 0..12),
            step in 1usize..10_000,
        ) {
            let bytes: Vec<u8> =
                bodies.iter().flat_map(|body| encode(Kind::Message, body)).collect();
            let (frames, error) = cut(&mut Decoder::new(5000, 9000), &bytes, step);
            prop_assert_eq!(error, None);
            prop_assert_eq!(frames.len(), bodies.len());
            for (frame, body) in frames.iter().zip(&bodies) {
                prop_assert_eq!(&frame.body[..], &body[..]);
            }
        }

        #[test]
        fn a_changed_bit_never_passes(at in 0usize..8 * 112, body: [u8; 100]) {
            let mut bytes = encode(Kind::Message, &body);
            bytes[at / 8] ^= 1 << (at % 8);
            // A longer length makes the frame incomplete, which does not yield a frame either.
            let (frames, _) = cut(&mut Decoder::new(5000, 200), &bytes, 5000);
            prop_assert_eq!(frames, Vec::new());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, step in 1usize..100) {
            let _ = cut(&mut Decoder::new(100, 1000), &bytes, step);
            let _ = plain_body(
                &Frame { kind: Kind::Message, flags: COMPRESSED, body: Bytes::from(bytes) },
                1000,
            );
        }
    }

    #[test]
    fn each_kind_has_its_own_byte() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_byte(kind.to_byte()), Some(kind));
        }
        assert_eq!(Kind::from_byte(0), None);
        assert_eq!(Kind::from_byte(10), None);
    }

    #[test]
    fn what_can_not_be_understood_is_refused_by_its_header_alone() {
        let refused = |change: fn(&mut Vec<u8>)| {
            let mut bytes = encode(Kind::Message, b"body");
            change(&mut bytes);
            let (_, error) = cut(&mut Decoder::new(100, 1000), &bytes[..HEADER_LEN], 100);
            error.expect("the frame is refused")
        };
        let other = FrameError::Version(WIRE_VERSION + 1);
        assert_eq!(refused(|bytes| bytes[4] = WIRE_VERSION + 1), other);
        assert_eq!(refused(|bytes| bytes[5] = 77), FrameError::Kind(77));
        assert_eq!(refused(|bytes| bytes[7] = 1), FrameError::Flags(256));
        let too_large = FrameError::TooLarge { len: 4 + (1 << 16), limit: 1000 };
        assert_eq!(refused(|bytes| bytes[2] = 1), too_large);
    }

    /// The fuzzer found 32 bytes that state a length of 16 MB, which was then allocated.
    #[test]
    fn a_body_that_says_it_is_more_than_it_can_be_is_refused_before_anything_is_reserved() {
        let zeros = compress(&[0; 1 << 20]).unwrap();
        let frame = Frame { kind: Kind::Message, flags: COMPRESSED, body: zeros };
        assert_eq!(
            plain_body(&frame, 1 << 20).unwrap(),
            [0; 1 << 20][..],
            "the frame is as small as possible"
        );
        let body = [&(1u32 << 24).to_le_bytes()[..], &[0; 28]].concat();
        let frame = Frame { body: Bytes::from(body), ..frame };
        let mut refused = None;
        let memory =
            allocation_counter::measure(|| refused = Some(plain_body(&frame, BULK_FRAME_MAX)));
        assert_eq!((refused, memory.bytes_total), (Some(Err(FrameError::Compression)), 0));
    }

    #[test]
    fn what_repeats_is_compressed_and_what_does_not_is_left_alone() {
        let body: Vec<u8> = (0..100_000u32).map(|i| (i / 100) as u8).collect();
        let compressed = compress(&body).unwrap();
        assert!(compressed.len() < body.len() / 10);
        let frame = Frame { kind: Kind::Message, flags: COMPRESSED, body: compressed };
        assert_eq!(plain_body(&frame, 100_000).unwrap(), body);
        let too_large = FrameError::TooLarge { len: 100_000, limit: 99_999 };
        assert_eq!(plain_body(&frame, 99_999), Err(too_large));

        let mut rng = fastrand::Rng::with_seed(1);
        let noise: Vec<u8> = (0..100_000).map(|_| rng.u8(..)).collect();
        assert_eq!(compress(&noise), None);
        assert_eq!(compress(&[0; 1000]), None, "the frame is too short to be compressed");
    }
}
