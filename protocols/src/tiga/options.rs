//! Settings. They must be the same on every replica of a cluster.

use pangea_core::guarantee::{Guarantee, TortureSetting, Variant};
use pangea_core::ids::RegionId;
use pangea_core::time::Span;
use pangea_core::topology::Topology;
use serde::{Deserialize, Deserializer, Serialize};

use super::fast_path::is_fast_possible;
use super::order::Order;
use super::placement::{Preference, homes_near};
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

    /// The settings that have no effect in this cluster.
    pub(super) fn warnings(&self, topology: &Topology) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(home) = self.home(topology).filter(|home| !topology.is_whole(*home)) {
            let homes = homes_near(topology, home);
            let homes: Vec<_> =
                homes.iter().map(|it| topology.regions[usize::from(it.0)].as_str()).collect();
            warnings.push(format!(
                "tiga.leaders = {:?}: this region does not have all shards. The leaders of shards \
                 0 to {} are in {}",
                self.leaders,
                homes.len() - 1,
                homes.join(", ")
            ));
        }
        if self.order == Ordering::Bounded && topology.partitions.shards() == 1 {
            let why = "tiga.order = \"bounded\" has no effect without partitions".to_owned();
            warnings.push(why);
        }
        let is_divided = topology.partitions.shards() > 1;
        let agrees_first = is_divided && self.approach == Approach::Preventive;
        let why = match is_fast_possible(topology) {
            _ if self.path != Path::Super => return warnings,
            false => "it needs an odd number of replicas, from 3 on",
            true if agrees_first => "with partitions it needs another approach than \"preventive\"",
            true => return warnings,
        };
        let what = "tiga.path = \"super\" has no effect";
        warnings.push(format!("{what}: {why}. Commits are as with \"simple\""));
        warnings
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
