//! Stand-in until the solver is merged.
#![allow(missing_docs)]
pub struct Graph {
    weights: Vec<u64>,
    adjacent: Vec<Vec<u32>>,
}
pub struct Solution {
    pub chosen: Vec<u32>,
    pub proven: bool,
}
impl Graph {
    pub fn new(weights: Vec<u64>, edges: &[(u32, u32)]) -> Self {
        let mut adjacent = vec![Vec::new(); weights.len()];
        for &(a, b) in edges {
            adjacent[a as usize].push(b);
            adjacent[b as usize].push(a);
        }
        Self { weights, adjacent }
    }
}
pub fn exact(graph: &Graph, _budget: u64) -> Solution {
    greedy(graph)
}
pub fn greedy(graph: &Graph) -> Solution {
    let mut order: Vec<usize> = (0..graph.weights.len()).collect();
    order.sort_by_key(|&v| (std::cmp::Reverse(graph.weights[v]), v));
    let mut out = vec![false; order.len()];
    let mut chosen = Vec::new();
    for v in order {
        if !out[v] {
            chosen.push(v as u32);
            graph.adjacent[v].iter().for_each(|&n| out[n as usize] = true);
        }
    }
    chosen.sort_unstable();
    Solution { chosen, proven: false }
}
