//! Tries every order of versions, and builds Adya's graph of each (Adya 1999, §3.1).
//!
//! No order is inferred. For each order of the writers of every key, the result of a read is
//! compared with the contents of all versions; if several match, each is tried. Cycles are found by
//! transitive closure.

use super::*;

/// The kind of a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Depends,
    Item,
    Predicate,
}

type Edges = Vec<(usize, usize, Why)>;

/// Whether some order of versions shows no phenomenon that the model rules out.
pub fn is_possible(history: &Recorded, model: Model) -> bool {
    let unknown: Vec<usize> = with_outcome(history, Outcome::Unknown);
    (0..1u32 << unknown.len()).any(|chosen| {
        let mut present = with_outcome(history, Outcome::Committed);
        let chosen = unknown.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1);
        present.extend(chosen.map(|(_, txn)| *txn));
        let keys: Vec<Name> = keys(history).into_keys().collect();
        extend(history, model, &present, &keys, &Edges::new())
    })
}

fn with_outcome(history: &Recorded, outcome: Outcome) -> Vec<usize> {
    (0..history.txns.len()).filter(|txn| history.txns[*txn].outcome == outcome).collect()
}

/// Returns all keys, and whether each is a list.
fn keys(history: &Recorded) -> BTreeMap<Name, bool> {
    let mut keys = BTreeMap::new();
    for op in history.txns.iter().flat_map(|txn| &txn.ops) {
        match op {
            Op::Append { key, .. } | Op::Read { key, seen: Seen::List(_) } => {
                keys.insert(*key, true);
            }
            Op::Write { key, .. } | Op::Delete { key } | Op::Read { key, .. } => {
                keys.entry(*key).or_insert(false);
            }
            Op::Scan { rows, .. } => {
                for (key, _) in rows {
                    keys.entry(*key).or_insert(false);
                }
            }
        }
    }
    keys
}

/// Tries every order of the versions of the next key.
fn extend(
    history: &Recorded,
    model: Model,
    present: &[usize],
    keys: &[Name],
    edges: &Edges,
) -> bool {
    let Some((&key, rest)) = keys.split_first() else {
        return !is_ruled_out(history.txns.len(), edges, model);
    };
    let writes = |txn: &&usize| history.txns[**txn].ops.iter().any(|op| written(op) == Some(key));
    let writers: Vec<usize> = present.iter().filter(writes).copied().collect();
    let mut orders = Vec::new();
    permute(&mut Vec::new(), &writers, &mut orders);
    orders.iter().any(|order| {
        let mut all = edges.clone();
        all.extend(order.windows(2).map(|pair| (pair[0], pair[1], Why::Depends)));
        let Some(reads) = reads(history, present, key, order) else { return false };
        choose(&reads, &all, &mut |chosen| extend(history, model, present, rest, chosen))
    })
}

fn written(op: &Op) -> Option<Name> {
    match op {
        Op::Append { key, .. } | Op::Write { key, .. } | Op::Delete { key } => Some(*key),
        Op::Read { .. } | Op::Scan { .. } => None,
    }
}

fn permute(begun: &mut Vec<usize>, left: &[usize], all: &mut Vec<Vec<usize>>) {
    if left.is_empty() {
        all.push(begun.clone());
    }
    for &next in left {
        begun.push(next);
        let rest: Vec<usize> = left.iter().copied().filter(|txn| *txn != next).collect();
        permute(begun, &rest, all);
        begun.pop();
    }
}

/// Tries every combination of the versions that reads may have seen.
fn choose(reads: &[Vec<Edges>], edges: &Edges, then: &mut dyn FnMut(&Edges) -> bool) -> bool {
    let Some((first, rest)) = reads.split_first() else { return then(edges) };
    first.iter().any(|more| choose(rest, &[&edges[..], more].concat(), then))
}

/// For each read of a key, returns the edges that follow from each version that it may have seen.
/// `None` if a read returned a value that no version has.
fn reads(
    history: &Recorded,
    present: &[usize],
    key: Name,
    order: &[usize],
) -> Option<Vec<Vec<Edges>>> {
    let is_list = keys(history)[&key];
    let mut contents = vec![State::default()];
    for writer in order {
        let mut next = contents.last().expect("the first version exists").clone();
        let own = history.txns[*writer].ops.iter().filter(|op| written(op) == Some(key));
        own.for_each(|op| next.apply(op));
        contents.push(next);
    }
    let mut all = Vec::new();
    for &reader in present {
        let txn = &history.txns[reader];
        for (at, op) in txn.ops.iter().enumerate() {
            let Some((seen, is_predicate)) = seen_of(op, key, history) else { continue };
            let own: Vec<&Op> =
                txn.ops[..at].iter().filter(|op| written(op) == Some(key)).collect();
            let fits = |version: &usize| {
                let mut state = contents[*version].clone();
                own.iter().for_each(|op| state.apply(op));
                let is_own = *version > 0 && order[version - 1] == reader;
                !is_own
                    && state.seen(key, is_list) == seen
                    && (!txn.is_final || *version == order.len())
            };
            let fitting: Vec<usize> = (0..contents.len()).filter(fits).collect();
            if fitting.is_empty() {
                return None;
            }
            // A read of a register that the transaction has written itself implies nothing about
            // others.
            if txn.is_final || (!is_list && !own.is_empty()) {
                continue;
            }
            let why = if is_predicate { Why::Predicate } else { Why::Item };
            all.push(fitting.iter().map(|seen| edges_of(reader, order, *seen, why)).collect());
        }
    }
    Some(all)
}

fn edges_of(reader: usize, order: &[usize], seen: usize, why: Why) -> Edges {
    let before = order[..seen].last().map(|writer| (*writer, reader, Why::Depends));
    let next = order[seen..].iter().find(|writer| **writer != reader);
    before.into_iter().chain(next.map(|writer| (reader, *writer, why))).collect()
}

/// Returns the value of a key that an operation saw, and whether it was a scan that did not find
/// the key.
fn seen_of(op: &Op, key: Name, history: &Recorded) -> Option<(Seen, bool)> {
    match op {
        Op::Read { key: read, seen } if *read == key => Some((seen.clone(), false)),
        Op::Scan { range, rows } if range.contains(&history.names, key) => {
            let found = rows.iter().find(|(row, _)| *row == key);
            Some(found.map_or((Seen::Nothing, true), |(_, value)| (Seen::Value(*value), false)))
        }
        _ => None,
    }
}

type Relation = Vec<Vec<bool>>;

fn is_ruled_out(txns: usize, edges: &Edges, model: Model) -> bool {
    let related = |counts: &dyn Fn(Why) -> bool| {
        let mut relation = vec![vec![false; txns]; txns];
        for &(from, to, why) in edges {
            relation[from][to] |= from != to && counts(why);
        }
        relation
    };
    has_cycle(match model {
        Model::ReadCommitted => related(&|why| why == Why::Depends),
        Model::RepeatableRead => related(&|why| why != Why::Predicate),
        Model::Serializable => related(&|_| true),
        // A dependency, then at most one rw (Cerone and Gotsman 2018, Theorem 4).
        Model::SnapshotIsolation => {
            let depends = related(&|why| why == Why::Depends);
            let rw = related(&|why| why != Why::Depends);
            let mut both = depends.clone();
            for (from, row) in both.iter_mut().enumerate() {
                for (to, cell) in row.iter_mut().enumerate() {
                    *cell |= (0..txns).any(|via| depends[from][via] && rw[via][to]);
                }
            }
            both
        }
        Model::StrictSerializable | Model::Mixed => unreachable!("versions have no times"),
    })
}

fn has_cycle(mut reaches: Relation) -> bool {
    let count = reaches.len();
    for via in 0..count {
        for from in 0..count {
            for to in 0..count {
                reaches[from][to] |= reaches[from][via] && reaches[via][to];
            }
        }
    }
    (0..count).any(|txn| reaches[txn][txn])
}
