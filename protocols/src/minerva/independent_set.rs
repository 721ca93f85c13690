//! The maximum weight independent set: the chains that commit as executed (Minerva §3.6).
//!
//! Vertices are transaction chains, weights are their numbers of transactions, edges are conflicts.
//! A set without edges inside can commit as executed; all other chains are re-executed. The heavier
//! the set, the fewer transactions are re-executed.
//!
//! ```text
//!   graph --reduce--> kernel --split--> components --search--> sets --replay--> chosen
//!          (§ reduce)                                (§ search)
//! ```
//!
//! - [`exact`] finds a heaviest set. **Reductions** decide most vertices of a conflict graph: a hot
//!   key makes all chains of one replica that access it twins, which become one vertex. The
//!   remaining graph falls into components, each searched by **branch and bound** with a bound from
//!   a clique cover.
//! - [`greedy`] is GWMIN (Sakai, Togasaki, Yamazaki 2003): it repeatedly takes the vertex with the
//!   highest weight for each vertex that it costs.
//!
//! **Every replica must choose the same set**, so no choice depends on time, addresses or
//! floating-point arithmetic: the search has a budget of nodes, and fractions are compared as
//! products.
//!
//! **Ties.** Of two sets of equal weight, the better is the one that contains the lowest vertex
//! that is not in both. If vertices are numbered by their lowest transaction id, this is the
//! paper's rule ("prioritizing the transaction chain with the lowest starting tid"). It makes
//! weights a totally ordered group without ties: a vertex weighs (count, e_v), where e_v outweighs
//! all e_u of u > v together. A reduction that holds in such a group preserves the best set and not
//! just its weight.
//!
//! Difference from the paper: it calls an integer linear programming solver. This finds the same
//! optimum without the solver, and with a limit that is the same on every replica.

mod gwmin;
mod reduce;
mod search;
#[cfg(test)]
mod tests;

use self::reduce::{Problem, reduce};
use self::search::Search;

/// A budget for [`exact`] that is spent in some 5 ms, a third of an epoch: a node takes 20 to 30
/// us, measured on kernels of 600 to 6,000 vertices. Graphs of 10,000 chains with one conflict each
/// need none of it: reductions solve them in 2 ms.
pub const BUDGET_NODES: u64 = 200;

/// A conflict graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    weights: Vec<u64>,
    /// The neighbours of each vertex, in ascending order.
    adjacency: Vec<Vec<u32>>,
}

/// An independent set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Solution {
    /// Its vertices, in ascending order.
    pub chosen: Vec<u32>,
    /// The sum of their weights.
    pub weight: u64,
    /// Whether no set is better, in weight and then by the rule for ties. Always false for
    /// [`greedy`].
    pub proven: bool,
}

impl Graph {
    /// Creates a graph of vertices with these weights, in the order that breaks ties. Edges may be
    /// in any order and direction, and repeated.
    ///
    /// # Panics
    /// Panics if an edge connects a vertex with itself or with one that does not exist, or if the
    /// sum of the weights does not fit in 64 bits.
    pub fn new(weights: Vec<u64>, edges: impl IntoIterator<Item = (u32, u32)>) -> Self {
        assert!(u32::try_from(weights.len()).is_ok(), "too many vertices");
        let total = weights.iter().try_fold(0u64, |sum, &weight| sum.checked_add(weight));
        assert!(total.is_some(), "the weights are too large");
        let mut adjacency = vec![Vec::new(); weights.len()];
        for (a, b) in edges {
            assert!(a != b, "vertex {a} conflicts with itself");
            adjacency[a as usize].push(b);
            adjacency[b as usize].push(a);
        }
        for neighbours in &mut adjacency {
            neighbours.sort_unstable();
            neighbours.dedup();
        }
        Self { weights, adjacency }
    }

    /// The number of vertices.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether there are no vertices.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The vertices that conflict with a vertex, in ascending order.
    pub fn neighbours(&self, vertex: u32) -> &[u32] {
        &self.adjacency[vertex as usize]
    }

    fn weight_of(&self, chosen: &[u32]) -> u64 {
        chosen.iter().map(|&vertex| self.weights[vertex as usize]).sum()
    }
}

/// Finds a heaviest independent set, and among those the best by the rule for ties.
///
/// If the search takes more than `budget_nodes` nodes (counted by their size), the result is the
/// best set found, at least as heavy as [`greedy`]'s, and not `proven`. [`BUDGET_NODES`] is a good
/// limit.
pub fn exact(graph: &Graph, budget_nodes: u64) -> Solution {
    let reduced = reduce(Problem::of_graph(graph));
    let mut search = Search::new(budget_nodes);
    let in_kernel = search.solve_apart(&reduced.kernel);
    let chosen = reduced.replay(&in_kernel);
    let weight = graph.weight_of(&chosen);
    assert_eq!(weight, reduced.offset + reduced.kernel.weight_of(&in_kernel), "replayed wrongly");
    if !search.is_exhausted() {
        return Solution { chosen, weight, proven: true };
    }
    let fallback = greedy(graph);
    if fallback.weight > weight { fallback } else { Solution { chosen, weight, proven: false } }
}

/// Finds a maximal independent set by GWMIN: it repeatedly takes the remaining vertex with the
/// highest weight / (degree + 1), the lowest of several, and removes its neighbours. The weight of
/// the set is at least the sum of weight / (degree + 1) over all vertices.
pub fn greedy(graph: &Graph) -> Solution {
    let chosen = gwmin::gwmin(&graph.weights, &graph.adjacency);
    let weight = graph.weight_of(&chosen);
    Solution { chosen, weight, proven: false }
}
