//! Allowed exceptions, each with its number or its reason.
//!
//! The numbers only go down. A larger value is an error, and so is a smaller one, until the list
//! has the new number. An entry for something that no longer exists is also an error.

/// Functions that are a single table, a `match` or a list with about one line for each case, and
/// that would not be clearer in parts: path, name, reason.
pub const DISPATCH_TABLES: &[(&str, &str, &str)] = &[];

/// Functions above the limit: path, name, lines.
pub const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// Files above the limit: path, lines.
pub const LONG_FILES: &[(&str, usize)] = &[];

/// Files with lines above the limit: path, number of these lines.
pub const LONG_LINES: &[(&str, usize)] = &[];

/// Files of any protocol's folder that are not a phase of a paper: name, reason.
pub const PLUMBING: &[(&str, &str)] = &[
    ("mod.rs", "the chapter, which holds the phase table"),
    ("state.rs", "the state of a replica between the phases"),
    ("messages.rs", "the messages between the phases"),
    ("options.rs", "settings of the phases"),
    ("header.rs", "the use of the record header"),
    ("marks.rs", "the marks that each phase counts in a swarm"),
    ("batch.rs", "the bytes that replication and the log carry"),
];

/// Files of one protocol's folder that are not a phase of a paper: path, reason.
pub const NO_PHASE: &[(&str, &str)] = &[
    (
        "protocols/src/minerva/write_set_codec.rs",
        "write sets in those bytes, next to the arguments",
    ),
    ("protocols/src/minerva/bench.rs", "access to the phases, for benchmarks"),
    ("protocols/src/minerva/epoch_record.rs", "the encoding of outcomes, from commit to recovery"),
    ("protocols/src/calvin/cuts.rs", "mastership and turns, as the input log calls them"),
    (
        "protocols/src/calvin/warming/times.rs",
        "times that nodes needed, from which warming predicts",
    ),
    ("protocols/src/mako/latency.rs", "reports of finished phases, for latency breakdowns"),
];

/// Folders in `protocols/src` that are not a protocol: name, reason.
pub const SHARED: &[(&str, &str)] = &[
    ("agreement", "the replicated log for small decisions of protocols"),
    ("exhaustive", "the search over schedules, for tests of agreement and of protocols"),
    ("inputs", "the input log: cuts of the streams, for Minerva and Calvin"),
    ("presence", "log identities, and whether a replica may take part"),
    ("streams", "each source's log of batches on every replica"),
    ("transfer", "checkpoints of peers, in chunks"),
];
