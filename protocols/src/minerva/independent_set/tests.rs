//! Tests of both solvers: against exhaustive enumeration, against an integer linear programming
//! solver, and on graphs like those of real conflicts.

mod oracle;
mod shapes;

use proptest::prelude::*;

use super::*;

const BUDGET: u64 = 100_000;

/// Graphs of up to `vertices` vertices; small weights, so that ties are common.
fn graphs(vertices: usize) -> impl Strategy<Value = Graph> {
    (0..=vertices, 0u32..=100, 1u64..6).prop_flat_map(|(vertices, percent, heaviest)| {
        let pairs = vertices * vertices.saturating_sub(1) / 2;
        let edges = prop::collection::vec(0u32..100, pairs);
        (prop::collection::vec(0..=heaviest, vertices), edges).prop_map(move |(weights, dice)| {
            let all = (0..vertices as u32).flat_map(|b| (0..b).map(move |a| (a, b)));
            let edges = all.zip(dice).filter(|(_, dice)| *dice < percent).map(|(edge, _)| edge);
            Graph::new(weights, edges)
        })
    })
}

fn is_independent(graph: &Graph, chosen: &[u32]) -> bool {
    chosen.iter().all(|&a| chosen.iter().all(|b| graph.neighbours(a).binary_search(b).is_err()))
}

/// The best set by its definition: heaviest, then the lowest vertex in which two sets differ.
fn best_of_all(graph: &Graph) -> Vec<u32> {
    let members = |set: u32| (0..graph.len() as u32).filter(move |v| set >> v & 1 == 1);
    let sets = (0..1u32 << graph.len()).filter(|&set| {
        members(set).all(|a| graph.neighbours(a).iter().all(|&b| set >> b & 1 == 0))
    });
    let best = sets.max_by_key(|&set| {
        let weight: u64 = members(set).map(|v| graph.weights[v as usize]).sum();
        (weight, set.reverse_bits())
    });
    members(best.expect("the empty set is independent")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn of_small_graphs_the_best_of_all_sets_is_chosen(graph in graphs(12)) {
        let solution = exact(&graph, BUDGET);
        prop_assert!(solution.proven);
        prop_assert_eq!(solution.chosen, best_of_all(&graph));
    }
}

proptest! {
    #[test]
    fn greedy_sets_are_independent_maximal_and_as_heavy_as_promised(graph in graphs(40)) {
        let solution = greedy(&graph);
        prop_assert!(is_independent(&graph, &solution.chosen));
        prop_assert_eq!(solution.weight, graph.weight_of(&solution.chosen));
        for vertex in 0..graph.len() as u32 {
            let is_in = |v: &u32| solution.chosen.binary_search(v).is_ok();
            prop_assert!(is_in(&vertex) || graph.neighbours(vertex).iter().any(is_in));
        }
        // Sakai et al., Theorem 6: the sum of w / (d + 1).
        let promised: f64 = (0..graph.len())
            .map(|v| graph.weights[v] as f64 / (graph.adjacency[v].len() + 1) as f64)
            .sum();
        prop_assert!(solution.weight as f64 + 1e-6 >= promised);
    }

    #[test]
    fn the_greedy_choice_is_the_best_ratio_of_the_vertices_that_are_left(graph in graphs(40)) {
        let mut is_left = vec![true; graph.len()];
        let mut chosen = Vec::new();
        let around = |is_left: &[bool], v: u32| -> Vec<u32> {
            graph.neighbours(v).iter().copied().filter(|it| is_left[*it as usize]).collect()
        };
        while is_left.contains(&true) {
            let left = (0..graph.len() as u32).filter(|v| is_left[*v as usize]);
            let ratio = |v: u32| (graph.weights[v as usize], around(&is_left, v).len() as u64 + 1);
            let best = left.reduce(|a, b| {
                let ((weight_a, cost_a), (weight_b, cost_b)) = (ratio(a), ratio(b));
                if weight_b * cost_a > weight_a * cost_b { b } else { a }
            });
            let best = best.expect("a vertex is left");
            around(&is_left, best).into_iter().for_each(|v| is_left[v as usize] = false);
            is_left[best as usize] = false;
            chosen.push(best);
        }
        chosen.sort_unstable();
        prop_assert_eq!(gwmin::gwmin(&graph.weights, &graph.adjacency), chosen);
    }

    #[test]
    fn within_any_budget_the_set_is_independent_and_no_lighter_than_greedy(
        graph in graphs(60),
        budget in 0u64..40,
    ) {
        let solution = exact(&graph, budget);
        prop_assert!(is_independent(&graph, &solution.chosen));
        prop_assert_eq!(solution.weight, graph.weight_of(&solution.chosen));
        prop_assert!(solution.weight >= greedy(&graph).weight);
        prop_assert_eq!(&exact(&graph, budget), &solution, "the result is deterministic");
        let enough = exact(&graph, BUDGET);
        prop_assert!(enough.weight >= solution.weight);
        if solution.proven && enough.proven {
            prop_assert_eq!(enough.chosen, solution.chosen, "the best set is unique");
        }
    }

    #[test]
    fn edges_may_come_in_any_order_and_twice(graph in graphs(20), swap: bool) {
        let edges = (0..graph.len() as u32)
            .rev()
            .flat_map(|a| graph.neighbours(a).iter().map(move |&b| (a, b)))
            .map(|(a, b)| if swap { (b, a) } else { (a, b) });
        prop_assert_eq!(Graph::new(graph.weights.clone(), edges), graph);
    }
}

#[test]
fn the_paper_s_example_is_solved_as_in_the_paper() {
    // Figure 5: chains 1, 2, 3 all conflict, chain 2 has five transactions; 4 - 5 - 6 is a path.
    let weights = vec![1, 5, 1, 1, 1, 1];
    let graph = Graph::new(weights, [(0, 1), (0, 2), (1, 2), (3, 4), (4, 5)]);
    let expected = Solution { chosen: vec![1, 3, 5], weight: 7, proven: true };
    assert_eq!(exact(&graph, BUDGET), expected);
    assert_eq!(greedy(&graph).chosen, expected.chosen);
}

#[test]
fn greedy_compares_fractions_exactly() {
    // 2^53 + 1 over 1 is more than 2^53 over 1: doubles can't distinguish them, and would take the
    // lowest.
    let graph = Graph::new(vec![1 << 53, (1 << 53) + 1], [(0, 1)]);
    assert_eq!(greedy(&graph).chosen, [1]);
}

#[test]
#[should_panic(expected = "conflicts with itself")]
fn a_vertex_that_conflicts_with_itself_is_a_bug() {
    let _ = Graph::new(vec![1], [(0, 0)]);
}
