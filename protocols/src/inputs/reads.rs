//! Read-only programs: they take no place in the order and run on the node where they arrived.

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::{Overlay, optimistic};
use pangea_core::ids::{SnapshotVersion, Ticket, TxnId};
use pangea_core::pool::each;
use pangea_core::protocol::Cx;
use pangea_core::txn::{Abort, Outcome, Program, Registry, SqlState};

use super::{Host, Inputs};

/// With fewer reads than this no other worker is woken.
const READS_MIN: usize = 4;

impl<H: Host> Inputs<H> {
    /// Runs read-only programs on the epoch `at`, the applied one or the last that is decided, and
    /// replies at once: decided epochs are final and survive any f losses. `overlay` must be empty.
    pub(crate) fn read_snapshot(
        &self,
        cx: &mut Cx<'_, H>,
        registry: &Registry,
        overlay: &Overlay,
        at: SnapshotVersion,
        reads: &[(Ticket, Program)],
    ) {
        cx.mark("inputs.snapshot_read");
        let store = cx.store;
        let parts = cx.pool.workers().min(reads.len() / READS_MIN).max(1);
        let part_len = reads.len().div_ceil(parts);
        cx.begin_work();
        let runs = each(cx.pool, parts, |part| {
            let reads = reads.chunks(part_len).nth(part).unwrap_or_default();
            let run = |program| optimistic::run(registry, program, store, at, overlay);
            reads.iter().map(|(_, program)| run(program)).collect::<Vec<_>>()
        });
        cx.end_work(CpuStage::Execute, reads.len());
        for ((ticket, _), run) in reads.iter().zip(runs.into_iter().flatten()) {
            let outcome = match run.result {
                Ok(_) if !run.writes.is_empty() => Outcome::Aborted(Abort::new(
                    SqlState::INTERNAL_ERROR,
                    "a procedure that is declared read-only has written",
                )),
                Ok(result) => {
                    // A read takes no place in the order, so it has no name.
                    let txn = TxnId::new(self.replica.me, 0);
                    Outcome::Committed { txn, version: at, result }
                }
                Err(abort) => Outcome::Aborted(abort),
            };
            cx.reply(*ticket, outcome);
        }
    }
}
