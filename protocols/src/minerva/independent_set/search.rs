//! Branch and bound on the kernel that the reductions leave.
//!
//! A node of the search takes its vertex of the highest degree into the set or leaves it out,
//! reduces the remaining graph, and splits it into components. A branch whose bound does not exceed
//! the best set found is not entered. The bound is a clique cover: a set has at most one vertex of
//! each clique.
//!
//! Among sets of equal weight the search takes any. The rule for ties is applied afterwards, vertex
//! by vertex. If the present set does not follow the rule at a vertex, a search determines whether
//! an equally heavy set does, given all earlier choices.

use super::gwmin::gwmin;
use super::reduce::{Problem, reduce};

/// The maximum depth of the search, because the stack is finite.
const DEPTH_MAX: u32 = 256;

/// The size, in vertices and ends of edges, of a node that counts as one of the budget. The cost of
/// a node is what it copies: larger ones count as more, and the many tiny components of a kernel as
/// little.
const NODE_SIZE: u64 = 256;

/// The fixed cost of a node in addition to its size.
const NODE_SIZE_MIN: u64 = 16;

/// A search with a budget.
#[derive(Debug)]
pub(super) struct Search {
    /// The remaining budget, in units of size.
    work_left: u64,
    is_exhausted: bool,
}

impl Search {
    pub fn new(budget_nodes: u64) -> Self {
        Self { work_left: budget_nodes.saturating_mul(NODE_SIZE), is_exhausted: false }
    }

    /// Whether the budget did not suffice: then sets are good, but not proven to be best.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// The union of the best sets of all components. Small components come first, so that one that
    /// is too hard leaves the others proven.
    pub fn solve_apart(&mut self, problem: &Problem) -> Vec<u32> {
        let mut components = problem.apart();
        components.sort_by_key(|(kept, _)| kept.len());
        let mut chosen = Vec::new();
        for (kept, part) in &components {
            let found = self.solve(part);
            chosen.extend(found.into_iter().map(|vertex| kept[vertex as usize]));
        }
        chosen.sort_unstable();
        chosen
    }

    /// The best set by weight and then by the rule for ties.
    fn solve(&mut self, problem: &Problem) -> Vec<u32> {
        let mut chosen = gwmin_of(problem);
        if let Some(better) = self.heavier(problem.clone(), problem.weight_of(&chosen), 0) {
            chosen = better;
        }
        let mut order: Vec<u32> = (0..problem.len() as u32).collect();
        order.sort_unstable_by_key(|&vertex| problem.weights[vertex as usize].lead);
        let mut settled = Settled::new(problem);
        for vertex in order {
            if self.is_exhausted {
                break;
            }
            if !settled.is_open(vertex) {
                continue;
            }
            let wanted = problem.weights[vertex as usize].is_plus;
            let is_so = chosen.binary_search(&vertex).is_ok() == wanted;
            let other = if is_so { None } else { self.as_heavy(&settled, vertex, wanted, &chosen) };
            let settled_as = if is_so || other.is_some() { wanted } else { !wanted };
            chosen = other.unwrap_or(chosen);
            settled.settle(vertex, settled_as);
        }
        chosen
    }

    /// A set as heavy as `chosen` that contains the settled vertices, and contains `vertex` exactly
    /// if `wanted`.
    fn as_heavy(
        &mut self,
        settled: &Settled<'_>,
        vertex: u32,
        wanted: bool,
        chosen: &[u32],
    ) -> Option<Vec<u32>> {
        let mut then = settled.clone();
        then.settle(vertex, wanted);
        let problem = settled.problem;
        let open = then.open();
        let missing = problem.weight_of(chosen).checked_sub(problem.weight_of(&then.taken))?;
        let found = match missing.checked_sub(1) {
            Some(floor) => self.heavier(problem.induced(&open), floor, 0)?,
            None => Vec::new(),
        };
        let mut set: Vec<u32> = found.into_iter().map(|vertex| open[vertex as usize]).collect();
        set.extend(&then.taken);
        set.sort_unstable();
        Some(set)
    }

    /// A heaviest set, in ascending order, if it is heavier than `floor`.
    fn heavier(&mut self, problem: Problem, floor: u64, depth: u32) -> Option<Vec<u32>> {
        if !self.spend(&problem, depth) {
            let fallback = gwmin_of(&problem);
            return (problem.weight_of(&fallback) > floor).then_some(fallback);
        }
        let reduced = reduce(problem);
        let kernel = &reduced.kernel;
        let parts: Vec<(Vec<u32>, Problem, u64)> = kernel
            .apart()
            .into_iter()
            .map(|(kept, part)| {
                let bound = clique_cover_bound(&part);
                (kept, part, bound)
            })
            .collect();
        // The weight if every unsolved component reaches its bound.
        let mut reach = reduced.offset + parts.iter().map(|(_, _, bound)| bound).sum::<u64>();
        if reach <= floor {
            return None;
        }
        let mut in_kernel = Vec::new();
        for (kept, part, bound) in parts {
            let others = reach - bound;
            let found = self.branch(part, floor.checked_sub(others), bound, depth)?;
            reach = others + found.0;
            in_kernel.extend(found.1.into_iter().map(|vertex| kept[vertex as usize]));
        }
        assert!(reach > floor, "the search improved on the bound of each component");
        Some(reduced.replay(&in_kernel))
    }

    /// A heaviest set of one component and its weight, if it is heavier than `floor`; without a
    /// floor any weight suffices.
    fn branch(
        &mut self,
        part: Problem,
        floor: Option<u64>,
        bound: u64,
        depth: u32,
    ) -> Option<(u64, Vec<u32>)> {
        let pivot = (0..part.len() as u32).max_by_key(|&vertex| {
            let at = vertex as usize;
            (part.adjacency[at].len(), part.weights[at].count, std::cmp::Reverse(vertex))
        });
        let pivot = pivot.expect("a component has a vertex");
        let around = &part.adjacency[pivot as usize];
        let count = part.weights[pivot as usize].count;
        let all = 0..part.len() as u32;
        let with: Vec<u32> =
            all.clone().filter(|v| *v != pivot && around.binary_search(v).is_err()).collect();
        let without: Vec<u32> = all.filter(|&vertex| vertex != pivot).collect();
        let mut best: Option<(u64, Vec<u32>)> = None;
        for (kept, gained) in [(with, count), (without, 0)] {
            let to_beat = best.as_ref().map(|(weight, _)| *weight).or(floor);
            if to_beat.is_some_and(|to_beat| to_beat >= bound) {
                break;
            }
            let rest = part.induced(&kept);
            let found = match to_beat.map(|to_beat| to_beat.checked_sub(gained)) {
                Some(Some(floor)) => self.heavier(rest, floor, depth + 1),
                // No weight is needed from the rest, so an empty set of it suffices.
                _ => Some(self.heavier(rest, 0, depth + 1).unwrap_or_default()),
            };
            if let Some(found) = found {
                let mut set: Vec<u32> = found.iter().map(|&vertex| kept[vertex as usize]).collect();
                set.extend((gained > 0).then_some(pivot));
                set.sort_unstable();
                best = Some((part.weight_of(&set), set));
            }
        }
        best
    }

    /// Pays for a node, if the budget suffices.
    fn spend(&mut self, problem: &Problem, depth: u32) -> bool {
        let cost = NODE_SIZE_MIN + problem.size();
        if self.is_exhausted || depth > DEPTH_MAX || cost > self.work_left {
            self.is_exhausted = true;
            return false;
        }
        self.work_left -= cost;
        true
    }
}

fn gwmin_of(problem: &Problem) -> Vec<u32> {
    let counts: Vec<u64> = problem.weights.iter().map(|weight| weight.count).collect();
    gwmin(&counts, &problem.adjacency)
}

/// An upper bound on the weight of any set: cliques cover all vertices, and the heaviest of each
/// comes first.
fn clique_cover_bound(problem: &Problem) -> u64 {
    let mut order: Vec<u32> = (0..problem.len() as u32).collect();
    order.sort_by_key(|&vertex| std::cmp::Reverse(problem.weights[vertex as usize].count));
    let mut clique_of: Vec<Option<usize>> = vec![None; problem.len()];
    let mut sizes: Vec<u32> = Vec::new();
    // The number of the present vertex's neighbours in each clique.
    let mut met: Vec<u32> = Vec::new();
    let mut bound = 0;
    for vertex in order {
        let around = &problem.adjacency[vertex as usize];
        let cliques = || around.iter().filter_map(|&neighbour| clique_of[neighbour as usize]);
        cliques().for_each(|clique| met[clique] += 1);
        let joined = cliques().find(|&clique| met[clique] == sizes[clique]);
        cliques().for_each(|clique| met[clique] = 0);
        let clique = joined.unwrap_or_else(|| {
            bound += problem.weights[vertex as usize].count;
            sizes.push(0);
            met.push(0);
            sizes.len() - 1
        });
        sizes[clique] += 1;
        clique_of[vertex as usize] = Some(clique);
    }
    bound
}

/// The vertices that the rule for ties has settled.
#[derive(Clone)]
struct Settled<'a> {
    problem: &'a Problem,
    is_open: Vec<bool>,
    taken: Vec<u32>,
}

impl<'a> Settled<'a> {
    fn new(problem: &'a Problem) -> Self {
        Self { problem, is_open: vec![true; problem.len()], taken: Vec::new() }
    }

    fn is_open(&self, vertex: u32) -> bool {
        self.is_open[vertex as usize]
    }

    fn open(&self) -> Vec<u32> {
        (0..self.problem.len() as u32).filter(|&vertex| self.is_open(vertex)).collect()
    }

    fn settle(&mut self, vertex: u32, is_taken: bool) {
        self.is_open[vertex as usize] = false;
        if is_taken {
            self.taken.push(vertex);
            for &neighbour in &self.problem.adjacency[vertex as usize] {
                self.is_open[neighbour as usize] = false;
            }
        }
    }
}
