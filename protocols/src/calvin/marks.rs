//! Coverage marks of the phases and of rare branches. A swarm must hit each, or state why it can't.

use pangea_core::protocol::Mark;

use crate::inputs::marks;
use crate::marks::{NONSENSE, mark};

/// All marks of a replica.
pub(super) const ALL: &[Mark] = &marks::with::<{ marks::COUNT + OWN.len() }>(OWN, UNUSED);

/// Calvin's replicas acknowledge batches to all replicas, so no proof of availability is sent. A
/// replica that is removed from the configuration still counts.
const UNUSED: &[&str] =
    &["streams.proof_sent", "streams.proof_before_batch", "streams.batch_of_sealed"];

/// Why a swarm never hits marks of limits in megabytes.
const LARGE: &str = "megabytes are needed; see protocols/src/calvin/tests/large.rs";

/// All marks of Calvin itself, in the order of the phases.
const OWN: &[Mark] = &[
    // §3.1, sequencing.
    mark("calvin.sequenced", "a request is put into a batch"),
    mark("calvin.certified", "a request is an interactive transaction"),
    mark("calvin.reconnoitred", "a reconnaissance of a program finds its footprint"),
    mark("calvin.batch_full", "a batch is sent because it is large enough"),
    mark(
        "calvin.too_many_in_flight",
        "a client is refused because too many requests are in flight",
    )
    .rare("several of the smallest batches must be full before a node is ready"),
    mark("calvin.refused_for_node", "a client is refused because another node is too far behind")
        .rare("most epochs of several seconds must have requests while a node is unreachable"),
    // §4, warming.
    mark("calvin.held", "a request that reads cold rows is delayed"),
    mark("calvin.held_until_warm", "all nodes have fetched the rows of a delayed request"),
    mark(
        "calvin.held_long_enough",
        "the predicted delay elapses before all nodes have fetched the rows",
    ),
    mark(
        "calvin.held_for_one_that_is_gone",
        "a delayed request does not wait for a node that is disconnected",
    )
    .rare("a connection is lost while a request waits for that node"),
    mark("calvin.fetched_for_another", "rows are fetched for a request of another node"),
    mark("calvin.too_much_to_fetch", "rows are not fetched because too many fetches wait")
        .never("8,192 fetches would have to wait at once"),
    mark("calvin.warm_too_late", "rows arrive for which no request waits any more"),
    mark("calvin.cold_told", "this node announces its cold rows to the other nodes"),
    // §3.2, scheduling.
    mark("calvin.epoch_in_slices", "an epoch is run in slices"),
    mark("calvin.cuts_in_steps", "the epochs that are ready are run in several steps"),
    mark("calvin.restarted", "a transaction leaves its footprint and runs again"),
    // §3.1.1, asynchronous replication.
    mark("calvin.master_term_begun", "a replica leads, and its master term begins"),
    mark("calvin.master_term_ended", "a master term ends"),
    mark("calvin.cut_fixed", "the master fixes the cut of the next epoch"),
    mark("calvin.early_confirmed", "the cut of an early epoch is decided"),
    mark("calvin.early_given_up", "fixed cuts are void"),
    mark("calvin.retreated", "early epochs of void cuts were run: the store rolls back"),
    mark("calvin.leads_again", "a restarted master requests leadership again")
        .rare("a master must be down for less time than an election takes"),
    mark("calvin.early_restored", "a restart finds a fixed cut"),
    mark(
        "calvin.early_cuts_again",
        "the master leads again, and its fixed cuts can still be decided",
    ),
    mark("calvin.asked_to_lead", "another replica requests mastership from the master"),
    mark("calvin.yielded", "the master transfers mastership"),
    mark("calvin.yield_in_vain", "the master transfers mastership, but no replica takes over")
        .rare("the preferred master is lost during the transfer"),
    mark("calvin.forwarded", "requests are forwarded to the master"),
    mark("calvin.taken", "the master has put forwarded requests into a batch"),
    mark("calvin.not_taken", "forwarded requests reach a replica that is not the master"),
    mark("calvin.put_back", "collected requests are queued for the next master")
        .rare("a master is deposed while it collects requests"),
    mark("calvin.void", "a transaction was in a batch of a deposed master and was not run"),
    mark(
        "calvin.read_given_up",
        "an interactive transaction has read, or may have read, a void epoch",
    )
    .rare("a session commits what it read just before a failover"),
    mark("calvin.malformed_forward", "a forwarded request is malformed").never(NONSENSE),
    // §3.1 and §3.2, over several shards.
    mark("calvin.sliced", "an epoch of the group is split into a slice for each shard"),
    mark("calvin.early_slice", "a master sends a slice before its cut is decided"),
    mark("calvin.decided_again", "a source confirms slices that were confirmed before"),
    mark("calvin.decided_after_gap", "a source confirms slices that this node has not received")
        .rare("a source does not notice that a connection was lost"),
    mark("calvin.slice_void", "a slice replaces a void one"),
    mark("calvin.went_back", "a node rolls back epochs that it ran on void slices"),
    mark("calvin.items_of_another_line", "rows arrive from a run of another lineage")
        .rare("a master is deposed while another shard still runs the epoch of the rows"),
    mark("calvin.epoch_of_two_programs", "an epoch has cuts of several programs, and runs nothing")
        .rare("nodes change their programs after a kill"),
    mark("calvin.subscribed", "this shard subscribes to the slices of another"),
    mark(
        "calvin.other_replica_asked",
        "another replica is subscribed to because that of the region is unreachable",
    ),
    mark("calvin.missed_told", "a shard requests epochs that are no longer retained"),
    mark("calvin.missed", "the epochs that this shard requested are no longer retained"),
    mark(
        "calvin.other_replica_has_it",
        "another replica may retain epochs that the first one has truncated",
    ),
    mark("calvin.straggler_left", "slices for a straggler are no longer retained"),
    mark("calvin.slice_in_pieces", "a slice is sent in chunks because it is too large")
        .rare("an epoch has several of the smallest batches for one shard"),
    mark("calvin.more", "the missing slices exceed what is sent at a time"),
    mark("calvin.handed_on", "a peer's checkpoint contains the data retained for other shards"),
    mark("calvin.malformed_handed_on", "the data retained for other shards is malformed")
        .never(NONSENSE),
    mark("calvin.slice_of_another", "a slice is not of the sender's shard").never(NONSENSE),
    mark("calvin.slice_again", "a slice arrives again"),
    mark(
        "calvin.slice_after_unsubscribed",
        "a slice arrives from the previously subscribed replica",
    )
    .rare("a slice is in flight from a replica that does not retain later ones"),
    mark("calvin.slice_after_gap", "a slice arrives after a gap")
        .rare("two replicas in succession do not retain the requested epochs"),
    mark("calvin.epoch_waits_for_slice", "the slice of another shard has not arrived"),
    mark("calvin.waits_for_rows", "a transaction waits for rows of another shard"),
    mark("calvin.epoch_in_steps", "more transactions can run than fit into a step"),
    mark("calvin.epochs_overlap", "an epoch ends while the next one runs"),
    mark("calvin.checkpoint_before_given", "a peer's checkpoint is older than a half-run epoch")
        .rare("a peer must have a checkpoint that includes the half-run epoch"),
    mark("calvin.served", "rows or results are sent to another shard"),
    mark("calvin.items_too_far_ahead", "rows arrive for an epoch whose slices have not arrived")
        .rare("rows are in flight from a node that does not retain their slices"),
    mark("calvin.served_late", "rows arrive for an epoch that was already run"),
    mark("calvin.left", "a transaction leaves its footprint and is sequenced again"),
    mark("calvin.left_too_often", "a transaction leaves its footprint too often and fails")
        .rare("rows change faster than they can be looked up"),
    mark(
        "calvin.result_later",
        "the result of a transaction that another shard ran has not arrived",
    ),
    mark("calvin.result_of_another", "a result is of a void or another epoch")
        .rare("a result of a void epoch arrives after the valid one"),
    mark(
        "calvin.behind_told",
        "the coordinator receives that other groups have reached later epochs",
    ),
    mark("calvin.looked", "a reconnaissance requests rows from another shard"),
    mark("calvin.looked_too_far", "a program exceeds the limit of reads and writes").never(LARGE),
    mark("calvin.footprint_too_large", "the footprint of a program is too large to be sent")
        .never(LARGE),
    mark("calvin.part_too_large", "a shard would have to send too many rows for one transaction")
        .never(LARGE),
    mark("calvin.found_late", "rows arrive for a reconnaissance that no longer waits"),
    mark("calvin.not_divided", "a message between shards arrives in an unpartitioned cluster")
        .never(NONSENSE),
    mark(
        "calvin.not_of_the_group",
        "another shard sends a message that is for replicas of its own shard",
    )
    .never(NONSENSE),
    mark(
        "calvin.not_to_its_own_shard",
        "a replica sends a message that is for other shards to its own",
    )
    .never(NONSENSE),
    // §5, checkpoints.
    mark("calvin.answered_for", "a frozen replica answers a client with a peer's outcome"),
    mark("calvin.outcome_late", "a peer sends an outcome of a request whose client was answered"),
    mark(
        "calvin.outcomes_asked_again",
        "the peer that outcomes were requested from is lost, so another is asked",
    )
    .rare("the peer that sends outcomes to a frozen replica is lost"),
    mark(
        "calvin.read_waits",
        "a read waits until this node has run the epochs that clients got outcomes of",
    ),
    mark(
        "calvin.source_frozen",
        "rows are requested from another replica because the first is frozen",
    )
    .rare("a replica of one of several shards is frozen"),
    // §5, recovery.
    mark(
        "calvin.refused_while_rejoining",
        "a client is refused until a replaced node has fetched everything",
    ),
    mark("calvin.in_flight_restored", "a restart finds local batches that were not run"),
    mark("calvin.epoch_replayed", "an epoch is replayed from the log"),
    mark("calvin.outcome_unknown", "the outcome of a transaction is unknown for its client"),
];
