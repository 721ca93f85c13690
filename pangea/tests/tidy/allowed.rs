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
    ("state.rs", "what a replica remembers between the phases"),
    ("messages.rs", "what the phases say to each other"),
    ("options.rs", "settings of the phases"),
    ("header.rs", "what is kept with a record"),
    ("marks.rs", "names of what each phase counts for a swarm"),
    ("batch.rs", "the bytes that replication and the log carry"),
];

/// Files of one protocol's folder that are not a phase of a paper: path, reason.
pub const NO_PHASE: &[(&str, &str)] = &[
    ("protocols/src/minerva/given.rs", "write sets in those bytes, beside the arguments"),
    ("protocols/src/minerva/bench.rs", "a door to the phases, for benchmarks"),
    ("protocols/src/minerva/resolution.rs", "the bytes in which commit tells recovery an outcome"),
    ("protocols/src/calvin/warming/times.rs", "how long nodes took, for warming to predict it"),
];

/// Folders in `protocols/src` that are not a protocol: name, reason.
pub const SHARED: &[(&str, &str)] = &[
    ("agreement", "the replicated log that protocols hand small decisions to"),
    ("exhaustive", "the search that tests of agreement and of protocols hand replicas to"),
    (
        "inputs",
        "the input log: batches that are replicated and cut alike for every protocol over it",
    ),
];
