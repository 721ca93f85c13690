//! Graphs of realistic conflicts: hot keys, few replicas, long chains of keys.

use super::oracle::Dice;
use super::*;

/// Chains of three replicas that access keys of a skewed distribution; a chain of weight 1 accesses
/// one key.
fn hot_keys(chains: u64, keys: u64, seed: u64) -> Graph {
    let mut dice = Dice(seed);
    let mut touched: Vec<Vec<u32>> = vec![Vec::new(); keys as usize];
    let mut weights = Vec::new();
    for chain in 0..chains {
        let weight = 1 + dice.below(3);
        weights.push(weight);
        for _ in 0..weight {
            // The product of two uniform draws is small more often than large.
            let key = dice.below(keys) * dice.below(keys) / keys;
            touched[key as usize].push(chain as u32);
        }
    }
    let mut edges = Vec::new();
    for chains in &touched {
        for (at, &b) in chains.iter().enumerate() {
            edges.extend(chains[..at].iter().filter(|&&a| a % 3 != b % 3).map(|&a| (a, b)));
        }
    }
    Graph::new(weights, edges)
}

#[test]
fn a_hot_key_that_all_chains_of_all_replicas_touch_is_settled_without_a_search() {
    // Chains of replica r are 3 i + r; replica 1 has the heaviest.
    let weights: Vec<u64> = (0..900).map(|v| if v % 3 == 1 { 3 } else { 2 }).collect();
    let edges = (0..900u32).flat_map(|b| (0..b).map(move |a| (a, b)));
    let graph = Graph::new(weights, edges.filter(|(a, b)| a % 3 != b % 3));
    let solution = exact(&graph, 0);
    assert!(!solution.proven || solution.weight == 900);
    let solution = exact(&graph, 1);
    assert_eq!((solution.weight, solution.proven), (900, true));
    assert!(solution.chosen.iter().all(|vertex| vertex % 3 == 1));
}

#[test]
fn a_long_path_and_a_large_tree_are_settled_without_a_search() {
    let vertices = 20_000u32;
    let path = Graph::new(vec![1; vertices as usize], (1..vertices).map(|v| (v - 1, v)));
    let solution = exact(&path, 1);
    assert_eq!((solution.weight, solution.proven), (10_000, true));
    assert!(solution.chosen.iter().all(|vertex| vertex % 2 == 0), "the lowest of the tied sets");
    let mut dice = Dice(7);
    let weights = (0..vertices).map(|_| 1 + dice.below(9)).collect();
    let edges: Vec<_> = (1..vertices).map(|v| (dice.below(v.into()) as u32, v)).collect();
    assert!(exact(&Graph::new(weights, edges), 1).proven);
}

#[test]
fn ten_thousand_chains_on_many_keys_are_proven() {
    for seed in 0..4 {
        let graph = hot_keys(10_000, 60_000, seed);
        let solution = exact(&graph, BUDGET_NODES);
        assert!(solution.proven, "seed {seed}");
        assert!(is_independent(&graph, &solution.chosen));
        assert!(solution.weight >= greedy(&graph).weight);
    }
}

#[test]
fn a_graph_that_is_too_hard_ends_within_its_budget() {
    let graph = hot_keys(3_000, 1_000, 1);
    let solution = exact(&graph, 50);
    assert!(!solution.proven && is_independent(&graph, &solution.chosen));
    assert!(solution.weight >= greedy(&graph).weight);
    assert_eq!(exact(&graph, 50), solution);
}
