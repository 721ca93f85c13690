//! A node of the lockstep world: its disk, its tables, and the replica while it runs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, SnapshotVersion, TableId, Ticket};
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::protocol::{Checkpoint, Effect};
use pangea_core::store::{Pin, Store, Version};
use pangea_core::time::Timestamp;
use pangea_core::txn::{Outcome, Write};

use super::super::script::Runs;
use super::cost::StepCost;
use super::words::Transcribed;

pub type Row = (TableId, Key, Version);

/// A node: the state that survives a crash, and the replica while it runs.
pub struct Node<P: Transcribed> {
    pub brain: Option<P>,
    pub store: Arc<Store>,
    pub log: Vec<(LogPosition, Bytes)>,
    pub synced: LogPosition,
    pub syncs: bool,
    pub writes_checkpoints: bool,
    /// Whether checkpoints can't be written.
    pub fails_checkpoints: bool,
    /// Whether it never resumes deferred work.
    pub is_slow: bool,
    /// Whether its program is a later version, with one more procedure.
    pub is_newer: bool,
    pub checkpoint: Option<(Checkpoint, Vec<Row>)>,
    /// The number of procedure runs on this node.
    pub runs: Runs,
    pub marks: BTreeMap<&'static str, u64>,
    pub head: LogPosition,
    pub(super) waiting: Vec<Effect<P>>,
    pub(super) writing: Option<(Checkpoint, Pin)>,
    pub(super) wants_resume: bool,
    /// The requested fetches of rows that are not in memory.
    pub(super) fetches: Vec<(u64, Vec<(TableId, Key)>)>,
    /// The reason why the node stopped itself.
    pub stopped: Option<String>,
    /// The cost of its steps, if they are measured.
    pub cost: Option<StepCost>,
    /// Whether its disk was lost and it has not rejoined yet.
    pub is_replaced: bool,
    pub timers: BTreeMap<P::Timer, Timestamp>,
    pub(super) replies: BTreeMap<Ticket, Outcome>,
    pub(super) fresh: BTreeMap<Ticket, SnapshotVersion>,
    pub(super) rng: fastrand::Rng,
}

impl<P: Transcribed> Node<P> {
    pub(super) fn new(id: usize) -> Self {
        Self {
            brain: None,
            store: Arc::default(),
            log: Vec::new(),
            synced: LogPosition(0),
            syncs: true,
            writes_checkpoints: true,
            fails_checkpoints: false,
            is_slow: false,
            is_newer: false,
            checkpoint: None,
            runs: Runs::default(),
            marks: BTreeMap::new(),
            head: LogPosition(0),
            waiting: Vec::new(),
            writing: None,
            wants_resume: false,
            fetches: Vec::new(),
            stopped: None,
            cost: None,
            is_replaced: false,
            timers: BTreeMap::new(),
            replies: BTreeMap::new(),
            fresh: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(id as u64),
        }
    }

    /// The last epoch applied.
    pub fn applied(&self) -> SnapshotVersion {
        self.store.published()
    }

    /// All rows at an epoch.
    pub fn state(&self, at: SnapshotVersion) -> Vec<Write> {
        writes(&self.rows(at))
    }

    pub(super) fn rows(&self, at: SnapshotVersion) -> Vec<Row> {
        let mut rows = Vec::new();
        for table in self.store.table_ids() {
            let all = KeyRange::all();
            self.store.scan(table, &all, Direction::Forward, at, |key, version| {
                rows.extend(version.value.is_some().then(|| (table, key.clone(), version.clone())));
                ControlFlow::Continue(())
            });
        }
        rows
    }
}

/// The rows as writes.
pub(super) fn writes(rows: &[Row]) -> Vec<Write> {
    let write = |(table, key, version): &Row| Write {
        table: *table,
        key: key.clone(),
        value: version.value.clone(),
    };
    rows.iter().map(write).collect()
}
