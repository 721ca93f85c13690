//! Validation of client messages before the crate's decoders see them.
//!
//! The decoders trust the contents of a frame. They use counts, lengths and strings without
//! checking that the bytes exist (which panics), read on into the next frame, and replace invalid
//! UTF-8. Therefore a frame is taken out of the input whole, walked from its first byte to its
//! last, and only then decoded:
//!
//! ```text
//!   input --- type known? length in bounds? --- frame --- walk --- decoder --- message
//!                        |                                 |          |
//!                        +---------- Malformed: FATAL 08P01, this connection ends
//!                                                           text not UTF-8: ERROR 22021
//! ```
//!
//! | type | inside |
//! |---|---|
//! | Query | text |
//! | Parse | name, text, count and types |
//! | Bind | portal, statement, count and formats, count and values, count and formats |
//! | Describe, Close | `S` or `P`, name |
//! | Execute | portal, number |
//! | Flush, Sync, Terminate, CopyDone | nothing |
//! | CopyData | anything |
//! | CopyFail | text |
//!
//! Strings are UTF-8 and end with a zero byte. A value's length is -1 for NULL, or the number of
//! bytes that follow.

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use ::pgwire::error::PgWireError;
use ::pgwire::messages::cancel::CancelRequest;
use ::pgwire::messages::startup::{GssEncRequest, SslRequest, Startup};
use ::pgwire::messages::{
    DecodeContext, PgWireFrontendMessage, ProtocolVersion, copy, extendedquery, simplequery,
    terminate,
};
use bytes::BytesMut;
use pangea_sql::error::SqlError;

/// The maximum length of a startup packet, as in PostgreSQL.
const STARTUP_BYTES_MAX: usize = 10_000;
/// The minimum length of a startup packet: a length and a code.
const STARTUP_BYTES_MIN: usize = 8;
/// The maximum length of a frame with a statement, its parameters or data.
const LARGE_BYTES_MAX: usize = 64 << 20;
/// The maximum length of all other frames, as in PostgreSQL.
const SMALL_BYTES_MAX: usize = 10_000;
/// A length includes its own four bytes.
const LENGTH_BYTES: usize = 4;
/// The limits of a key's length in a cancel request: four bytes here, more in protocol 3.2.
const SECRET_BYTES_MIN: usize = 4;
const SECRET_BYTES_MAX: usize = 256;
/// The only supported major version.
const MAJOR: u16 = 3;

/// A protocol violation: the client's input can't be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub String);

impl Malformed {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// A decoder rejected a frame that passed the guard. This is harmless, and the client gets an
/// error.
impl From<PgWireError> for Malformed {
    fn from(error: PgWireError) -> Self {
        Self(error.to_string())
    }
}

/// A session's message.
#[derive(Debug)]
pub(super) enum Incoming {
    Message(PgWireFrontendMessage),
    /// A complete frame with a text that is not UTF-8. The client gets an error, and the session
    /// continues.
    NotText {
        kind: u8,
        error: SqlError,
    },
}

/// A client's first packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The client requests encryption, with TLS or GSSAPI.
    Encryption { is_tls: bool },
    /// The client requests to cancel another connection's statement.
    Cancel(CancelRequest),
    /// The client requests a session.
    Session(Startup),
    /// The client uses another protocol version.
    Unsupported { major: u16, minor: u16 },
}

/// Takes a startup packet from the front of the input; `None` if more bytes are needed.
pub(super) fn opening(input: &mut BytesMut) -> Result<Option<Opening>, Malformed> {
    let Some(len) = length(input) else { return Ok(None) };
    if !(STARTUP_BYTES_MIN..=STARTUP_BYTES_MAX).contains(&len) {
        return Err(Malformed::new("invalid length of startup packet"));
    }
    if input.len() < len {
        return Ok(None);
    }
    let packet = input.split_to(len);
    let mut fields = Fields { rest: &packet[LENGTH_BYTES..], not_text: None };
    let is_tls = SslRequest::is_ssl_request_packet(&packet);
    if is_tls || GssEncRequest::is_gss_enc_request_packet(&packet) {
        fields.take(4)?;
        fields.end()?;
        return Ok(Some(Opening::Encryption { is_tls }));
    }
    if CancelRequest::is_cancel_request_packet(&packet) {
        fields.take(8)?;
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&fields.rest.len()) {
            return Err(Malformed::new("invalid length of cancel request packet"));
        }
    } else {
        let (major, minor) = (fields.u16()?, fields.u16()?);
        if major != MAJOR {
            return Ok(Some(Opening::Unsupported { major, minor }));
        }
        while !fields.text()?.is_empty() {
            fields.text()?;
        }
        fields.end()?;
        if let Some(error) = fields.not_text {
            return Err(Malformed::new(error.message));
        }
    }
    match decode_frame(packet, true)? {
        PgWireFrontendMessage::CancelRequest(request) => Ok(Some(Opening::Cancel(request))),
        PgWireFrontendMessage::Startup(startup) => Ok(Some(Opening::Session(startup))),
        other => Err(Malformed(format!("invalid startup packet: {other:?}"))),
    }
}

/// Takes a session's next message from the front of the input; `None` if more bytes are needed.
pub(super) fn message(input: &mut BytesMut) -> Result<Option<Incoming>, Malformed> {
    // As in PostgreSQL the type is checked first, so that a client of another protocol gets an
    // error at once.
    let Some(&kind) = input.first() else { return Ok(None) };
    let len_max = length_max(kind)?;
    let Some(len) = length(&input[1..]) else { return Ok(None) };
    if !(LENGTH_BYTES..=len_max).contains(&len) {
        return Err(Malformed(format!("invalid message length {len}: at most {len_max}")));
    }
    if input.len() < len + 1 {
        return Ok(None);
    }
    let frame = input.split_to(len + 1);
    let mut fields = Fields { rest: &frame[1 + LENGTH_BYTES..], not_text: None };
    walk(kind, &mut fields)?;
    fields.end()?;
    if let Some(error) = fields.not_text {
        return Ok(Some(Incoming::NotText { kind, error }));
    }
    decode_frame(frame, false).map(Incoming::Message).map(Some)
}

/// Decodes a complete, well-formed frame.
fn decode_frame(mut frame: BytesMut, is_startup: bool) -> Result<PgWireFrontendMessage, Malformed> {
    // Version 3.2 is used so that a cancel request keeps its whole key, whichever version it was
    // made for.
    let mut context = DecodeContext::new(ProtocolVersion::PROTOCOL3_2);
    context.awaiting_frontend_ssl = false;
    context.awaiting_frontend_startup = is_startup;
    let message = PgWireFrontendMessage::decode(&mut frame, &context)?;
    let message = message.ok_or_else(|| Malformed::new("insufficient data left in message"))?;
    if frame.is_empty() { Ok(message) } else { Err(Malformed::new("invalid message format")) }
}

/// Reads the length at the front of a frame.
fn length(input: &[u8]) -> Option<usize> {
    let bytes = input.first_chunk::<LENGTH_BYTES>()?;
    Some(u32::from_be_bytes(*bytes) as usize)
}

/// The maximum length of a frame of this type. Unknown types are malformed.
fn length_max(kind: u8) -> Result<usize, Malformed> {
    match kind {
        simplequery::MESSAGE_TYPE_BYTE_QUERY
        | extendedquery::MESSAGE_TYPE_BYTE_PARSE
        | extendedquery::MESSAGE_TYPE_BYTE_BIND
        | copy::MESSAGE_TYPE_BYTE_COPY_DATA => Ok(LARGE_BYTES_MAX),
        extendedquery::MESSAGE_TYPE_BYTE_DESCRIBE
        | extendedquery::MESSAGE_TYPE_BYTE_CLOSE
        | extendedquery::MESSAGE_TYPE_BYTE_EXECUTE
        | extendedquery::MESSAGE_TYPE_BYTE_FLUSH
        | extendedquery::MESSAGE_TYPE_BYTE_SYNC
        | terminate::MESSAGE_TYPE_BYTE_TERMINATE
        | copy::MESSAGE_TYPE_BYTE_COPY_DONE
        | copy::MESSAGE_TYPE_BYTE_COPY_FAIL => Ok(SMALL_BYTES_MAX),
        other => Err(Malformed(format!("invalid frontend message type {other}"))),
    }
}

/// Walks the fields that a type's decoder will read.
fn walk(kind: u8, fields: &mut Fields<'_>) -> Result<(), Malformed> {
    match kind {
        simplequery::MESSAGE_TYPE_BYTE_QUERY | copy::MESSAGE_TYPE_BYTE_COPY_FAIL => {
            fields.text()?;
        }
        extendedquery::MESSAGE_TYPE_BYTE_PARSE => {
            fields.text()?;
            fields.text()?;
            fields.list(4)?;
        }
        extendedquery::MESSAGE_TYPE_BYTE_BIND => {
            fields.text()?;
            fields.text()?;
            fields.list(2)?;
            for _ in 0..fields.u16()? {
                fields.value()?;
            }
            fields.list(2)?;
        }
        extendedquery::MESSAGE_TYPE_BYTE_DESCRIBE | extendedquery::MESSAGE_TYPE_BYTE_CLOSE => {
            let target = fields.take(1)?[0];
            if !b"SP".contains(&target) {
                return Err(Malformed(format!("invalid target {target} of a message")));
            }
            fields.text()?;
        }
        extendedquery::MESSAGE_TYPE_BYTE_EXECUTE => {
            fields.text()?;
            fields.take(4)?;
        }
        copy::MESSAGE_TYPE_BYTE_COPY_DATA => fields.rest = &[],
        // All other types are empty.
        _ => {}
    }
    Ok(())
}

/// The unread rest of a frame.
struct Fields<'a> {
    rest: &'a [u8],
    /// The first text so far that is not UTF-8.
    not_text: Option<SqlError>,
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| Malformed::new("insufficient data left in message"))?;
        self.rest = rest;
        Ok(head)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a text. Invalid UTF-8 is only recorded, because the frame around it is well-formed.
    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0);
        let end = end.ok_or_else(|| Malformed::new("invalid string in message"))?;
        let bytes = self.take(end + 1)?;
        let bytes = &bytes[..end];
        if let Err(error) = std::str::from_utf8(bytes) {
            let first = SqlError::not_utf8(&bytes[error.valid_up_to()..]);
            self.not_text.get_or_insert(first);
        }
        Ok(bytes)
    }

    /// Reads a count, and that number of items of a fixed size.
    fn list(&mut self, item_len: usize) -> Result<(), Malformed> {
        let count = usize::from(self.u16()?);
        self.take(count * item_len).map(|_| ())
    }

    fn value(&mut self) -> Result<(), Malformed> {
        let bytes = self.take(4)?;
        match i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) {
            -1 => Ok(()),
            len => {
                let len = usize::try_from(len)
                    .map_err(|_| Malformed::new("invalid length of a parameter"))?;
                self.take(len).map(|_| ())
            }
        }
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::new("invalid message format")) }
    }
}
