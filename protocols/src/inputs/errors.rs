//! The errors for clients whose transaction was not accepted or whose outcome is unknown.

use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::{WaitsFor, Words};
use pangea_core::topology::Topology;
use pangea_core::txn::{Abort, CodeDigest, SqlState};

use crate::replica::Replica;

/// The maximum number of this replica's transactions in flight. When it is reached, the cluster is
/// not keeping up or this replica is cut off, and new transactions are rejected.
pub(crate) const IN_FLIGHT_MAX: usize = 400_000;

/// The error when the in-flight limit is reached; it names the slowest node if `late` is known.
pub(crate) fn too_many_in_flight(late: Option<&WaitsFor>, topology: &Topology) -> Abort {
    let message = "too many transactions wait to be committed";
    let detail = match late {
        Some(late) => {
            format!("This node waits for {}.", late.describe(topology, Words::OF_EPOCHS.epoch))
        }
        None => "The cluster is not keeping up, or this node can't reach a majority.".to_owned(),
    };
    Abort::new(SqlState::INSUFFICIENT_RESOURCES, message)
        .with_detail(detail)
        .with_hint("Try again later.")
}

/// The error when too much already waits for `late`, which is another node or this one.
pub(crate) fn too_far_behind(late: &WaitsFor, topology: &Topology) -> Abort {
    let message =
        format!("this node waits for {}", late.describe(topology, Words::OF_EPOCHS.epoch));
    let shard = match topology.partitions.shards() {
        1 => String::new(),
        _ => format!("shard {} in ", topology.nodes[late.node.index()].shard.0),
    };
    let detail = format!(
        "It is the node of {shard}region {}. New requests that would wait for it are refused.",
        topology.region_name(late.node)
    );
    Abort::new(SqlState::INSUFFICIENT_RESOURCES, message)
        .with_detail(detail)
        .with_hint("The request was not executed. Try again later.")
}

/// The error when a transaction was skipped by a peer's checkpoint, which contains its effects but
/// not its outcome.
pub(crate) fn outcome_unknown() -> Abort {
    Abort::new(SqlState::OUTCOME_UNKNOWN, "the outcome of the transaction is unknown on this node")
        .with_detail(
            "The node was disconnected or far behind, and continued from the checkpoint of a peer.",
        )
        .with_hint("Check the data before you try again.")
}

/// The error while this replica, which lost its disk, has not yet recovered its data.
pub(crate) fn not_rejoined() -> Abort {
    let message = "this node is being replaced and does not accept requests yet";
    Abort::new(SqlState::CANNOT_CONNECT_NOW, message)
        .with_detail("It is fetching the data of its predecessor from the other nodes.")
        .with_hint("Use another node, or try again later.")
}

/// Why a node can't apply an epoch, which its protocol calls `epoch`, that was proposed under other
/// code, and what the operator can do.
pub(crate) fn other_code(
    replica: &Replica,
    (epoch, version): (&str, SnapshotVersion),
    (its_code, own_code): (CodeDigest, CodeDigest),
) -> String {
    let topology = &replica.topology;
    let name = format!("{} (node {})", topology.place_name(replica.me), replica.node(replica.me).0);
    let what = format!(
        "{name} can't run {epoch} {}: it was proposed by a program (code {its_code}) whose \
         procedures or versions differ from those of this program (code {own_code}), and would \
         give another result here",
        version.0
    );
    let remedy = "start the earlier program on all nodes, stop it in order (SIGTERM), which writes \
                  a checkpoint, and then start this program";
    match topology.node_count() {
        1 => format!("{what}. Nothing is lost: {remedy}"),
        _ => format!(
            "{what}. This node waits for the checkpoint of a node that has run the {epoch}. Or \
             start the program of code {its_code} on this node, if the other nodes run it. If no \
             node has run the {epoch}, nothing is lost: {remedy}"
        ),
    }
}

/// The error while this replica is stopping in order.
pub(crate) fn stopping() -> Abort {
    Abort::new(SqlState::CANNOT_CONNECT_NOW, "the node is stopping").with_hint("Use another node.")
}

/// The error of a request to move slots, if the protocol never moves any.
pub(crate) fn slots_stay() -> Abort {
    let message = "this protocol can't move rows to other shards";
    Abort::new(SqlState::FEATURE_NOT_SUPPORTED, message).with_hint("Mako can.")
}

/// The error while this replica can't apply an epoch because its code differs.
pub(crate) fn refuses_clients(why: String) -> Abort {
    Abort::new(SqlState::CANNOT_CONNECT_NOW, "this node runs another version of the procedures")
        .with_detail(why)
        .with_hint("Use another node, or try again later.")
}
