//! Every order of events in which three replicas can merge epochs and remove one of them, for few
//! events: see [`crate::exhaustive`].
//!
//! No timer fires by itself. A transaction is a batch, and the end of its epoch is another one. The
//! leader proposes, and a replica campaigns, only as a choice of the search. Its first proposal
//! takes the third replica for silent, although that runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId, SnapshotVersion, TableId, Ticket};
use pangea_core::key::Key;
use pangea_core::pool::Sequential;
use pangea_core::protocol::{
    Cx, Durable, Effect, Input, Message as _, Protocol, Request, Setup, Submission,
};
use pangea_core::store::Store;
use pangea_core::time::{ClockReading, Span, Timestamp};
use pangea_core::topology::Topology;
use pangea_core::txn::{Context, Outcome, Procedure, Program, Registry, Stop};
use pangea_core::value::Value;
use xxhash_rust::xxh3::Xxh3;

use super::batch::Batch;
use super::recovery::EpochRecord;
use super::views::Change;
use super::{GeoGauss, Message, Options, Timer};
use crate::agreement;
use crate::exhaustive::{
    self, Act, Bounds, Brain, Fresh, Happened, Opening, Out, Reply, Sent, View,
};
use crate::replica::kind;
use crate::streams;

const TABLE: TableId = TableId(7);

/// The ticket of the first strict read. Those of transactions are smaller.
const READS: u64 = 1_000;

/// Longer than any timeout.
const LONG: Span = Span::from_ms(10_000);

/// The replica that the first proposal removes.
const REMOVED: NodeId = NodeId(2);

/// Overwrites the only row with its argument. The order of the transactions determines the state.
struct Overwrite;

impl Procedure for Overwrite {
    fn name(&self) -> &str {
        "overwrite"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        cx.put(TABLE, Key::from(&b"row"[..]), Value::copy_from(args))?;
        cx.put(TABLE, Key::from(args), Value::copy_from(args))?;
        Ok(Vec::new())
    }
}

struct Replica {
    geogauss: GeoGauss,
    me: u8,
    store: Arc<Store>,
    rng: fastrand::Rng,
    now: Timestamp,
    head: LogPosition,
    submitted: u8,
    /// The digest of the state after each epoch.
    states: BTreeMap<u64, u64>,
    /// A digest of the inputs of agreement since the start, in order, and of the records from which
    /// it began, because `omnipaxos` does not expose its state.
    agreed: u64,
}

impl Replica {
    fn input(&mut self, input: Input<GeoGauss>, out: &mut Out) {
        self.work(|geogauss, cx| geogauss.step(cx, input), out);
    }

    /// Carries out a step, and the steps that it asks for.
    fn work(&mut self, step: impl FnOnce(&mut GeoGauss, &mut Cx<'_, GeoGauss>), out: &mut Out) {
        let mut is_more = self.work_once(step, out);
        while is_more {
            is_more = self.work_once(|geogauss, cx| geogauss.step(cx, Input::Resume), out);
        }
        // If several epochs were merged in one step, the earlier ones may already be reclaimed.
        let last = self.store.published();
        if last > SnapshotVersion::ZERO {
            self.states.insert(last.0, self.store.digest(last));
        }
    }

    /// Returns whether the step asks for another.
    fn work_once(
        &mut self,
        step: impl FnOnce(&mut GeoGauss, &mut Cx<'_, GeoGauss>),
        out: &mut Out,
    ) -> bool {
        let now = ClockReading { at: self.now, uncertainty: Span::ZERO };
        let mut effects = Vec::new();
        let (rng, store) = (&mut self.rng, &self.store);
        let mut cx = Cx::new(now, rng, store, &Sequential, self.head, &mut effects);
        step(&mut self.geogauss, &mut cx);
        self.geogauss.invariants();
        let is_resumed = effects.iter().any(|effect| matches!(effect, Effect::Resume));
        effects.into_iter().for_each(|effect| self.carry_out(effect, out));
        is_resumed
    }

    fn carry_out(&mut self, effect: Effect<GeoGauss>, out: &mut Out) {
        match effect {
            Effect::Send { to, message, after } => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                let sent = Sent { to: to.0 as u8, lane: message.lane() as u8, bytes };
                out.sends.push((after.0 as usize, sent));
            }
            Effect::Persist { position, record } => {
                self.head = position;
                out.records.push(record.concat());
            }
            Effect::Reply { outcome: Outcome::Committed { txn, version, .. }, after, .. } => {
                let log = &self.geogauss.state.streams.logs[usize::from(self.me)];
                let has =
                    |batch: &Batch| batch.records.iter().any(|record| record.inputs.txn == txn);
                let slot = log.slots.iter().find(|(_, slot)| has(&slot.batch));
                let (bid, _) = slot.expect("its batch is kept until all have merged it");
                let held = (self.me, bid.0);
                out.replies.push((after.0 as usize, Reply { decision: version.0, held }));
            }
            Effect::Rejoined => panic!("no disk is lost"),
            Effect::MasterTerm { .. } => panic!("GeoGauss has no master"),
            Effect::Lineage { .. } | Effect::Lost { .. } | Effect::LostCommit { .. } => {
                panic!("no epoch is early")
            }
            Effect::Prefetch { .. } => panic!("all rows are in memory"),
            Effect::Stop { reason } => out.stop = Some(reason),
            Effect::Fresh { ticket: Ticket(ticket), version } => {
                let read = (ticket - READS) as u8;
                out.fresh.push(Fresh { read, decision: version.0 });
            }
            // A replica that was removed refuses its clients.
            Effect::Reply { .. } => {}
            Effect::Checkpoint { .. } | Effect::Truncate(_) => panic!("too little for that"),
            Effect::Resume | Effect::SetTimer { .. } | Effect::ClearTimer(_) | Effect::Mark(_) => {}
        }
    }

    fn act(&mut self, act: Act, out: &mut Out) {
        match act {
            Act::Propose(number) => {
                let heard_at = &mut self.geogauss.state.membership.heard_at;
                heard_at.fill(self.now);
                if number == 0 {
                    heard_at[REMOVED.index()] = Timestamp::default();
                }
                self.work(|geogauss, cx| geogauss.lead(cx), out);
                self.input(Input::Resume, out);
            }
            Act::Campaign if self.geogauss.state.presence.is_ready => {
                self.geogauss.state.membership.driver.agreement_mut().campaign();
                self.input(Input::Resume, out);
            }
            Act::Campaign => {}
            Act::Submit => {
                self.submitted += 1;
                let ticket = Ticket(self.submitted.into());
                let procedure = registry().id("overwrite").expect("the procedure is registered");
                let args = Bytes::from(vec![self.me, self.submitted]);
                let request = Request::serializable(Program::Call { procedure, args });
                self.input(Input::Submit(vec![Submission { ticket, request }]), out);
                self.input(Input::Timer(Timer::Batch), out);
                self.input(Input::Timer(Timer::Epoch), out);
            }
            Act::Read(number) => {
                let ticket = Ticket(READS + u64::from(number));
                let request = Request::Fresh;
                self.input(Input::Submit(vec![Submission { ticket, request }]), out);
            }
            Act::Fetch => {
                self.now = self.now + LONG;
                self.input(Input::Timer(Timer::Fetch), out);
                self.input(Input::Timer(Timer::Progress), out);
            }
        }
    }

    /// Records an input of agreement.
    fn note_agreed(&mut self, event: &Happened<'_>) {
        let is_agreed = match event {
            Happened::Message { bytes, .. } => {
                let message = Message::decode(&Bytes::copy_from_slice(bytes));
                matches!(message, Ok(Message::Agreement { .. }))
            }
            Happened::PeerUp(_) | Happened::Act(Act::Campaign | Act::Propose(_)) => true,
            _ => false,
        };
        if is_agreed {
            let reports = self.geogauss.state.membership.described();
            let event = format!("{} {event:?} {reports}", self.agreed);
            self.agreed = exhaustive::digest(event.as_bytes());
        }
    }
}

fn registry() -> Registry {
    Registry::new([Arc::new(Overwrite) as Arc<dyn Procedure>])
}

/// The records of this kind, without their kind byte.
fn records(log: &[Vec<u8>], wanted: u8) -> impl Iterator<Item = Bytes> {
    let records = log.iter().filter(move |record| record[0] == wanted);
    records.map(|record| Bytes::copy_from_slice(&record[1..]))
}

fn agreement_state(log: &[Vec<u8>]) -> String {
    let decode = |record: Bytes| -> Vec<agreement::Record<Change>> {
        postcard::from_bytes(&record).expect("the record can be decoded")
    };
    agreement::describe_log(records(log, kind::AGREEMENT).flat_map(decode))
}

impl Brain for Replica {
    fn start(me: u8, starts: u64, log: &[Vec<u8>]) -> (Self, Out) {
        const NEVER_MS: u64 = 1 << 40;
        let options = Options {
            epoch_ms: NEVER_MS,
            batch_ms: NEVER_MS,
            horizon_ms: NEVER_MS,
            lag_ms: NEVER_MS,
            silence_epochs: 0,
            ..Options::default()
        };
        let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
        let geogauss = GeoGauss::new(Setup {
            me: NodeId(me.into()),
            topology: Arc::new(topology),
            registry: Arc::new(registry()),
            options,
        });
        let mut replica = Self {
            geogauss,
            me,
            store: Arc::new(Store::new()),
            rng: fastrand::Rng::with_seed(starts * 3 + u64::from(me)),
            now: Timestamp::from_us(1_000_000),
            head: LogPosition(log.len() as u64),
            submitted: 0,
            states: BTreeMap::new(),
            agreed: exhaustive::digest(agreement_state(log).as_bytes()),
        };
        let records = log.iter().map(|record| Bytes::copy_from_slice(record));
        let records = (1..).map(LogPosition).zip(records).collect();
        let mut out = Out::default();
        replica.input(Input::Restart(Durable { records, ..Durable::default() }), &mut out);
        (replica, out)
    }

    fn step(&mut self, event: &Happened<'_>) -> Out {
        let mut out = Out::default();
        match *event {
            Happened::Durable(upto) => {
                self.input(Input::Durable(LogPosition(upto as u64)), &mut out);
            }
            Happened::Message { from, bytes } => {
                let message = Message::decode(&Bytes::copy_from_slice(bytes));
                let message = message.expect("the message can be decoded");
                self.input(Input::Message { from: NodeId(from.into()), message }, &mut out);
            }
            Happened::PeerUp(peer) => self.input(Input::PeerUp(NodeId(peer.into())), &mut out),
            Happened::PeerDown(peer) => self.input(Input::PeerDown(NodeId(peer.into())), &mut out),
            Happened::Act(act) => self.act(act, &mut out),
        }
        self.note_agreed(event);
        out
    }

    /// Omits state that follows from the rest (the overlay from the transactions in flight),
    /// counters, and state that only ticks use.
    fn digest(&self, synced: usize, hasher: &mut Xxh3) {
        let s = &self.geogauss.state;
        let ahead = |position: LogPosition| position.0.saturating_sub(synced as u64);
        let logs = s.streams.logs.iter().map(|log| {
            let slots = log.slots.iter();
            let slots = slots
                .map(|(bid, slot)| (*bid, exhaustive::digest(&slot.bytes), ahead(slot.position)));
            let missing = (log.missing.bid, log.missing.since, log.missing.requests);
            let missing = (missing, log.heard_at, log.fetched_upto);
            let heads = (log.received, log.durable, log.collected, log.known);
            (slots.collect::<Vec<_>>(), heads, missing, log.is_sealed, log.bounds.clone())
        });
        let e = &s.epochs;
        let reserving = e.reserving.iter().map(|(upto, at)| (*upto, ahead(*at)));
        let reserving: Vec<_> = reserving.collect();
        let epochs = (e.open, e.reached, e.busy, e.has_txns, &e.ends, e.reserved, reserving);
        let in_flight = s
            .execution
            .in_flight
            .iter()
            .map(|it| (it.txn, it.job.ticket, it.job.attempt, it.epoch, it.attempt, it.start));
        let queue = s.execution.queue.iter().map(|job| (job.ticket, job.attempt, job.since));
        let execution = (in_flight.collect::<Vec<_>>(), queue.collect::<Vec<_>>());
        let r = &s.streams;
        let known = (&r.durable, &r.available, &r.applied, &r.is_behind, r.next_sequence);
        let replication = (known, r.own_reported, r.turns_and_proofs(), &s.replica.is_up);
        let durable = s.checkpoints.records.iter().map(|(epoch, at)| (*epoch, ahead(*at)));
        let durable = (s.checkpoints.durable, durable.collect::<Vec<_>>());
        let merged = (s.applied.epoch, &s.applied.heads, &self.states);
        let first_start = s.presence.first_start(&s.replica);
        let (identities, is_ready) = (&s.presence.log_identities, s.presence.is_ready);
        let greetings = (identities, is_ready, first_start, s.presence.described());
        let membership = (s.membership.described(), ahead(s.membership.driver.last_record()));
        let rest = (self.agreed, self.submitted, self.now, s.fresh.described());
        let logs: Vec<_> = logs.collect();
        let all = (logs, epochs, execution, replication, durable, merged, greetings, membership);
        hasher.update(format!("{all:?} {rest:?} {}", s.replica.last_token()).as_bytes());
    }

    /// Records of different kinds are read independently, but for seals and views.
    fn digest_log(log: &[Vec<u8>], hasher: &mut Xxh3) {
        let others: Vec<_> = log.iter().filter(|record| record[0] != kind::AGREEMENT).collect();
        hasher.update(format!("{others:?} {}", agreement_state(log)).as_bytes());
    }

    fn held(log: &[Vec<u8>]) -> Vec<((u8, u64), u64)> {
        let held = |bytes: Bytes| {
            let batch = Batch::decode(&bytes).expect("the record can be decoded");
            ((batch.source.0 as u8, batch.bid.0), exhaustive::digest(&bytes))
        };
        records(log, kind::BATCH).map(held).collect()
    }

    fn look(&self, log: &[Vec<u8>], view: &mut View) {
        let state = &self.geogauss.state;
        view.is_leader = state.presence.is_ready && state.membership.driver.agreement().is_leader();
        for record in records(log, kind::EPOCH) {
            let digest = exhaustive::digest(&record);
            let record = EpochRecord::decode(&record).expect("the record can be decoded");
            view.known.push(((0, record.epoch.0), digest));
            let logs = (0..).zip(&state.streams.logs).zip(&record.heads);
            let batches = logs.flat_map(|((source, log), head)| {
                let counts = |bid: &u64| log.bounds.counts(streams::Bid(*bid));
                (1..=head.0).filter(counts).map(move |bid| (source, bid))
            });
            view.needs.push((digest, batches.collect()));
        }
        view.known.extend(self.states.iter().map(|(epoch, state)| ((1, *epoch), *state)));
        let present = &state.membership.view;
        let digest = exhaustive::digest(format!("{present:?}").as_bytes());
        view.known.push(((2, present.number.0), digest));
    }

    fn describe(bytes: &[u8]) -> String {
        match Message::decode(&Bytes::copy_from_slice(bytes)).expect("the message can be decoded") {
            Message::Agreement { bytes } => agreement::describe::<Change>(&bytes),
            Message::Streams(streams::Message::Batch { bytes }) => {
                let batch = Batch::decode(&bytes).expect("the message can be decoded");
                let end = if batch.is_last { ", the last" } else { "" };
                format!("batch {} of node {}{end}", batch.bid.0, batch.source.0)
            }
            message => format!("{message:?}"),
        }
    }
}

/// The first of three replicas leads.
const CALM: Bounds = Bounds {
    proposals: 0,
    campaigns: 0,
    campaigners: [false, true, false],
    frail: None,
    crashes: 0,
    submits: [0, 1, 0],
    reads: [0; 3],
    opening: &[],
    decisions: 1,
    states_max: exhaustive::STATES_MAX,
};

/// No node sends to itself.
const NO_LINK: (u8, u8, u8) = (0, 0, 0);

/// The third replica is removed although it runs. It had a transaction, whose batches are late at
/// the second replica. All have ended its epoch and reported, and the view is about to begin.
const REMOVAL: Bounds = Bounds {
    proposals: 1,
    submits: [0, 0, 0],
    opening: &[
        Opening::Act(2, Act::Submit),
        Opening::Deliver { except: (2, 1, 1) },
        Opening::Act(0, Act::Propose(0)),
        Opening::Deliver { except: (2, 1, 1) },
    ],
    ..CALM
};

/// The same, with batches that are late at the leader.
const LATE_AT_LEADER: Bounds = Bounds {
    opening: &[
        Opening::Act(2, Act::Submit),
        Opening::Deliver { except: (2, 0, 1) },
        Opening::Act(0, Act::Propose(0)),
        Opening::Deliver { except: (2, 0, 1) },
    ],
    ..REMOVAL
};

/// The third replica has its transaction when its removal is decided.
const AFTER_SEAL: Bounds = Bounds {
    submits: [0, 0, 1],
    opening: &[Opening::Act(0, Act::Propose(0)), Opening::Deliver { except: NO_LINK }],
    ..REMOVAL
};

/// The second replica has sent its transaction to one of the others, and may lose power.
const HALF_SENT: Bounds = Bounds {
    frail: Some(1),
    crashes: 1,
    submits: [0, 0, 0],
    opening: &[Opening::Act(1, Act::Submit), Opening::Deliver { except: (1, 2, 1) }],
    ..CALM
};

#[test]
fn epochs_and_views_are_the_same_in_every_order() {
    let mut all = vec![CALM, HALF_SENT, REMOVAL, LATE_AT_LEADER, AFTER_SEAL];
    if exhaustive::IS_LARGE {
        for bounds in [REMOVAL, LATE_AT_LEADER, AFTER_SEAL] {
            for node in 1..3 {
                all.push(Bounds { frail: Some(node), crashes: 1, ..bounds });
            }
            all.push(Bounds { campaigns: 1, ..bounds });
        }
        all.push(Bounds { frail: Some(1), crashes: 1, ..CALM });
        all.push(Bounds { submits: [0, 1, 1], ..CALM });
        all.push(Bounds { submits: [0, 1, 1], ..AFTER_SEAL });
        // The seal is decided while the transaction is on its way.
        all.push(Bounds { proposals: 2, opening: &REMOVAL.opening[..1], ..REMOVAL });
    }
    exhaustive::all_is_well::<Replica>(&all);
}

/// A read that begins after the acknowledgement of a write sees it, although its replica may have
/// been removed.
#[test]
fn strict_reads_see_what_was_acknowledged_before_them_in_every_order() {
    let mut all = vec![Bounds { reads: [0, 0, 1], ..CALM }];
    if exhaustive::IS_LARGE {
        all.push(Bounds { reads: [0, 0, 1], submits: [0; 3], ..REMOVAL });
        all.push(Bounds { reads: [0, 0, 1], submits: [0, 1, 0], ..AFTER_SEAL });
    }
    exhaustive::all_is_well::<Replica>(&all);
}

#[cfg(feature = "planted")]
#[test]
fn a_planted_bug_of_a_view_is_found_with_the_fewest_choices() {
    use pangea_core::planted::Bug;

    exhaustive::is_found::<Replica>(Bug::MergedBeforeAvailable, CALM);
    exhaustive::is_found::<Replica>(Bug::LifeEndsTooEarly, REMOVAL);
    exhaustive::is_found::<Replica>(Bug::FreshUnmerged, Bounds { reads: [0, 0, 1], ..CALM });
}
