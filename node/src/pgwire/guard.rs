//! What clients say.

use std::collections::BTreeMap;

/// A client broke the protocol: what it sent can't be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub String);

/// The first thing that a client says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Startup {
    /// It asks for encryption.
    Encryption,
    /// It asks to cancel another connection's query.
    Cancel,
    /// It asks for a session.
    Session {
        /// The minor version of protocol 3 that it speaks.
        minor: u16,
        parameters: BTreeMap<String, String>,
    },
    /// It speaks another protocol.
    Unsupported { major: u16, minor: u16 },
}

/// What a client says in its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Query(String),
    Parse {
        name: String,
        query: String,
        types: Vec<u32>,
    },
    Bind(Bind),
    Describe(Target),
    Close(Target),
    Execute {
        portal: String,
        row_max: usize,
    },
    Flush,
    Sync,
    Terminate,
    /// What belongs to COPY, which was never begun: PostgreSQL passes it over too.
    Copy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bind {
    pub portal: String,
    pub statement: String,
    pub value_formats: Vec<i16>,
    pub values: Vec<Option<Vec<u8>>>,
    pub result_formats: Vec<i16>,
}

/// A prepared statement or a portal, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Statement(String),
    Portal(String),
}

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// Takes fields from the front of a message.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| Malformed("insufficient data left in message".to_owned()))?;
        self.rest = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0);
        let end = end.ok_or_else(|| Malformed("invalid string in message".to_owned()))?;
        let bytes = self.take(end + 1)?;
        let text = std::str::from_utf8(&bytes[..end]).map(str::to_owned);
        text.map_err(|_| Malformed("invalid byte sequence for encoding \"UTF8\"".to_owned()))
    }

    /// As many items as a count before them says. What is reserved is bounded by what was sent.
    fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = usize::from(self.u16()?);
        let mut items = Vec::with_capacity(count.min(self.rest.len()));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn value(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        match self.u32()? as i32 {
            -1 => Ok(None),
            len => {
                let len = usize::try_from(len)
                    .map_err(|_| Malformed("invalid length of a parameter".to_owned()))?;
                Ok(Some(self.take(len)?.to_vec()))
            }
        }
    }

    fn target(&mut self) -> Result<Target, Malformed> {
        match self.u8()? {
            b'S' => Ok(Target::Statement(self.text()?)),
            b'P' => Ok(Target::Portal(self.text()?)),
            other => Err(Malformed(format!("invalid target {other} of a message"))),
        }
    }
}

/// Reads a startup packet, without its length.
pub(super) fn startup(packet: &[u8]) -> Result<Startup, Malformed> {
    let mut fields = Fields { rest: packet };
    let code = fields.u32()?;
    match code {
        SSL_REQUEST | GSS_REQUEST => return Ok(Startup::Encryption),
        CANCEL_REQUEST => return Ok(Startup::Cancel),
        _ => {}
    }
    let (major, minor) = ((code >> 16) as u16, code as u16);
    if major != 3 {
        return Ok(Startup::Unsupported { major, minor });
    }
    let mut parameters = BTreeMap::new();
    loop {
        let name = fields.text()?;
        if name.is_empty() {
            return Ok(Startup::Session { minor, parameters });
        }
        parameters.insert(name, fields.text()?);
    }
}

/// Reads the message of a type, without its type and length.
pub(super) fn decode(kind: u8, body: &[u8]) -> Result<Message, Malformed> {
    let mut fields = Fields { rest: body };
    let message = match kind {
        b'Q' => Message::Query(fields.text()?),
        b'P' => Message::Parse {
            name: fields.text()?,
            query: fields.text()?,
            types: fields.list(Fields::u32)?,
        },
        b'B' => Message::Bind(Bind {
            portal: fields.text()?,
            statement: fields.text()?,
            value_formats: fields.list(|fields| fields.u16().map(|format| format as i16))?,
            values: fields.list(Fields::value)?,
            result_formats: fields.list(|fields| fields.u16().map(|format| format as i16))?,
        }),
        b'D' => Message::Describe(fields.target()?),
        b'C' => Message::Close(fields.target()?),
        b'E' => Message::Execute {
            portal: fields.text()?,
            // Less than nothing means all, as 0 does.
            row_max: usize::try_from(fields.u32()? as i32).unwrap_or(0),
        },
        b'H' => Message::Flush,
        b'S' => Message::Sync,
        b'X' => Message::Terminate,
        b'd' | b'c' | b'f' => return Ok(Message::Copy),
        other => return Err(Malformed(format!("invalid frontend message type {other}"))),
    };
    if !fields.rest.is_empty() {
        return Err(Malformed("invalid message format".to_owned()));
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind() -> Vec<u8> {
        let mut body = b"p\0s\0".to_vec();
        body.extend([0, 1, 0, 1]);
        body.extend([0, 2, 0, 0, 0, 1, b'x', 255, 255, 255, 255]);
        body.extend([0, 1, 0, 1]);
        body
    }

    #[test]
    fn a_bind_is_read_and_no_part_of_one_is() {
        let expected = Bind {
            portal: "p".to_owned(),
            statement: "s".to_owned(),
            value_formats: vec![1],
            values: vec![Some(b"x".to_vec()), None],
            result_formats: vec![1],
        };
        assert_eq!(decode(b'B', &bind()), Ok(Message::Bind(expected)));
        for len in 0..bind().len() {
            assert!(decode(b'B', &bind()[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn every_message_that_is_cut_short_or_too_long_is_malformed() {
        let whole: [(u8, &[u8]); 5] = [
            (b'Q', b"select 1\0"),
            (b'P', b"n\0select 1\0\0\x01\0\0\0\x17"),
            (b'D', b"Sn\0"),
            (b'C', b"Pn\0"),
            (b'E', b"p\0\0\0\0\x05"),
        ];
        for (kind, body) in whole {
            assert!(decode(kind, body).is_ok());
            for len in 0..body.len() {
                assert!(decode(kind, &body[..len]).is_err(), "{kind} cut at {len}");
            }
            assert!(decode(kind, &[body, b"x"].concat()).is_err(), "{kind} too long");
        }
        assert!(decode(b'?', b"").is_err());
        assert!(decode(b'Q', b"\xff\0").is_err());
        assert!(decode(b'B', b"\0\0\0\0\xff\xff").is_err());
    }

    #[test]
    fn a_startup_has_its_parameters() {
        let packet = [&196_608u32.to_be_bytes()[..], b"user\0me\0\0"].concat();
        let parameters = BTreeMap::from([("user".to_owned(), "me".to_owned())]);
        assert_eq!(startup(&packet), Ok(Startup::Session { minor: 0, parameters }));
        assert_eq!(startup(&SSL_REQUEST.to_be_bytes()), Ok(Startup::Encryption));
        let old = Startup::Unsupported { major: 2, minor: 0 };
        assert_eq!(startup(&131_072u32.to_be_bytes()), Ok(old));
        for len in 0..packet.len() {
            assert!(startup(&packet[..len]).is_err(), "cut at {len}");
        }
    }
}
