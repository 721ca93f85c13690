//! Every order of events in which three replicas can replicate batches and cut them, for few
//! events: see [`crate::exhaustive`].
//!
//! No timer fires by itself. A transaction is a batch at once. The coordinator proposes, and a
//! replica campaigns, only as a choice of the search.

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
use super::epoch_record::EpochRecord;
use super::{Cut, Message, Minerva, Options, Timer};
use crate::agreement;
use crate::exhaustive::{
    self, Act, Bounds, Brain, Fresh, Happened, Opening, Out, Reply, Sent, View,
};
use crate::inputs;
use crate::replica::kind;
use crate::streams;

const TABLE: TableId = TableId(7);

/// The ticket of the first strict read. Those of transactions are smaller.
const READS: u64 = 1_000;

/// Longer than any timeout.
const LONG: Span = Span::from_ms(10_000);

/// Appends its argument to the value of the only row.
struct Append;

impl Procedure for Append {
    fn name(&self) -> &str {
        "append"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let before = cx.get(TABLE, b"row")?;
        let mut row = before.map_or_else(Vec::new, |value| value.to_vec());
        row.extend(args);
        cx.put(TABLE, Key::from(&b"row"[..]), Value::copy_from(&row))?;
        Ok(Vec::new())
    }
}

struct Replica {
    minerva: Minerva,
    me: u8,
    store: Arc<Store>,
    rng: fastrand::Rng,
    now: Timestamp,
    head: LogPosition,
    submitted: u64,
    /// The digest of the state after each epoch.
    states: BTreeMap<u64, u64>,
    /// A digest of the inputs of agreement since the start, in order, and of the records from which
    /// it began, because `omnipaxos` does not expose its state.
    agreed: u64,
}

impl Replica {
    fn input(&mut self, input: Input<Minerva>, out: &mut Out) {
        self.work(|minerva, cx| minerva.step(cx, input), out);
    }

    /// Carries out a step, and the steps that it asks for.
    fn work(&mut self, step: impl FnOnce(&mut Minerva, &mut Cx<'_, Minerva>), out: &mut Out) {
        let mut is_more = self.work_once(step, out);
        while is_more {
            is_more = self.work_once(|minerva, cx| minerva.step(cx, Input::Resume), out);
        }
        // If several epochs were applied in one step, the earlier ones may already be reclaimed.
        let last = self.store.published();
        if last > SnapshotVersion::ZERO {
            self.states.insert(last.0, self.store.digest(last));
        }
    }

    /// Returns whether the step asks for another.
    fn work_once(
        &mut self,
        step: impl FnOnce(&mut Minerva, &mut Cx<'_, Minerva>),
        out: &mut Out,
    ) -> bool {
        let now = ClockReading { at: self.now, uncertainty: Span::ZERO };
        let mut effects = Vec::new();
        let (rng, store) = (&mut self.rng, &self.store);
        let mut cx = Cx::new(now, rng, store, &Sequential, self.head, &mut effects);
        step(&mut self.minerva, &mut cx);
        self.minerva.invariants();
        let is_resumed = effects.iter().any(|effect| matches!(effect, Effect::Resume));
        effects.into_iter().for_each(|effect| self.carry_out(effect, out));
        is_resumed
    }

    /// Strict reads ask another coordinator, as the timer for progress has them do. It fires as
    /// soon as there is one, and does nothing else.
    fn retry_reads(&mut self, before: Option<NodeId>, out: &mut Out) {
        if self.minerva.state.inputs.agreement().leader() != before {
            self.work(|minerva, cx| minerva.state.inputs.retry_barriers(cx, None), out);
        }
    }

    fn carry_out(&mut self, effect: Effect<Minerva>, out: &mut Out) {
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
                // Each transaction is a batch.
                let held = (txn.node().0 as u8, txn.sequence());
                out.replies.push((after.0 as usize, Reply { decision: version.0, held }));
            }
            Effect::Rejoined => panic!("no disk is lost"),
            Effect::MasterTerm { .. } => panic!("Minerva has no master"),
            Effect::Lineage { .. } | Effect::Lost { .. } | Effect::LostCommit { .. } => {
                panic!("all versions are confirmed")
            }
            Effect::Prefetch { .. } => panic!("all rows are in memory"),
            Effect::Stop { reason } => out.stop = Some(reason),
            Effect::Fresh { ticket: Ticket(ticket), version } => {
                let read = (ticket - READS) as u8;
                out.fresh.push(Fresh { read, decision: version.0 });
            }
            Effect::Reply { .. } => panic!("no requester"),
            Effect::Checkpoint { .. } | Effect::Truncate(_) => panic!("too little for that"),
            Effect::Resume | Effect::SetTimer { .. } | Effect::ClearTimer(_) | Effect::Mark(_) => {}
        }
    }

    fn act(&mut self, act: Act, out: &mut Out) {
        match act {
            Act::Propose(_) => self.input(Input::Timer(Timer::Epoch), out),
            Act::Campaign if self.minerva.state.inputs.presence.is_ready => {
                self.minerva.state.inputs.agreement_mut().campaign();
                self.input(Input::Resume, out);
            }
            Act::Campaign => {}
            Act::Submit => {
                self.submitted += 1;
                let ticket = Ticket(self.submitted);
                let procedure = registry().id("append").expect("the procedure is registered");
                let args = Bytes::from(vec![self.me]);
                let request = Request::serializable(Program::Call { procedure, args });
                self.input(Input::Submit(vec![Submission { ticket, request }]), out);
                self.input(Input::Timer(Timer::Batch), out);
            }
            Act::Read(number) => {
                let ticket = Ticket(READS + u64::from(number));
                let request = Request::Fresh;
                self.input(Input::Submit(vec![Submission { ticket, request }]), out);
            }
            Act::Fetch => {
                self.now = self.now + LONG;
                self.input(Input::Timer(Timer::Fetch), out);
                self.retry_reads(None, out);
            }
        }
    }

    /// Records an input of agreement, given the number of proposals before it.
    fn note_agreed(&mut self, event: &Happened<'_>, proposed: u64) {
        let is_proposal = proposed != self.minerva.state.inputs.cut.last_proposal.nonce;
        let is_agreed = match event {
            Happened::Message { bytes, .. } => {
                let message = Message::decode(&Bytes::copy_from_slice(bytes));
                matches!(message, Ok(Message::Inputs(inputs::Message::Agreement { .. })))
            }
            Happened::PeerUp(_) | Happened::Act(Act::Campaign) => true,
            _ => is_proposal,
        };
        if is_agreed {
            let heads = &self.minerva.state.inputs.cut.proposed;
            let event = format!("{} {event:?} {heads:?}", self.agreed);
            self.agreed = exhaustive::digest(event.as_bytes());
        }
    }
}

fn registry() -> Registry {
    Registry::new([Arc::new(Append) as Arc<dyn Procedure>])
}

/// The records of this kind, without their kind byte.
fn records(log: &[Vec<u8>], wanted: u8) -> impl Iterator<Item = Bytes> {
    let records = log.iter().filter(move |record| record[0] == wanted);
    records.map(|record| Bytes::copy_from_slice(&record[1..]))
}

fn agreement_state(log: &[Vec<u8>]) -> String {
    let decode = |record: Bytes| -> Vec<agreement::Record<Cut>> {
        postcard::from_bytes(&record).expect("the message can be decoded")
    };
    agreement::describe_log(records(log, kind::AGREEMENT).flat_map(decode))
}

fn digest(cut: &Cut) -> u64 {
    exhaustive::digest(format!("{cut:?}").as_bytes())
}

impl Brain for Replica {
    fn start(me: u8, starts: u64, log: &[Vec<u8>]) -> (Self, Out) {
        const NEVER_MS: u64 = 1 << 40;
        let options = Options {
            epoch_ms: NEVER_MS,
            batch_ms: NEVER_MS,
            removal_ms: NEVER_MS,
            ..Options::default()
        };
        let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
        let minerva = Minerva::new(Setup {
            me: NodeId(me.into()),
            topology: Arc::new(topology),
            registry: Arc::new(registry()),
            options,
        });
        let mut replica = Self {
            minerva,
            me,
            store: Arc::new(Store::new()),
            rng: fastrand::Rng::with_seed(starts * 3 + u64::from(me)),
            now: Timestamp::from_us(1),
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
        let leader = self.minerva.state.inputs.agreement().leader();
        let proposed = self.minerva.state.inputs.cut.last_proposal.nonce;
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
        self.retry_reads(leader, &mut out);
        self.note_agreed(event, proposed);
        out
    }

    /// Omits state that follows from the rest (the overlay from the transactions in flight),
    /// counters, and state that only ticks use.
    fn digest(&self, synced: usize, hasher: &mut Xxh3) {
        let (own, s) = (&self.minerva.state, &self.minerva.state.inputs);
        let ahead = |position: LogPosition| position.0.saturating_sub(synced as u64);
        let in_flight = own.execution.in_flight.iter().map(|txn| {
            (txn.txn, txn.ticket, txn.result.as_ref().ok(), &txn.dependencies, txn.is_doomed)
        });
        let execution = (
            in_flight.collect::<Vec<_>>(),
            s.streams.next_sequence,
            own.execution.current.len(),
            own.execution.current_base,
        );
        let logs = s.streams.logs.iter().map(|log| {
            let slots = log.slots.iter();
            let slots = slots
                .map(|(bid, slot)| (*bid, exhaustive::digest(&slot.bytes), ahead(slot.position)));
            let missing = (log.missing.bid, log.missing.since, log.missing.requests);
            let missing = (missing, log.heard_at, log.fetched_upto);
            let slots: Vec<_> = slots.collect();
            (slots, log.received, log.durable, log.collected, log.known, missing)
        });
        let r = &s.streams;
        let replication = (&r.durable, &r.available, r.turns_and_proofs(), &s.replica.is_up);
        let c = &s.cut;
        let epochs = s.checkpoints.records.iter().map(|(epoch, at)| (*epoch, ahead(*at)));
        let cut = (
            (&c.waiting, c.skipped, c.applied, s.checkpoints.durable, epochs.collect::<Vec<_>>()),
            (&c.heads, &c.is_member, &c.proposed, c.term, c.last_proposal, c.nonce_decided),
            (ahead(c.driver.last_record()), c.left),
        );
        let first_start = s.presence.first_start(&s.replica);
        let (identities, is_ready) = (&s.presence.log_identities, s.presence.is_ready);
        let greetings = (identities, is_ready, first_start, s.presence.described());
        let agreed = (self.agreed, self.submitted, &self.states, self.now);
        let reads = (s.barriers.described(), s.replica.last_token(), s.stops.described());
        let rest = (reads, &own.contention, &s.streams.applied, &s.collection.applied);
        let logs: Vec<_> = logs.collect();
        let all = (execution, logs, replication, cut, greetings, agreed, rest);
        hasher.update(format!("{all:?}").as_bytes());
    }

    /// Records of different kinds are read independently.
    fn digest_log(log: &[Vec<u8>], hasher: &mut Xxh3) {
        let mut others: Vec<_> = log.iter().filter(|record| record[0] != kind::AGREEMENT).collect();
        others.sort_unstable();
        hasher.update(format!("{others:?} {}", agreement_state(log)).as_bytes());
    }

    fn held(log: &[Vec<u8>]) -> Vec<((u8, u64), u64)> {
        let held = |bytes: Bytes| {
            let batch = Batch::decode(&bytes).expect("the message can be decoded");
            ((batch.source.0 as u8, batch.bid.0), exhaustive::digest(&bytes))
        };
        records(log, kind::BATCH).map(held).collect()
    }

    fn look(&self, log: &[Vec<u8>], view: &mut View) {
        let state = &self.minerva.state.inputs;
        view.is_leader =
            state.presence.is_ready && self.minerva.state.inputs.agreement().is_leader();
        let mut cuts: Vec<(SnapshotVersion, Cut)> = state.cut.waiting.iter().cloned().collect();
        for record in records(log, kind::EPOCH) {
            let resolution = EpochRecord::decode(&record).expect("the message can be decoded");
            cuts.push((resolution.epoch, resolution.cut));
        }
        cuts.sort_unstable_by_key(|(epoch, _)| *epoch);
        cuts.dedup();
        for (epoch, cut) in &cuts {
            view.known.push(((0, epoch.0), digest(cut)));
            let batches = |(source, head): (u8, &super::batch::Bid)| {
                (1..=head.0).map(move |bid| (source, bid))
            };
            view.needs.push((digest(cut), (0..).zip(&cut.heads).flat_map(batches).collect()));
        }
        view.known.extend(self.states.iter().map(|(epoch, state)| ((1, *epoch), *state)));
    }

    fn describe(bytes: &[u8]) -> String {
        match Message::decode(&Bytes::copy_from_slice(bytes)).expect("the message can be decoded") {
            Message::Inputs(inputs::Message::Agreement { bytes }) => {
                agreement::describe::<Cut>(&bytes)
            }
            Message::Inputs(inputs::Message::Streams(streams::Message::Batch { bytes })) => {
                let batch = Batch::decode(&bytes).expect("the message can be decoded");
                format!("batch {} of node {}", batch.bid.0, batch.source.0)
            }
            message => format!("{message:?}"),
        }
    }
}

/// The first of three replicas coordinates, and the second has a transaction.
const CALM: Bounds = Bounds {
    proposals: 1,
    campaigns: 0,
    campaigners: [false, true, false],
    frail: None,
    crashes: 0,
    submits: [0, 1, 0],
    reads: [0; 3],
    opening: &[],
    decisions: 2,
    states_max: exhaustive::STATES_MAX,
};

#[test]
fn cuts_are_the_same_in_every_order() {
    let mut all = vec![
        Bounds { proposals: 2, ..CALM },
        Bounds { proposals: 2, submits: [1, 1, 0], ..CALM },
        Bounds { proposals: 2, frail: Some(0), crashes: 1, ..CALM },
        Bounds { campaigns: 1, ..CALM },
        Bounds { frail: Some(1), proposals: 0, crashes: 1, ..CALM },
        Bounds { frail: Some(2), proposals: 0, crashes: 1, ..CALM },
    ];
    if exhaustive::IS_LARGE {
        for node in 1..3 {
            all.push(Bounds { frail: Some(node), crashes: 1, ..CALM });
            all.push(Bounds { proposals: 2, frail: Some(node), crashes: 1, ..CALM });
        }
        let two = Bounds { proposals: 2, submits: [1, 1, 0], crashes: 1, ..CALM };
        for node in 0..3 {
            all.push(Bounds { frail: Some(node), ..two });
        }
    }
    exhaustive::all_is_well::<Replica>(&all);
}

/// The third replica's first strict read asks the first coordinator, and its request is late. The
/// second one coordinates for a while and answers the read. The first is then elected again, and
/// the late request reaches it in that term: its answer must not count for the second read. The
/// events before that have this order alone, because all of their orders are too many.
const READ_ACROSS: Bounds = Bounds {
    proposals: 2,
    submits: [1, 0, 0],
    reads: [0, 0, 2],
    opening: &[
        Opening::Act(2, Act::Read(0)),
        Opening::Act(1, Act::Campaign),
        Opening::Deliver { except: LATE },
        Opening::Act(1, Act::Propose(0)),
        Opening::Deliver { except: LATE },
        Opening::Act(0, Act::Campaign),
        Opening::Deliver { except: LATE },
        Opening::Deliver { except: NO_LINK },
    ],
    ..CALM
};

/// The link of the late request.
const LATE: (u8, u8, u8) = (2, 0, 0);

/// No node sends to itself.
const NO_LINK: (u8, u8, u8) = (0, 0, 0);

/// A read that begins after the acknowledgement of a write sees it, although the coordinator
/// changes twice.
#[test]
fn strict_reads_see_what_was_acknowledged_before_them_in_every_order() {
    let mut all = vec![
        Bounds { reads: [0, 0, 1], ..CALM },
        Bounds { proposals: 2, reads: [0, 0, 1], ..CALM },
        Bounds { campaigns: 1, reads: [0, 0, 1], submits: [0; 3], ..CALM },
        READ_ACROSS,
    ];
    if exhaustive::IS_LARGE {
        // The late request arrives at any time.
        let opening = READ_ACROSS.opening.split_last().expect("it has steps").1;
        all.push(Bounds { opening, ..READ_ACROSS });
        all.push(Bounds { campaigns: 1, ..READ_ACROSS });
        all.push(Bounds { campaigns: 1, reads: [0, 0, 1], ..CALM });
    }
    exhaustive::all_is_well::<Replica>(&all);
}

#[cfg(feature = "planted")]
#[test]
fn a_planted_bug_of_the_cut_is_found_with_the_fewest_choices() {
    use pangea_core::planted::Bug;

    let frail = Some(2);
    exhaustive::is_found::<Replica>(Bug::AckBeforeFsync, Bounds { frail, ..CALM });
    exhaustive::is_found::<Replica>(Bug::AckCountedTwice, CALM);
    exhaustive::is_found::<Replica>(Bug::CutPastGap, CALM);
    let frail = Some(1);
    exhaustive::is_found::<Replica>(Bug::SendBeforeFsync, Bounds { frail, crashes: 1, ..CALM });
    exhaustive::is_found::<Replica>(Bug::FreshWithoutCut, Bounds { reads: [0, 0, 1], ..CALM });
    exhaustive::is_found::<Replica>(Bug::BarrierOfBefore, READ_ACROSS);
}
