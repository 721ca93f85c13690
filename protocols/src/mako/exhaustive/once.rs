//! Exhaustive search of forwarding (`forwarding.rs`, `outcomes.rs`): a node hands transactions of
//! its clients to leaders that replace each other, and each is executed once.
//!
//! ```text
//!   node      submits 1, 2 | forwards | reconnects, forwards again | restarts | is refused
//!   leader    takes, executes, commits, refuses | is replaced, and does not know it
//! ```
//!
//! Messages arrive in any order, and are lost when the node reconnects, or are late. A leader of a
//! later epoch finds what is committed in the log, and perhaps more. Two nodes lead in turns, so a
//! late message may come from a node that leads again. No transaction is twice in the log, none is
//! there that its client was told is refused, and at each end every client has its own answer.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use pangea_core::codec::Reader;
use pangea_core::hash::HashSet;
use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};

use super::super::log::{Entry, Executed};
use super::super::outcomes::Outcomes;
use crate::exhaustive::IS_LARGE;

const NODE: NodeId = NodeId(2);
/// The node reserves this number of names at a time.
const RESERVED: u64 = 10;

/// A deliberate error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A leader executes what it has executed already.
    TakenForgotten,
    /// A leader begins before it has published what is in its log.
    BeginsUnpublished,
    /// A checkpoint lacks the outcomes.
    OutcomesForgotten,
    /// The node does not ask for transactions any more that have no outcome.
    OverTooEarly,
    /// The node uses names again after a restart.
    NamesReused,
    /// A leader forgets that it has refused a transaction.
    RefusalForgotten,
    /// The node believes leaders that were replaced.
    OldRefusalBelieved,
    /// The node believes the node that leads, whenever it has refused.
    RefusalOfNodeBelieved,
}

type Client = u8;
type Named = (u64, Client);

/// An entry of the log: a transaction, and the number below which those before it are over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Logged {
    txn: Named,
    below: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Forward { epoch: usize, below: u64, txns: Vec<Named> },
    Refused { epoch: usize, txn: u64 },
}

#[derive(Clone, Debug, Default)]
struct Leader {
    log: Vec<Logged>,
    /// The number of entries that a majority has, and that are published.
    committed: usize,
    taken: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    below: u64,
    logged_below: u64,
    outcomes: Outcomes,
}

impl Hash for Leader {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { log, committed, taken, refused, below, logged_below, outcomes } = self;
        (log, committed, taken, refused, below, logged_below, outcomes.encode()).hash(state);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Heard {
    Executed,
    Refused,
    /// Its node has restarted.
    Unknown,
}

#[derive(Clone, Debug, Hash)]
struct World {
    /// The leader of each epoch.
    leaders: Vec<Leader>,
    messages: BTreeSet<Message>,
    next: u64,
    reserved: u64,
    in_flight: BTreeMap<u64, Client>,
    unsent: BTreeSet<u64>,
    /// The epoch of which the node has heard, and the one whose leader has all its transactions.
    heard: usize,
    sent_to: Option<usize>,
    /// The number of entries that the node has published.
    applied: usize,
    clients: u8,
    told: BTreeMap<Client, Heard>,
    bounds: Bounds,
}

/// How often something may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Bounds {
    clients: u8,
    epochs: u8,
    reconnects: u8,
    restarts: u8,
    refusals: u8,
}

impl Bounds {
    fn failures(self) -> u8 {
        self.epochs + self.reconnects + self.restarts + self.refusals
    }
}

impl Leader {
    /// Publishes entries.
    fn publish(&mut self, upto: usize) {
        for at in self.committed..upto {
            let Logged { txn: (number, client), below } = self.log[at];
            let txn = TxnId::new(NODE, number);
            let version = SnapshotVersion(at as u64 + 1);
            self.outcomes.note(&Entry {
                version,
                before: SnapshotVersion(at as u64),
                txns: vec![Executed { txn, outcome: Ok(vec![client]) }],
                over: below.map(|below| (NODE, below)).into_iter().collect(),
                writes: Vec::new(),
                across: None,
            });
            self.taken.remove(&number);
        }
        self.committed = upto;
    }

    fn knows(&self, number: u64, mistake: Option<Mistake>) -> bool {
        let is_taken = self.taken.contains(&number) && mistake != Some(Mistake::TakenForgotten);
        is_taken || self.outcomes.contains(TxnId::new(NODE, number))
    }

    fn execute(&mut self, txn: Named) {
        self.taken.insert(txn.0);
        let is_news = self.below > self.logged_below;
        self.logged_below = self.below;
        self.log.push(Logged { txn, below: is_news.then_some(self.below) });
    }
}

impl World {
    fn first(bounds: Bounds) -> Self {
        Self {
            leaders: vec![Leader::default()],
            messages: BTreeSet::new(),
            next: 1,
            reserved: 1,
            in_flight: BTreeMap::new(),
            unsent: BTreeSet::new(),
            heard: 0,
            sent_to: None,
            applied: 0,
            clients: 0,
            told: BTreeMap::new(),
            bounds,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        change(&mut world);
        world
    }

    fn submit(&mut self) {
        self.bounds.clients -= 1;
        self.clients += 1;
        if self.next >= self.reserved {
            self.reserved = self.next + RESERVED;
        }
        self.in_flight.insert(self.next, self.clients);
        self.unsent.insert(self.next);
        self.next += 1;
    }

    fn forward(&mut self, mistake: Option<Mistake>) {
        let is_new = self.sent_to != Some(self.heard);
        let is_sent = |number: &u64| is_new || self.unsent.contains(number);
        let all = self.in_flight.iter().filter(|(number, _)| is_sent(number));
        let txns = all.map(|(number, client)| (*number, *client)).collect();
        let first = self.in_flight.keys().next().copied();
        let first = first.filter(|_| mistake != Some(Mistake::OverTooEarly));
        let below = first.unwrap_or(self.next);
        self.messages.insert(Message::Forward { epoch: self.heard, below, txns });
        self.unsent.clear();
        self.sent_to = Some(self.heard);
    }

    fn restart(&mut self, mistake: Option<Mistake>) {
        self.bounds.restarts -= 1;
        let lost = std::mem::take(&mut self.in_flight).into_values();
        self.told.extend(lost.map(|client| (client, Heard::Unknown)));
        self.unsent.clear();
        self.sent_to = None;
        self.next = if mistake == Some(Mistake::NamesReused) { 1 } else { self.reserved };
    }

    /// The last leader is replaced. The next one finds the first entries of its log.
    fn replace(&mut self, found: usize, mistake: Option<Mistake>) {
        self.bounds.epochs -= 1;
        let before = self.leaders.last().expect("there is a leader");
        let checkpoint = match mistake {
            Some(Mistake::OutcomesForgotten) => Outcomes::default(),
            _ => before.outcomes.clone(),
        };
        let outcomes = Outcomes::decode(&mut Reader::new(&checkpoint.encode()));
        let outcomes = outcomes.expect("outcomes can be decoded");
        let (log, committed) = (before.log[..found].to_vec(), before.committed);
        let mut leader = Leader { log, committed, outcomes, ..Leader::default() };
        match mistake {
            Some(Mistake::BeginsUnpublished) => leader.committed = found,
            _ => leader.publish(found),
        }
        self.leaders.push(leader);
    }

    /// The node publishes what is committed, and answers its clients.
    fn apply(&mut self) {
        let leader = self.leaders.last().expect("there is a leader");
        for Logged { txn: (number, of), .. } in &leader.log[self.applied..leader.committed] {
            if let Some(client) = self.in_flight.remove(number) {
                // The client of an earlier run with the same name has no use for it.
                let is_own = *of == client;
                self.told.insert(client, if is_own { Heard::Executed } else { Heard::Refused });
            }
        }
        self.applied = leader.committed;
    }

    fn believe(&mut self, txn: u64) {
        self.unsent.remove(&txn);
        if let Some(client) = self.in_flight.remove(&txn) {
            self.told.insert(client, Heard::Refused);
        }
    }

    /// The worlds after each possible step.
    fn next(&self, mistake: Option<Mistake>) -> Vec<Self> {
        let mut all = Vec::new();
        let last = self.leaders.len() - 1;
        let leader = &self.leaders[last];
        if self.bounds.clients > 0 {
            all.push(self.with(Self::submit));
        }
        if self.heard < last {
            all.push(self.with(|world| world.heard = last));
        }
        let is_new = self.sent_to != Some(self.heard);
        if !self.in_flight.is_empty() && (is_new || !self.unsent.is_empty()) {
            all.push(self.with(|world| world.forward(mistake)));
        }
        if leader.committed < leader.log.len() {
            all.push(self.with(|world| {
                let leader = &mut world.leaders[last];
                leader.publish(leader.log.len());
            }));
        }
        if self.applied < leader.committed {
            all.push(self.with(Self::apply));
        }
        for message in &self.messages {
            self.arrivals(message, mistake, &mut all);
        }
        if self.bounds.epochs > 0 {
            for found in leader.committed..=leader.log.len() {
                all.push(self.with(|world| world.replace(found, mistake)));
            }
        }
        if self.bounds.reconnects > 0 {
            for is_lost in [true, false] {
                all.push(self.with(|world| {
                    world.bounds.reconnects -= 1;
                    world.sent_to = None;
                    if is_lost {
                        world.messages.clear();
                    }
                }));
            }
        }
        if self.bounds.restarts > 0 {
            all.push(self.with(|world| world.restart(mistake)));
        }
        all
    }

    /// The worlds after a message has arrived.
    fn arrivals(&self, message: &Message, mistake: Option<Mistake>, all: &mut Vec<Self>) {
        let has = |it| mistake == Some(it);
        match message {
            Message::Refused { epoch, txn } => all.push(self.with(|world| {
                world.messages.remove(message);
                let is_of_node = epoch % 2 == self.heard % 2;
                let is_believed = *epoch == self.heard
                    || has(Mistake::OldRefusalBelieved)
                    || has(Mistake::RefusalOfNodeBelieved) && is_of_node;
                if is_believed {
                    world.believe(*txn);
                }
            })),
            Message::Forward { epoch, below, txns } => {
                let is_refusing = [false, true].into_iter();
                for refuses in is_refusing.take(1 + usize::from(self.bounds.refusals > 0)) {
                    all.push(self.with(|world| {
                        world.messages.remove(message);
                        world.bounds.refusals -= u8::from(refuses);
                        let leader = &mut world.leaders[*epoch];
                        leader.below = leader.below.max(*below);
                        for txn in txns {
                            if leader.knows(txn.0, mistake) {
                                continue;
                            }
                            let is_refused = leader.refused.contains(&txn.0);
                            if refuses || is_refused && !has(Mistake::RefusalForgotten) {
                                leader.refused.insert(txn.0);
                                let refused = Message::Refused { epoch: *epoch, txn: txn.0 };
                                world.messages.insert(refused);
                            } else {
                                leader.execute(*txn);
                            }
                        }
                    }));
                }
            }
        }
    }

    /// The violation, if any. `is_end` is whether nothing more can happen but failures.
    fn violation(&self, is_end: bool) -> Option<String> {
        let leader = self.leaders.last().expect("there is a leader");
        let committed = &leader.log[..leader.committed];
        for client in 1..=self.clients {
            let count = committed.iter().filter(|logged| logged.txn.1 == client).count();
            let told = self.told.get(&client);
            let wrong = match told {
                _ if count > 1 => "is executed twice",
                Some(Heard::Refused) if count > 0 => "was refused, and is executed",
                Some(Heard::Executed) if count == 0 => "was told, and is lost",
                None if is_end => "has no answer",
                _ => continue,
            };
            return Some(format!("the transaction of client {client} {wrong}"));
        }
        let is_anothers = |(number, client): (&u64, &Client)| {
            committed.iter().any(|logged| logged.txn.0 == *number && logged.txn.1 != *client)
        };
        let wrong = self.in_flight.iter().find(|it| is_anothers(*it));
        wrong.map(|(number, _)| format!("the name {number} has two transactions"))
    }
}

/// Visits all worlds, and counts them. Stops at the first violation.
fn search(bounds: Bounds, mistake: Option<Mistake>) -> (usize, Option<String>) {
    let digest = |world: &World| {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        hasher.finish()
    };
    let mut left = vec![World::first(bounds)];
    let mut seen: HashSet<u64> = left.iter().map(digest).collect();
    while let Some(world) = left.pop() {
        let next = world.next(mistake);
        let failures = world.bounds.failures();
        let is_end = next.iter().all(|next| next.bounds.failures() < failures);
        if let Some(violation) = world.violation(is_end) {
            return (seen.len(), Some(format!("{violation}: {world:?}")));
        }
        left.extend(next.into_iter().filter(|world| seen.insert(digest(world))));
    }
    (seen.len(), None)
}

const fn bounds([clients, epochs, reconnects, restarts, refusals]: [u8; 5]) -> Bounds {
    Bounds { clients, epochs, reconnects, restarts, refusals }
}

/// The first ones take two seconds, and the last one minutes.
const ALL: [Bounds; 6] = [
    bounds([2, 1, 1, 0, 0]),
    bounds([1, 2, 1, 0, 1]),
    bounds([2, 1, 0, 1, 0]),
    bounds([2, 2, 1, 0, 1]),
    bounds([2, 2, 1, 1, 1]),
    bounds([2, 3, 1, 1, 1]),
];
const QUICK: usize = 5;

#[test]
fn a_transaction_is_executed_once_however_often_it_is_forwarded() {
    for bounds in ALL.into_iter().take(if IS_LARGE { ALL.len() } else { QUICK }) {
        let (count, found) = search(bounds, None);
        println!("{bounds:?}: {count} worlds");
        assert_eq!(found, None, "{bounds:?}");
        assert!(count > 1_000, "{bounds:?}: {count} worlds");
    }
}

#[test]
fn every_mistake_in_forwarding_is_found() {
    for mistake in [
        Mistake::TakenForgotten,
        Mistake::BeginsUnpublished,
        Mistake::OutcomesForgotten,
        Mistake::OverTooEarly,
        Mistake::NamesReused,
        Mistake::RefusalForgotten,
        Mistake::OldRefusalBelieved,
        Mistake::RefusalOfNodeBelieved,
    ] {
        let all = ALL.into_iter().take(QUICK).map(|bounds| search(bounds, Some(mistake)));
        let found = all.into_iter().find_map(|(count, found)| Some((count, found?)));
        let (count, found) = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: after {count} worlds: {found}");
    }
}

/// A leader does not know what the leaders before it have executed.
#[cfg(feature = "planted")]
#[test]
fn a_planted_bug_of_outcomes_is_found() {
    use pangea_core::planted::{Bug, Planted};

    let planted = Planted::new(Some(Bug::MakoForwardedTwice));
    let (count, found) = search(ALL[0], None);
    drop(planted);
    println!("after {count} worlds: {}", found.expect("it is found"));
}
