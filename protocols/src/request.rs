//! A transaction as requested by a client, and its encoding in batches and messages.
//!
//! ```text
//!   request: what u8, then for
//!     0 call                     procedure u32, args
//!     1 call of known footprint  procedure u32, args, footprint
//!     2 certified                read set, write count, writes
//!     and 128, where tables are divided: then first the shards that it concerns, count and numbers
//!     and 64, where another replica took it: then first its number, and its name for it
//! ```

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::exec::ordered::Job;
use pangea_core::exec::{check_certified, check_request};
use pangea_core::ids::{NodeId, ProcedureId, ShardId, TxnId};
use pangea_core::partition::{SHARDS_MAX, ShardSet};
use pangea_core::txn::{
    Abort, Certified, Footprint, Program, ReadSet, ReadVersion, Registry, SqlState, Write,
};

use crate::inputs::size;

/// A transaction as requested by a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Its name.
    pub txn: TxnId,
    /// The program.
    pub program: Program,
    /// The footprint that a reconnaissance found; `None` if the arguments determine it.
    pub footprint: Option<Footprint>,
    /// The participating shards; empty if tables are not partitioned.
    pub shards: ShardSet,
    /// If another replica than the sequencer accepted it: that replica, and its name for the
    /// request.
    pub origin: Option<(NodeId, u64)>,
}

/// The maximum bytes of a request in addition to its arguments and keys: its kind, its origin, its
/// procedure, and lengths.
pub(crate) const BESIDE_ARGS: usize = 32;

/// The same with the participating shards.
pub(crate) fn beside(shards: ShardSet) -> usize {
    BESIDE_ARGS + if shards.is_empty() { 0 } else { shards.len() }
}

/// An upper bound on the encoded size of a request in bytes.
pub(crate) fn weight(program: &Program, footprint: Option<&Footprint>, shards: ShardSet) -> usize {
    beside(shards) + size::program_bytes(program, footprint)
}

mod what {
    pub const CALL: u8 = 0;
    pub const CALL_WITH_FOOTPRINT: u8 = 1;
    pub const CERTIFIED: u8 = 2;
    /// Added if the request has participating shards.
    pub const DIVIDED: u8 = 128;
    /// Added if another replica accepted it.
    pub const FORWARDED: u8 = 64;
}

impl Request {
    /// An upper bound on its encoded size in bytes.
    pub(crate) fn weight(&self) -> usize {
        weight(&self.program, self.footprint.as_ref(), self.shards)
    }

    /// Whether its footprint is within the size limit.
    pub(crate) fn is_small(&self) -> bool {
        self.footprint.is_none() || check_request(self.weight()).is_ok()
    }

    /// The request as a job of the ordered executor.
    pub(crate) fn as_job(&self) -> Job<'_> {
        let Self { txn, program, footprint, .. } = self;
        Job { txn: *txn, program, footprint: footprint.as_ref() }
    }

    /// The approximate size in bytes to reserve.
    pub(crate) fn size_hint(&self) -> usize {
        match &self.program {
            Program::Call { args, .. } => BESIDE_ARGS + args.len(),
            Program::Certified(_) => BESIDE_ARGS,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let what = match (&self.program, &self.footprint) {
            (Program::Call { .. }, None) => what::CALL,
            (Program::Call { .. }, Some(_)) => what::CALL_WITH_FOOTPRINT,
            (Program::Certified(_), None) => what::CERTIFIED,
            (Program::Certified(_), Some(_)) => {
                panic!("a certified transaction has no separate footprint")
            }
        };
        let forwarded = if self.origin.is_some() { what::FORWARDED } else { 0 };
        let divided = if self.shards.is_empty() { 0 } else { what::DIVIDED };
        out.put_u8(what | forwarded | divided);
        if let Some((node, token)) = self.origin {
            out.put_u16(node.0);
            out.put_varint(token);
        }
        if !self.shards.is_empty() {
            out.put_varint(self.shards.len() as u64);
            self.shards.iter().for_each(|shard| out.put_varint(shard.0.into()));
        }
        match &self.program {
            Program::Call { procedure, args } => {
                out.put_u32(procedure.0);
                out.put_bytes(args);
                self.footprint.iter().for_each(|footprint| footprint.encode(out));
            }
            Program::Certified(Certified { reads, writes, .. }) => {
                reads.encode(out);
                out.put_varint(writes.len() as u64);
                writes.iter().for_each(|write| write.encode(out));
            }
        }
    }

    pub(crate) fn decode(
        txn: TxnId,
        from: &mut Reader<'_>,
        bytes: &Bytes,
    ) -> Result<Self, DecodeError> {
        const WHAT: &str = "request";
        let tagged = from.u8(WHAT)?;
        let what = tagged & !(what::DIVIDED | what::FORWARDED);
        let origin = match tagged & what::FORWARDED {
            0 => None,
            _ => Some((NodeId(from.u16(WHAT)?), from.varint(WHAT)?)),
        };
        let shards = match tagged & what::DIVIDED {
            0 => ShardSet::default(),
            _ => decode_shards(from)?,
        };
        if what == what::CERTIFIED {
            let reads = ReadSet::decode(from)?;
            let writes = (0..from.count(WHAT)?).map(|_| Write::decode(from));
            let writes = writes.collect::<Result<_, _>>()?;
            let program = Program::Certified(Certified { reads, writes, ..Certified::default() });
            return Ok(Self { txn, program, footprint: None, shards, origin });
        }
        if what != what::CALL && what != what::CALL_WITH_FOOTPRINT {
            return Err(DecodeError::new(WHAT));
        }
        let procedure = ProcedureId(from.u32(WHAT)?);
        let args = bytes.slice_ref(from.bytes(WHAT)?);
        let is_known = what == what::CALL_WITH_FOOTPRINT;
        let footprint = is_known.then(|| Footprint::decode(from)).transpose()?;
        let program = Program::Call { procedure, args };
        Ok(Self { txn, program, footprint, shards, origin })
    }
}

fn decode_shards(from: &mut Reader<'_>) -> Result<ShardSet, DecodeError> {
    const WHAT: &str = "shards";
    let shard = |from: &mut Reader<'_>| {
        let shard = u16::try_from(from.varint(WHAT)?).ok().filter(|shard| *shard < SHARDS_MAX);
        shard.map(ShardId).ok_or(DecodeError::new(WHAT))
    };
    let shards: ShardSet = (0..from.count(WHAT)?).map(|_| shard(from)).collect::<Result<_, _>>()?;
    if shards.is_empty() { Err(DecodeError::new(WHAT)) } else { Ok(shards) }
}

/// The error of a call of a procedure that this node does not have.
pub(crate) fn unknown_procedure(procedure: ProcedureId) -> Abort {
    let message = format!("procedure {procedure} does not exist");
    Abort::new(SqlState::UNDEFINED_FUNCTION, message)
}

/// Checks whether a program can be run at all.
///
/// # Errors
/// The error for its client.
pub(crate) fn check_program(registry: &Registry, program: &Program) -> Result<(), Abort> {
    match program {
        Program::Call { procedure, .. } => match registry.procedure(*procedure) {
            Some(_) => Ok(()),
            None => Err(unknown_procedure(*procedure)),
        },
        Program::Certified(certified) => check_certified(certified),
    }
}

/// Whether an interactive transaction has read only committed versions: no others are visible.
pub(crate) fn has_seen_what_is_final(program: &Program) -> bool {
    let Program::Certified(Certified { reads, .. }) = program else { return true };
    let points = reads.points.iter().map(|read| read.seen);
    let rows = reads.ranges.iter().flat_map(|read| read.rows.iter().map(|(_, seen)| *seen));
    points.chain(rows).all(|seen| match seen {
        ReadVersion::Local(_) | ReadVersion::LocalDeleted(_) => false,
        ReadVersion::Absent | ReadVersion::At(_) | ReadVersion::Present => true,
    })
}
