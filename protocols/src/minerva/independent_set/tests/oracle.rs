//! Tests against an integer linear programming solver: the method that the paper names (§4).

use good_lp::{Expression, ProblemVariables, Solution as _, SolverModel, constraint, variable};

use super::*;

/// A generator without dependencies; any seed gives another graph.
pub(super) struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn optimum(graph: &Graph) -> u64 {
    let mut variables = ProblemVariables::new();
    let picks: Vec<_> = (0..graph.len()).map(|_| variables.add(variable().binary())).collect();
    let total: Expression =
        picks.iter().zip(&graph.weights).map(|(&pick, &weight)| pick * weight as f64).sum();
    let mut model = variables.maximise(total.clone()).using(good_lp::solvers::microlp::microlp);
    for a in 0..graph.len() as u32 {
        for &b in graph.neighbours(a).iter().filter(|&&b| b > a) {
            model = model.with(constraint!(picks[a as usize] + picks[b as usize] <= 1));
        }
    }
    let solved = model.solve().expect("the empty set is a solution");
    solved.eval(total).round() as u64
}

/// A graph of vertices in `parts` parts, as if of different replicas, with no edge within a part;
/// with one part for each vertex, any graph.
fn random_graph(dice: &mut Dice, vertices: u64, parts: u64, percent: u64, heaviest: u64) -> Graph {
    let weights = (0..vertices).map(|_| 1 + dice.below(heaviest)).collect();
    let mut edges = Vec::new();
    for b in 0..vertices {
        for a in 0..b {
            if a % parts != b % parts && dice.below(100) < percent {
                edges.push((a as u32, b as u32));
            }
        }
    }
    Graph::new(weights, edges)
}

#[test]
fn on_3_000_random_graphs_the_weight_is_that_of_an_integer_linear_program() {
    for seed in 0..3_000 {
        let mut dice = Dice(seed);
        let vertices = match seed % 100 {
            0..3 => 20 + dice.below(16),
            3..20 => 12 + dice.below(8),
            _ => 2 + dice.below(11),
        };
        let parts = [2, 3, 5, vertices][seed as usize % 4];
        let percent = 5 + dice.below(80);
        let heaviest = [1, 3, 50][seed as usize % 3];
        let graph = random_graph(&mut dice, vertices, parts, percent, heaviest);
        let solution = exact(&graph, BUDGET);
        assert!(solution.proven && is_independent(&graph, &solution.chosen), "seed {seed}");
        assert_eq!(solution.weight, optimum(&graph), "seed {seed}: {graph:?}");
    }
}
