//! Dependencies that need no inference: within segments, around the final state, and in real time.

use super::facts::Facts;
use super::graph::{Edge, Graph, Kind};
use super::model::Model;
use super::objects::{INITIAL, NOBODY, Object};
use crate::record::Outcome;

/// The junctions between an object's segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Junctions {
    /// The junction between the first segment and all others.
    pub after_first: Option<u32>,
    /// The junction between the middle segments and the last.
    pub before_last: Option<u32>,
}

/// Adds the order of versions within each segment, and of the first segment before all others and
/// of all others before the last.
pub fn add_segments(object: &Object, graph: &mut Graph) -> Junctions {
    let edge = |to, kind, value| Edge { to, kind, key: Some(object.key), value };
    let version = |at: u32| object.versions[at as usize];
    for segment in &object.segments {
        for pair in segment.windows(2).filter(|pair| pair[0] != INITIAL) {
            let next = version(pair[1]);
            graph.add(version(pair[0]).writer, edge(next.writer, Kind::Ww, next.value));
        }
    }
    let mut junctions = Junctions::default();
    let mut lead_on = |from: &mut dyn Iterator<Item = usize>,
                       to: &mut dyn Iterator<Item = usize>| {
        let junction = graph.add_junction();
        for segment in from {
            let last = version(object.last_version(segment));
            if last.writer != NOBODY {
                graph.add(last.writer, edge(junction, Kind::Ww, None));
            }
        }
        for segment in to {
            let first = version(object.segments[segment][0]);
            graph.add(junction, edge(first.writer, Kind::On, first.value));
        }
        junction
    };
    if object.segments.len() > 1 {
        let others = &mut (1..object.segments.len());
        junctions.after_first = Some(lead_on(&mut std::iter::once(0), others));
    }
    if let Some(last) = object.last.filter(|_| object.middle().next().is_some()) {
        let before = &mut object.middle();
        junctions.before_last = Some(lead_on(before, &mut std::iter::once(last)));
    }
    junctions
}

/// Adds that all other transactions precede those that read the final state.
pub fn add_final(facts: &Facts<'_>, graph: &mut Graph) {
    let is_final = |txn: &u32| facts.recorded.txns[*txn as usize].is_final;
    if !facts.present().any(|txn| is_final(&txn)) {
        return;
    }
    let edge = |to, kind| Edge { to, kind, key: None, value: None };
    let junction = graph.add_junction();
    for txn in facts.present() {
        if is_final(&txn) {
            graph.add(junction, edge(txn, Kind::On));
        } else {
            graph.add(txn, edge(junction, Kind::Wr));
        }
    }
}

/// Adds real-time order with one junction for each end of a transaction. Each end leads to the next
/// end, and each beginning follows the last end before it, so the number of edges is linear. Only
/// the beginnings of those count whose level promises it.
pub fn add_real_time(facts: &Facts<'_>, model: Model, graph: &mut Graph) {
    let txns = &facts.recorded.txns;
    let is_held = |txn: &u32| {
        let txn = &txns[*txn as usize];
        txn.is_held && !txn.is_final
    };
    // The time at which a client stopped waiting does not limit when its transaction took place.
    let is_told = |txn: &u32| txns[*txn as usize].outcome == Outcome::Committed;
    let end = |txn: u32| Some((txns[txn as usize].end?, txn));
    let mut ends: Vec<(i64, u32)> =
        facts.present().filter(is_held).filter(is_told).filter_map(end).collect();
    ends.sort_unstable();
    let edge = |to| Edge { to, kind: Kind::Rt, key: None, value: None };
    let mut junctions: Vec<u32> = Vec::with_capacity(ends.len());
    for &(_, txn) in &ends {
        let junction = graph.add_junction();
        graph.add(txn, edge(junction));
        if let Some(&before) = junctions.last() {
            graph.add(before, edge(junction));
        }
        junctions.push(junction);
    }
    let is_promised = |txn: &u32| model.for_level(txns[*txn as usize].level).is_real_time();
    for txn in facts.present().filter(is_held).filter(is_promised) {
        let begin = txns[txn as usize].begin;
        let ended_before = ends.partition_point(|(end, _)| *end < begin);
        if ended_before > 0 {
            graph.add(junctions[ended_before - 1], edge(txn));
        }
    }
}
