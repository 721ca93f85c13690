//! The search: worlds, choices, and the checks of each world.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use pangea_core::hash::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_128;

use super::node::{Fresh, Node};
use super::outcome::{Found, Outcome};
use super::reads::Clients;
use super::{Act, Bounds, Brain, Event, MAJORITY, NODES, Opening, Reply, View};

/// The nodes, as they are named in messages.
const IDS: [u8; NODES] = [0, 1, 2];

/// An undisturbed cluster comes to rest within this number of choices.
const REST_MAX: usize = 10_000;

/// The maximum number of campaigns until everything that remains is decided.
const URGES_MAX: u8 = 9;

/// A channel on which messages stay in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Link {
    from: u8,
    to: u8,
    lane: u8,
}

/// A choice of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Deliver(Link),
    Sync(u8),
    Crash(u8),
    Start(u8),
    Act(u8, Act),
}

/// The cluster, and all facts that were ever settled in it.
#[derive(Clone)]
struct World {
    nodes: [u32; NODES],
    /// The messages in flight: their numbers by link, the oldest of each link first.
    on_way: Vec<(Link, u32)>,
    proposals: u8,
    campaigns: u8,
    crashes: u8,
    submits: [u8; NODES],
    clients: Clients,
    ever: Rc<BTreeMap<(u8, u64), u64>>,
}

/// A state of one node.
struct Local {
    me: u8,
    /// The state and the event that lead here.
    before: Option<(u32, Event)>,
    /// The whole state of a node without power.
    disk: Option<(u64, Vec<Vec<u8>>)>,
    view: Rc<View>,
}

/// The result of an event in a state of one node.
struct Step {
    next: u32,
    sent: Vec<(u8, u8, u32)>,
    replies: Vec<Reply>,
    fresh: Vec<Fresh>,
    /// A violation, if any.
    wrong: Option<String>,
}

/// Visits every state within `bounds`, or stops at the first violation.
pub(crate) fn search<B: Brain>(bounds: Bounds) -> Outcome {
    let mut search = Search::<B>::new(bounds);
    let mut outcome = Outcome {
        states: 0,
        transitions: 0,
        ends: 0,
        node_states: 0,
        is_complete: false,
        found: None,
    };
    let result = search.run(&mut outcome);
    outcome.node_states = search.locals.len();
    match result {
        Ok(is_complete) => outcome.is_complete = is_complete,
        Err((state, last, what)) => {
            outcome.found = Some(Found { what, choices: search.retell(state, last) });
        }
    }
    outcome
}

struct Search<B> {
    bounds: Bounds,
    locals: Vec<Local>,
    named: HashMap<u128, u32>,
    steps: HashMap<(u32, Event), Rc<Step>>,
    messages: Vec<Vec<u8>>,
    message_names: HashMap<Vec<u8>, u32>,
    /// The entries that each decision requires, by its digest.
    needs: BTreeMap<u64, Vec<(u8, u64)>>,
    /// The state and choice through which each state was first reached.
    ways: Vec<(u32, Choice)>,
    brain: std::marker::PhantomData<B>,
}

impl<B: Brain> Search<B> {
    fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            locals: Vec::new(),
            named: HashMap::default(),
            steps: HashMap::default(),
            messages: Vec::new(),
            message_names: HashMap::default(),
            needs: BTreeMap::new(),
            ways: Vec::new(),
            brain: std::marker::PhantomData,
        }
    }

    /// Three running nodes, of which the first leads.
    fn first(&mut self) -> World {
        let nodes = IDS.map(|me| {
            let node = Node::<B>::new(me, 0, Vec::new());
            self.name(&node, None)
        });
        let mut world = World {
            nodes,
            on_way: Vec::new(),
            proposals: 0,
            campaigns: 0,
            crashes: 0,
            submits: [0; NODES],
            clients: Clients::default(),
            ever: Rc::default(),
        };
        let fine = "runs outside the search succeed";
        for me in IDS {
            self.choose(&mut world, Choice::Start(me)).expect(fine);
        }
        self.rest(&mut world).expect(fine);
        self.choose(&mut world, Choice::Act(0, Act::Campaign)).expect(fine);
        self.rest(&mut world).expect(fine);
        assert!(self.view(&world, 0).is_leader, "the first node leads");
        for step in self.bounds.opening {
            self.open(&mut world, *step).expect(fine);
        }
        (world.campaigns, world.proposals) = (0, 0);
        world
    }

    fn open(&mut self, world: &mut World, step: Opening) -> Result<(), String> {
        let (from, to, lane) = match step {
            Opening::Act(node, act) => return self.choose(world, Choice::Act(node, act)),
            Opening::Deliver { except } => except,
        };
        let held = Choice::Deliver(Link { from, to, lane });
        for _ in 0..REST_MAX {
            let next = self.next_of_itself(world).find(|choice| *choice != held);
            let Some(choice) = next else { return Ok(()) };
            self.choose(world, choice)?;
        }
        Err("replicas exchange messages without end".to_owned())
    }

    /// Returns whether all states were visited, or the state, the choice in it if there was one,
    /// and the violation.
    fn run(&mut self, outcome: &mut Outcome) -> Result<bool, (usize, Option<Choice>, String)> {
        let first = self.first();
        let mut seen = HashSet::<u128>::default();
        seen.insert(first.digest());
        self.ways.push((0, Choice::Start(0)));
        outcome.states = 1;
        let mut open = VecDeque::from([(0, first)]);
        while let Some((at, world)) = open.pop_front() {
            let choices = self.choices(&world);
            if choices.iter().all(|choice| matches!(choice, Choice::Crash(_))) {
                outcome.ends += 1;
                self.finish(world.clone()).map_err(|what| (at, None, what))?;
            }
            for choice in choices {
                let mut next = world.clone();
                self.choose(&mut next, choice).map_err(|what| (at, Some(choice), what))?;
                outcome.transitions += 1;
                if !seen.insert(next.digest()) {
                    continue;
                }
                if outcome.states >= self.bounds.states_max {
                    return Ok(false);
                }
                self.ways.push((at as u32, choice));
                open.push_back((outcome.states, next));
                outcome.states += 1;
            }
        }
        Ok(true)
    }

    fn view(&self, world: &World, node: u8) -> Rc<View> {
        self.locals[world.nodes[usize::from(node)] as usize].view.clone()
    }

    /// The arrivals, syncs and starts that happen without any action.
    fn next_of_itself(&self, world: &World) -> impl Iterator<Item = Choice> {
        let mut choices = Vec::new();
        let mut last = None;
        for (link, _) in &world.on_way {
            if last.replace(*link) != Some(*link) {
                choices.push(Choice::Deliver(*link));
            }
        }
        for node in IDS {
            let view = self.view(world, node);
            choices.extend(view.has_unsynced.then_some(Choice::Sync(node)));
            choices.extend((!view.is_up).then_some(Choice::Start(node)));
        }
        choices.into_iter()
    }

    fn choices(&mut self, world: &World) -> Vec<Choice> {
        let mut choices: Vec<Choice> = self.next_of_itself(world).collect();
        let bounds = self.bounds;
        for node in IDS {
            let id = usize::from(node);
            let view = self.view(world, node);
            if !view.is_up {
                continue;
            }
            if view.is_leader && world.proposals < bounds.proposals {
                // With nothing new there is nothing to propose.
                let act = Act::Propose(world.proposals);
                let step = self.step(world.nodes[id], Event::Act(act));
                let is_news = step.next != world.nodes[id] || !step.sent.is_empty();
                choices.extend(is_news.then_some(Choice::Act(node, act)));
            }
            if !view.is_leader && bounds.campaigners[id] && world.campaigns < bounds.campaigns {
                choices.push(Choice::Act(node, Act::Campaign));
            }
            if world.submits[id] < bounds.submits[id] {
                choices.push(Choice::Act(node, Act::Submit));
            }
            if let Some(number) = world.clients.next_read(&bounds, node) {
                choices.push(Choice::Act(node, Act::Read(number)));
            }
            if bounds.frail == Some(node) && world.crashes < bounds.crashes {
                choices.push(Choice::Crash(node));
            }
        }
        choices
    }

    /// Carries out a choice and checks the result.
    fn choose(&mut self, world: &mut World, choice: Choice) -> Result<(), String> {
        match choice {
            Choice::Deliver(link) => {
                let Link { from, to, .. } = link;
                let message = world.on_way.remove(world.oldest(link)).1;
                self.happen(world, to, Event::Message { from, message })
            }
            Choice::Sync(node) => self.happen(world, node, Event::Sync),
            Choice::Crash(node) => {
                world.crashes += 1;
                world.clients.crash(node);
                self.happen(world, node, Event::Crash)?;
                world.on_way.retain(|(link, _)| link.from != node && link.to != node);
                for peer in peers(node) {
                    if self.view(world, peer).is_up {
                        self.happen(world, peer, Event::PeerDown(node))?;
                    }
                }
                Ok(())
            }
            Choice::Start(node) => {
                self.happen(world, node, Event::Start)?;
                for peer in peers(node) {
                    if self.view(world, peer).is_up {
                        self.happen(world, peer, Event::PeerUp(node))?;
                        self.happen(world, node, Event::PeerUp(peer))?;
                    }
                }
                Ok(())
            }
            Choice::Act(node, act) => {
                match act {
                    Act::Propose(_) => world.proposals += 1,
                    Act::Campaign => world.campaigns += 1,
                    Act::Submit => world.submits[usize::from(node)] += 1,
                    Act::Read(number) => world.clients.begin_read(node, number),
                    Act::Fetch => {}
                }
                self.happen(world, node, Event::Act(act))
            }
        }
    }

    fn happen(&mut self, world: &mut World, node: u8, event: Event) -> Result<(), String> {
        let step = self.step(world.nodes[usize::from(node)], event);
        if let Some(wrong) = &step.wrong {
            return Err(wrong.clone());
        }
        world.nodes[usize::from(node)] = step.next;
        for &(to, lane, message) in &step.sent {
            // There is no connection to a node that does not run, nor from one that is just
            // starting.
            if self.view(world, to).is_up && event != Event::Start {
                let link = Link { from: node, to, lane };
                let at = world.on_way.partition_point(|(other, _)| *other <= link);
                world.on_way.insert(at, (link, message));
            }
        }
        if self.bounds.frail != Some(node) && self.view(world, node).has_unsynced {
            self.happen(world, node, Event::Sync)?;
        }
        self.check_known(world, node)?;
        for reply in &step.replies {
            self.check_reply(world, node, reply)?;
            world.clients.note_acknowledged(&self.bounds, reply.decision);
        }
        step.fresh.iter().try_for_each(|fresh| world.clients.end_read(node, fresh))
    }

    /// Checks that the facts a node considers settled are the same as on all others ever, and are
    /// on a majority.
    fn check_known(&mut self, world: &mut World, node: u8) -> Result<(), String> {
        let view = self.view(world, node);
        for (decision, needs) in &view.needs {
            self.needs.entry(*decision).or_insert_with(|| needs.clone());
        }
        for &((kind, number), digest) in &view.known {
            let name = if kind == 0 { "decision" } else { "the state after decision" };
            match world.ever.get(&(kind, number)) {
                Some(known) if *known == digest => continue,
                Some(_) => {
                    return Err(format!("on node {node}, {name} {number} differs from before"));
                }
                None => {}
            }
            Rc::make_mut(&mut world.ever).insert((kind, number), digest);
            let needs = self.needs.get(&digest).filter(|_| kind == 0);
            for need in needs.into_iter().flatten() {
                if self.holders(world, *need) < MAJORITY {
                    let (source, n) = *need;
                    return Err(format!(
                        "{name} {number} depends on {source}/{n}, which is not durable on a \
                         majority"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The number of nodes that have the same entry durably.
    fn holders(&self, world: &World, need: (u8, u64)) -> usize {
        let held = IDS.map(|node| {
            let view = self.view(world, node);
            view.held.iter().find(|(name, _)| *name == need).map(|(_, digest)| *digest)
        });
        let same = |mine: &u64| held.iter().flatten().filter(|other| *other == mine).count();
        held.iter().flatten().map(same).max().unwrap_or(0)
    }

    fn check_reply(&self, world: &World, node: u8, reply: &Reply) -> Result<(), String> {
        let decision = world.ever.get(&(0, reply.decision));
        let needs = decision.and_then(|digest| self.needs.get(digest));
        match needs.is_some_and(|needs| needs.contains(&reply.held)) {
            true => Ok(()),
            false => Err(format!(
                "node {node} replies to a client that {}/{} is committed at {}, which does not \
                 contain it",
                reply.held.0, reply.held.1, reply.decision
            )),
        }
    }

    /// Delivers all messages and syncs every disk.
    fn rest(&mut self, world: &mut World) -> Result<(), String> {
        for _ in 0..REST_MAX {
            let Some(choice) = self.next_of_itself(world).next() else { return Ok(()) };
            self.choose(world, choice)?;
        }
        Err("replicas exchange messages without end".to_owned())
    }

    /// Checks that all replicas reach the same state from here, and that everything undecided can
    /// be decided.
    fn finish(&mut self, mut world: World) -> Result<(), String> {
        for urge in 0..URGES_MAX {
            if self.is_finished(&world) {
                return Ok(());
            }
            if urge > 0 {
                self.choose(&mut world, Choice::Act((urge - 1) % NODES as u8, Act::Campaign))?;
                self.rest(&mut world)?;
            }
            for _ in 0..2 {
                for node in IDS {
                    self.choose(&mut world, Choice::Act(node, Act::Fetch))?;
                    self.rest(&mut world)?;
                }
            }
            for _ in 0..self.bounds.decisions {
                let leads = |node: &u8| self.view(&world, *node).is_leader;
                if let Some(leader) = IDS.into_iter().find(leads)
                    && !self.is_finished(&world)
                {
                    // A proposal may have to contain something new.
                    for act in [Act::Submit, Act::Propose(world.proposals)] {
                        self.choose(&mut world, Choice::Act(leader, act))?;
                        self.rest(&mut world)?;
                    }
                }
            }
        }
        Err("without further faults, the replicas do not reach the same state with all entries \
             decided"
            .to_owned())
    }

    fn is_finished(&self, world: &World) -> bool {
        let views = IDS.map(|node| self.view(world, node));
        let decisions = || world.ever.keys().filter(|(kind, _)| *kind == 0);
        let enough = decisions().count() >= usize::from(self.bounds.decisions);
        let last = world.ever.last_key_value().map(pair);
        let all = |view: &Rc<View>| {
            let known = view.known.iter().filter(|((kind, _), _)| *kind == 0);
            known.count() == decisions().count() && view.known.last().copied() == last
        };
        enough && views.iter().all(all) && world.clients.are_answered()
    }

    /// The result of an event in a state of a node.
    fn step(&mut self, local: u32, event: Event) -> Rc<Step> {
        if let Some(step) = self.steps.get(&(local, event)) {
            return step.clone();
        }
        let mut node = self.rebuild(local);
        let message = match event {
            Event::Message { message, .. } => self.messages[message as usize].clone(),
            _ => Vec::new(),
        };
        // A panic of a node is a violation that the search has found.
        let done = catch_unwind(AssertUnwindSafe(|| node.step(event, &message)));
        let step = match done {
            Err(panic) => Step {
                next: local,
                sent: Vec::new(),
                replies: Vec::new(),
                fresh: Vec::new(),
                wrong: Some(format!("a node panicked: {}", reason(&*panic))),
            },
            Ok(done) => {
                let next = self.name(&node, Some((local, event)));
                let mut sent = Vec::new();
                for message in done.sent {
                    let name = self.name_message(message.bytes);
                    sent.push((message.to, message.lane, name));
                }
                let wrong = done.stop.map(|why| format!("a node stopped: {why}"));
                Step { next, sent, replies: done.replies, fresh: done.fresh, wrong }
            }
        };
        let step = Rc::new(step);
        self.steps.insert((local, event), step.clone());
        step
    }

    fn name(&mut self, node: &Node<B>, before: Option<(u32, Event)>) -> u32 {
        let next = self.locals.len() as u32;
        let name = *self.named.entry(node.digest()).or_insert(next);
        if name == next {
            let me = before.map_or(next as u8, |(local, _)| self.locals[local as usize].me);
            let (disk, view) = (node.disk(), Rc::new(node.view()));
            self.locals.push(Local { me, before, disk, view });
        }
        name
    }

    fn name_message(&mut self, bytes: Vec<u8>) -> u32 {
        let next = self.messages.len() as u32;
        let name = *self.message_names.entry(bytes.clone()).or_insert(next);
        if name == next {
            self.messages.push(bytes);
        }
        name
    }

    /// Brings a node to a state, from its last start.
    fn rebuild(&self, local: u32) -> Node<B> {
        let mut events = Vec::new();
        let mut at = &self.locals[local as usize];
        let (starts, log) = loop {
            if let Some(disk) = &at.disk {
                break disk.clone();
            }
            let (before, event) = at.before.expect("a node is initially off");
            events.push(event);
            at = &self.locals[before as usize];
        };
        let mut node = Node::new(at.me, starts, log);
        for event in events.into_iter().rev() {
            let message = match event {
                Event::Message { message, .. } => self.messages[message as usize].as_slice(),
                _ => &[],
            };
            node.step(event, message);
        }
        node
    }

    /// Describes the choices that lead to a state, and one more, for humans.
    fn retell(&mut self, state: usize, last: Option<Choice>) -> Vec<String> {
        let mut choices = Vec::from_iter(last);
        let mut at = state;
        while at != 0 {
            let (before, choice) = self.ways[at];
            choices.push(choice);
            at = before as usize;
        }
        let mut world = self.first();
        let mut lines = Vec::new();
        for choice in choices.into_iter().rev() {
            lines.push(self.describe(&world, choice));
            // The last one is the one that fails.
            let _ = self.choose(&mut world, choice);
        }
        if last.is_none() {
            lines.push("no further event occurs".to_owned());
        }
        lines
    }

    fn describe(&self, world: &World, choice: Choice) -> String {
        match choice {
            Choice::Deliver(link) => {
                let (Link { from, to, .. }, message) = world.on_way[world.oldest(link)];
                let message = B::describe(&self.messages[message as usize]);
                format!("from {from} to {to}: {message}")
            }
            Choice::Sync(node) => format!("node {node} syncs its disk"),
            Choice::Crash(node) => format!("node {node} loses power"),
            Choice::Start(node) => format!("node {node} starts"),
            Choice::Act(node, act) => format!("node {node} acts: {act:?}"),
        }
    }
}

impl World {
    /// The index of the oldest message of a link.
    fn oldest(&self, link: Link) -> usize {
        self.on_way.partition_point(|(other, _)| *other < link)
    }

    fn digest(&self) -> u128 {
        let mut bytes = Vec::with_capacity(256);
        self.nodes.iter().for_each(|node| bytes.extend(node.to_le_bytes()));
        for (Link { from, to, lane }, message) in &self.on_way {
            bytes.extend([*from, *to, *lane]);
            bytes.extend(message.to_le_bytes());
        }
        // No node has this number.
        bytes.push(u8::MAX);
        bytes.extend([self.proposals, self.campaigns, self.crashes]);
        bytes.extend(self.submits);
        self.clients.digest(&mut bytes);
        for ((kind, number), digest) in self.ever.iter() {
            bytes.push(*kind);
            bytes.extend(number.to_le_bytes());
            bytes.extend(digest.to_le_bytes());
        }
        xxh3_128(&bytes)
    }
}

fn pair((name, digest): (&(u8, u64), &u64)) -> ((u8, u64), u64) {
    (*name, *digest)
}

fn peers(node: u8) -> impl Iterator<Item = u8> {
    IDS.into_iter().filter(move |peer| *peer != node)
}

/// The message of a panic.
fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_else(|| "unknown reason".to_owned())
}
