//! Exhaustive search of small worlds: every order of events that three replicas can see.
//!
//! The search runs the same `step` as production. It is breadth first, so that it finds a violation
//! with the fewest choices. A choice is one of: the oldest message of a link and lane arrives, a
//! disk syncs, a node loses power, a node starts, a node acts spontaneously ([`Act`]). Each is
//! possible at any time, within [`Bounds`]. Messages in flight when a node loses power are lost.
//! The case that they arrived first is another order, which the search visits too.
//!
//! ```text
//!   world = (node, node, node, links)        world + choice ----> world, checked, and new?
//!                |                                  |
//!                +-- node + event ------------------+  a node's step depends on the node alone,
//!                      |                               so it is run once and remembered
//!                      +--> node, messages
//! ```
//!
//! Brains can't be copied. A node is brought to a state by replaying the events since its last
//! start. A state is identified by a digest of the node's brain, its disk, and the effects that
//! wait for the disk; two paths to the same digest are merged. The digest of a brain that can't
//! expose its whole state covers the events since its start, in order. That merges fewer paths and
//! is never wrong.

mod node;
mod outcome;
mod reads;
mod search;

pub(crate) use node::{Brain, Fresh, Happened, Out, Reply, Sent, View};
pub(crate) use search::search;

/// The number of replicas.
pub(crate) const NODES: usize = 3;

/// The size of a majority, which is also f + 1.
pub(crate) const MAJORITY: usize = 2;

/// A spontaneous action of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Act {
    /// The leader proposes; the entry follows from the number of proposals before.
    Propose(u8),
    /// The node campaigns for leadership.
    Campaign,
    /// A client submits a transaction, which becomes a batch by itself.
    Submit,
    /// A client begins the node's strict read of this number.
    Read(u8),
    /// The node has waited for batches for long.
    Fetch,
}

/// An event of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// The node starts from its disk.
    Start,
    /// It loses power.
    Crash,
    /// Everything that it wrote becomes durable.
    Sync,
    /// A message arrives, identified by its number.
    Message { from: u8, message: u32 },
    /// It is connected to a peer.
    PeerUp(u8),
    /// It is disconnected from a peer.
    PeerDown(u8),
    /// It acts spontaneously.
    Act(Act),
}

/// A step before a search, which it takes in this order only.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opening {
    /// A node acts.
    Act(u8, Act),
    /// All messages arrive, except for those from one node to another on one lane.
    Deliver { except: (u8, u8, u8) },
}

/// The limits of a search.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    /// The maximum number of proposals.
    pub proposals: u8,
    /// The maximum number of campaigns after the first leader was elected.
    pub campaigns: u8,
    /// The nodes that may campaign.
    pub campaigners: [bool; NODES],
    /// The node, if any, whose disk syncs late and which may lose power. The others sync at once: a
    /// message that waits for a disk that loses nothing is equivalent to a late message.
    pub frail: Option<u8>,
    /// The maximum number of power losses.
    pub crashes: u8,
    /// The maximum number of transactions at each node.
    pub submits: [u8; NODES],
    /// The maximum number of strict reads at each node, including those of the opening.
    pub reads: [u8; NODES],
    /// The steps that lead to the first state. Its campaigns and proposals do not count.
    pub opening: &'static [Opening],
    /// The minimum number of decisions at an end; missing ones are proposed there.
    pub decisions: u8,
    /// A search that visits more states than this ends without an answer.
    pub states_max: usize,
}

/// A digest of bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Whether to search more than a test has time for; set by an environment variable at build time.
pub(crate) const IS_LARGE: bool = option_env!("PANGEA_EXHAUSTIVE_LARGE").is_some();

/// A search that visits more states than this is abandoned.
pub(crate) const STATES_MAX: usize = if IS_LARGE { 230_000_000 } else { 3_500_000 };

/// Visits all states within each of the bounds and asserts that no check fails.
pub(crate) fn all_is_well<B: Brain>(all: &[Bounds]) {
    let mut bad = Vec::new();
    for bounds in all {
        let outcome = search::<B>(*bounds);
        println!("{bounds:?}: {outcome}");
        if outcome.found.is_some() || !outcome.is_complete {
            bad.push(format!("{bounds:?}: {outcome}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Asserts that a planted bug is found, and prints the choices that lead to it.
#[cfg(feature = "planted")]
pub(crate) fn is_found<B: Brain>(bug: pangea_core::planted::Bug, bounds: Bounds) {
    let planted = pangea_core::planted::Planted::new(Some(bug));
    let outcome = search::<B>(bounds);
    drop(planted);
    println!("{bug}: {outcome}");
    assert!(outcome.found.is_some(), "{bug}: {outcome}");
}
