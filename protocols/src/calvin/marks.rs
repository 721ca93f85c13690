//! Coverage marks: the phases, and the branches that are rarely taken. A swarm must hit each, or
//! say why it can't.

use pangea_core::protocol::Mark;

use crate::inputs::marks::{self, mark};

/// Every mark that a replica makes.
pub(super) const ALL: &[Mark] = &marks::with::<{ marks::ALL.len() + OWN.len() }>(OWN);

/// Every mark of Calvin's own, in the order of the phases.
const OWN: &[Mark] = &[
    // §3.1, sequencing.
    mark("calvin.sequenced", "a request is put into a batch"),
    mark("calvin.certified", "it is an interactive transaction"),
    mark("calvin.reconnoitred", "a program is run to see what it will touch"),
    mark("calvin.batch_full", "a batch is sent as it is large enough"),
    mark("calvin.too_many_in_flight", "a client is refused: too much is in flight"),
    // §3.2, scheduling.
    mark("calvin.epoch_in_slices", "an epoch is run in parts"),
    mark("calvin.restarted", "a transaction touches more than its footprint, and runs again"),
    // §5, recovery.
    mark("calvin.refused_while_rejoining", "a client is refused until it holds all again"),
    mark("calvin.in_flight_restored", "a restart finds own batches that were not run"),
    mark("calvin.epoch_replayed", "an epoch is run as the log says"),
    mark("calvin.outcome_unknown", "a client can't be told what became of its transaction"),
];
