//! The CPU stages of a step, for measuring and modelling its cost.
//!
//! A protocol marks the sections of a step whose cost grows with the load, with their kind and
//! size. A node that is being calibrated measures the time between the marks. When the simulator
//! predicts performance, it charges the cost that a calibration found. Marks have no other consumer
//! and never change the effects of a step.

/// A section of a step whose cost grows with the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuStage {
    /// Optimistic execution of programs on a snapshot; size in programs.
    Execute,
    /// Reconnaissance: finding the footprints of programs without effects; size in programs.
    Probe,
    /// Checking reads and choosing the valid transactions; size in executed transactions. Excludes
    /// its larger parts, which have their own names.
    Validate,
    /// Part of validation: finding stale reads.
    Stale,
    /// Part of validation: building the conflict graph.
    Graph,
    /// Part of validation: choosing the largest set without conflicts.
    Solve,
    /// Applying writes as executed to the store; size in transactions.
    Apply,
    /// Cutting inputs into slices, one for each shard; size in transactions.
    Slice,
    /// Finding footprints and requesting locks; size in transactions. Protocols that do not measure
    /// it separately include it in [`Self::Order`].
    Lock,
    /// Running transactions in serial order; size in transactions.
    Order,
    /// Sending remote reads and outcomes to the other shards of a region, and recording their
    /// outcomes; size in transactions.
    Serve,
    /// Ending an epoch or the protocol's equivalent: logging, publishing, reclaiming, and finding
    /// the clients to answer; size in transactions.
    Settle,
    /// Encoding messages and log records; size in bytes.
    Encode,
    /// Decoding messages and log records; size in bytes.
    Decode,
}

impl CpuStage {
    /// All kinds.
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

    /// The kinds that some protocols do not measure separately: the parts of validation, and the
    /// work that exists only with several shards.
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

/// Measures the sections of steps, on the thread that runs the step. If sections are nested, only
/// the inner one is charged.
pub trait Meter {
    /// A section begins.
    fn begin(&self);

    /// The innermost open section ends; it did `size` units of this kind of work.
    fn end(&self, work: CpuStage, size: usize);
}
