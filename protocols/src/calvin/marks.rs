//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

use crate::inputs::marks::{self, NONSENSE, mark};

/// All marks of a replica.
pub(super) const ALL: &[Mark] = &marks::with::<{ marks::ALL.len() + OWN.len() }>(OWN, UNUSED);

/// Calvin's replicas acknowledge batches to all replicas, so no proof of availability is sent.
const UNUSED: &[&str] = &["inputs.proof_sent", "inputs.proof_before_batch"];

/// Why a swarm never hits marks of limits in megabytes.
const LARGE: &str = "it takes megabytes; see protocols/src/calvin/tests/large.rs";

/// All marks of Calvin itself, in the order of the phases.
const OWN: &[Mark] = &[
    // §3.1, sequencing.
    mark("calvin.sequenced", "a request is put into a batch"),
    mark("calvin.certified", "it is an interactive transaction"),
    mark("calvin.reconnoitred", "a program is run to see what it will touch"),
    mark("calvin.batch_full", "a batch is sent as it is large enough"),
    mark("calvin.too_many_in_flight", "a client is refused: too much is in flight").rare("a few of the smallest batches come before a node is ready"),
    mark("calvin.refused_for_node", "a client is refused: another node is too far behind").rare("there are requests in most epochs of seconds, and a node is away"),
    // §4, warming.
    mark("calvin.held", "a request that wants cold rows is held back"),
    mark("calvin.held_until_warm", "all have fetched them"),
    mark("calvin.held_long_enough", "the delay that was predicted is over before"),
    mark("calvin.held_for_one_that_is_gone", "who has not fetched them is not connected any more").rare("a connection is lost while a request waits for that node"),
    mark("calvin.fetched_for_another", "rows are fetched for a request of another node"),
    mark("calvin.too_much_to_fetch", "they are not, as too many wait for that").never("it takes 8,192 fetches at once"),
    mark("calvin.warm_too_late", "rows come that nobody waits for any more"),
    mark("calvin.cold_told", "other nodes are told which rows are cold"),
    // §3.2, scheduling.
    mark("calvin.epoch_in_slices", "an epoch is run in parts"),
    mark("calvin.restarted", "a transaction touches more than its footprint, and runs again"),
    // §3.1.1, asynchronous replication.
    mark("calvin.reign_begun", "a replica leads, and will be the master"),
    mark("calvin.reign_ended", "the master leads no more"),
    mark("calvin.cut_fixed", "the master settles what the next epoch has"),
    mark("calvin.early_confirmed", "an epoch that was run early is decided"),
    mark("calvin.early_given_up", "cuts that were fixed are void"),
    mark("calvin.retreated", "some of them were run: the store goes back"),
    mark("calvin.leads_again", "a master that starts again asks for its leadership").rare("a master is down for less than an election takes"),
    mark("calvin.early_restored", "a restart finds a cut that was fixed"),
    mark("calvin.early_cuts_again", "the master leads again, and its cuts are still to be had"),
    mark("calvin.asked_to_lead", "the master is asked to give way to a better one"),
    mark("calvin.yielded", "it does"),
    mark("calvin.yield_in_vain", "it does, and nobody takes its place").rare("the better master is lost just when another gives way to it"),
    mark("calvin.leads_instead", "the better one asks for leadership"),
    mark("calvin.forwarded", "requests go to the master"),
    mark("calvin.taken", "the master has put them into a batch"),
    mark("calvin.not_taken", "it is the master no more, or not yet"),
    mark("calvin.put_back", "what was collected goes to the next master").rare("a master is deposed while it collects"),
    mark("calvin.void", "a transaction was taken by a master that is deposed, and not run"),
    mark("calvin.read_given_up", "an interactive transaction has read what is void, or may be").rare("a session commits what it read just before a failover"),
    mark("calvin.malformed_forward", "a forwarded request makes no sense").never(NONSENSE),
    // §3.1 and §3.2, over several shards.
    mark("calvin.sliced", "an epoch of the group is cut into what concerns each shard"),
    mark("calvin.early_slice", "a master sends what it has fixed before that is decided"),
    mark("calvin.decided_again", "a source tells that slices are decided, which is known"),
    mark("calvin.decided_after_gap", "a source tells that slices are decided which are not here").rare("a source does not notice that a connection was lost"),
    mark("calvin.slice_void", "a slice takes the place of one that is void"),
    mark("calvin.went_back", "a node goes back to before what it has run on void slices"),
    mark("calvin.items_of_another_line", "rows come for an epoch that was run, or will be, anew").rare("a master is deposed while a neighbour still runs the epoch that rows are of"),
    mark("calvin.subscribed", "another shard is asked for what concerns this one"),
    mark("calvin.other_replica_asked", "the replica of the region is away for long"),
    mark("calvin.missed_told", "a shard asks for what is not kept any more"),
    mark("calvin.missed", "what this shard asked for is not kept any more"),
    mark("calvin.other_replica_has_it", "another one may keep what the first does not"),
    mark("calvin.straggler_left", "a replica is far behind the others of its shard"),
    mark("calvin.slice_in_pieces", "a slice is more than is sent at a time").rare("an epoch has several of the smallest batches for one shard"),
    mark("calvin.more", "what is missing is more than is sent at a time"),
    mark("calvin.handed_on", "a peer's checkpoint brings what is kept for other shards"),
    mark("calvin.malformed_handed_on", "or something else").never(NONSENSE),
    mark("calvin.slice_of_another", "a slice is not of the shard that sends it").never(NONSENSE),
    mark("calvin.slice_again", "a slice comes again"),
    mark("calvin.slice_after_unsubscribed", "a slice comes from who was asked before").rare("a slice is under way from who does not keep others"),
    mark("calvin.slice_after_gap", "a slice comes before one that it follows").rare("two replicas in turn do not keep what is asked for"),
    mark("calvin.epoch_waits_for_slice", "another shard has not sent what it has of an epoch"),
    mark("calvin.waits_for_rows", "a transaction waits for rows of another shard"),
    mark("calvin.epoch_in_steps", "more can be run than is in a step"),
    mark("calvin.epochs_overlap", "one epoch ends while the next is being run"),
    mark("calvin.checkpoint_before_given", "a peer's checkpoint is older than what is half run").rare("one is asked for that has what is half run"),
    mark("calvin.served", "rows or results are sent to another shard"),
    mark("calvin.items_too_far_ahead", "rows come for an epoch that no slice is of").rare("rows are under way from who does not keep their slices"),
    mark("calvin.served_late", "rows come for an epoch that was run"),
    mark("calvin.left", "a transaction touches more than its footprint, and is taken again"),
    mark("calvin.left_too_often", "it does so again and again, and ends").rare("rows change faster than they can be looked up"),
    mark("calvin.result_later", "a transaction was run elsewhere, and its result has not come"),
    mark("calvin.result_of_another", "a result is of a void or another epoch").rare("a result of a void epoch comes after the one that counts"),
    mark("calvin.behind_told", "the coordinator is told that other groups are further"),
    mark("calvin.looked", "a reconnaissance asks another shard for rows"),
    mark("calvin.looked_too_far", "a program would read or write more than a transaction may").never(LARGE),
    mark("calvin.footprint_too_large", "what a program would touch is too much to be sent").never(LARGE),
    mark("calvin.part_too_large", "a shard has more rows of a transaction than it can send").never(LARGE),
    mark("calvin.found_late", "rows come that a reconnaissance does not wait for any more"),
    mark("calvin.not_divided", "one shard among several speaks to a cluster that has one").never(NONSENSE),
    mark("calvin.not_of_the_group", "another shard says what is for replicas of one").never(NONSENSE),
    mark("calvin.not_to_its_own_shard", "a replica says what is for other shards").never(NONSENSE),
    // §5, checkpoints.
    mark("calvin.answered_for", "a client of who stands still is told what a peer has run"),
    mark("calvin.outcome_late", "a peer tells of a request whose client was answered"),
    mark("calvin.outcomes_asked_again", "who was asked for outcomes is away: another one is").rare("who tells one that stands still is lost meanwhile"),
    mark("calvin.read_waits", "a read waits until what clients were told of is run here"),
    mark("calvin.source_frozen", "who sends rows stands still, and another one is asked").rare("one of several shards stands still"),
    // §5, recovery.
    mark("calvin.refused_while_rejoining", "a client is refused until it holds all again"),
    mark("calvin.in_flight_restored", "a restart finds own batches that were not run"),
    mark("calvin.epoch_replayed", "an epoch is run as the log says"),
    mark("calvin.outcome_unknown", "a client can't be told what became of its transaction"),
];
