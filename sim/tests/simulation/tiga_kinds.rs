//! The kinds of drawn runs of Tiga. `sim/examples/tiga_swarm.rs` runs many seeds of one of them.

use pangea_protocols::tiga::Options;
use pangea_sim::Settings;

use crate::tiga_drawn as drawn;
use crate::tiga_partial_drawn as partial;
use crate::tiga_placed as placed;

/// The settings of a seed.
pub type Draw = fn(u64) -> (Settings, Options);

/// Each kind, and a description of its runs.
pub const KINDS: [(&str, Draw, &str); 21] = [
    ("drawn", drawn::drawn, "one shard, all faults"),
    ("divided", drawn::drawn_divided, "two or three shards, all faults"),
    ("fast", drawn::drawn_fast, "several shards with the fast path, all faults"),
    ("partial", partial::drawn_partial, "regions that lack shards, all faults"),
    ("non-voting", partial::drawn_non_voting, "replicas without a vote, all faults"),
    ("wild", placed::wild, "clocks that are hours off, jump, stand still and lie"),
    ("bounded", |seed| placed::bounded(seed, true), "the order `bounded`, its bound right"),
    ("lying", |seed| placed::bounded(seed, false), "the order `bounded`, its bound wrong"),
    ("moved", placed::moved, "leaders that move"),
    ("mute", |seed| drawn::mute(seed, "list-append"), "a leader that nobody hears"),
    ("cut", drawn::cut_from_voters, "leaders that hear non-voting replicas alone"),
    ("away", |seed| drawn::away(seed, "list-append"), "a node that was away for long"),
    ("away-divided", drawn::away_divided, "the same with two shards"),
    ("away-partial", partial::away_partial, "the same with regions that lack shards"),
    ("replaced", |seed| drawn::replaced(seed, "list-append"), "lost disks"),
    ("replaced-divided", drawn::replaced_divided, "the same with two shards"),
    ("replaced-partial", partial::replaced_partial, "the same with regions that lack shards"),
    ("upgraded", drawn::upgraded, "nodes stop in order, and continue with a new program"),
    ("upgraded-divided", drawn::upgraded_divided, "the same with several shards"),
    ("stopped", drawn::stopped, "all nodes stop at nearly the same time"),
    ("upgraded-partial", partial::upgraded_partial, "the same with regions that lack shards"),
];
