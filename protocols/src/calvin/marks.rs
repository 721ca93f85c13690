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
    // §3.1 and §3.2, over several shards.
    mark("calvin.sliced", "an epoch of the group is cut into what concerns each shard"),
    mark("calvin.subscribed", "another shard is asked for what concerns this one"),
    mark("calvin.other_replica_asked", "the replica of the region is away for long"),
    mark("calvin.missed_told", "a shard asks for what is not kept any more"),
    mark("calvin.missed", "what this shard asked for is not kept any more"),
    mark("calvin.other_replica_has_it", "another one may keep what the first does not"),
    mark("calvin.straggler_left", "a replica is far behind the others of its shard"),
    mark("calvin.slice_of_another", "a slice is not of the shard that sends it"),
    mark("calvin.slice_again", "a slice comes again"),
    mark("calvin.slice_after_unsubscribed", "a slice comes from who was asked before"),
    mark("calvin.slice_after_gap", "a slice comes before one that it follows"),
    mark("calvin.epoch_waits_for_slice", "another shard has not sent what it has of an epoch"),
    mark("calvin.waits_for_rows", "a transaction waits for rows of another shard"),
    mark("calvin.served", "rows or results are sent to another shard"),
    mark("calvin.items_too_far_ahead", "rows come for an epoch that no slice is of"),
    mark("calvin.served_late", "rows come for an epoch that was run"),
    mark("calvin.left", "a transaction touches more than its footprint, and is taken again"),
    mark("calvin.left_too_often", "it does so again and again, and ends"),
    mark("calvin.result_later", "a transaction was run elsewhere, and its result has not come"),
    mark("calvin.result_again", "a result comes again"),
    mark("calvin.behind_told", "the coordinator is told that other groups are further"),
    mark("calvin.looked", "a reconnaissance asks another shard for rows"),
    mark("calvin.found_late", "rows come that a reconnaissance does not wait for any more"),
    mark("calvin.not_divided", "one shard among several speaks to a cluster that has one"),
    mark("calvin.not_of_the_group", "another shard says what is for replicas of one"),
    mark("calvin.not_to_its_own_shard", "a replica says what is for other shards"),
    // §5, recovery.
    mark("calvin.refused_while_rejoining", "a client is refused until it holds all again"),
    mark("calvin.in_flight_restored", "a restart finds own batches that were not run"),
    mark("calvin.epoch_replayed", "an epoch is run as the log says"),
    mark("calvin.outcome_unknown", "a client can't be told what became of its transaction"),
];
