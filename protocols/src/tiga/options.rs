//! Settings. They must be the same on every replica of a cluster.

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::{RegionId, ShardId};
use pangea_core::protocol::Words;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use serde::{Deserialize, Deserializer, Serialize};

use super::fast_path::is_fast_possible;
use super::order::Order;
use super::placement::{Preference, homes_near, turn_of};
use crate::inputs::within;

/// Tiga's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The interval at which replicas tell that they are alive, in milliseconds.
    #[serde(deserialize_with = "within::<1, 10_000, _, _>")]
    pub heartbeat_ms: u64,
    /// A leader that is silent for this long is replaced, in milliseconds; but not before one and a
    /// half round trips (§4).
    #[serde(deserialize_with = "within::<50, 600_000, _, _>")]
    pub doubt_ms: u64,
    /// A transaction that is not committed after this long is sent again, in milliseconds; but not
    /// before three round trips.
    #[serde(deserialize_with = "within::<50, 600_000, _, _>")]
    pub retry_ms: u64,
    /// A transaction that is in the log alone is asked for after this long, in milliseconds.
    #[serde(deserialize_with = "within::<1, 600_000, _, _>")]
    pub fetch_ms: u64,
    /// A leader gives no transaction a stamp that is further in the future than this, in
    /// milliseconds.
    #[serde(deserialize_with = "within::<1, 600_000, _, _>")]
    pub future_max_ms: u64,
    /// Where the leaders are: `auto`, a region, or `rotated` (§3.8, §5.5).
    pub leaders: String,
    /// Leaders are moved to a better place when that has been there for this long, in milliseconds.
    #[serde(deserialize_with = "within::<100, 3_600_000, _, _>")]
    pub move_ms: u64,
    /// When leaders of several shards agree on stamps (§3.8).
    pub approach: Approach,
    /// With `approach = "auto"`: leaders are near each other if messages between them take no
    /// longer than this, in milliseconds.
    #[serde(deserialize_with = "within::<0, 10_000, _, _>")]
    pub colocation_ms: u64,
    /// How leaders of several shards find out that nothing comes before a transaction, if they
    /// agree before its release.
    pub order: Ordering,
    /// The largest difference between the clocks of two nodes, in milliseconds; 0 if it is not
    /// known. For `order = "bounded"` (§6).
    #[serde(deserialize_with = "within::<0, 60_000, _, _>")]
    pub clock_error_ms: u64,
    /// The way in which transactions commit.
    pub path: Path,
    /// By how much a stamp is later than the expected arrival, in milliseconds (§3.1), if it has
    /// to be in time; `None` if that is measured.
    #[serde(deserialize_with = "headroom", skip_serializing_if = "Option::is_none")]
    pub headroom_ms: Option<u64>,
    /// The time before a stamp from which on a hash has the transactions before it, in
    /// milliseconds. For `path = "super"`.
    #[serde(deserialize_with = "within::<1, 60_000, _, _>")]
    pub window_ms: u64,
    /// A checkpoint is taken when the log has grown by this number of bytes since the last one.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub checkpoint_bytes: u64,
    /// The approximate size of the chunks in which a peer's checkpoint is transferred, in bytes.
    #[serde(deserialize_with = "within::<64, 16_777_216, _, _>")]
    pub chunk_bytes: usize,
    /// A replica takes a peer's checkpoint if the others would retain more than this number of
    /// bytes of the log for it.
    #[serde(deserialize_with = "within::<4_096, 1_099_511_627_776, _, _>")]
    pub behind_bytes: u64,
}

/// How leaders of several shards find out that nothing comes before a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ordering {
    /// They promise it to each other.
    #[default]
    Watermarks,
    /// Their clocks say so, as far as these keep `clock_error_ms` (§6).
    Bounded,
}

/// When leaders of several shards agree on the stamps of transactions (§3.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Approach {
    /// Before the release if they are near each other, and after it otherwise. Each view decides.
    #[default]
    Auto,
    /// Before they release them.
    Preventive,
    /// After that: their logs show whether all of them have used one stamp.
    Detective,
}

/// The way in which transactions commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// By the way that is expected to be quicker (§6), for each transaction.
    #[default]
    Auto,
    /// By the logs of f + 1 replicas (§3.7). With a replica in each region that needs one
    /// round trip to the leader, as the other way does, and fewer messages.
    Simple,
    /// By equal replies of a super quorum (§3.4), or by logs. Stamps are always late enough for
    /// replies.
    Super,
}

/// The leaders are in one region.
const AUTO: &str = "auto";

/// Each shard's leader is in another region.
const ROTATED: &str = "rotated";

impl Default for Options {
    fn default() -> Self {
        Self {
            heartbeat_ms: 50,
            doubt_ms: 300,
            retry_ms: 500,
            fetch_ms: 20,
            future_max_ms: 1_000,
            leaders: AUTO.to_owned(),
            move_ms: 5_000,
            approach: Approach::Auto,
            colocation_ms: 10,
            order: Ordering::Watermarks,
            clock_error_ms: 0,
            path: Path::Auto,
            headroom_ms: None,
            window_ms: 500,
            checkpoint_bytes: 256 << 20,
            chunk_bytes: 256 << 10,
            behind_bytes: 64 << 20,
        }
    }
}

/// The paper's words, and those of [`super::cells`].
pub(super) const WORDS: Words = Words {
    coordinator: "leader",
    epoch: "cell",
    stages: [
        "waits for the event loop",
        "its footprint is looked up",
        "is stamped and sent",
        "its body to the log, fsync",
        "body on enough replicas",
        "clocks pass its stamp, log arrives",
        "f + 1 replicas have the log",
        "runs with its cell",
        "the snapshot is published",
    ],
};

/// Checkpoints every few seconds.
pub(super) const TORTURE_SETTINGS: &[TortureSetting] =
    &[TortureSetting { key: "checkpoint_bytes", values: &["100000"] }];

pub(super) const VARIANTS: &[Variant] = &[Variant {
    key: "path",
    value: "super",
    what: "equal replies of a super quorum commit a transaction, too",
}];

/// Deserializes a fixed headroom.
fn headroom<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    within::<0, 10_000, _, _>(deserializer).map(Some)
}

impl Options {
    /// The default settings with low limits.
    pub(super) fn scaled_down() -> Self {
        Self {
            checkpoint_bytes: 100_000,
            chunk_bytes: 1_000,
            behind_bytes: 20_000,
            ..Self::default()
        }
    }

    /// Random settings, for searches.
    pub(super) fn drawn(rng: &mut fastrand::Rng) -> Self {
        let drawn = Self {
            heartbeat_ms: rng.u64(10..=200),
            doubt_ms: rng.u64(150..=1_000),
            retry_ms: rng.u64(50..=1_000),
            fetch_ms: rng.u64(1..=100),
            future_max_ms: rng.u64(1..=1_000),
            path: if rng.bool() { Path::Simple } else { Path::Super },
            headroom_ms: Some(rng.u64(0..=50)).filter(|ms| ms % 3 != 0),
            window_ms: rng.u64(1..=500),
            checkpoint_bytes: [4_096, 30_000, 256 << 20][rng.usize(..3)],
            chunk_bytes: [5_000, 20_000, 1 << 20][rng.usize(..3)],
            behind_bytes: [4_096, 20_000, 64 << 20][rng.usize(..3)],
            leaders: [AUTO, ROTATED][rng.usize(..2)].to_owned(),
            move_ms: rng.u64(100..=3_000),
            colocation_ms: rng.u64(0..=100),
            // Few drawn clocks keep a bound: runs with bounds draw them together.
            order: Ordering::Watermarks,
            clock_error_ms: 0,
            // Drawn at last, so that searches without shards stay as they are.
            approach: [Approach::Auto, Approach::Preventive, Approach::Detective][rng.usize(..3)],
        };
        let path = if rng.u8(..3) == 0 { Path::Auto } else { drawn.path };
        Self { path, ..drawn }
    }

    /// Where the leaders of a cluster should be; `None` if load and distances decide.
    pub(super) fn preference(&self, topology: &Topology) -> Option<Preference> {
        match self.leaders.as_str() {
            ROTATED => Some(Preference::Rotated),
            AUTO => None,
            _ => Some(Preference::In(homes_near(topology, self.home(topology)?))),
        }
    }

    /// The region that is named for the leaders.
    fn home(&self, topology: &Topology) -> Option<RegionId> {
        let named = topology.regions.iter().position(|name| *name == self.leaders);
        named.map(|region| RegionId(region as u16))
    }

    /// Checks the settings against each other and the cluster.
    ///
    /// # Errors
    /// If a cluster can't have them.
    pub(super) fn check(&self, topology: &Topology) -> Result<(), String> {
        let is_known = [AUTO, ROTATED].contains(&self.leaders.as_str())
            || topology.regions.contains(&self.leaders);
        if !is_known {
            let (name, regions) = (&self.leaders, topology.regions.join(", "));
            return Err(format!(
                "leaders = {name:?}: neither \"auto\" nor \"rotated\" nor a region; known regions: \
                 {regions}"
            ));
        }
        if self.order == Ordering::Bounded && self.clock_error_ms == 0 {
            return Err(
                "order = \"bounded\" needs clock_error_ms: the largest difference between \
                        the clocks of two nodes"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The rule by which the leaders of a cluster release transactions.
    pub(super) fn rule(&self, topology: &Topology, is_detective: bool) -> Order {
        match self.order {
            _ if is_detective => Order::Detective,
            Ordering::Bounded if topology.partitions.shards() > 1 => {
                Order::Bounded { error: Span::from_ms(self.clock_error_ms) }
            }
            _ => Order::Watermarks,
        }
    }

    /// The settings that have no effect in this cluster, or not the expected one: what happens in
    /// their place, and what to do.
    pub(super) fn warnings(&self, topology: &Topology) -> Vec<String> {
        let all = [
            self.warning_of_leaders(topology),
            self.warning_of_order(topology),
            self.warning_of_approach(topology),
            self.warning_of_path(topology),
            self.warning_of_headroom(),
        ];
        all.into_iter().flatten().collect()
    }

    fn warning_of_leaders(&self, topology: &Topology) -> Option<String> {
        let name = |region: RegionId| topology.regions[usize::from(region.0)].as_str();
        if self.leaders == ROTATED && topology.partitions.shards() == 1 {
            return Some(format!(
                "tiga.leaders = \"rotated\" has no effect without partitions: there is one leader, \
                 in {0}. Set \"{0}\" or \"auto\", or partition the tables",
                name(turn_of(topology, ShardId(0)))
            ));
        }
        let home = self.home(topology).filter(|home| !topology.is_whole(*home))?;
        let homes = homes_near(topology, home);
        let named: Vec<_> = homes.iter().map(|region| name(*region)).collect();
        let (last, homes) = (homes.len() - 1, named.join(", "));
        Some(format!(
            "tiga.leaders = {:?}: this region does not have all shards. The leaders of shards 0 to \
             {last} are in {homes}. Name a region that has all of them, or give it the others",
            self.leaders
        ))
    }

    fn warning_of_order(&self, topology: &Topology) -> Option<String> {
        let is_unused = self.order == Ordering::Bounded && topology.partitions.shards() == 1;
        let why = "tiga.order = \"bounded\" has no effect without partitions: there is one leader, \
                   which waits for no other. Remove it, or partition the tables";
        is_unused.then(|| why.to_owned())
    }

    fn warning_of_approach(&self, topology: &Topology) -> Option<String> {
        let approach = match self.approach {
            Approach::Auto => return None,
            Approach::Preventive => "preventive",
            Approach::Detective => "detective",
        };
        (topology.partitions.shards() == 1).then(|| {
            format!(
                "tiga.approach = \"{approach}\" has no effect without partitions: there is one \
                 leader, which agrees with no other. Remove it, or partition the tables"
            )
        })
    }

    fn warning_of_path(&self, topology: &Topology) -> Option<String> {
        if self.path != Path::Super {
            return None;
        }
        let what = "tiga.path = \"super\"";
        let is_divided = topology.partitions.shards() > 1;
        if !is_fast_possible(topology) {
            return Some(format!(
                "{what} has no effect: it needs an odd number of voting replicas of each shard, \
                 from 3 on. Commits are as with \"simple\""
            ));
        }
        if is_divided && self.approach == Approach::Preventive {
            return Some(format!(
                "{what} has no effect: with partitions it needs another approach than \
                 \"preventive\". Commits are as with \"simple\""
            ));
        }
        // A super quorum of three replicas (§3.4) is all of them, and two with the log are enough.
        // A node without a vote knows of the latter a message later, and may gain by replies.
        let is_slower = !is_divided && topology.voter_count() == 3 && topology.non_voting == 0;
        is_slower.then(|| {
            format!(
                "{what} only makes commits slower with three replicas: all of them would have to \
                 reply, and the log of two is the quicker way from each region. Set \"auto\", or \
                 have five regions"
            )
        })
    }

    fn warning_of_headroom(&self) -> Option<String> {
        let most = self.future_max_ms / 2;
        let headroom_ms = self.headroom_ms.filter(|headroom_ms| *headroom_ms > most)?;
        Some(format!(
            "tiga.headroom_ms = {headroom_ms} is more than half of tiga.future_max_ms = {}: stamps \
             are {most} ms later than the expected arrival. Lower the one, or raise the other",
            self.future_max_ms
        ))
    }

    /// Transactions that write are strictly serializable. Those that only read see an earlier
    /// state.
    pub(super) fn guarantee() -> Guarantee {
        Guarantee::Serializable
    }

    /// How long a node may be silent, if a round trip to it takes `round_trip`, and its reports
    /// follow each other within `pause`.
    pub(super) fn doubt(&self, round_trip: Span, pause: Span) -> Span {
        // A heartbeat may just have been sent before the first one that is missed.
        let heartbeat_us = (2 * Span::from_ms(self.heartbeat_ms).us).max(pause.us);
        let us = Span::from_ms(self.doubt_ms).us.max(round_trip.us * 3 / 2) + heartbeat_us;
        Span::from_us(us)
    }

    /// For how long before the last cell entries are kept for hashes: a window, and the time by
    /// which stamps may differ.
    pub(super) fn kept(&self) -> Span {
        Span::from_ms(self.window_ms + 1_200)
    }

    /// How long a transaction may take.
    pub(super) fn retry(&self, round_trip: Span) -> Span {
        Span::from_us(Span::from_ms(self.retry_ms).us.max(3 * round_trip.us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::partition::{Partitions, Rule};

    fn cluster(regions: usize, shards: u16) -> Topology {
        let names = ["a", "b", "c", "d", "e"];
        let whole = Topology::one_node_per_region("t", &names[..regions], Span::from_ms(25));
        match shards {
            1 => whole,
            _ => whole.divided(Partitions::new(shards, Rule::Everywhere)),
        }
    }

    fn warnings(options: &Options, regions: usize, shards: u16) -> Vec<String> {
        options.warnings(&cluster(regions, shards))
    }

    #[test]
    fn settings_of_several_shards_warn_where_there_is_one() {
        let rotated = Options { leaders: ROTATED.to_owned(), ..Options::default() };
        let bounded = Options { order: Ordering::Bounded, clock_error_ms: 5, ..Options::default() };
        let detective = Options { approach: Approach::Detective, ..Options::default() };
        let all = [(rotated, "leaders"), (bounded, "order"), (detective, "approach")];
        for (options, key) in all {
            let one = warnings(&options, 3, 1);
            let says = format!("tiga.{key} = ");
            assert!(one.len() == 1 && one[0].starts_with(&says), "{one:?}");
            assert!(one[0].contains("has no effect without partitions"), "{one:?}");
            assert_eq!(warnings(&options, 3, 2), [] as [&str; 0], "{key}");
        }
        assert_eq!(warnings(&Options::default(), 3, 1), [] as [&str; 0]);
    }

    #[test]
    fn a_headroom_that_is_cut_warns() {
        let of = |headroom_ms| Options { headroom_ms, ..Options::default() };
        assert_eq!(warnings(&of(Some(500)), 3, 1), [] as [&str; 0]);
        let warned = warnings(&of(Some(501)), 3, 1).pop().expect("a warning");
        assert!(
            warned.contains("headroom_ms = 501") && warned.contains("500 ms later"),
            "{warned}"
        );
    }

    /// Story: with three replicas nothing said that `"super"` makes each commit slower.
    #[test]
    fn a_super_quorum_warns_where_it_can_not_be_quicker() {
        let options = Options { path: Path::Super, ..Options::default() };
        let warned = |regions, shards| warnings(&options, regions, shards).pop();
        let says = |warning: Option<String>, words: &str| {
            let warning = warning.expect("a warning");
            assert!(warning.contains(words), "{warning}");
        };
        says(warned(3, 1), "only makes commits slower with three replicas");
        says(warned(1, 1), "has no effect: it needs an odd number");
        says(warned(4, 1), "has no effect: it needs an odd number");
        // With five a super quorum is four, and over shards replies save the word of leaders.
        assert_eq!([warned(5, 1), warned(3, 2)], [None, None]);
        let preventive = Options { approach: Approach::Preventive, ..options.clone() };
        says(warnings(&preventive, 3, 2).pop(), "another approach");
        // For a node without a vote the logs are a message later.
        let place = cluster(4, 1).nodes[3];
        let silent = cluster(4, 1).voters();
        let silent = Topology { nodes: silent.nodes[..3].to_vec(), ..silent };
        assert_eq!(options.warnings(&silent.with_non_voting(&[place])), [] as [&str; 0]);
    }
}
