//! Names of cycles.
//!
//! | cycle of | phenomenon |
//! |---|---|
//! | ww | G0, write cycle |
//! | ww, wr | G1c, circular information flow |
//! | one rw, and ww, on one key | lost update |
//! | one rw, and ww, wr | G-single, such as half of a transaction that was seen |
//! | several rw, no two adjacent | G-nonadjacent, such as a long fork |
//! | several rw on items | G2-item, such as write skew |
//! | several rw, of which one by a predicate | G2, such as write skew by phantoms |
//!
//! A cycle that needs a real-time edge has the suffix `-realtime`.
//!
//! References: Adya 1999, §3 (G0 to G2) and §4.2 (G-single, of PL-2+); Kingsbury and Alvaro,
//! "Elle", 2020 (G-nonadjacent); Berenson et al. 1995, §4.1 (lost update, P4).

use super::graph::{Graph, Kind, Walk};
use super::model::{Model, Rule};
use super::search::Search;

use Kind::{PredicateRw, Rt, Rw, Wr, Ww};

/// Returns the worst phenomenon that a model rules out, by name, with the shortest cycle found that
/// shows it.
pub fn worst(graph: &Graph, model: Model) -> Option<(&'static str, Walk)> {
    if Search::new(graph, model.rule()).places().is_some() {
        return None;
    }
    let plain = among(graph, model, &[Ww, Wr]);
    let found = plain.or_else(|| among(graph, model, &[Rt, Ww, Wr]));
    let walk = found.unwrap_or_else(|| {
        let any = Search::new(graph, model.rule()).shortest_cycle();
        any.expect("a graph without an order has a cycle")
    });
    Some((name(&walk), walk))
}

/// Returns the worst cycle of edges of `base` and rw.
fn among(graph: &Graph, model: Model, base: &[Kind]) -> Option<Walk> {
    let search = |kinds: &[Kind]| Search::new(graph, Rule::of(kinds));
    let is_ruled_out = |kinds: &[Kind]| kinds.iter().all(|kind| model.rule().has(*kind));
    if !is_ruled_out(base) {
        return None;
    }
    let writes: Vec<Kind> = base.iter().copied().filter(|kind| *kind != Wr).collect();
    let found = search(&writes).shortest_cycle().or_else(|| search(base).shortest_cycle());
    if found.is_some() {
        return found;
    }
    for rw in [&[Rw][..], &[Rw, PredicateRw]] {
        let with_rw = [base, rw].concat();
        if !is_ruled_out(&with_rw) {
            continue;
        }
        let whole = search(&with_rw);
        if whole.places().is_some() {
            continue;
        }
        let apart = Search::new(graph, Rule::of(&with_rw).apart());
        let found = (search(base).shortest_cycle_from(&whole, Kind::is_rw))
            .or_else(|| apart.shortest_cycle())
            .or_else(|| (!model.rule().is_apart).then(|| whole.shortest_cycle())?);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Returns the name of a cycle.
fn name(walk: &Walk) -> &'static str {
    let kinds: Vec<Kind> =
        walk.iter().map(|(_, edge)| edge.kind).filter(|kind| *kind != Kind::On).collect();
    let has = |kind| kinds.contains(&kind);
    let is_real_time = has(Rt);
    let named = |plain, real_time| if is_real_time { real_time } else { plain };
    let rws = kinds.iter().filter(|kind| kind.is_rw()).count();
    let first = walk[0].1.key;
    let is_one_key = first.is_some() && walk.iter().all(|(_, edge)| edge.key == first);
    let next = kinds.iter().cycle().skip(1);
    let is_adjacent = kinds.iter().zip(next).any(|(a, b)| a.is_rw() && b.is_rw());
    match rws {
        0 if has(Wr) => named("G1c", "G1c-realtime"),
        0 => named("G0", "G0-realtime"),
        1 if is_one_key && !has(Wr) && !is_real_time => "lost update",
        1 => named("G-single", "G-single-realtime"),
        _ if !is_adjacent => named("G-nonadjacent", "G-nonadjacent-realtime"),
        _ if has(PredicateRw) => named("G2", "G2-realtime"),
        _ => named("G2-item", "G2-item-realtime"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::graph::Edge;

    fn graph(edges: &[(u32, u32, Kind)]) -> Graph {
        let mut graph = Graph::new(10);
        for &(from, to, kind) in edges {
            graph.add(from, Edge { to, kind, key: None, value: None });
        }
        graph
    }

    fn found(edges: &[(u32, u32, Kind)]) -> Option<(&'static str, usize)> {
        let found = worst(&graph(edges), Model::StrictSerializable);
        found.map(|(name, walk)| (name, walk.len()))
    }

    #[test]
    fn cycles_are_named_by_their_edges() {
        for (name, kinds) in [
            ("G0", &[Ww, Ww, Ww][..]),
            ("G1c", &[Ww, Wr, Ww]),
            ("G-single", &[Rw, Wr, Ww]),
            ("G-single", &[PredicateRw, Wr, Ww]),
            ("G-nonadjacent", &[Rw, Wr, PredicateRw, Wr]),
            ("G2-item", &[Rw, Wr, Rw]),
            ("G2", &[Rw, Wr, PredicateRw]),
            ("G0-realtime", &[Rt, Ww, Ww]),
            ("G1c-realtime", &[Rt, Wr, Ww]),
            ("G-single-realtime", &[Rt, Rw, Wr]),
            ("G-nonadjacent-realtime", &[Rt, Rw, Wr, Rw]),
            ("G2-item-realtime", &[Rt, Rw, Rw]),
            ("G2-realtime", &[Rt, PredicateRw, Rw]),
        ] {
            let count = kinds.len() as u32;
            let mut edges: Vec<(u32, u32, Kind)> =
                (0..count).map(|at| (at, (at + 1) % count, kinds[at as usize])).collect();
            edges.push((2, 9, Ww));
            assert_eq!(found(&edges), Some((name, kinds.len())));
            edges.remove(1);
            assert_eq!(found(&edges), None, "{name} with a missing edge");
        }
    }

    #[test]
    fn the_shortest_cycle_is_shown_and_the_worst_first() {
        let long = [(1, 2, Ww), (2, 3, Ww), (3, 4, Ww), (4, 1, Ww)];
        let with_short = [&long[..], &[(3, 2, Ww)]].concat();
        assert_eq!(found(&with_short), Some(("G0", 2)));
        let both = [(1, 2, Rw), (2, 1, Rw), (3, 4, Ww), (4, 3, Wr)];
        assert_eq!(found(&both), Some(("G1c", 2)));
    }

    #[test]
    fn each_model_rules_out_its_own() {
        use Model::{ReadCommitted, RepeatableRead, Serializable, SnapshotIsolation};
        let phenomena: [(&[Kind], &[Model]); 7] = [
            (&[Ww, Wr], &[ReadCommitted, RepeatableRead, SnapshotIsolation, Serializable]),
            (&[Rw, Wr], &[RepeatableRead, SnapshotIsolation, Serializable]),
            (&[PredicateRw, Wr], &[SnapshotIsolation, Serializable]),
            (&[Rw, Wr, Rw, Wr], &[RepeatableRead, SnapshotIsolation, Serializable]),
            (&[Rw, Rw], &[RepeatableRead, Serializable]),
            (&[Rw, PredicateRw], &[Serializable]),
            (&[Rt, Rw], &[]),
        ];
        for (kinds, ruled_out_by) in phenomena {
            let count = kinds.len() as u32;
            let edges: Vec<(u32, u32, Kind)> =
                (0..count).map(|at| (at, (at + 1) % count, kinds[at as usize])).collect();
            for model in Model::ALL {
                let is_found = worst(&graph(&edges), model).is_some();
                let is_expected =
                    model == Model::StrictSerializable || ruled_out_by.contains(&model);
                assert_eq!(is_found, is_expected, "{kinds:?} under {model}");
            }
        }
    }

    #[test]
    fn a_junction_hands_on_what_led_to_it() {
        let mut graph = Graph::new(4);
        let edge = |to, kind| Edge { to, kind, key: None, value: None };
        // Write skew with both of its rw through junctions: they are still adjacent.
        for (from, to) in [(0, 1), (1, 0)] {
            let junction = graph.add_junction();
            graph.add(from, edge(junction, Rw));
            graph.add(junction, edge(to, Kind::On));
        }
        assert!(worst(&graph, Model::SnapshotIsolation).is_none());
        assert_eq!(worst(&graph, Model::Serializable).unwrap().0, "G2-item");
        graph.add(2, edge(0, Wr));
        graph.add(1, edge(2, Ww));
        assert_eq!(worst(&graph, Model::SnapshotIsolation).unwrap().0, "G-single");
    }

    #[test]
    fn a_long_chain_is_no_cycle_and_needs_no_deep_stack() {
        let count = 200_000;
        let mut chain = Graph::new(count as usize);
        for from in 0..count - 1 {
            chain.add(from, Edge { to: from + 1, kind: Ww, key: None, value: None });
        }
        assert!(worst(&chain, Model::SnapshotIsolation).is_none());
        chain.add(count - 1, Edge { to: count - 3, kind: Rw, key: None, value: None });
        assert_eq!(worst(&chain, Model::SnapshotIsolation).unwrap().0, "G-single");
    }
}
