//! Divisible programs: each shard runs its part alone.
//!
//! ```text
//!              shard 0                              shard 1
//!   divided    locks, run, apply                    locks, run, apply
//!   undivided  locks, rows =====================>   locks, rows
//!                          <=====================
//!              run, apply                           run, apply
//! ```
//!
//! A procedure declares that no shard needs the rows of another one, and that the program never
//! aborts ([`Procedure::is_divisible`]). Then only the shards on which it writes participate. None
//! of them sends rows or waits for any, so the transaction holds its locks for its own run alone.
//! Its place in the order is the same as without this, and so are its writes, because each shard
//! grants its locks in the order.
//!
//! No shard asks another one whether it commits. Therefore a part that fails is not an abort: other
//! shards may have committed theirs. It is a bug of the procedure, which is met by a panic that
//! names it. All replicas of the shard meet it at the same place, before the part has any effect.
//! The transaction stays in the log, and a mended program applies the part.
//!
//! [`Procedure::is_divisible`]: crate::txn::Procedure::is_divisible

use super::ShardOutcome;
use super::locked::{Attempt, RemoteInputs, Runner, Scratch};
use super::participants::Participants;
use crate::exec::call;
use crate::exec::remote_rows::{RemoteRows, Rows};
use crate::ids::ShardId;
use crate::partition::Partitions;
use crate::txn::{Footprint, Program, Registry};

/// Whether a transaction is divided over its participants. A program on one shard is run as any
/// other.
pub(super) fn is_divided(
    registry: &Registry,
    (program, given): (&Program, Option<&Footprint>),
    participants: Participants,
) -> bool {
    match program {
        Program::Call { procedure, args } => {
            given.is_none()
                && participants.all().len() > 1
                && call::is_divisible(registry, *procedure, args)
        }
        Program::Certified(_) => false,
    }
}

impl Runner<'_> {
    /// Runs the part of a divisible program on shard `here`. Rows of other shards do not exist for
    /// it, and its writes to them are dropped.
    ///
    /// # Panics
    /// If the part fails. Its writes are taken back before.
    pub(super) fn run_divided(
        &self,
        place: usize,
        footprint: &Footprint,
        (partitions, here): (&Partitions, ShardId),
        scratch: &mut Scratch,
    ) -> ShardOutcome {
        let remote_rows = RemoteRows { partitions, here, rows: &Rows::new() };
        let inputs = RemoteInputs { remote_rows, change: None, is_divided: true };
        let why = match self.run_with(place, footprint, &inputs, scratch) {
            Attempt::Ended { outcome: Ok(result), .. } => return ShardOutcome::Ran(Ok(result)),
            Attempt::Ended { outcome: Err(abort), .. } => format!("aborted: {abort}"),
            Attempt::FootprintViolated => "left its footprint".to_owned(),
            Attempt::PutOff => unreachable!("nobody puts jobs off"),
        };
        let job = &self.jobs[place];
        let name = match job.program {
            Program::Call { procedure, .. } => self.registry.procedure(*procedure),
            Program::Certified(_) => None,
        };
        let name = name.map_or("", |procedure| procedure.name());
        panic!(
            "procedure \"{name}\" is declared divisible, but {why} on shard {}, in transaction {}",
            here.0, job.txn
        )
    }
}
