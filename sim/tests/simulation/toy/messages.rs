//! The messages between toy nodes.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{ProcedureId, TxnId};
use pangea_core::protocol::{Lane, Message};
use pangea_core::txn::{Certified, Program, ReadSet, Write};

#[derive(Clone, Debug)]
pub enum ToyMessage {
    /// From an origin to the leader: requests to order this program.
    Order { txn: TxnId, program: Program },
    /// From the leader to followers: durable entries from `first` on.
    Entries { first: u64, entries: Vec<(TxnId, Program)> },
    /// From a follower to the leader: its log is durable through `up_to`. If `wants_more`, the
    /// leader sends the entries after it.
    Ack { up_to: u64, wants_more: bool },
    /// From the leader to followers: entries through `up_to` are decided.
    Decided { up_to: u64 },
    /// From an origin to the leader: requests the head of the log, for a strict read.
    AskHead { number: u64 },
    /// From the leader: the head of the log.
    Head { number: u64, head: u64 },
}

impl Message for ToyMessage {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Order { txn, program } => {
                out.put_u8(0);
                out.put_u64(txn.to_bits());
                encode_program(program, out);
            }
            Self::Entries { first, entries } => {
                out.put_u8(1);
                out.put_varint(*first);
                out.put_varint(entries.len() as u64);
                for (txn, program) in entries {
                    out.put_u64(txn.to_bits());
                    encode_program(program, out);
                }
            }
            Self::Ack { up_to, wants_more } => {
                out.put_u8(2 + u8::from(*wants_more));
                out.put_varint(*up_to);
            }
            Self::Decided { up_to } => {
                out.put_u8(4);
                out.put_varint(*up_to);
            }
            Self::AskHead { number } => {
                out.put_u8(5);
                out.put_varint(*number);
            }
            Self::Head { number, head } => {
                out.put_u8(6);
                out.put_varint(*number);
                out.put_varint(*head);
            }
        }
    }

    fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let txn = |from: &mut Reader<'_>| from.u64("txn").map(TxnId::from_bits);
        Ok(match from.u8("kind")? {
            0 => Self::Order { txn: txn(from)?, program: decode_program(from)? },
            1 => {
                let first = from.varint("first")?;
                let count = from.count("entries")?;
                let entry = |_| Ok((txn(from)?, decode_program(from)?));
                Self::Entries { first, entries: (0..count).map(entry).collect::<Result<_, _>>()? }
            }
            kind @ (2 | 3) => Self::Ack { up_to: from.varint("up to")?, wants_more: kind == 3 },
            4 => Self::Decided { up_to: from.varint("up to")? },
            5 => Self::AskHead { number: from.varint("number")? },
            6 => Self::Head { number: from.varint("number")?, head: from.varint("head")? },
            _ => return Err(DecodeError::new("message kind")),
        })
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Order { .. } | Self::Entries { .. } => Lane::Bulk,
            _ => Lane::Control,
        }
    }
}

pub fn encode_program(program: &Program, out: &mut Vec<u8>) {
    match program {
        Program::Call { procedure, args } => {
            out.put_u8(0);
            out.put_u32(procedure.0);
            out.put_bytes(args);
        }
        Program::Certified(Certified { reads, writes, .. }) => {
            out.put_u8(1);
            reads.encode(out);
            out.put_varint(writes.len() as u64);
            writes.iter().for_each(|write| write.encode(out));
        }
    }
}

pub fn decode_program(from: &mut Reader<'_>) -> Result<Program, DecodeError> {
    match from.u8("program")? {
        0 => {
            let procedure = ProcedureId(from.u32("procedure")?);
            Ok(Program::Call { procedure, args: Bytes::copy_from_slice(from.bytes("args")?) })
        }
        1 => {
            let reads = ReadSet::decode(from)?;
            let count = from.count("writes")?;
            let writes = (0..count).map(|_| Write::decode(from)).collect::<Result<_, _>>()?;
            Ok(Program::Certified(Certified { reads, writes, ..Certified::default() }))
        }
        _ => Err(DecodeError::new("program")),
    }
}
