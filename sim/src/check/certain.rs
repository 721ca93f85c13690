//! Dependencies that need no inference: within segments, around the final state, in real time.

use super::facts::Facts;
use super::graph::{Edge, Graph, Kind};
use super::objects::{INITIAL, NOBODY, Object};
use crate::record::Outcome;

/// Where an object's segments meet: after the first, and before the last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Junctions {
    /// Between the first segment and all others.
    pub after_first: Option<u32>,
    /// Between the middle segments and the last.
    pub before_last: Option<u32>,
}

/// Adds that each version is followed by the next of its segment, the first segment by all others,
/// and all others by the last.
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

/// Adds that all others came before those that read the final state.
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

/// Adds who ended before whom began, through one junction for each end: each end leads to the next
/// end and each beginning follows the last end before it, so that edges stay few.
pub fn add_real_time(facts: &Facts<'_>, graph: &mut Graph) {
    let txns = &facts.recorded.txns;
    let is_held = |txn: &u32| {
        let txn = &txns[*txn as usize];
        txn.is_held && !txn.is_final
    };
    // When a client gave up says nothing of when its transaction took place.
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
    for txn in facts.present().filter(is_held) {
        let begin = txns[txn as usize].begin;
        let ended_before = ends.partition_point(|(end, _)| *end < begin);
        if ended_before > 0 {
            graph.add(junctions[ended_before - 1], edge(txn));
        }
    }
}
