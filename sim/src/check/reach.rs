//! Decides whether an edge would close a cycle in an acyclic graph.

use super::graph::{Edge, Graph, Kind};
use super::model::Rule;
use super::search::Search;

/// The total number of steps, about ten seconds' worth. Above it an edge counts as closing no
/// cycle, which leaves a question open and is never wrong.
const STEPS_MAX: usize = 300_000_000;

/// Searches for paths in an acyclic graph whose topological order is known.
pub struct Reach<'a> {
    search: Search<'a>,
    is_apart: bool,
    places: &'a [u32],
    seen: Vec<u32>,
    turn: u32,
    stack: Vec<u32>,
    steps: usize,
}

impl<'a> Reach<'a> {
    /// Prepares a search of a graph under a rule, with the positions of its states.
    pub fn new(graph: &'a Graph, rule: Rule, places: &'a [u32]) -> Self {
        let seen = vec![0; places.len()];
        let search = Search::new(graph, rule);
        let (turn, stack, steps) = (0, Vec::new(), 0);
        Self { search, is_apart: rule.is_apart, places, seen, turn, stack, steps }
    }

    /// The number of edges examined.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether an edge would close a cycle that counts.
    pub fn closes(&mut self, from: u32, edge: &Edge) -> bool {
        let begin = self.search.state(from);
        // An rw edge counts only if it does not follow another; the others count anywhere.
        let ends: &[u32] = match (self.is_apart, edge.kind.is_rw()) {
            (true, false) => &[begin, begin + 1],
            _ => &[begin],
        };
        assert!(edge.kind != Kind::On, "open edges are between transactions");
        if from == edge.to || !self.search.counts(from, edge) {
            return false;
        }
        self.search.step(begin, edge).is_some_and(|start| self.leads(start, ends))
    }

    fn leads(&mut self, start: u32, ends: &[u32]) -> bool {
        let last = ends
            .iter()
            .map(|end| self.places[*end as usize])
            .max()
            .expect("the list of ends is not empty");
        self.turn += 1;
        self.stack.clear();
        self.stack.push(start);
        while let Some(state) = self.stack.pop() {
            if ends.contains(&state) {
                return true;
            }
            for edge in self.search.edges(state) {
                self.steps += 1;
                let Some(to) = self.search.step(state, edge) else { continue };
                let is_new = self.seen[to as usize] != self.turn;
                if is_new && self.places[to as usize] <= last {
                    self.seen[to as usize] = self.turn;
                    self.stack.push(to);
                }
            }
            if self.steps > STEPS_MAX {
                return false;
            }
        }
        false
    }
}
