//! Replicas that truncate entries while others are unreachable, in disorder: messages are delayed,
//! connections break, replicas crash, and leadership changes at any moment.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;

use super::*;

/// The number of entries that are retained although a majority has them on disk.
const KEPT: u64 = 4;

/// The state of a replica's user, and its disk.
#[derive(Default)]
struct User {
    /// All records so far.
    log: Vec<Record<u32>>,
    /// The number of entries that it has applied, in order.
    applied: u64,
    /// The number of entries that it still has after a crash.
    durable: u64,
    /// The number of the last entry that it received or was told to skip.
    delivered: u64,
    /// Entries that it has received and not applied.
    waiting: BTreeMap<u64, u32>,
}

struct World {
    rng: Rng,
    topology: Topology,
    replicas: Vec<Option<Agreement<u32>>>,
    users: Vec<User>,
    /// The messages in flight, by sender and receiver, in order.
    links: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    is_cut: Vec<bool>,
    /// Every entry that any replica has returned.
    decided: BTreeMap<u64, u32>,
    next: u32,
    /// How often a replica skipped entries.
    skips: u64,
    /// How often a replica with missing entries led.
    lacking_leaders: u64,
}

impl World {
    fn new(seed: u64, nodes: usize) -> Self {
        let regions = &["a", "b", "c", "d", "e"][..nodes];
        let topology = Topology::one_node_per_region("t", regions, Span::from_ms(1));
        let mut world = Self {
            rng: Rng::with_seed(seed),
            topology,
            replicas: (0..nodes).map(|_| None).collect(),
            users: (0..nodes).map(|_| User::default()).collect(),
            links: BTreeMap::new(),
            is_cut: vec![false; nodes],
            decided: BTreeMap::new(),
            next: 0,
            skips: 0,
            lacking_leaders: 0,
        };
        (0..nodes).for_each(|id| world.start(id));
        world
    }

    fn ids(&self) -> Range<usize> {
        0..self.users.len()
    }

    fn start(&mut self, id: usize) {
        let user = &mut self.users[id];
        (user.applied, user.delivered) = (user.durable, user.durable);
        user.waiting.clear();
        let (log, taken) = (user.log.clone(), user.durable);
        let replica = Agreement::new(NodeId(id as u16), &self.topology, log, taken);
        self.replicas[id] = Some(replica);
        self.connect(id);
    }

    fn crash(&mut self, id: usize) {
        self.replicas[id] = None;
        self.disconnect(id);
    }

    /// Drops the messages in flight from it and to it.
    fn disconnect(&mut self, id: usize) {
        self.links.retain(|(from, to), _| *from != id && *to != id);
    }

    fn connect(&mut self, id: usize) {
        let peers: Vec<usize> =
            self.ids().filter(|&peer| peer != id && self.is_linked(id, peer)).collect();
        for peer in peers {
            for (at, to) in [(id, peer), (peer, id)] {
                if let Some(replica) = &mut self.replicas[at] {
                    replica.on_peer_up(NodeId(to as u16));
                }
                self.drain(at);
            }
        }
    }

    fn is_linked(&self, a: usize, b: usize) -> bool {
        let is_here = |id: usize| self.replicas[id].is_some() && !self.is_cut[id];
        is_here(a) && is_here(b)
    }

    fn drain(&mut self, id: usize) {
        let Some(replica) = &mut self.replicas[id] else { return };
        let ready = replica.take_ready();
        self.users[id].log.extend(ready.records);
        for (to, bytes) in ready.messages {
            if self.is_linked(id, to.index()) {
                self.links.entry((id, to.index())).or_default().push_back(bytes);
            }
        }
        if let Some(upto) = ready.skipped {
            self.skip(id, upto);
        }
        for (number, entry) in ready.decided {
            let user = &mut self.users[id];
            assert_eq!(number, user.delivered + 1, "entries are delivered in order");
            user.delivered = number;
            user.waiting.insert(number, entry);
            let known = *self.decided.entry(number).or_insert(entry);
            assert_eq!(known, entry, "entry {number} is identical everywhere");
        }
        self.apply(id);
    }

    fn skip(&mut self, id: usize, upto: u64) {
        let user = &mut self.users[id];
        assert!(upto > user.delivered, "delivered entries are not skipped");
        user.delivered = upto;
        self.skips += 1;
        assert!(
            (1..=upto).all(|number| self.decided.contains_key(&number)),
            "the entry was decided"
        );
        let holders = self.users.iter().filter(|user| user.durable >= upto).count();
        assert!(holders >= self.topology.majority(), "a majority has the skipped entries");
    }

    fn apply(&mut self, id: usize) {
        let user = &mut self.users[id];
        user.waiting.retain(|number, _| *number > user.applied);
        while user.waiting.remove(&(user.applied + 1)).is_some() {
            user.applied += 1;
        }
    }

    /// Truncates entries by the same rule as Minerva.
    fn compact(&mut self, id: usize) {
        let mut durable: Vec<u64> = self.users.iter().map(|user| user.durable).collect();
        durable.sort_unstable_by(|a, b| b.cmp(a));
        let upto =
            durable[self.topology.majority() - 1].min(self.users[id].durable).saturating_sub(KEPT);
        if let Some(replica) = &mut self.replicas[id] {
            replica.compact(upto);
        }
        self.drain(id);
    }

    /// A replica installs the state of another.
    fn take_checkpoint(&mut self, id: usize, from: usize) {
        if self.is_linked(id, from) && self.users[from].applied > self.users[id].applied {
            self.users[id].applied = self.users[from].applied;
            self.apply(id);
        }
    }

    fn deliver_from(&mut self, link: (usize, usize)) {
        let queue = self.links.get_mut(&link).expect("the link has a message");
        let bytes = queue.pop_front().expect("the link has a message");
        self.links.retain(|_, queue| !queue.is_empty());
        let replica = self.replicas[link.1].as_mut().expect("the replica is connected");
        let said = replica.on_message(NodeId(link.0 as u16), &bytes, &|_| true);
        let is_fine = said.as_ref().err().is_none_or(|refused| !refused.0.contains("refused"));
        assert!(is_fine, "a replica's message is valid: {said:?}");
        self.drain(link.1);
    }

    fn deliver(&mut self) {
        let links: Vec<_> = self.links.keys().copied().collect();
        if let Some(link) = self.rng.choice(links) {
            self.deliver_from(link);
        }
    }

    fn tick(&mut self, id: usize) {
        if let Some(replica) = &mut self.replicas[id] {
            replica.on_tick(true);
        }
        self.drain(id);
    }

    fn propose(&mut self, id: usize) {
        let Some(replica) = self.replicas[id].as_mut().filter(|replica| replica.is_leader()) else {
            return;
        };
        let user = &self.users[id];
        self.lacking_leaders += u64::from(user.applied < user.delivered);
        replica.propose(self.next);
        self.next += 1;
        self.drain(id);
    }

    fn step(&mut self) {
        let (id, peer) = (self.rng.usize(self.ids()), self.rng.usize(self.ids()));
        match self.rng.u32(..1_000) {
            0..500 => (0..4).for_each(|_| self.deliver()),
            500..700 => self.tick(id),
            700..850 => self.ids().for_each(|id| self.propose(id)),
            850..900 => self.users[id].durable = self.users[id].applied,
            900..960 => self.compact(id),
            960..966 => self.take_checkpoint(id, peer),
            966..976 => {
                if let Some(replica) = &mut self.replicas[id] {
                    replica.campaign();
                }
                self.drain(id);
            }
            976..982 => {
                self.is_cut[id] = true;
                self.disconnect(id);
            }
            982..988 if self.is_cut[id] => {
                self.is_cut[id] = false;
                self.connect(id);
            }
            988..994 => self.crash(id),
            994.. if self.replicas[id].is_none() => self.start(id),
            _ => {}
        }
    }

    /// Heals everything, and checks that all replicas reach the same state and decide more.
    fn heal(&mut self) {
        for id in self.ids() {
            if self.replicas[id].is_none() {
                self.start(id);
            }
            self.disconnect(id);
        }
        self.is_cut.fill(false);
        self.ids().for_each(|id| self.connect(id));
        let before = self.decided.len() as u64;
        for _ in 0..1_000 {
            self.ids().for_each(|id| self.tick(id));
            self.ids().for_each(|id| self.propose(id));
            while let Some(link) = self.links.keys().next().copied() {
                self.deliver_from(link);
            }
            self.ids().for_each(|id| self.ids().for_each(|from| self.take_checkpoint(id, from)));
            if self.users.iter().all(|user| user.applied > before + 10 && user.waiting.is_empty()) {
                return;
            }
        }
        let applied: Vec<u64> = self.users.iter().map(|user| user.applied).collect();
        panic!("{before} entries were decided, but {applied:?} were applied");
    }
}

/// Replicas agree whatever they truncate, accept all messages of each other, and skip only entries
/// that are applied on a majority.
#[test]
fn replicas_that_forget_agree_in_disorder() {
    for nodes in [3, 5] {
        let (mut skips, mut lacking_leaders) = (0, 0);
        for seed in 0..100 {
            let mut world = World::new(seed, nodes);
            (0..6_000).for_each(|_| world.step());
            world.heal();
            skips += world.skips;
            lacking_leaders += world.lacking_leaders;
        }
        assert!(skips > 50 && lacking_leaders > 50, "{skips} skips, {lacking_leaders} leaders");
    }
}
