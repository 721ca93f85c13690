//! What a step spends its time on, told to whoever measures or models it.
//!
//! A protocol marks the parts of a step that grow with the load: what was done, and how much of it.
//! A node that is being calibrated measures the time between the marks; the simulator, when it
//! predicts, charges what such a calibration has found. Nothing else listens, and marks change
//! nothing that a step does.

/// A part of a step that grows with the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Running programs at once, on a snapshot; counted in programs.
    Execute,
    /// Finding out what programs will touch without running them for good; in programs.
    Probe,
    /// Checking what was read, and choosing what stays valid; in transactions that were executed.
    /// Its larger parts have names of their own, and are not in it.
    Validate,
    /// Of validation: looking whether what was read is what is there now.
    Stale,
    /// Of validation: finding which of them conflict.
    Graph,
    /// Of validation: choosing the most of them that don't.
    Solve,
    /// Putting writes as they were executed into the store; in transactions.
    Apply,
    /// Cutting inputs into what concerns which shard; in transactions.
    Slice,
    /// Finding out what transactions touch, and asking for their locks; in transactions. Where that
    /// is not told apart it is in [`Self::Order`].
    Lock,
    /// Running transactions in their order; in transactions.
    Order,
    /// Telling the other shards of a region what they wait for of transactions that were run or
    /// read for them, and noting how they ended; in those.
    Serve,
    /// Ending an epoch, or what a protocol has like it: logging, publishing, reclaiming, finding
    /// who waits for an answer; in transactions.
    Settle,
    /// Making the bytes that peers and the log get; in bytes.
    Encode,
    /// Reading such bytes; in bytes.
    Decode,
}

impl Work {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Execute,
        Self::Probe,
        Self::Validate,
        Self::Stale,
        Self::Graph,
        Self::Solve,
        Self::Apply,
        Self::Slice,
        Self::Lock,
        Self::Order,
        Self::Serve,
        Self::Settle,
        Self::Encode,
        Self::Decode,
    ];

    /// What not every protocol tells apart: the parts of validation, and what is done on several
    /// shards alone.
    pub const OPTIONAL: [Self; 6] =
        [Self::Stale, Self::Graph, Self::Solve, Self::Slice, Self::Lock, Self::Serve];

    /// The name in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Execute => "work_execute",
            Self::Probe => "work_probe",
            Self::Validate => "work_validate",
            Self::Stale => "work_stale",
            Self::Graph => "work_graph",
            Self::Solve => "work_solve",
            Self::Apply => "work_apply",
            Self::Slice => "work_slice",
            Self::Lock => "work_lock",
            Self::Order => "work_order",
            Self::Serve => "work_serve",
            Self::Settle => "work_settle",
            Self::Encode => "work_encode",
            Self::Decode => "work_decode",
        }
    }
}

/// Is told of the parts of a step, on the thread that takes it. Of a part within another, the outer
/// one is not charged.
pub trait Meter {
    /// A part begins.
    fn begin(&self);

    /// The part that began last, of those that have not ended, has ended, and was so large.
    fn end(&self, work: Work, size: usize);
}
