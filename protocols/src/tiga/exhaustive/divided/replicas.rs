//! A replica of a shard, as a follower and as a leader.

use std::collections::BTreeMap;
use std::sync::Arc;

use pangea_core::ids::{LogPosition, NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::partition::ShardSet;
use pangea_core::time::Span;

use crate::tiga::cells::{CELL_US, Cell, cell_of, last_of};
use crate::tiga::fast_path::{FastPath, entries_of};
use crate::tiga::order::{Arrival, Effects, Leader, Order};
use crate::tiga::quorum::View;
use crate::tiga::rebuild::{Entry, Report};
use crate::tiga::shards::cell_of_word;
use crate::tiga::stamp::Stamp;

const WINDOW: Span = Span::from_ms(500);

/// A transaction as replicas get it.
#[derive(Clone, Copy, Debug)]
pub struct Txn {
    pub txn: TxnId,
    pub stamp: Stamp,
    pub shards: ShardSet,
}

/// The state of a leader.
#[derive(Debug)]
pub struct Lead {
    order: Leader,
    released: BTreeMap<Stamp, TxnId>,
}

#[derive(Debug)]
pub struct Replica {
    pub node: NodeId,
    pub shard: ShardId,
    /// The view of its log, and the last one that it has promised to follow.
    pub view: View,
    pub promised: View,
    /// The last view that it has led.
    led: View,
    pub log: Vec<Cell>,
    fast: FastPath,
    /// Its clock, and the largest reading that its ceiling allowed, in cells.
    pub clock: u64,
    ceiling: u64,
    pub leads: Option<Lead>,
}

/// The version of the last cell.
pub fn last_version(log: &[Cell]) -> SnapshotVersion {
    log.last().map_or(SnapshotVersion::ZERO, |cell| cell.version)
}

impl Replica {
    pub fn new(node: NodeId, shard: ShardId) -> Self {
        Self {
            node,
            shard,
            view: View(0),
            promised: View(0),
            led: View(0),
            log: Vec::new(),
            fast: FastPath::new(WINDOW, Stamp::ZERO),
            clock: 0,
            ceiling: 0,
            leads: None,
        }
    }

    pub fn is_normal(&self) -> bool {
        self.view == self.promised
    }

    fn has_logged(&self, txn: TxnId) -> bool {
        entries_of(&self.log).any(|entry| entry.txn == txn)
    }

    /// A transaction arrives.
    pub fn take(&mut self, Txn { txn, stamp, shards }: Txn) {
        if !self.is_normal() || self.has_logged(txn) {
            return;
        }
        if let Some(lead) = &mut self.leads {
            if lead.released.values().all(|released| *released != txn) {
                let arrival = Arrival { txn, stamp, shards, footprint: Arc::default() };
                let mut effects = Effects::default();
                lead.order.on_arrival(arrival, &mut effects);
                lead.take(effects);
            }
        } else if shards.len() > 1 && self.fast.accept(txn, stamp, Arc::default()) {
            self.fast.note_in_time(Entry { stamp, txn }, LogPosition(0));
        }
    }

    /// The clock advances by a cell.
    pub fn tick(&mut self) {
        self.clock += 1;
        self.ceiling = self.ceiling.max(self.clock);
    }

    /// A follower replies for what its clock has passed.
    pub fn reply(&mut self) -> Vec<Entry> {
        if !self.is_normal() || self.leads.is_some() {
            return Vec::new();
        }
        let clock = last_of(SnapshotVersion(self.clock));
        let due = self.fast.take_passed(clock);
        if !due.is_empty() {
            self.fast.promise(clock);
        }
        due.into_iter().map(|(entry, _)| entry).collect()
    }

    /// The word that nothing more comes up to a cell, if the replica can give it.
    pub fn tell_closed(&mut self, cell: SnapshotVersion) -> Option<SnapshotVersion> {
        let clock = SnapshotVersion(self.clock);
        if !self.is_normal() || clock < cell {
            return None;
        }
        match &self.leads {
            Some(lead) => {
                // All stamps of a cell, or none.
                let promised = lead.order.promised();
                (promised >= last_of(cell)).then_some(cell)
            }
            None => {
                self.fast.promise(last_of(clock));
                Some(clock)
            }
        }
    }

    /// A leader closes what is over, and tells that nothing more comes. Returns the new cells.
    pub fn close(&mut self) -> Vec<Cell> {
        let (over, last) = (SnapshotVersion(self.clock), last_version(&self.log));
        let Some(lead) = self.leads.as_mut().filter(|_| self.view == self.promised) else {
            return Vec::new();
        };
        if over <= last {
            return Vec::new();
        }
        let mut effects = Effects::default();
        lead.order.on_clock(over.0 * CELL_US - 1, &mut effects);
        lead.take(effects);
        lead.order.close(last_of(over));
        let mut taken = std::mem::take(&mut lead.released);
        lead.released = taken.split_off(&last_of(over));
        taken.values().for_each(|txn| lead.order.forget(*txn));
        let taken: Vec<(TxnId, Stamp)> = taken.into_iter().map(|(at, txn)| (txn, at)).collect();
        let cells = taken.chunk_by(|a, b| cell_of(a.1) == cell_of(b.1));
        let mut cells: Vec<Cell> =
            cells.map(|txns| Cell { version: cell_of(txns[0].1), txns: txns.to_vec() }).collect();
        let end = cell_of_word(over);
        if end > cells.last().map_or(last, |cell| cell.version) {
            cells.push(Cell { version: end, txns: Vec::new() });
        }
        self.log.extend(cells.iter().cloned());
        cells
    }

    /// A follower gets a cell of the leader's log.
    pub fn append(&mut self, cell: &Cell) {
        self.fast.close(std::slice::from_ref(cell));
        self.log.push(cell.clone());
    }

    /// The replica restarts, with an earlier clock perhaps.
    pub fn restart(&mut self, clock: u64) {
        (self.leads, self.clock) = (None, clock);
        let (told, in_time) = (self.fast.told_at_most(), self.fast.unsynced());
        let last = in_time.iter().map(|entry| entry.stamp).max().unwrap_or_default();
        let floor = last_of(last_version(&self.log)).max(told).max(last);
        self.fast = FastPath::new(WINDOW, floor);
        in_time.into_iter().for_each(|entry| self.fast.restore(entry, Arc::default()));
        self.fast.restore_promise(last_of(SnapshotVersion(self.ceiling)));
    }

    /// The report for a new view, in which the replica takes part in no earlier one.
    pub fn report(&mut self, promised: View) -> Report {
        (self.promised, self.leads) = (promised, None);
        Report {
            node: self.node,
            normal: self.view,
            log: entries_of(&self.log).collect(),
            unsynced: self.fast.unsynced(),
            late: Vec::new(),
            promised: self.fast.told(),
            closed: last_of(last_version(&self.log)),
            read: Stamp::ZERO,
        }
    }

    /// The replica takes the log with which a view begins, and leads perhaps.
    pub fn enter(&mut self, view: View, log: Vec<Cell>, shards: u16, is_leader: bool) {
        self.promised = self.promised.max(view);
        (self.view, self.log, self.leads) = (view, log, None);
        let end = last_of(last_version(&self.log));
        self.fast = FastPath::new(WINDOW, end.max(self.fast.told()));
        if is_leader && self.is_normal() && self.led < view {
            self.led = view;
            let order = Leader::new(self.shard, shards, self.node, Order::Detective, end);
            self.leads = Some(Lead { order, released: BTreeMap::new() });
            self.clock = self.clock.max(last_version(&self.log).0);
            self.ceiling = self.ceiling.max(self.clock);
        }
    }
}

impl Lead {
    fn take(&mut self, effects: Effects) {
        self.released.extend(effects.released.into_iter().map(|(txn, stamp)| (stamp, txn)));
    }
}
