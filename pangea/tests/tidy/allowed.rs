//! What is allowed to stay as it is, with its number or its reason.
//!
//! A number here only goes down: more than it says is an error, and so is less, until the list
//! says less too. An entry for something that is gone is an error as well.

/// Functions that are one table, a `match` or a list with one line or so for each case, and would
/// not be clearer in parts: path, name, reason.
pub const DISPATCH_TABLES: &[(&str, &str, &str)] = &[];

/// Functions that are longer than they should be: path, name, lines.
pub const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// Files that are longer than they should be: path, lines.
pub const LONG_FILES: &[(&str, usize)] = &[];

/// Files with lines that are longer than they should be: path, how many such lines.
pub const LONG_LINES: &[(&str, usize)] = &[];

/// Files of a protocol's folder that are no phase of a paper, in any protocol: name, reason.
pub const PLUMBING: &[(&str, &str)] = &[
    ("mod.rs", "the chapter, which holds the phase table"),
    ("state.rs", "what a replica remembers between the phases"),
    ("messages.rs", "what the phases say to each other"),
    ("options.rs", "settings of the phases"),
    ("header.rs", "what is kept with a record"),
];

/// Files of one protocol's folder that are no phase of a paper: path, reason.
pub const NO_PHASE: &[(&str, &str)] = &[
    ("protocols/src/minerva/batch.rs", "the bytes that replication and the log carry"),
    ("protocols/src/minerva/given.rs", "write sets in those bytes, beside the arguments"),
    ("protocols/src/minerva/bench.rs", "a door to the phases, for benchmarks"),
    ("protocols/src/minerva/marks.rs", "names of what each phase counts for a swarm"),
    ("protocols/src/minerva/resolution.rs", "the bytes in which commit tells recovery an outcome"),
    ("protocols/src/calvin/batch.rs", "the bytes that replication and the log carry"),
    ("protocols/src/calvin/marks.rs", "names of what each phase counts for a swarm"),
    ("protocols/src/calvin/warming/times.rs", "how long nodes took, for warming to predict it"),
];

/// Folders in `protocols/src` that are no protocol: name, reason.
pub const SHARED: &[(&str, &str)] = &[
    ("agreement", "the replicated log that protocols hand small decisions to"),
    ("exhaustive", "the search that tests of agreement and of protocols hand replicas to"),
    (
        "inputs",
        "the input log: batches that are replicated and cut alike for every protocol over it",
    ),
];
