//! The keys with a number, each with its meaning, default and bounds in one place.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use pangea_core::ids::NodeId;
use pangea_sql::RESULTS_BYTES_DEFAULT;
use pangea_sql::history::Retention;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{
    ConfigError, FileNode, FileRoundTrip, Insecure, LOG_SEGMENT_BYTES_DEFAULT, PartitionsConfig,
    Source, WanConfig,
};
use crate::clock::ClockConfig;
use crate::log::Durability;
use crate::pgwire::Authentication;
use crate::pool::WORKERS_MAX;

/// The default time for a stop in order, in seconds.
const STOP_S_DEFAULT: u64 = 60;
/// The maximum time for a stop in order, in seconds.
const STOP_S_MAX: u64 = 86_400;

/// The default retention for `AS OF SYSTEM TIME`. The retained versions take some 15 MB with rows
/// of a hundred bytes; scans must skip deletions.
pub const HISTORY_DEFAULT: Retention =
    Retention { time: Duration::from_secs(300), versions_max: 100_000, deletions_max: 200 };

/// The minimum length; a shorter segment would consist mostly of headers, and rotate too often.
const LOG_SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The maximum length; a longer segment takes too long to preallocate, and to read as a whole at a
/// start.
const LOG_SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// One day, because all retained versions are in memory.
const HISTORY_S_MAX: u64 = 86_400;
/// A larger value would not be a limit.
const HISTORY_VERSIONS_MAX: u64 = 1 << 40;
/// A larger value would not be a limit.
const RESULTS_MB_MAX: u64 = 1 << 20;
/// A larger value would not be a limit.
const MEMORY_MB_MAX: u64 = 1 << 24;
/// A slower store would be unusable.
const COLD_LATENCY_MS_MAX: u64 = 10_000;

/// Declares the keys, and the file as parsed, which has them between its other keys.
macro_rules! tuning {
    ($($(#[$about:meta])* $key:ident: $value:ty = $default:expr, in $bounds:expr;)*) => {
        /// The keys with a number. A node passes them on as they are.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize)]
        pub struct Tuning {
            $($(#[$about])* pub $key: $value,)*
        }

        impl Default for Tuning {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        /// The file as parsed, with the spans of its values for error messages.
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct File {
            pub cluster: Spanned<String>,
            pub protocol: Spanned<String>,
            pub node: Spanned<NodeId>,
            pub data_dir: Spanned<PathBuf>,
            #[serde(default)]
            pub durability: Durability,
            $(#[serde(default)] pub $key: Option<Spanned<<$value as Value>::Number>>,)*
            #[serde(default)]
            pub insecure: Insecure,
            #[serde(default)]
            pub authentication: Option<Spanned<Authentication>>,
            #[serde(default)]
            pub authentication_timeout_s: Option<Spanned<u64>>,
            #[serde(default)]
            pub tls_certificate: Option<Spanned<PathBuf>>,
            #[serde(default)]
            pub tls_key: Option<Spanned<PathBuf>>,
            pub regions: Vec<Spanned<String>>,
            pub nodes: Vec<FileNode>,
            #[serde(default)]
            pub partitions: Option<Spanned<PartitionsConfig>>,
            #[serde(default)]
            pub round_trips: Vec<FileRoundTrip>,
            #[serde(default)]
            pub clock: Option<Spanned<ClockConfig>>,
            #[serde(default)]
            pub wan: Option<Spanned<WanConfig>>,
        }

        impl File {
            /// Returns the keys with a number, each within its bounds, or with its default.
            pub(super) fn tuning(&self, source: &Source) -> Result<Tuning, ConfigError> {
                let default = Tuning::default();
                Ok(Tuning {
                    $($key: match &self.$key {
                        None => default.$key,
                        Some(value) => {
                            let number = within(source, value, $bounds, stringify!($key))?;
                            <$value as Value>::of(number)
                        }
                    },)*
                })
            }
        }
    };
}

tuning! {
    /// The number of threads that run data-parallel work; 0 means one for each core.
    workers: usize = 0, in 0..=WORKERS_MAX;
    /// The length of a log segment.
    log_segment_bytes: u64 = LOG_SEGMENT_BYTES_DEFAULT,
        in LOG_SEGMENT_BYTES_MIN..=LOG_SEGMENT_BYTES_MAX;
    /// How far back `AS OF SYSTEM TIME` reads, in seconds; 0 disables it.
    history_s: u64 = HISTORY_DEFAULT.time.as_secs(), in 0..=HISTORY_S_MAX;
    /// The maximum number of old versions retained for it.
    history_versions: u64 = HISTORY_DEFAULT.versions_max, in 0..=HISTORY_VERSIONS_MAX;
    /// The maximum number of deletions retained for it.
    history_deletions: u64 = HISTORY_DEFAULT.deletions_max, in 0..=HISTORY_VERSIONS_MAX;
    /// The memory budget for rows in MiB, excluding data that can't be evicted; `None` means no
    /// limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_mb: Option<u64> = None, in 1..=MEMORY_MB_MAX;
    /// The artificial minimum latency of reads of cold rows, in milliseconds.
    cold_latency_ms: u64 = 0, in 0..=COLD_LATENCY_MS_MAX;
    /// The time for a stop in order, in seconds: the node finishes what is in flight and writes a
    /// checkpoint. 0 means that it ends at once, as after a crash.
    stop_s: u64 = STOP_S_DEFAULT, in 0..=STOP_S_MAX;
    /// The memory limit for unread results of all clients, in MiB.
    results_mb: u64 = (RESULTS_BYTES_DEFAULT >> 20) as u64, in 1..=RESULTS_MB_MAX;
}

impl Tuning {
    /// How far back `AS OF SYSTEM TIME` reads.
    pub fn history(&self) -> Retention {
        let time = Duration::from_secs(self.history_s);
        let (versions_max, deletions_max) = (self.history_versions, self.history_deletions);
        Retention { time, versions_max, deletions_max }
    }

    /// The memory budget for rows in bytes.
    pub(crate) fn memory_bytes(&self) -> Option<usize> {
        self.memory_mb.map(|mb| (mb as usize) << 20)
    }
}

/// The value of a key with a number.
pub(super) trait Value {
    /// The number in the file.
    type Number;

    fn of(number: Self::Number) -> Self;
}

impl Value for u64 {
    type Number = Self;

    fn of(number: Self) -> Self {
        number
    }
}

impl Value for usize {
    type Number = Self;

    fn of(number: Self) -> Self {
        number
    }
}

impl<T> Value for Option<T> {
    type Number = T;

    fn of(number: T) -> Self {
        Some(number)
    }
}

/// Returns a number that is within its bounds.
pub(super) fn within<T: Copy + PartialOrd + Display>(
    source: &Source,
    value: &Spanned<T>,
    bounds: RangeInclusive<T>,
    key: &str,
) -> Result<T, ConfigError> {
    let found = *value.get_ref();
    if bounds.contains(&found) {
        return Ok(found);
    }
    let (least, most) = (bounds.start(), bounds.end());
    let message = format!("{key} = {found}: must be from {least} to {most}");
    Err(source.error(Some(value.span()), message))
}
