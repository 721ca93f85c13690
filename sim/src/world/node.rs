//! One node: real protocol code on a real store, with a disk, a clock and one processor.
//!
//! A node processes one input at a time. Its effects are carried out in order once the processor
//! time of the step has elapsed, and a crash may happen between any two of them. Effects that
//! depend on durability are deferred until the disk has synced, as in a real node.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, Ticket};
use pangea_core::protocol::{Checkpoint, Cx, Effect, Input, Protocol, Setup};
use pangea_core::store::{Chosen, ColdMemory, Pin, Store};
use pangea_core::time::{Span, Timestamp};
use pangea_core::txn::Outcome;
use xxhash_rust::xxh3::xxh3_64;

use super::clients::Promised;
use super::pool::Workers;
use super::steps::StepTxns;
use super::{Event, World, programs};
use crate::clock::Clock;
use crate::disk::{Disk, Rows};
use crate::history::OpId;
use crate::panic_capture;
use crate::rng::SimRng;
use crate::settings::Settings;

/// The minimum cost of a step, of each effect, and of each submission in it.
const STEP_US: u64 = 3;
const EFFECT_US: u64 = 1;
const SUBMISSION_US: u64 = 5;
/// The maximum delay of one step in a thousand, as by the scheduler or a page fault.
const HICCUP_US_MAX: u64 = 5_000;
/// The minimum duration of an fsync, and its usual maximum, one of which is drawn for each node: a
/// fast disk, a disk in a data centre, a disk over a network.
const FSYNC_US_MIN: u64 = 80;
const FSYNC_US_USUAL: [u64; 3] = [500, 2_000, 20_000];
/// The maximum duration of an fsync.
const FSYNC_US_MAX: u64 = 3_000_000;
/// The duration of writing a checkpoint: a range for the start, and a time per row.
const CHECKPOINT_US: (u64, u64) = (5_000, 300_000);
const CHECKPOINT_ROW_US: u64 = 1;
/// The latency of the cold store, one of which is drawn for each node: a fast disk, a disk in a
/// data centre, a remote disk.
const COLD_US: [u64; 3] = [100, 1_000, 8_000];
/// The maximum time that a step waits for the cold store. Otherwise loads and checks of many rows
/// at once would take up the whole run.
const COLD_US_MAX: u64 = 100_000;
/// The maximum number of queued inputs of a node, far above any healthy run.
const INBOX_MAX: usize = 1_000_000;

/// A node, running or not.
pub(super) struct Node<P: Protocol> {
    pub(super) id: NodeId,
    /// The incarnation. It grows with each start and each stop, so that events of a previous
    /// incarnation are recognised.
    pub(super) life: u64,
    pub(super) running: Option<Running<P>>,
    /// Whether the node was stopped permanently.
    pub(super) is_destroyed: bool,
    /// The version of its program: the number of procedures that were added.
    pub(super) program: u32,
    /// Whether the node has stopped because it needs another program.
    pub(super) has_refused: bool,
    /// The node is being stopped in order, until this time at most.
    pub(super) stop_by: Option<Timestamp>,
    /// Whether the node replaces one whose disk was lost and has not yet rejoined.
    pub(super) is_replaced: bool,
    /// Whether the node has ever published a version, which ends its part in the cluster's first
    /// start.
    pub(super) has_begun: bool,
    /// The log's records before a bit flipped; the next start must detect the damage.
    pub(super) damaged: Option<Vec<(LogPosition, Bytes)>>,
    pub(super) disk: Disk,
    workers: Workers,
    pub(super) clock: Clock,
    protocol_dice: SimRng,
    pub(super) disk_dice: SimRng,
    processor_dice: SimRng,
    /// The number of effects before the node crashes, and its downtime.
    pub(super) crash_after: Option<(u64, Span)>,
    /// The usual maximum duration of an fsync, in µs.
    fsync_us: u64,
    /// The limit on rows in memory, and the maximum latency of the cold store in µs.
    pub(super) memory_bytes: Option<usize>,
    cold_us: u64,
    cold_dice: SimRng,
    pub(super) disk_slowness: u64,
    /// The number of active faults that prevent fsyncs from ending.
    pub(super) stuck_disks: u32,
    /// An fsync that ends with those faults: its incarnation and position.
    pub(super) held_fsync: Option<(u64, LogPosition)>,
    /// The disk is full until this time.
    pub(super) disk_full_until: Option<Timestamp>,
    /// The number of active faults that prevent checkpoints from being written.
    pub(super) failing_checkpoints: u32,
    pub(super) processor_slowness: u64,
    pub(super) pause: Span,
}

/// The state that is lost when the process stops.
pub(super) struct Running<P: Protocol> {
    pub(super) protocol: P,
    pub(super) store: Arc<Store>,
    inbox: VecDeque<Input<P>>,
    is_busy: bool,
    effects: Vec<Effect<P>>,
    log_head: LogPosition,
    pending_effects: BTreeMap<LogPosition, Vec<Effect<P>>>,
    is_syncing: bool,
    timers: BTreeMap<P::Timer, (u64, Timestamp)>,
    timer_settings: u64,
    seen_version: SnapshotVersion,
    /// Values that are not in memory.
    pub(super) cold: ColdMemory,
    /// Values that the store's clock has chosen and that a later step evicts.
    pub(super) chosen: Option<Chosen>,
    pub(super) steps: u64,
    pub(super) waiting: BTreeMap<Ticket, OpId>,
    pub(super) told: Promised,
}

impl<P: Protocol> Node<P> {
    pub(super) fn new(id: NodeId, settings: &Settings) -> Self {
        let fork = |name| SimRng::fork(settings.seed, name, u64::from(id.0));
        let mut disk_dice = fork("disk");
        let mut cold_dice = fork("cold");
        let cold_us = COLD_US[cold_dice.index(COLD_US.len())];
        let fsync_us = FSYNC_US_USUAL[disk_dice.index(FSYNC_US_USUAL.len())];
        Self {
            id,
            life: 0,
            running: None,
            is_destroyed: false,
            program: 0,
            has_refused: false,
            stop_by: None,
            is_replaced: false,
            has_begun: false,
            damaged: None,
            disk: Disk::default(),
            workers: Workers::draw(fork("workers")),
            clock: Clock::new(settings.clocks, &mut fork("clock")),
            protocol_dice: fork("protocol"),
            disk_dice,
            fsync_us,
            memory_bytes: settings.memory_bytes,
            cold_us,
            cold_dice,
            processor_dice: fork("processor"),
            crash_after: None,
            disk_slowness: 1,
            stuck_disks: 0,
            held_fsync: None,
            disk_full_until: None,
            failing_checkpoints: 0,
            processor_slowness: 1,
            pause: Span::ZERO,
        }
    }

    /// The node's store, if it is running.
    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        self.running.as_ref().map(|running| &running.store)
    }

    /// Runs the protocol on its next input, and returns the processor time of the step and the
    /// number of its transactions.
    fn step(&mut self, now: Timestamp) -> (Span, u64) {
        let running = self.running.as_mut().expect("only a running node takes steps");
        let input = running.inbox.pop_front().expect("a node wakes up for an input");
        let clock = self.clock.reading(now);
        if let Input::Timer(timer) = &input {
            // An earlier step may have cleared the timer or set it to a later time.
            match running.timers.get(timer) {
                Some((_, at)) if *at <= clock.at => running.timers.remove(timer),
                _ => return (Span::ZERO, 0),
            };
        }
        let is_restart = matches!(input, Input::Restart(_));
        let submissions = match &input {
            Input::Submit(submissions) => submissions.len() as u64,
            _ => 0,
        };
        assert!(running.effects.is_empty(), "the effects of the last step were carried out");
        let gets = running.cold.gets();
        let (rng, log_head) = (self.protocol_dice.rng(), running.log_head);
        let effects = &mut running.effects;
        let txns = StepTxns::default();
        let mut cx =
            Cx::new(clock, rng, &running.store, &self.workers, log_head, effects).metered(&txns);
        running.protocol.step(&mut cx, input);
        running.log_head = cx.log_head();
        running.protocol.invariants();
        let work = STEP_US + EFFECT_US * effects.len() as u64 + SUBMISSION_US * submissions;
        let hiccup = if self.processor_dice.chance(1) {
            self.processor_dice.between(0, HICCUP_US_MAX)
        } else {
            0
        };
        let us = self.processor_dice.between(work, 2 * work) * self.processor_slowness + hiccup;
        let stalled = (running.cold.gets() - gets) * self.cold_us;
        running.turn_clock();
        let took =
            Span::from_us(us + stalled.min(COLD_US_MAX) + std::mem::take(&mut self.pause).us);
        // A replay of the log delays nothing: no peer has an answer of this run yet.
        (took, if is_restart { 0 } else { txns.count() })
    }
}

impl<P: Protocol> World<P> {
    pub(super) fn is_running(&self, node: NodeId) -> bool {
        self.nodes[node.index()].running.is_some()
    }

    /// Returns the node's process if it is still in this incarnation.
    pub(super) fn alive(&mut self, node: NodeId, life: u64) -> Option<&mut Running<P>> {
        let node = &mut self.nodes[node.index()];
        node.running.as_mut().filter(|_| node.life == life)
    }

    pub(super) fn on_start(&mut self, id: NodeId, life: u64) {
        let node = &mut self.nodes[id.index()];
        if node.running.is_some() || node.life != life {
            return;
        }
        node.life += 1;
        node.has_refused = false;
        self.master_terms.histories.on_start(id);
        self.lineages.on_start(id);
        let node = &mut self.nodes[id.index()];
        node.clock.restart(self.now);
        if let Some(before) = node.damaged.take() {
            self.notice_damage(id, &before);
        }
        let program = self.nodes[id.index()].program;
        let registry = programs::registry_of(program, &self.settings);
        let node = &mut self.nodes[id.index()];
        let (store, cold) = node.new_store();
        let recovered = node.disk.recover(store);
        let (mut durable, store) = recovered.expect("a crash loses no durable record");
        durable.is_replaced = node.is_replaced;
        let setup = Setup {
            me: id,
            topology: self.topology.clone(),
            registry,
            options: self.options.clone(),
        };
        let records = durable.records.len() as u64;
        node.running = Some(Running {
            protocol: P::new(setup),
            seen_version: store.published(),
            store,
            inbox: VecDeque::new(),
            is_busy: false,
            effects: Vec::new(),
            log_head: node.disk.head(),
            pending_effects: BTreeMap::new(),
            is_syncing: false,
            timers: BTreeMap::new(),
            timer_settings: 0,
            cold,
            chosen: None,
            steps: 0,
            waiting: BTreeMap::new(),
            told: Promised::default(),
        });
        let numbers = [node.disk.head().0, records];
        self.trace.event(self.now, id, "start", numbers, || format!("{records} records"));
        self.input(id, Input::Restart(durable));
        for peer in self.topology.clone().neighbors_of(id) {
            self.connect_after(id, peer, Span::ZERO);
        }
    }

    /// Stops the node as in a power failure. It restarts after `down`.
    pub(super) fn crash(&mut self, id: NodeId, down: Span) {
        let node = &mut self.nodes[id.index()];
        node.crash_after = None;
        node.held_fsync = None;
        node.stop_by = None;
        let Some(running) = node.running.take() else { return };
        node.life += 1;
        let lost = node.disk.crash(&mut node.disk_dice);
        self.counts.crashes += 1;
        self.counts.records_lost += lost;
        self.trace.event(self.now, id, "crash", [lost, down.us], || {
            format!("{lost} records lost, restarts after {down}")
        });
        for (_, op) in running.waiting {
            self.lose_operation(op);
        }
        self.lose_moves(id);
        for peer in self.topology.clone().neighbors_of(id) {
            self.lose(id, peer);
            self.network.notice_loss(id, peer);
        }
        let life = self.nodes[id.index()].life;
        self.queue.push(self.now + down, Event::Start { node: id, life });
    }

    /// Queues an input at a node, if it is running.
    pub(super) fn input(&mut self, id: NodeId, input: Input<P>) {
        let node = &mut self.nodes[id.index()];
        let life = node.life;
        let Some(running) = node.running.as_mut() else { return };
        match (running.inbox.back_mut(), input) {
            (Some(Input::Submit(waiting)), Input::Submit(more)) => waiting.extend(more),
            (_, input) => running.inbox.push_back(input),
        }
        assert!(running.inbox.len() <= INBOX_MAX, "the inbox of a node grows without end");
        if !std::mem::replace(&mut running.is_busy, true) {
            self.queue.push(self.now, Event::Step { node: id, life });
        }
    }

    pub(super) fn on_step(&mut self, id: NodeId, life: u64) {
        if self.alive(id, life).is_none() {
            return;
        }
        let now = self.now;
        let node = &mut self.nodes[id.index()];
        match panic_capture::panics(AssertUnwindSafe(|| node.step(now))) {
            Ok((cost, txns)) => {
                self.counts.steps += 1;
                self.note_step(id, txns);
                self.queue.push(now + cost, Event::Effects { node: id, life });
                self.watch_version(id);
            }
            Err(panic) => self.violate("panic", format!("{id} panicked: {panic}")),
        }
    }

    pub(super) fn on_effects(&mut self, id: NodeId, life: u64) {
        let Some(running) = self.alive(id, life) else { return };
        let mut effects = std::mem::take(&mut running.effects);
        let last = self.last_messages(&effects, self.nodes[id.index()].disk.synced());
        for (at, effect) in effects.drain(..).enumerate() {
            if let Some(down) = self.stops_before(id, &effect) {
                self.crash(id, self.within_faults(down));
                return;
            }
            self.effect(id, life, effect, last.contains(&at));
            if self.alive(id, life).is_none() {
                // It has stopped itself.
                return;
            }
        }
        self.start_fsync(id, life);
        let now = self.now;
        let Some(running) = self.alive(id, life) else { return };
        running.effects = effects;
        running.is_busy = !running.inbox.is_empty();
        if running.is_busy {
            self.queue.push(now, Event::Step { node: id, life });
        }
    }

    /// Returns the downtime if a fault stops the node before its next effect.
    fn stops_before(&mut self, id: NodeId, effect: &Effect<P>) -> Option<Span> {
        let node = &mut self.nodes[id.index()];
        if let Some((more, down)) = &mut node.crash_after {
            match more.checked_sub(1) {
                Some(less) => *more = less,
                None => return Some(*down),
            }
        }
        let is_written = matches!(effect, Effect::Persist { .. });
        node.disk_full_until.filter(|_| is_written).map(|until| until.since(self.now))
    }

    fn effect(&mut self, id: NodeId, life: u64, effect: Effect<P>, is_last: bool) {
        let node = &mut self.nodes[id.index()];
        let running = node.running.as_mut().expect("effects of a running node");
        match effect {
            Effect::Send { after, .. }
            | Effect::Reply { after, .. }
            | Effect::Checkpoint { after, .. }
                if after > node.disk.synced() =>
            {
                running.pending_effects.entry(after).or_default().push(effect);
            }
            Effect::Send { .. } | Effect::Reply { .. } | Effect::Checkpoint { .. } => {
                self.release(id, life, effect, is_last);
            }
            Effect::Persist { position, record } => {
                let bytes = record.iter().map(|part| part.len() as u64).sum();
                self.counts.records += 1;
                self.trace.event(self.now, id, "persist", [position.0, bytes], String::new);
                self.nodes[id.index()].disk.append(position, &record);
            }
            Effect::SetTimer { timer, at } => {
                running.timer_settings += 1;
                running.timers.insert(timer, (running.timer_settings, at));
                let setting = running.timer_settings;
                if let Some(due) = node.clock.true_time(self.now, at) {
                    self.queue.push(due, Event::Timer { node: id, life, timer, setting });
                }
            }
            Effect::ClearTimer(timer) => {
                running.timers.remove(&timer);
            }
            Effect::Resume => self.input(id, Input::Resume),
            Effect::Fresh { ticket, version } => self.answer_fresh(id, ticket, version),
            Effect::Prefetch { token, keys } => {
                let took = Span::from_us(node.cold_dice.between(node.cold_us / 2, node.cold_us));
                let event = Event::Fetched { node: id, life, token, keys, took };
                self.queue.push(self.now + took, event);
            }
            Effect::Truncate(position) => {
                self.trace.event(self.now, id, "truncate", [position.0, 0], String::new);
                node.disk.truncate(position);
            }
            Effect::Rejoined => {
                node.is_replaced = false;
                self.trace.event(self.now, id, "rejoined", [0, 0], String::new);
            }
            Effect::MasterTerm { shard, from, master_term, is_final } => {
                self.on_master_term(id, (shard, from), master_term, is_final);
            }
            Effect::Lineage { version, lineage, is_final } => {
                self.on_lineage(id, version, lineage, is_final);
            }
            Effect::Lost { after, versions, acknowledged } => {
                let numbers = [after.0, versions];
                self.trace.event(self.now, id, "lost", numbers, || {
                    format!("{versions} versions after {after}, {acknowledged} acknowledged")
                });
            }
            Effect::LostCommit { txn, is_certain } => self.on_lost_commit(id, txn, is_certain),
            Effect::Stop { reason } => self.on_stopped(id, &reason),
            Effect::Mark(name) if P::MARKS.iter().any(|mark| mark.name == name) => {
                self.on_mark(id, name);
            }
            Effect::Mark(name) => {
                self.violate("mark", format!("{name:?} is not a mark of the protocol"));
            }
        }
    }

    /// Carries out an effect that need not wait any longer.
    fn release(&mut self, id: NodeId, life: u64, effect: Effect<P>, is_last: bool) {
        match effect {
            Effect::Send { to, message, .. } => self.transmit(id, to, &message, is_last),
            Effect::Reply { ticket, outcome, .. } => {
                let numbers = [ticket.0, digest_of(&outcome)];
                self.trace.event(self.now, id, "reply", numbers, || format!("{outcome:?}"));
                self.answer(id, ticket, outcome);
            }
            Effect::Checkpoint { checkpoint, pin, .. } => {
                self.start_checkpoint(id, life, checkpoint, pin);
            }
            _ => unreachable!("no other effect is deferred"),
        }
    }

    fn start_checkpoint(&mut self, id: NodeId, life: u64, checkpoint: Checkpoint, pin: Pin) {
        let node = &mut self.nodes[id.index()];
        let running = node.running.as_mut().expect("effects of a running node");
        let rows = Rows::of(&running.store, checkpoint.version);
        let delay = node.disk_dice.between(CHECKPOINT_US.0, CHECKPOINT_US.1);
        let us = delay + CHECKPOINT_ROW_US * rows.len() as u64;
        let at = self.now + Span::from_us(us);
        self.queue.push(at, Event::Checkpointed { node: id, life, checkpoint, rows, pin });
    }

    /// Compares the pinned rows with the rows read when the checkpoint began. A pinned snapshot
    /// must not change while the checkpoint is written.
    pub(super) fn on_checkpoint_read(&mut self, (id, life): (NodeId, u64), rows: &Rows, pin: Pin) {
        if self.alive(id, life).is_none() || pin.is_lost() {
            return;
        }
        if Rows::of(pin.store(), pin.version()) != *rows {
            self.violate(
                "checkpoint",
                format!("rows at {} of {id} changed although they were pinned", pin.version()),
            );
        }
        pin.end();
    }

    pub(super) fn on_checkpointed(&mut self, id: NodeId, life: u64, done: Checkpoint, rows: Rows) {
        if self.alive(id, life).is_none() {
            return;
        }
        let version = done.version;
        if self.nodes[id.index()].failing_checkpoints > 0 {
            self.trace.event(self.now, id, "checkpoint failed", [version.0, 0], String::new);
            return self.input(id, Input::CheckpointFailed(version));
        }
        self.counts.checkpoints += 1;
        let numbers = [version.0, rows.len() as u64];
        self.trace.event(self.now, id, "checkpointed", numbers, || version.to_string());
        self.nodes[id.index()].disk.keep_checkpoint(done, rows);
        self.input(id, Input::Checkpointed(version));
    }

    /// Begins an fsync if there are unsynced records and no fsync is in progress: a group commit.
    fn start_fsync(&mut self, id: NodeId, life: u64) {
        let node = &mut self.nodes[id.index()];
        let Some(running) = node.running.as_mut() else { return };
        let position = node.disk.head();
        if running.is_syncing || position == node.disk.synced() {
            return;
        }
        running.is_syncing = true;
        let usual = node.disk_dice.between(FSYNC_US_MIN, node.fsync_us);
        let us = node.disk_dice.delay(usual) * node.disk_slowness;
        let at = self.now + Span::from_us(us.min(FSYNC_US_MAX));
        self.queue.push(at, Event::Fsync { node: id, life, position });
    }

    pub(super) fn on_fsync(&mut self, id: NodeId, life: u64, position: LogPosition) {
        if self.nodes[id.index()].stuck_disks > 0 && self.alive(id, life).is_some() {
            self.nodes[id.index()].held_fsync = Some((life, position));
            return;
        }
        let Some(running) = self.alive(id, life) else { return };
        running.is_syncing = false;
        let later = running.pending_effects.split_off(&LogPosition(position.0 + 1));
        let ready = std::mem::replace(&mut running.pending_effects, later);
        self.trace.event(self.now, id, "fsync", [position.0, 0], String::new);
        self.nodes[id.index()].disk.sync_to(position);
        let ready: Vec<Effect<P>> = ready.into_values().flatten().collect();
        let last = self.last_messages(&ready, position);
        for (at, effect) in ready.into_iter().enumerate() {
            self.release(id, life, effect, last.contains(&at));
        }
        self.input(id, Input::Durable(position));
        self.start_fsync(id, life);
    }

    pub(super) fn on_timer(&mut self, id: NodeId, life: u64, timer: P::Timer, setting: u64) {
        let reads = self.nodes[id.index()].clock.reading(self.now).at;
        let Some(running) = self.alive(id, life) else { return };
        // If the clock's rate has changed, the timer is queued again for another time.
        let is_due = |(newest, at): &(u64, Timestamp)| *newest == setting && *at <= reads;
        if running.timers.get(&timer).is_some_and(is_due) {
            self.trace.event(self.now, id, "timer", [setting, 0], || format!("{timer:?}"));
            self.input(id, Input::Timer(timer));
        }
    }

    /// Changes the rate of a node's clock, and with it the times at which its timers expire.
    pub(super) fn set_clock_rate(&mut self, id: NodeId, ppm: i64) {
        let node = &mut self.nodes[id.index()];
        node.clock.set_rate(self.now, ppm);
        let Some(running) = &node.running else { return };
        for (&timer, &(setting, at)) in &running.timers {
            if let Some(due) = node.clock.true_time(self.now, at) {
                let event = Event::Timer { node: id, life: node.life, timer, setting };
                self.queue.push(due, event);
            }
        }
    }

    /// Compares replicas whenever a node has published a new version.
    fn watch_version(&mut self, id: NodeId) {
        let running =
            self.nodes[id.index()].running.as_mut().expect("the node has just taken a step");
        let published = running.store.published();
        let version = running.protocol.confirmed().unwrap_or(published);
        if std::mem::replace(&mut running.seen_version, version) != version {
            self.nodes[id.index()].has_begun = true;
            self.on_published(id, version);
        }
    }
}

fn digest_of(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Committed { txn, version, result } => {
            xxh3_64(result) ^ txn.to_bits().rotate_left(17) ^ version.0.rotate_left(41)
        }
        Outcome::Aborted(abort) => xxh3_64(abort.message.as_bytes()) ^ xxh3_64(&abort.code.0),
    }
}
