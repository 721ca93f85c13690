//! Exhaustive where small: every order in which three replicas can take what happens to them.
//!
//! A search over the same `step` that runs in production, breadth first, so that what it finds is
//! found in the fewest choices. A choice is one of: the oldest message of a link and lane arrives,
//! a disk syncs, a node loses its power, a node starts, a node does something of its own accord
//! ([`Act`]). Each is possible at any time, within [`Bounds`]. What is on its way when a node loses
//! its power is lost; that it came before is another order, which is looked at too.
//!
//! ```text
//!   world = (node, node, node, links)        world + choice ----> world, checked, and new?
//!                |                                  |
//!                +-- node + event ------------------+  a node's step depends on the node alone,
//!                      |                               so it is run once and remembered
//!                      +--> node, messages
//! ```
//!
//! Brains can't be copied. A node is brought to a state by the events that led there from its last
//! start. It is known by a digest of its brain, disk and of what waits for the disk; two ways to
//! the same digest are merged. A brain that can't tell its whole state has what it took since its
//! start in its digest, in order, which merges less and is never wrong.

mod node;
mod search;

pub(crate) use node::{Brain, Happened, Out, Reply, Sent, View};
pub(crate) use search::search;

/// How many replicas there are.
pub(crate) const NODES: usize = 3;

/// How many of them make a majority, and f + 1.
pub(crate) const MAJORITY: usize = 2;

/// What a node can do of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Act {
    /// The leader proposes: what, follows from the number of proposals before.
    Propose(u8),
    /// It asks for leadership.
    Campaign,
    /// A client submits a transaction, which is a batch of its own.
    Submit,
    /// It has waited for batches for long.
    Fetch,
}

/// Something that happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// The node starts from its disk.
    Start,
    /// It loses its power.
    Crash,
    /// Everything that it wrote is durable.
    Sync,
    /// A message came, named by its number.
    Message { from: u8, message: u32 },
    /// It is connected to a peer.
    PeerUp(u8),
    /// It is not connected to a peer any more.
    PeerDown(u8),
    /// It does something.
    Act(Act),
}

/// What is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    /// So many proposals.
    pub proposals: u8,
    /// So many times somebody asks for leadership, after the first leader was elected.
    pub campaigns: u8,
    /// Who may ask for it.
    pub campaigners: [bool; NODES],
    /// Whose disk takes its time, if anybody's, and who may lose its power. The others sync at
    /// once: a message that waits for a disk that loses nothing is a message that is late.
    pub frail: Option<u8>,
    /// So many losses of power.
    pub crashes: u8,
    /// So many transactions at each node.
    pub submits: [u8; NODES],
    /// So many decisions are there at an end, at least: what is lacking is proposed there.
    pub decisions: u8,
    /// So many states are too many: the search ends without an answer.
    pub states_max: usize,
}

/// A digest of bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Whether to look at more than there is time for in a test: whoever builds it says so.
pub(crate) const IS_LARGE: bool = option_env!("PANGEA_EXHAUSTIVE_LARGE").is_some();

/// A search that looks at more states than this is given up.
pub(crate) const STATES_MAX: usize = if IS_LARGE { 230_000_000 } else { 1_500_000 };

/// Looks at all states within each of the bounds.
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

/// Finds a planted bug, and prints the way to it.
#[cfg(feature = "planted")]
pub(crate) fn is_found<B: Brain>(bug: pangea_core::planted::Bug, bounds: Bounds) {
    let planted = pangea_core::planted::Planted::new(Some(bug));
    let outcome = search::<B>(bounds);
    drop(planted);
    println!("{bug}: {outcome}");
    assert!(outcome.found.is_some(), "{bug}: {outcome}");
}
