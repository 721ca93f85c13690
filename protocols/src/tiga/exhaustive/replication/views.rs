//! Random walks over several views. The leader and the followers of a former view go on in it until
//! they are asked for a report or enter the newest view.

use super::cases::{Case, TXNS_MAX};
use super::check::{Facts, Outcome, Said, Stamps, Verdicts, check, rebuilt, report, run_by};
use super::run::{Item, Leader, Model, Replica, Stage, number};
use crate::tiga::quorum::{Sizes, View};

/// The maximum number of view changes in a walk.
const VIEWS_MAX: usize = 4;

const STEPS: usize = 90;

/// The events of some walks that must happen in any of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub view_changes: usize,
    pub recovered: usize,
    /// Transactions that were committed in a view that had ended for others.
    pub committed_in_former: usize,
    pub committed: usize,
}

struct Node {
    view: usize,
    /// Whether it has reported its state for a later view.
    has_stopped: bool,
    replica: Replica,
}

struct Ruled {
    leader: usize,
    items: Vec<Item>,
    /// The number of items in the leader's durable log.
    durable: usize,
    /// The words of each node in this view.
    said: Vec<Said>,
    run: Stamps,
    facts: Facts,
    /// The log at the beginning of the view.
    began: Outcome,
}

struct Walk<'a> {
    model: &'a Model,
    rng: fastrand::Rng,
    verdicts: &'a mut Verdicts,
    nodes: Vec<Node>,
    views: Vec<Ruled>,
    seen: Seen,
}

/// Walks with each of the seeds.
pub fn walks(case: &Case, seeds: std::ops::Range<u64>) -> Result<Seen, String> {
    let (model, mut verdicts) = (Model::new(case), Verdicts::default());
    let mut total = Seen::default();
    for seed in seeds {
        let mut walk = Walk::new(&model, &mut verdicts, seed);
        for step in 0..STEPS {
            walk.step().map_err(|what| format!("seed {seed}, step {step}: {what}"))?;
        }
        total.view_changes += walk.seen.view_changes;
        total.recovered += walk.seen.recovered;
        total.committed_in_former += walk.seen.committed_in_former;
        total.committed += walk.seen.committed;
    }
    Ok(total)
}

impl<'a> Walk<'a> {
    fn new(model: &'a Model, verdicts: &'a mut Verdicts, seed: u64) -> Self {
        let node = |_| Node { view: 0, has_stopped: false, replica: Replica::default() };
        let nodes = (0..model.case.replicas).map(node).collect();
        let rng = fastrand::Rng::with_seed(seed);
        let mut walk =
            Self { model, rng, verdicts, nodes, views: Vec::new(), seen: Seen::default() };
        walk.begin(0, Vec::new(), Outcome::default());
        walk
    }

    fn step(&mut self) -> Result<(), &'static str> {
        let node = self.rng.usize(..self.nodes.len());
        let newest = self.views.len() - 1;
        match self.rng.u8(..32) {
            0 if newest < VIEWS_MAX => self.change_view(),
            1..8 if self.nodes[node].view < newest => {
                self.enter(node);
                self.told(newest)
            }
            _ if self.nodes[node].has_stopped => Ok(()),
            _ => self.act(node),
        }
    }

    /// A step of a node in its view.
    fn act(&mut self, node: usize) -> Result<(), &'static str> {
        let Node { view, replica, .. } = &self.nodes[node];
        let (view, ruled) = (*view, &mut self.views[*view]);
        if ruled.leader != node {
            let mut next = self.model.after_follower(replica, &ruled.items);
            if !next.is_empty() {
                self.nodes[node].replica = next.swap_remove(self.rng.usize(..next.len()));
            }
        } else if ruled.durable < ruled.items.len() && self.rng.bool() {
            ruled.durable += 1;
        } else {
            let leader = Leader { replica: replica.clone(), items: ruled.items.clone() };
            let mut next = self.model.after_leader(&leader);
            if !next.is_empty() {
                let after = next.swap_remove(self.rng.usize(..next.len()));
                ruled.items = after.items;
                ruled.run = run_by(self.model, &after.replica);
                self.nodes[node].replica = after.replica;
            }
        }
        self.speak(node);
        self.told(view)
    }

    /// f + 1 nodes report, and one of them leads the next view.
    fn change_view(&mut self) -> Result<(), &'static str> {
        let mut asked: Vec<usize> = (0..self.nodes.len()).collect();
        self.rng.shuffle(&mut asked);
        asked.truncate(Sizes::of(self.nodes.len()).simple());
        let mut reports = Vec::new();
        for &at in &asked {
            let node = &mut self.nodes[at];
            node.has_stopped = true;
            let ruled = &self.views[node.view];
            let durable = if ruled.leader == at { ruled.durable } else { node.replica.has };
            let mut report = report(self.model, &node.replica, &ruled.items, durable);
            report.normal = View(node.view as u64);
            reports.push(report);
        }
        let rebuilt = rebuilt(self.model, &reports.iter().collect::<Vec<_>>());
        let entries = rebuilt.log.iter().chain(&rebuilt.recovered);
        let entries = entries.map(|it| Item::Entry(number(it.txn), it.stamp.us()));
        let floor = Some(rebuilt.floor.us()).filter(|us| *us > 0);
        let items = entries.chain(floor.map(Item::Closed)).collect();
        self.seen.view_changes += 1;
        self.seen.recovered += rebuilt.recovered.len();
        self.begin(asked[0], items, Outcome::of(self.model, &rebuilt));
        (0..self.views.len()).try_for_each(|view| self.told(view))
    }

    /// A view begins with a log, which is durable at its leader.
    fn begin(&mut self, leader: usize, items: Vec<Item>, began: Outcome) {
        let (said, durable) = (vec![Said::default(); self.nodes.len()], items.len());
        let (run, facts) = ([0; TXNS_MAX], Facts::default());
        self.views.push(Ruled { leader, items, durable, said, run, facts, began });
        self.enter(leader);
    }

    /// A node enters the newest view (§4, step ⑤). Transactions that are in no log may come again.
    fn enter(&mut self, node: usize) {
        let view = self.views.len() - 1;
        let ruled = &mut self.views[view];
        let is_leader = ruled.leader == node;
        let items = if is_leader { &ruled.items[..] } else { &ruled.items[..ruled.durable] };
        let mut replica = Replica { has: items.len(), ..Replica::default() };
        for item in items {
            match *item {
                Item::Entry(txn, us) => {
                    replica.stages[txn] = Stage::Logged(us);
                    replica.raised = replica.raised.max(us);
                }
                Item::Closed(us) => replica.closed = us,
            }
        }
        if is_leader {
            replica.promised = replica.closed;
            ruled.run = run_by(self.model, &replica);
        }
        self.nodes[node] = Node { view, has_stopped: false, replica };
        self.speak(node);
    }

    /// A node says everything that it may say.
    fn speak(&mut self, node: usize) {
        let Node { view, replica, .. } = &self.nodes[node];
        let ruled = &mut self.views[*view];
        ruled.said[node] = match ruled.leader == node {
            true => Said::by_leader(replica, &ruled.items, ruled.durable),
            false => Said::by_follower(replica),
        };
    }

    /// Whatever others know of a view is in the logs of all later views.
    fn told(&mut self, view: usize) -> Result<(), &'static str> {
        let newest = self.views.len() - 1;
        let ruled = &mut self.views[view];
        let others: Vec<&Said> = (0..ruled.said.len())
            .filter(|node| *node != ruled.leader)
            .map(|node| &ruled.said[node])
            .collect();
        let own = &ruled.said[ruled.leader];
        let facts = self.verdicts.facts(self.model, &ruled.items, own, &others);
        let count = |facts: &Facts| facts.committed.iter().filter(|us| **us > 0).count();
        let more = count(&facts).saturating_sub(count(&ruled.facts));
        self.seen.committed += more;
        self.seen.committed_in_former += if view < newest { more } else { 0 };
        ruled.facts = facts;
        let ruled = &self.views[view];
        let of_view = (&ruled.items[..], ruled.run);
        let mut later = self.views[view + 1..].iter();
        later.try_for_each(|later| check(self.model, of_view, &ruled.facts, &later.began))
    }
}
