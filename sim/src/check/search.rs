//! Cycles and paths in a graph of dependencies, under a rule that selects the paths that count.
//!
//! If a rule excludes two adjacent rw edges, each vertex has two states: reached by rw, and reached
//! otherwise. A cycle of states is a cycle of the graph without two adjacent rw edges, and vice
//! versa, because a cycle returns to the same state. A transaction that excuses nothing is in the
//! second state however it was reached.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::graph::{Edge, Graph, Kind, Walk};
use super::model::Rule;

/// The maximum number of steps of the search for the shortest cycle. Above it the shortest cycle so
/// far is returned.
const STEPS_MAX: usize = 50_000_000;

/// A vertex, and whether it was reached by rw.
type State = u32;

/// A graph and the rule that selects its edges.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    graph: &'a Graph,
    rule: Rule,
}

impl<'a> Search<'a> {
    /// Creates a search of a graph under a rule.
    pub fn new(graph: &'a Graph, rule: Rule) -> Self {
        Self { graph, rule }
    }

    fn states_per_vertex(&self) -> u32 {
        1 + u32::from(self.rule.is_apart)
    }

    fn states(&self) -> usize {
        self.graph.vertices() * self.states_per_vertex() as usize
    }

    /// The state of a vertex that was not reached by rw.
    pub fn state(&self, vertex: u32) -> State {
        vertex * self.states_per_vertex()
    }

    /// The vertex of a state.
    pub fn vertex(&self, state: State) -> u32 {
        state / self.states_per_vertex()
    }

    /// Whether each vertex has one state rather than two.
    pub fn is_plain(&self) -> bool {
        !self.rule.is_apart
    }

    /// Whether a vertex is a transaction rather than a junction.
    pub fn is_txn(&self, vertex: u32) -> bool {
        self.graph.is_txn(vertex)
    }

    /// All edges from a state, including those that do not count.
    pub fn edges(&self, state: State) -> &'a [Edge] {
        self.graph.from(self.vertex(state))
    }

    /// Whether an edge from a vertex counts at all.
    pub fn counts(&self, from: u32, edge: &Edge) -> bool {
        self.rule.has(edge.kind) && self.graph.counts(from, edge.kind)
    }

    /// Returns the state that an edge leads to from a state, if it counts there.
    pub fn step(&self, state: State, edge: &Edge) -> Option<State> {
        self.rule.has(edge.kind).then_some(())?;
        let to = self.state(edge.to);
        if !self.rule.is_apart {
            return Some(to);
        }
        let after_rw = state % 2;
        let reached = u32::from(self.graph.excuses(edge.to));
        match edge.kind {
            Kind::On => Some(to + after_rw * reached),
            Kind::Rw | Kind::PredicateRw => (after_rw == 0).then_some(to + reached),
            Kind::Ww | Kind::Wr | Kind::Rt => Some(to),
        }
    }

    /// Returns the strongly connected components of more than one state (Tarjan 1972). Without
    /// recursion, because histories are deeper than stacks.
    pub fn components(&self) -> Vec<Vec<State>> {
        let mut tarjan = Tarjan {
            search: self,
            order: vec![u32::MAX; self.states()],
            low: vec![u32::MAX; self.states()],
            on_stack: vec![false; self.states()],
            stack: Vec::new(),
            visited: 0,
            found: Vec::new(),
        };
        for state in 0..self.states() as State {
            if tarjan.order[state as usize] == u32::MAX {
                tarjan.visit_from(state);
            }
        }
        tarjan.found
    }

    /// Returns the positions of all states in an order that contradicts no edge, and that follows
    /// their numbers where edges leave a choice. `None` if there is a cycle.
    pub fn places(&self) -> Option<Vec<u32>> {
        let mut before = vec![0u32; self.states()];
        let all = 0..self.states() as State;
        for state in all.clone() {
            let to = self.edges(state).iter().filter_map(|edge| self.step(state, edge));
            to.for_each(|to| before[to as usize] += 1);
        }
        // Junctions come as early as possible, because others wait for them.
        let rank = |state: State| Reverse((self.graph.is_txn(self.vertex(state)), state));
        let free = all.filter(|&state| before[state as usize] == 0);
        let mut ready: BinaryHeap<_> = free.map(rank).collect();
        let (mut places, mut next) = (vec![u32::MAX; self.states()], 0);
        while let Some(Reverse((_, state))) = ready.pop() {
            places[state as usize] = next;
            next += 1;
            for to in self.edges(state).iter().filter_map(|edge| self.step(state, edge)) {
                before[to as usize] -= 1;
                if before[to as usize] == 0 {
                    ready.push(rank(to));
                }
            }
        }
        (next as usize == self.states()).then_some(places)
    }

    /// Like [`Search::places`], from the end: each state is as late as the edges permit, and where
    /// they leave a choice, transactions are in the order of these times.
    pub fn places_late(&self, time: impl Fn(u32) -> i64) -> Option<Vec<u32>> {
        let mut after = vec![0u32; self.states()];
        let mut into: Vec<Vec<State>> = vec![Vec::new(); self.states()];
        for state in 0..self.states() as State {
            for to in self.edges(state).iter().filter_map(|edge| self.step(state, edge)) {
                after[state as usize] += 1;
                into[to as usize].push(state);
            }
        }
        let rank = |state: State| {
            let vertex = self.vertex(state);
            let is_txn = self.graph.is_txn(vertex);
            (!is_txn, if is_txn { time(vertex) } else { 0 }, state)
        };
        let free = (0..self.states() as State).filter(|&state| after[state as usize] == 0);
        let mut ready: BinaryHeap<_> = free.map(rank).collect();
        let (mut places, mut next) = (vec![u32::MAX; self.states()], self.states() as u32);
        while let Some((.., state)) = ready.pop() {
            next -= 1;
            places[state as usize] = next;
            for &from in &into[state as usize] {
                after[from as usize] -= 1;
                if after[from as usize] == 0 {
                    ready.push(rank(from));
                }
            }
        }
        (next == 0).then_some(places)
    }

    /// Returns the shortest cycle, counted in transactions.
    pub fn shortest_cycle(&self) -> Option<Walk> {
        let mut components = self.components();
        components.sort_by_key(Vec::len);
        let mut ways = Ways::new(self);
        let mut best: Option<Walk> = None;
        for component in &components {
            ways.restrict_to(component);
            for &start in component {
                let most = best.as_ref().map_or(u32::MAX, |walk| ways.length(walk));
                best = ways.shortest(start, start, most).or(best);
                if ways.steps > STEPS_MAX || best.as_ref().is_some_and(|walk| walk.len() == 2) {
                    return best;
                }
            }
        }
        best
    }

    /// Returns the shortest cycle that begins with an edge of `first` and returns along `self`.
    /// Both must count under the rule of `whole`.
    pub fn shortest_cycle_from(&self, whole: &Search<'_>, first: fn(Kind) -> bool) -> Option<Walk> {
        let mut components = whole.components();
        components.sort_by_key(Vec::len);
        let mut ways = Ways::new(self);
        let mut best: Option<Walk> = None;
        for component in &components {
            ways.restrict_to(component);
            for &from in component {
                for edge in self.graph.from(from).iter().filter(|edge| first(edge.kind)) {
                    if !ways.is_inside(edge.to) || !whole.rule.has(edge.kind) {
                        continue;
                    }
                    let most = best.as_ref().map_or(u32::MAX, |walk| ways.length(walk));
                    let Some(back) = ways.shortest(edge.to, from, most.saturating_sub(1)) else {
                        continue;
                    };
                    best = Some([vec![(from, *edge)], back].concat());
                }
                if ways.steps > STEPS_MAX || best.as_ref().is_some_and(|walk| walk.len() == 2) {
                    return best;
                }
            }
        }
        best
    }
}

/// Searches paths within one component and reuses its memory.
struct Ways<'a, 'b> {
    search: &'b Search<'a>,
    component: Vec<u32>,
    components: u32,
    predecessors: Vec<Predecessor>,
    generation: u32,
    steps: usize,
}

/// The edge by which a state was reached, and in which search.
#[derive(Clone, Copy)]
struct Predecessor {
    generation: u32,
    length: u32,
    from: State,
    edge: u32,
}

impl<'a, 'b> Ways<'a, 'b> {
    fn new(search: &'b Search<'a>) -> Self {
        let never = Predecessor { generation: 0, length: 0, from: 0, edge: 0 };
        Self {
            search,
            component: vec![0; search.states()],
            components: 0,
            predecessors: vec![never; search.states()],
            generation: 0,
            steps: 0,
        }
    }

    fn restrict_to(&mut self, component: &[State]) {
        self.components += 1;
        for &state in component {
            self.component[state as usize] = self.components;
        }
    }

    fn is_inside(&self, state: State) -> bool {
        self.component[state as usize] == self.components
    }

    /// The length that an edge adds to a path: 1 if it begins at a transaction.
    fn weight(&self, state: State) -> u32 {
        u32::from(self.search.graph.is_txn(self.search.vertex(state)))
    }

    fn length(&self, walk: &Walk) -> u32 {
        walk.iter().map(|(from, _)| u32::from(self.search.graph.is_txn(*from))).sum()
    }

    /// Returns the shortest path of at least one edge and fewer than `most` transactions.
    fn shortest(&mut self, from: State, to: State, most: u32) -> Option<Walk> {
        self.generation += 1;
        let generation = self.generation;
        let mut queue = VecDeque::from([(from, 0)]);
        let mut found: Option<u32> = None;
        while let Some((state, length)) = queue.pop_front() {
            let next = length + self.weight(state);
            if found.unwrap_or(most) <= next {
                continue;
            }
            let known = self.predecessors[state as usize];
            if state != from && (known.generation != generation || known.length < length) {
                continue;
            }
            for (at, edge) in self.search.edges(state).iter().enumerate() {
                self.steps += 1;
                let Some(there) = self.search.step(state, edge) else { continue };
                let known = self.predecessors[there as usize];
                if !self.is_inside(there)
                    || (known.generation == generation && known.length <= next)
                {
                    continue;
                }
                self.predecessors[there as usize] =
                    Predecessor { generation, length: next, from: state, edge: at as u32 };
                if there == to {
                    found = Some(next);
                } else if next == length {
                    queue.push_front((there, next));
                } else {
                    queue.push_back((there, next));
                }
            }
        }
        found.map(|_| self.walk_back(from, to))
    }

    fn walk_back(&self, from: State, to: State) -> Walk {
        let mut walk = Vec::new();
        let mut at = to;
        loop {
            let predecessor = self.predecessors[at as usize];
            assert!(
                predecessor.generation == self.generation,
                "each state on the path was reached"
            );
            let edge = self.search.edges(predecessor.from)[predecessor.edge as usize];
            walk.push((self.search.vertex(predecessor.from), edge));
            at = predecessor.from;
            if at == from {
                walk.reverse();
                return walk;
            }
        }
    }
}

struct Tarjan<'a, 'b> {
    search: &'b Search<'a>,
    order: Vec<u32>,
    low: Vec<u32>,
    on_stack: Vec<bool>,
    stack: Vec<State>,
    visited: u32,
    found: Vec<Vec<State>>,
}

impl Tarjan<'_, '_> {
    fn enter(&mut self, state: State) {
        self.order[state as usize] = self.visited;
        self.low[state as usize] = self.visited;
        self.visited += 1;
        self.stack.push(state);
        self.on_stack[state as usize] = true;
    }

    fn visit_from(&mut self, root: State) {
        self.enter(root);
        let mut calls = vec![(root, 0)];
        while let Some((state, next)) = calls.last_mut() {
            let state = *state;
            let Some(edge) = self.search.edges(state).get(*next) else {
                calls.pop();
                self.leave(state);
                if let Some((parent, _)) = calls.last() {
                    let low = self.low[state as usize];
                    let parent = &mut self.low[*parent as usize];
                    *parent = low.min(*parent);
                }
                continue;
            };
            *next += 1;
            let Some(to) = self.search.step(state, edge) else { continue };
            if self.order[to as usize] == u32::MAX {
                self.enter(to);
                calls.push((to, 0));
            } else if self.on_stack[to as usize] {
                let order = self.order[to as usize];
                let low = &mut self.low[state as usize];
                *low = order.min(*low);
            }
        }
    }

    fn leave(&mut self, state: State) {
        if self.low[state as usize] != self.order[state as usize] {
            return;
        }
        let mut component = Vec::new();
        loop {
            let member = self.stack.pop().expect("the root of a component is on the stack");
            self.on_stack[member as usize] = false;
            component.push(member);
            if member == state {
                break;
            }
        }
        if component.len() > 1 {
            component.sort_unstable();
            self.found.push(component);
        }
    }
}
