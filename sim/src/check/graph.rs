//! Dependencies between transactions, and the cycles in them.
//!
//! An edge says that one transaction must come before another (Adya, "Weak Consistency", 1999,
//! §3.1): because the other wrote after it (ww), read what it wrote (wr), wrote what it had not yet
//! seen (rw), or began after it had ended (rt). A history is serializable when the edges, without
//! rt, have no cycle; strictly serializable when they have none with rt. What a cycle is called
//! follows from its edges:
//!
//! | cycle of | anomaly |
//! |---|---|
//! | ww | G0, write cycle |
//! | ww, wr | G1c, circular information flow |
//! | one rw, and ww, wr | G-single, such as a lost update or a stale read |
//! | several rw | G2-item, such as write skew |
//!
//! One that needs rt is named so, and is a violation of strict serializability alone.

use std::collections::VecDeque;

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The other wrote the next version.
    Ww,
    /// The other read what it wrote.
    Wr,
    /// The other wrote the version after the one that it read.
    Rw,
    /// It ended before the other began.
    Rt,
}

/// One dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Who must come later.
    pub to: usize,
    /// Why.
    pub kind: Kind,
    /// On which list.
    pub list: u64,
    /// Which value tells.
    pub value: u64,
}

/// Dependencies, by who must come earlier.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    edges: Vec<Vec<Edge>>,
}

/// A cycle: each edge with where it begins, the last one ends where the first begins.
pub type Cycle = Vec<(usize, Edge)>;

/// Cycles looked at in one component before the shortest of them is taken.
const STARTS_MAX: usize = 500;

impl Graph {
    /// A graph of so many vertices.
    pub fn new(vertices: usize) -> Self {
        Self { edges: vec![Vec::new(); vertices] }
    }

    /// Adds one more vertex and returns it.
    pub fn add_vertex(&mut self) -> usize {
        self.edges.push(Vec::new());
        self.edges.len() - 1
    }

    /// Adds an edge. One to itself says nothing and is left out.
    pub fn add(&mut self, from: usize, edge: Edge) {
        assert!(edge.to < self.edges.len(), "an edge to nowhere");
        if from != edge.to {
            self.edges[from].push(edge);
        }
    }

    /// The worst anomaly in the graph, by name, with the shortest cycle found that shows it.
    pub fn anomaly(&self) -> Option<(&'static str, Cycle)> {
        use Kind::{Rt, Rw, Wr, Ww};
        if self.components(&[Ww, Wr, Rw, Rt]).is_empty() {
            return None;
        }
        let plain = ["G0", "G1c", "G-single", "G2-item"];
        let real_time = ["G0-realtime", "G1c-realtime", "G-single-realtime", "G2-item-realtime"];
        for (names, base) in [(plain, &[Ww, Wr][..]), (real_time, &[Rt, Ww, Wr][..])] {
            let without_wr = &base[..base.len() - 1];
            let with_rw: Vec<Kind> = base.iter().copied().chain([Rw]).collect();
            let found = (self.shortest_cycle(without_wr).map(|cycle| (names[0], cycle)))
                .or_else(|| self.shortest_cycle(base).map(|cycle| (names[1], cycle)))
                .or_else(|| self.cycle_with_one_rw(base, &with_rw).map(|cycle| (names[2], cycle)))
                .or_else(|| self.shortest_cycle(&with_rw).map(|cycle| (names[3], cycle)));
            if found.is_some() {
                return found;
            }
        }
        unreachable!("a component has a cycle");
    }

    fn shortest_cycle(&self, kinds: &[Kind]) -> Option<Cycle> {
        let components = self.components(kinds);
        let starts = components.iter().flatten().take(STARTS_MAX);
        starts.filter_map(|&start| self.path(start, start, kinds)).min_by_key(Vec::len)
    }

    fn cycle_with_one_rw(&self, base: &[Kind], with_rw: &[Kind]) -> Option<Cycle> {
        let components = self.components(with_rw);
        let starts = components.iter().flatten().flat_map(|&from| {
            let rw = self.edges[from].iter().filter(|edge| edge.kind == Kind::Rw);
            rw.map(move |&edge| (from, edge))
        });
        let close = |(from, edge): (usize, Edge)| {
            let mut cycle = vec![(from, edge)];
            cycle.extend(self.path(edge.to, from, base)?);
            Some(cycle)
        };
        starts.take(STARTS_MAX).filter_map(close).min_by_key(Vec::len)
    }

    /// The shortest way of at least one edge from `from` to `to`.
    fn path(&self, from: usize, to: usize, kinds: &[Kind]) -> Option<Cycle> {
        let mut came_by: Vec<Option<(usize, Edge)>> = vec![None; self.edges.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(vertex) = queue.pop_front() {
            for edge in self.edges[vertex].iter().filter(|edge| kinds.contains(&edge.kind)) {
                if came_by[edge.to].is_some() {
                    continue;
                }
                came_by[edge.to] = Some((vertex, *edge));
                if edge.to == to {
                    return Some(walk_back(&came_by, from, to));
                }
                queue.push_back(edge.to);
            }
        }
        None
    }

    /// The strongly connected components of more than one vertex (Tarjan 1972), without recursion:
    /// histories are deeper than stacks.
    fn components(&self, kinds: &[Kind]) -> Vec<Vec<usize>> {
        let mut tarjan = Tarjan {
            graph: self,
            kinds,
            order: vec![usize::MAX; self.edges.len()],
            low: vec![usize::MAX; self.edges.len()],
            on_stack: vec![false; self.edges.len()],
            stack: Vec::new(),
            visited: 0,
            found: Vec::new(),
        };
        for vertex in 0..self.edges.len() {
            if tarjan.order[vertex] == usize::MAX {
                tarjan.visit_from(vertex);
            }
        }
        tarjan.found
    }
}

fn walk_back(came_by: &[Option<(usize, Edge)>], from: usize, to: usize) -> Cycle {
    let mut path = Vec::new();
    let mut at = to;
    loop {
        let (before, edge) = came_by[at].expect("every vertex on the way was come by");
        path.push((before, edge));
        at = before;
        if at == from {
            path.reverse();
            return path;
        }
    }
}

struct Tarjan<'a> {
    graph: &'a Graph,
    kinds: &'a [Kind],
    order: Vec<usize>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    visited: usize,
    found: Vec<Vec<usize>>,
}

impl Tarjan<'_> {
    fn enter(&mut self, vertex: usize) {
        self.order[vertex] = self.visited;
        self.low[vertex] = self.visited;
        self.visited += 1;
        self.stack.push(vertex);
        self.on_stack[vertex] = true;
    }

    fn visit_from(&mut self, root: usize) {
        self.enter(root);
        let mut calls = vec![(root, 0)];
        while let Some((vertex, next)) = calls.last_mut() {
            let vertex = *vertex;
            let Some(edge) = self.graph.edges[vertex].get(*next) else {
                calls.pop();
                self.leave(vertex);
                if let Some((parent, _)) = calls.last() {
                    self.low[*parent] = self.low[*parent].min(self.low[vertex]);
                }
                continue;
            };
            *next += 1;
            if !self.kinds.contains(&edge.kind) {
                continue;
            }
            if self.order[edge.to] == usize::MAX {
                self.enter(edge.to);
                calls.push((edge.to, 0));
            } else if self.on_stack[edge.to] {
                self.low[vertex] = self.low[vertex].min(self.order[edge.to]);
            }
        }
    }

    fn leave(&mut self, vertex: usize) {
        if self.low[vertex] != self.order[vertex] {
            return;
        }
        let mut component = Vec::new();
        loop {
            let member = self.stack.pop().expect("the root of a component is on the stack");
            self.on_stack[member] = false;
            component.push(member);
            if member == vertex {
                break;
            }
        }
        if component.len() > 1 {
            component.sort_unstable();
            self.found.push(component);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(usize, usize, Kind)]) -> Graph {
        let mut graph = Graph::new(10);
        for &(from, to, kind) in edges {
            graph.add(from, Edge { to, kind, list: 0, value: 0 });
        }
        graph
    }

    #[test]
    fn cycles_are_named_by_their_edges() {
        use Kind::{Rt, Rw, Wr, Ww};
        for (name, kinds) in [
            ("G0", [Ww, Ww, Ww]),
            ("G1c", [Ww, Wr, Ww]),
            ("G-single", [Rw, Wr, Ww]),
            ("G2-item", [Rw, Wr, Rw]),
            ("G0-realtime", [Rt, Ww, Ww]),
            ("G1c-realtime", [Rt, Wr, Ww]),
            ("G-single-realtime", [Rt, Rw, Wr]),
            ("G2-item-realtime", [Rt, Rw, Rw]),
        ] {
            let edges = [(1, 2, kinds[0]), (2, 3, kinds[1]), (3, 1, kinds[2]), (3, 4, Ww)];
            let (found, cycle) = graph(&edges).anomaly().unwrap();
            assert_eq!((found, cycle.len()), (name, 3));
            assert!(graph(&edges[..2]).anomaly().is_none(), "without the last edge");
        }
    }

    #[test]
    fn the_shortest_cycle_is_shown_and_the_worst_first() {
        use Kind::{Rw, Wr, Ww};
        let long = [(1, 2, Ww), (2, 3, Ww), (3, 4, Ww), (4, 1, Ww)];
        let with_short = [&long[..], &[(3, 2, Ww)]].concat();
        assert_eq!(graph(&with_short).anomaly().unwrap().1.len(), 2);
        let both = [(1, 2, Rw), (2, 1, Rw), (3, 4, Ww), (4, 3, Wr)];
        assert_eq!(graph(&both).anomaly().unwrap().0, "G1c");
    }

    #[test]
    fn a_long_chain_is_no_cycle_and_needs_no_deep_stack() {
        let count = 200_000;
        let mut chain = Graph::new(count);
        for from in 0..count - 1 {
            chain.add(from, Edge { to: from + 1, kind: Kind::Ww, list: 0, value: 0 });
        }
        assert!(chain.anomaly().is_none());
        chain.add(count - 1, Edge { to: count - 3, kind: Kind::Rw, list: 0, value: 0 });
        assert_eq!(chain.anomaly().unwrap().0, "G-single");
    }
}
