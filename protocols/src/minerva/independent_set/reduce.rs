//! Reductions: rules that decide a vertex without branching, and preserve the best set.
//!
//! | rule | when | then |
//! |---|---|---|
//! | neighbourhood | v outweighs all its neighbours together | take v |
//! | pendant | v has one neighbour u, which outweighs it | u weighs w(u) - w(v); v if not u |
//! | twins | v and u have the same neighbours | one vertex with both weights |
//! | domination | u conflicts with v and with all that v does, and weighs less | drop u |
//!
//! A vertex of a clique whose neighbours are all in it (a simplicial one) dominates the lighter
//! ones, so the last rule covers it. See Lamm et al., "Exactly Solving the Maximum Weight
//! Independent Set Problem on Large Real-World Graphs" (2019).
//!
//! Weights compare as (count, tie) in the ordered group of the parent module. A tie is a sum of
//! +e_v and -e_v. Every rule gives each e_v to at most one vertex, and only compares different
//! vertices. Therefore the lowest v and its sign determine the comparison.

use std::collections::VecDeque;

use pangea_core::hash::HashMap;

use super::Graph;

/// Domination is checked at vertices of at most this degree, because it costs the degree squared.
const DOMINATION_DEGREE_MAX: u32 = 16;

/// The neighbours that the rules may look at, as a multiple of the size of the problem. Each rule
/// that applies looks at all neighbours of a vertex: if the rules apply to a thousand neighbours of
/// a thousand vertices one after the other, they look at each a thousand times.
const LOOKS_MAX: u64 = 64;

/// The weight that a vertex adds to a set. Never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weight {
    /// The number of transactions.
    pub count: u64,
    /// The lowest original vertex for which the tie has a term.
    pub lead: u32,
    /// Whether that term is positive.
    pub is_plus: bool,
}

impl Weight {
    fn outweighs(self, other: Self) -> bool {
        let wins_tie = if self.lead < other.lead { self.is_plus } else { !other.is_plus };
        self.count > other.count || (self.count == other.count && wins_tie)
    }

    fn plus(self, other: Self) -> Self {
        let lead = if self.lead < other.lead { self } else { other };
        Self { count: self.count + other.count, ..lead }
    }

    fn minus(self, other: Self) -> Self {
        let is_mine = self.lead < other.lead;
        let (lead, is_plus) =
            if is_mine { (self.lead, self.is_plus) } else { (other.lead, !other.is_plus) };
        Self { count: self.count - other.count, lead, is_plus }
    }
}

/// A graph whose vertices are renumbered.
#[derive(Clone, Debug, Default)]
pub(super) struct Problem {
    pub weights: Vec<Weight>,
    /// The neighbours of each vertex, in ascending order.
    pub adjacency: Vec<Vec<u32>>,
}

impl Problem {
    pub fn of_graph(graph: &Graph) -> Self {
        let weight = |(v, &count): (usize, &u64)| Weight { count, lead: v as u32, is_plus: true };
        let weights = graph.weights.iter().enumerate().map(weight).collect();
        Self { weights, adjacency: graph.adjacency.clone() }
    }

    pub fn len(&self) -> usize {
        self.weights.len()
    }

    pub fn weight_of(&self, chosen: &[u32]) -> u64 {
        chosen.iter().map(|&vertex| self.weights[vertex as usize].count).sum()
    }

    /// The subproblem of some of the vertices, which are in ascending order.
    pub fn induced(&self, kept: &[u32]) -> Self {
        const GONE: u32 = u32::MAX;
        let mut names = vec![GONE; self.len()];
        for (name, &vertex) in kept.iter().enumerate() {
            names[vertex as usize] = name as u32;
        }
        let rename = |&vertex: &u32| Some(names[vertex as usize]).filter(|&name| name != GONE);
        let around =
            |&vertex: &u32| self.adjacency[vertex as usize].iter().filter_map(rename).collect();
        Self {
            weights: kept.iter().map(|&vertex| self.weights[vertex as usize]).collect(),
            adjacency: kept.iter().map(around).collect(),
        }
    }

    /// The number of vertices and ends of edges.
    pub fn size(&self) -> u64 {
        self.adjacency.iter().map(|around| 1 + around.len() as u64).sum()
    }

    /// Each component with its vertices, in ascending order; components by their lowest vertex.
    pub fn apart(&self) -> Vec<(Vec<u32>, Self)> {
        // Each vertex is in one component, so one list has the names of all.
        let mut names = vec![0; self.len()];
        let mut part = |kept: Vec<u32>| {
            (0..).zip(&kept).for_each(|(name, &vertex)| names[vertex as usize] = name);
            let around = |&vertex: &u32| {
                self.adjacency[vertex as usize].iter().map(|&it| names[it as usize]).collect()
            };
            let weights = kept.iter().map(|&vertex| self.weights[vertex as usize]).collect();
            let adjacency = kept.iter().map(around).collect();
            (kept, Self { weights, adjacency })
        };
        self.components().into_iter().map(&mut part).collect()
    }

    /// The vertices of each component, in ascending order; components by their lowest vertex.
    fn components(&self) -> Vec<Vec<u32>> {
        let mut is_known = vec![false; self.len()];
        let mut components = Vec::new();
        for first in 0..self.len() {
            if std::mem::replace(&mut is_known[first], true) {
                continue;
            }
            let mut found = vec![first as u32];
            let mut next = 0;
            while next < found.len() {
                for &neighbour in &self.adjacency[found[next] as usize] {
                    if !std::mem::replace(&mut is_known[neighbour as usize], true) {
                        found.push(neighbour);
                    }
                }
                next += 1;
            }
            found.sort_unstable();
            components.push(found);
        }
        components
    }
}

/// The remaining kernel, and the steps to map its solution back.
#[derive(Debug)]
pub(super) struct Reduced {
    /// The undecided vertices.
    pub kernel: Problem,
    /// The weight of the decided vertices, whatever is chosen in the kernel.
    pub offset: u64,
    /// The kernel's vertices by their original names.
    names: Vec<u32>,
    trail: Vec<Step>,
    vertices: usize,
    /// The neighbours that the rules have looked at.
    #[cfg(test)]
    looks: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u32),
    /// The first is in the set exactly if the second is not.
    Unless(u32, u32),
    /// The first is in the set exactly if the second is.
    With(u32, u32),
}

impl Reduced {
    /// The set of the original problem that corresponds to a set of the kernel, in ascending order.
    pub fn replay(&self, in_kernel: &[u32]) -> Vec<u32> {
        let mut is_chosen = vec![false; self.vertices];
        for &vertex in in_kernel {
            is_chosen[self.names[vertex as usize] as usize] = true;
        }
        for &step in self.trail.iter().rev() {
            match step {
                Step::Take(v) => is_chosen[v as usize] = true,
                Step::Unless(v, u) => is_chosen[v as usize] = !is_chosen[u as usize],
                Step::With(v, u) => is_chosen[v as usize] = is_chosen[u as usize],
            }
        }
        (0..self.vertices as u32).filter(|&vertex| is_chosen[vertex as usize]).collect()
    }
}

/// Applies the rules until none applies, or until they have looked at [`LOOKS_MAX`] times the size
/// of the problem. Then the rest is left to the search.
pub(super) fn reduce(problem: Problem) -> Reduced {
    let mut reducer = Reducer::new(problem);
    #[cfg(test)]
    let looks_max = reducer.looks_left;
    while reducer.looks_left > 0
        && let Some(vertex) = reducer.queue.pop_front()
    {
        reducer.is_queued[vertex as usize] = false;
        if reducer.is_left[vertex as usize] {
            reducer.try_rules(vertex);
        }
    }
    let vertices = reducer.problem.len();
    let names: Vec<u32> =
        (0..vertices as u32).filter(|&vertex| reducer.is_left[vertex as usize]).collect();
    let kernel = reducer.problem.induced(&names);
    Reduced {
        kernel,
        offset: reducer.offset,
        names,
        trail: reducer.trail,
        vertices,
        #[cfg(test)]
        looks: looks_max - reducer.looks_left,
    }
}

struct Reducer {
    problem: Problem,
    is_left: Vec<bool>,
    degree: Vec<u32>,
    /// The sum of the neighbours' counts.
    count_around: Vec<u64>,
    /// The exclusive or of the neighbours' marks: equal for vertices with the same neighbours.
    hash_around: Vec<u64>,
    /// A vertex that had this hash, to be checked again: candidates for twins.
    by_hash: HashMap<u64, u32>,
    queue: VecDeque<u32>,
    is_queued: Vec<bool>,
    trail: Vec<Step>,
    offset: u64,
    /// The neighbours that may still be looked at.
    looks_left: u64,
}

/// Any function that spreads vertices over 64 bits (the finalizer of splitmix64).
fn mark_of(vertex: u32) -> u64 {
    let mut mark = (u64::from(vertex) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mark = (mark ^ (mark >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mark = (mark ^ (mark >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mark ^ (mark >> 31)
}

impl Reducer {
    fn new(problem: Problem) -> Self {
        let vertices = problem.len();
        let around = |neighbours: &Vec<u32>| problem.weight_of(neighbours);
        let hash = |neighbours: &Vec<u32>| {
            neighbours.iter().fold(0, |hash, &neighbour| hash ^ mark_of(neighbour))
        };
        Self {
            is_left: vec![true; vertices],
            degree: problem.adjacency.iter().map(|around| around.len() as u32).collect(),
            count_around: problem.adjacency.iter().map(around).collect(),
            hash_around: problem.adjacency.iter().map(hash).collect(),
            by_hash: HashMap::default(),
            queue: (0..vertices as u32).collect(),
            is_queued: vec![true; vertices],
            trail: Vec::new(),
            offset: 0,
            looks_left: problem.size().saturating_mul(LOOKS_MAX),
            problem,
        }
    }

    fn weight(&self, vertex: u32) -> Weight {
        self.problem.weights[vertex as usize]
    }

    fn neighbours(&self, vertex: u32) -> impl Iterator<Item = u32> {
        let around = &self.problem.adjacency[vertex as usize];
        around.iter().copied().filter(|&neighbour| self.is_left[neighbour as usize])
    }

    /// Pays for a look at the neighbours of a vertex.
    fn look_around(&mut self, vertex: u32) {
        let size = 1 + self.problem.adjacency[vertex as usize].len() as u64;
        self.looks_left = self.looks_left.saturating_sub(size);
    }

    fn is_edge(&self, a: u32, b: u32) -> bool {
        self.problem.adjacency[a as usize].binary_search(&b).is_ok()
    }

    fn try_rules(&mut self, vertex: u32) {
        self.look_around(vertex);
        if self.outweighs_neighbours(vertex) {
            self.take(vertex);
        } else if self.degree[vertex as usize] == 1 {
            self.fold_pendant(vertex);
        } else if let Some(twin) = self.find_twin(vertex) {
            self.merge_twins(twin.min(vertex), twin.max(vertex));
        } else if self.degree[vertex as usize] <= DOMINATION_DEGREE_MAX {
            self.drop_dominated(vertex);
        }
    }

    fn outweighs_neighbours(&self, vertex: u32) -> bool {
        let own = self.weight(vertex);
        let around = self.count_around[vertex as usize];
        if own.count != around {
            return own.count > around;
        }
        let all = self.neighbours(vertex).map(|neighbour| self.weight(neighbour));
        all.reduce(Weight::plus).is_none_or(|together| own.outweighs(together))
    }

    fn take(&mut self, vertex: u32) {
        self.offset += self.weight(vertex).count;
        self.trail.push(Step::Take(vertex));
        let around: Vec<u32> = self.neighbours(vertex).collect();
        self.remove(vertex);
        around.into_iter().for_each(|neighbour| self.remove(neighbour));
    }

    fn fold_pendant(&mut self, vertex: u32) {
        let neighbour = self.neighbours(vertex).next().expect("the vertex has a neighbor");
        self.look_around(neighbour);
        let is_twin = |other: &u32| *other != vertex && self.degree[*other as usize] == 1;
        let twins: Vec<u32> = self.neighbours(neighbour).filter(is_twin).collect();
        if !twins.is_empty() {
            // All at once: one by one, each would change the neighbour's weight and look at all.
            let lowest = twins.iter().fold(vertex, |lowest, &twin| lowest.min(twin));
            for twin in twins.into_iter().chain([vertex]).filter(|twin| *twin != lowest) {
                self.merge_twins(lowest, twin);
            }
            return;
        }
        let light = self.weight(vertex);
        self.offset += light.count;
        self.trail.push(Step::Unless(vertex, neighbour));
        self.remove(vertex);
        self.reweigh(neighbour, self.weight(neighbour).minus(light));
    }

    /// A vertex with the same neighbours. They don't conflict, because no vertex is its own
    /// neighbour.
    fn find_twin(&mut self, vertex: u32) -> Option<u32> {
        let hash = self.hash_around[vertex as usize];
        let twin = self.by_hash.insert(hash, vertex)?;
        let is_candidate = twin != vertex
            && self.is_left[twin as usize]
            && self.hash_around[twin as usize] == hash
            && self.degree[twin as usize] == self.degree[vertex as usize];
        (is_candidate && self.neighbours(twin).eq(self.neighbours(vertex))).then_some(twin)
    }

    fn merge_twins(&mut self, kept: u32, other: u32) {
        let together = self.weight(kept).plus(self.weight(other));
        self.trail.push(Step::With(other, kept));
        self.remove(other);
        self.by_hash.insert(self.hash_around[kept as usize], kept);
        self.reweigh(kept, together);
    }

    fn drop_dominated(&mut self, vertex: u32) {
        let around: Vec<u32> = self.neighbours(vertex).collect();
        for &neighbour in &around {
            self.look_around(vertex);
            let is_dominated = self.weight(vertex).outweighs(self.weight(neighbour))
                && around.iter().all(|&other| other == neighbour || self.is_edge(neighbour, other));
            if is_dominated {
                self.remove(neighbour);
                return self.enqueue(vertex);
            }
        }
    }

    fn remove(&mut self, vertex: u32) {
        self.look_around(vertex);
        self.is_left[vertex as usize] = false;
        let (count, mark) = (self.weight(vertex).count, mark_of(vertex));
        let around = std::mem::take(&mut self.problem.adjacency[vertex as usize]);
        for &neighbour in around.iter().filter(|&&neighbour| self.is_left[neighbour as usize]) {
            let at = neighbour as usize;
            self.degree[at] -= 1;
            self.count_around[at] -= count;
            self.hash_around[at] ^= mark;
        }
        around.into_iter().for_each(|neighbour| self.enqueue(neighbour));
    }

    fn reweigh(&mut self, vertex: u32, weight: Weight) {
        self.look_around(vertex);
        let before = std::mem::replace(&mut self.problem.weights[vertex as usize], weight).count;
        let around: Vec<u32> = self.neighbours(vertex).collect();
        for neighbour in around {
            let sum = &mut self.count_around[neighbour as usize];
            *sum = *sum - before + weight.count;
            self.enqueue(neighbour);
        }
        self.enqueue(vertex);
    }

    fn enqueue(&mut self, vertex: u32) {
        if self.is_left[vertex as usize] && !self.is_queued[vertex as usize] {
            self.is_queued[vertex as usize] = true;
            self.queue.push_back(vertex);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hub loses its neighbours one by one. If it got another weight each time, all the others
    /// would be looked at each time.
    #[test]
    fn a_hub_whose_neighbours_are_decided_one_by_one_costs_no_square() {
        let hub = |leaves: u32| {
            let mut weights = vec![1; leaves as usize + 1];
            weights[0] = u64::from(leaves) / 2;
            Problem::of_graph(&Graph::new(weights, (1..=leaves).map(|leaf| (0, leaf))))
        };
        for leaves in [1_000, 64_000] {
            let problem = hub(leaves);
            let size = problem.size();
            let reduced = reduce(problem);
            assert_eq!((reduced.offset, reduced.kernel.len()), (u64::from(leaves), 0));
            assert!(reduced.looks < 8 * size, "{} looks of {size}", reduced.looks);
        }
    }

    /// The rules end, whatever the graph is, and leave the rest to the search.
    #[test]
    fn the_rules_look_at_a_multiple_of_the_graph_at_most() {
        // A caterpillar: each vertex of the spine waits for its leaves, one after the other.
        let (spine, leaves) = (400u32, 40);
        let mut edges: Vec<(u32, u32)> = (1..spine).map(|at| (at - 1, at)).collect();
        edges.extend((0..spine).flat_map(|a| (0..a).step_by(3).map(move |b| (b, a))));
        let mut weights = vec![leaves; spine as usize];
        for at in 0..spine {
            for _ in 0..leaves {
                edges.push((at, weights.len() as u32));
                weights.push(1);
            }
        }
        let problem = Problem::of_graph(&Graph::new(weights, edges));
        let size = problem.size();
        let reduced = reduce(problem);
        assert!(reduced.looks <= LOOKS_MAX * size + size, "{} of {size}", reduced.looks);
    }
}
