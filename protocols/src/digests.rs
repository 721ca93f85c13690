//! Digests: replicas compare what they have written, as they run.
//!
//! All replicas of a group run the same epochs on the same rows, so their writes are the same. A
//! defect of a memory, or of this program, could make them differ in silence. Each replica sends
//! digests of its confirmed epochs to its peers, with each progress report.
//!
//! ```text
//!   replica                            peers
//!     | epochs 7 .. 13 are confirmed
//!     | Digests(7: table 5 d1, ..) ------> |  compares them with its own epochs
//!     | <------ Digests(6: table 5 d2, ..) |
//!   stops, if a majority agrees on another digest than its own
//! ```
//!
//! **Writes.** The digest of an epoch's writes ([`Store::take_digest`]) finds a difference in
//! whatever a transaction reads and writes, within the interval of a progress report and the time
//! of a message.
//!
//! **Rows.** Rows that nobody writes are digested in turns ([`Store::digest_segments`]): at each
//! sixteenth epoch, the live rows of some segments as of that epoch. The segments follow from the
//! number of the epoch and from the approximate number of rows, so replicas choose the same without
//! a message. Two replicas whose numbers of rows differ by less than a factor of four choose the
//! same segments at least every other time.
//!
//! **Consequences.** A replica that sees a majority of its group agree on another digest stops. The
//! majority goes on, and reports in its status which replica differs. If no value can have a
//! majority any more (of two replicas always), nobody knows which replica is right, and all that
//! see it stop.
//!
//! Epochs are compared once they are confirmed: with asynchronous replication, earlier ones may
//! still be rolled back. Epochs that a replica replays from its log or skips with a peer's
//! checkpoint are not compared.
//!
//! [`Store::take_digest`]: pangea_core::store::Store::take_digest
//! [`Store::digest_segments`]: pangea_core::store::Store::digest_segments

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion, TableId};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Mark, Protocol};
use pangea_core::store::{SEGMENTS, Store, TableDigests};

use crate::marks::{NONSENSE, mark};
use crate::messages::{Codec, NUMBER_MAX};
use crate::presence::remembering_min;
use crate::replica::Replica;

/// Why a swarm never hits marks of replicas that differ.
const DIFFERS: &str = "replicas never differ; see protocols/tests/phases/digests.rs";

/// All marks of this component.
pub(crate) const MARKS: &[Mark] = &[
    mark("digests.of_rows", "the rows of some segments are digested"),
    mark("digests.peer_differs", "a digest of a peer differs from this replica's").never(DIFFERS),
    mark("digests.stops_differing", "a majority agrees on another digest than this replica's")
        .never(DIFFERS),
    mark("digests.malformed", "a list of digests makes no sense").never(NONSENSE),
];

/// The maximum number of digests that are retained for comparison. A peer that is further behind
/// than these epochs is compared again when it has caught up.
const RETAINED_MAX: usize = 2_048;

/// The maximum number of digests in a message. Those of earlier epochs are left out.
const SENT_MAX: usize = 256;

/// The rows of some segments are digested at each epoch that is a multiple of this.
const ROWS_EPOCHS: u64 = 16;

/// The approximate maximum number of rows that are digested at a time. A row takes about 0.2 us.
const ROWS_MAX: usize = 1_024;

/// The number of rows is counted anew after this number of turns.
const COUNT_TURNS: u64 = 16;

/// The number of times that all segments can be divided by four.
const LEVEL_MAX: u32 = SEGMENTS.ilog(4);

/// What a digest covers, besides its epoch: zero for the writes of the epoch. Otherwise it names
/// segments of rows, by the number of times that all segments were divided, and by how a node
/// assigns keys to segments, which may differ between builds.
type Scope = u64;

const WRITES: Scope = 0;

/// The digests of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochDigest {
    /// The epoch.
    pub epoch: SnapshotVersion,
    /// Zero for the writes of the epoch, or the name of some rows.
    pub scope: u64,
    /// The digest of each table.
    pub tables: TableDigests,
}

impl Codec for EpochDigest {
    type Value = Self;

    fn encode(value: &Self, out: &mut Vec<u8>) {
        out.put_varint(value.epoch.0);
        out.put_varint(value.scope);
        out.put_varint(value.tables.len() as u64);
        for (table, sum) in &value.tables {
            out.put_varint(table.0.into());
            out.put_u64(*sum);
        }
    }

    fn decode(from: &mut Reader<'_>, _: &Bytes, what: &'static str) -> Result<Self, DecodeError> {
        let (epoch, scope) = (SnapshotVersion(from.varint(what)?), from.varint(what)?);
        let table = |from: &mut Reader<'_>| {
            let table = from.varint(what)?.try_into().map_err(|_| DecodeError::new(what))?;
            Ok((TableId(table), from.u64(what)?))
        };
        let tables = (0..from.count(what)?).map(|_| table(from)).collect::<Result<_, _>>()?;
        Ok(Self { epoch, scope, tables })
    }

    fn is_sound(value: &Self, _: usize) -> bool {
        value.epoch.0 <= NUMBER_MAX && value.tables.is_sorted_by(|(a, _), (b, _)| a < b)
    }

    fn payload_bytes(value: &Self) -> usize {
        8 + value.tables.len() * 12
    }
}

/// The digests of this replica and of its peers.
pub(crate) struct Digests {
    /// The digests of each replica that sent them.
    reports: BTreeMap<(SnapshotVersion, Scope), Vec<Option<TableDigests>>>,
    /// This replica's digests that are not sent yet.
    unsent: Vec<EpochDigest>,
    /// The replicas of which a digest differed from that of a majority or, without one, from this
    /// replica's.
    differing: Vec<bool>,
    /// The approximate number of rows on this replica, at one of the last turns.
    rows: usize,
}

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// No two digests differ.
    Same,
    /// These replicas differ from this one, and a majority may still agree with it.
    OthersDiffer(Vec<NodeId>),
    /// These replicas are a majority, and differ from this one.
    OutvotedBy(Vec<NodeId>),
    /// No digest can have a majority.
    Undecidable,
}

/// Compares this replica's digest with those of the other replicas of its group. The first
/// `voters` ones count in a majority.
fn compare(
    me: NodeId,
    reports: &[Option<TableDigests>],
    (voters, majority): (usize, usize),
) -> Verdict {
    let Some(own) = &reports[me.index()] else { return Verdict::Same };
    let nodes = || (0..reports.len() as u16).map(NodeId);
    let with = |value: &TableDigests| -> Vec<NodeId> {
        let voting = nodes().take(voters);
        voting.filter(|node| reports[node.index()].as_ref() == Some(value)).collect()
    };
    let others: Vec<&TableDigests> = reports.iter().flatten().filter(|it| *it != own).collect();
    if others.is_empty() {
        return Verdict::Same;
    }
    if let Some(majority) = others.iter().map(|it| with(it)).find(|it| it.len() >= majority) {
        return Verdict::OutvotedBy(majority);
    }
    let missing = reports[..voters].iter().filter(|report| report.is_none()).count();
    let most = others.iter().map(|it| with(it).len()).max().unwrap_or(0).max(with(own).len());
    if most + missing < majority {
        return Verdict::Undecidable;
    }
    let differs = |node: &NodeId| reports[node.index()].as_ref().is_some_and(|it| it != own);
    Verdict::OthersDiffer(nodes().filter(differs).collect())
}

impl Digests {
    pub(crate) fn new(node_count: usize) -> Self {
        Self {
            reports: BTreeMap::new(),
            unsent: Vec::new(),
            differing: vec![false; node_count],
            rows: 0,
        }
    }

    /// Records a digest of a replica.
    fn note(&mut self, node: NodeId, digest: EpochDigest) {
        let replicas = self.differing.len();
        let key = (digest.epoch, digest.scope);
        let reports = self.reports.entry(key).or_insert_with(|| vec![None; replicas]);
        reports[node.index()] = Some(digest.tables);
        if self.reports.len() > RETAINED_MAX {
            self.reports.pop_first();
        }
    }

    /// The rows to digest at an epoch.
    fn segments(&mut self, store: &Store, epoch: SnapshotVersion) -> (Scope, Range<u32>) {
        let turn = epoch.0 / ROWS_EPOCHS;
        if self.rows == 0 || turn.is_multiple_of(COUNT_TURNS) {
            self.rows = store.row_count().max(1);
        }
        segments_of(turn, self.rows)
    }
}

/// The segments to digest in a turn, with this number of rows in all.
fn segments_of(turn: u64, rows: usize) -> (Scope, Range<u32>) {
    let is_enough = |level: &u32| rows >> (2 * level) <= ROWS_MAX;
    let least = (0..LEVEL_MAX).find(is_enough).unwrap_or(LEVEL_MAX);
    // Of two replicas with adjacent levels, both choose the common one every other time.
    let level = match u64::from(least) % 2 == turn % 2 {
        true => least,
        false => (least + 1).min(LEVEL_MAX),
    };
    let count = SEGMENTS >> (2 * level);
    let first = (turn / 2 % u64::from(SEGMENTS / count)) as u32 * count;
    let scope = u64::from(Store::segmentation()) << 8 | u64::from(1 + level);
    (scope, first..first + count)
}

impl Digests {
    /// Collects the digests of all later epochs, if there are peers to compare them with.
    pub(crate) fn begin<P: Protocol>(cx: &Cx<'_, P>, replica: &Replica) {
        if replica.topology.node_count() > 1 {
            cx.store.collect_digests();
        }
    }

    /// Digests an epoch that is confirmed now, and compares it with the reports of the peers that
    /// have confirmed it before. Returns why this replica has to stop, if it does. The caller sends
    /// the unsent digests first, so that the others learn that this replica differs.
    pub(crate) fn note_epoch<P: Protocol>(
        &mut self,
        cx: &mut Cx<'_, P>,
        replica: &Replica,
        epoch: SnapshotVersion,
    ) -> Option<String> {
        let tables = cx.store.take_digest(epoch)?;
        let of_writes = self.note_own(cx, replica, EpochDigest { epoch, scope: WRITES, tables });
        let is_turn = epoch.0.is_multiple_of(ROWS_EPOCHS) && !cx.store.has_cold();
        let is_turn = mutate!(RowsNotCompared: is_turn => false);
        let of_rows = is_turn.then(|| {
            let (scope, segments) = self.segments(cx.store, epoch);
            let tables = cx.store.digest_segments(epoch, segments);
            cx.mark("digests.of_rows");
            self.note_own(cx, replica, EpochDigest { epoch, scope, tables })
        });
        of_writes.or(of_rows.flatten())
    }

    fn note_own<P: Protocol>(
        &mut self,
        cx: &mut Cx<'_, P>,
        replica: &Replica,
        digest: EpochDigest,
    ) -> Option<String> {
        let key = (digest.epoch, digest.scope);
        self.note(replica.me, digest.clone());
        self.unsent.push(digest);
        self.compare(cx, replica, key)
    }

    /// Takes the digests of the epochs since the last report to the peers.
    pub(crate) fn take_unsent(&mut self) -> Vec<EpochDigest> {
        let mut digests = std::mem::take(&mut self.unsent);
        digests.drain(..digests.len().saturating_sub(SENT_MAX));
        digests
    }

    /// Handles the digests of a peer. Returns why this replica has to stop, if it does.
    pub(crate) fn on_digests<P: Protocol>(
        &mut self,
        cx: &mut Cx<'_, P>,
        replica: &Replica,
        from: NodeId,
        digests: Vec<EpochDigest>,
    ) -> Option<String> {
        let mut why = None;
        for digest in digests {
            let key = (digest.epoch, digest.scope);
            self.note(from, digest);
            why = why.or(self.compare(cx, replica, key));
        }
        why
    }

    fn compare<P: Protocol>(
        &mut self,
        cx: &mut Cx<'_, P>,
        replica: &Replica,
        key: (SnapshotVersion, Scope),
    ) -> Option<String> {
        let reports = self.reports.get(&key)?;
        let sizes = (replica.topology.voter_count(), replica.topology.majority());
        let verdict = compare(replica.me, reports, sizes);
        let verdict = mutate!(DifferencesPass: verdict => Verdict::Same);
        let why = match verdict {
            Verdict::Same => return None,
            Verdict::OthersDiffer(nodes) => {
                cx.mark("digests.peer_differs");
                nodes.iter().for_each(|node| self.differing[node.index()] = true);
                return None;
            }
            Verdict::OutvotedBy(nodes) => outvoted(replica, reports, (P::WORDS.epoch, key), &nodes),
            Verdict::Undecidable => undecidable(replica, reports, (P::WORDS.epoch, key)),
        };
        cx.mark("digests.stops_differing");
        Some(why)
    }

    /// The nodes that differ from this one, for operators.
    pub(crate) fn differing_nodes(&self) -> Vec<NodeId> {
        let replicas = (0..self.differing.len() as u16).map(NodeId);
        replicas.filter(|node| self.differing[node.index()]).collect()
    }

    /// Forgets that a peer differed: it has restarted, and may have been replaced.
    pub(crate) fn forget(&mut self, peer: NodeId) {
        self.differing[peer.index()] = false;
        self.reports.values_mut().for_each(|reports| reports[peer.index()] = None);
    }
}

/// The names of nodes, as in `0, 2`.
fn node_list(replica: &Replica, nodes: impl IntoIterator<Item = NodeId>) -> String {
    listed(nodes.into_iter().map(|it| replica.node(it).0))
}

fn outvoted(
    replica: &Replica,
    reports: &[Option<TableDigests>],
    (epoch, (version, scope)): (&str, (SnapshotVersion, Scope)),
    majority: &[NodeId],
) -> String {
    let me = replica.me;
    let own = reports[me.index()].iter();
    let tables = own.zip(&reports[majority[0].index()]).flat_map(|(a, b)| differing(a, b));
    format!(
        "node {} differs from the other replicas: {} {epoch} {} in {}. Nodes {} agree with each \
         other, so this node stops before it serves more of its rows. The cause is a defect of \
         its memory or disk, or of this program. Replace the node: pangea start --config FILE \
         --replace. It moves the contents of its data directory aside: keep them for a report",
        replica.node(me).0,
        what(scope),
        version.0,
        in_words(tables),
        node_list(replica, majority.iter().copied()),
    )
}

fn undecidable(
    replica: &Replica,
    reports: &[Option<TableDigests>],
    (epoch, (version, scope)): (&str, (SnapshotVersion, Scope)),
) -> String {
    let (me, nodes) = (replica.me, (0..reports.len() as u16).map(NodeId));
    let reporting = nodes.filter(|node| reports[node.index()].is_some());
    let own = reports[me.index()].iter();
    let tables = own.flat_map(|own| reports.iter().flatten().flat_map(|it| differing(own, it)));
    // Whether the others could learn what they need from the one that is kept.
    let way_out = match remembering_min(replica) {
        1 => {
            "Keep the data directory of the right one, and replace the other: pangea start \
             --config FILE --replace"
        }
        _ => {
            "Keep all data directories, load the dump of the right one into a new cluster, and \
             report the defect"
        }
    };
    format!(
        "nodes {} differ from each other: {} {epoch} {} in {}. No majority of the replicas \
         agrees, so none of them can know which is right, and all stop. Start each alone, take \
         a dump (pg_dump), and compare the dumps with what you know of the rows. {way_out}",
        node_list(replica, reporting),
        what(scope),
        version.0,
        in_words(tables),
    )
}

fn what(scope: Scope) -> &'static str {
    match scope {
        WRITES => "in the writes of",
        _ => "in rows as of",
    }
}

/// The tables of which two digests differ.
fn differing(one: &TableDigests, other: &TableDigests) -> Vec<TableId> {
    let only = |a: &TableDigests, b: &TableDigests| -> Vec<TableId> {
        a.iter().filter(|it| !b.contains(it)).map(|(table, _)| *table).collect()
    };
    let mut tables = only(one, other);
    tables.extend(only(other, one));
    tables
}

fn in_words(tables: impl IntoIterator<Item = TableId>) -> String {
    let mut tables: Vec<u32> = tables.into_iter().map(|table| table.0).collect();
    tables.sort_unstable();
    tables.dedup();
    let word = if tables.len() == 1 { "table" } else { "tables" };
    format!("{word} {}", listed(tables))
}

fn listed<N: std::fmt::Display>(numbers: impl IntoIterator<Item = N>) -> String {
    let mut text = String::new();
    for (at, number) in numbers.into_iter().enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        write!(text, "{comma}{number}").expect("a string can be written");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(sum: u64) -> Option<TableDigests> {
        (sum > 0).then(|| vec![(TableId(5), sum)])
    }

    #[test]
    fn replicas_without_a_vote_outvote_nobody() {
        let of = |me: u16, sums: &[u64], sizes| {
            let reports: Vec<_> = sums.iter().map(|sum| report(*sum)).collect();
            compare(NodeId(me), &reports, sizes)
        };
        let nodes = |all: &[u16]| all.iter().copied().map(NodeId).collect::<Vec<_>>();
        let sums = [2, 1, 1, 2, 2];
        assert_eq!(of(1, &sums, (3, 2)), Verdict::OthersDiffer(nodes(&[0, 3, 4])));
        assert_eq!(of(3, &sums, (3, 2)), Verdict::OutvotedBy(nodes(&[1, 2])));
        assert_eq!(of(0, &[1, 2], (1, 1)), Verdict::OthersDiffer(nodes(&[1])));
        assert_eq!(of(1, &[1, 2], (1, 1)), Verdict::OutvotedBy(nodes(&[0])));
    }

    fn of(sums: &[u64]) -> Verdict {
        let reports: Vec<_> = sums.iter().map(|sum| report(*sum)).collect();
        compare(NodeId(0), &reports, (sums.len(), sums.len() / 2 + 1))
    }

    #[test]
    fn a_minority_knows_that_it_is_one_and_nobody_else_stops() {
        let nodes = |ids: &[u16]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
        assert_eq!(of(&[1, 1, 1]), Verdict::Same);
        assert_eq!(of(&[1, 0, 0]), Verdict::Same);
        assert_eq!(of(&[0, 1, 2]), Verdict::Same, "nothing is known of the own digest");
        assert_eq!(of(&[1, 2, 0]), Verdict::OthersDiffer(nodes(&[1])), "the third decides");
        assert_eq!(of(&[1, 2, 1]), Verdict::OthersDiffer(nodes(&[1])));
        assert_eq!(of(&[1, 2, 2]), Verdict::OutvotedBy(nodes(&[1, 2])));
        assert_eq!(of(&[1, 2, 3]), Verdict::Undecidable);
        assert_eq!(of(&[1, 2]), Verdict::Undecidable, "of two, nobody is right");
        assert_eq!(of(&[1, 1, 2, 2]), Verdict::Undecidable);
        assert_eq!(of(&[1, 2, 2, 0, 0]), Verdict::OthersDiffer(nodes(&[1, 2])));
        assert_eq!(of(&[1, 2, 2, 2, 0]), Verdict::OutvotedBy(nodes(&[1, 2, 3])));
    }

    #[test]
    fn all_rows_have_their_turn_and_replicas_with_similar_numbers_share_turns() {
        for rows in [1, ROWS_MAX, ROWS_MAX * 5, ROWS_MAX * 70] {
            let mut seen = vec![false; SEGMENTS as usize];
            let mut common = 0;
            for turn in 0..4_096 {
                let (scope, segments) = segments_of(turn, rows);
                let share = rows * segments.len() / SEGMENTS as usize;
                assert!(share <= ROWS_MAX, "{share} of {rows} rows");
                common += u64::from((scope, segments.clone()) == segments_of(turn, rows * 3));
                segments.for_each(|segment| seen[segment as usize] = true);
            }
            assert!(seen.iter().all(|seen| *seen), "of {rows} rows");
            assert!(common >= 2_048, "{common} of 4,096 turns with {rows} rows");
        }
    }

    #[test]
    fn no_row_has_its_second_turn_before_all_others_had_their_first() {
        for rows in [1, ROWS_MAX, ROWS_MAX * 5, ROWS_MAX * 70] {
            for odd in 0..2 {
                let count = SEGMENTS / segments_of(odd, rows).1.len() as u32;
                let turns = (0..u64::from(count)).map(|turn| segments_of(odd + 2 * turn, rows).1);
                let mut starts: Vec<u32> = turns.map(|segments| segments.start).collect();
                starts.sort_unstable();
                starts.dedup();
                assert_eq!(starts.len(), count as usize, "of {rows} rows");
            }
        }
    }

    #[test]
    fn a_difference_is_named_by_tables() {
        let one = vec![(TableId(1), 1), (TableId(2), 2), (TableId(4), 4)];
        let other = vec![(TableId(1), 1), (TableId(2), 3), (TableId(3), 1), (TableId(4), 4)];
        assert_eq!(in_words(differing(&one, &other)), "tables 2, 3");
        assert_eq!(in_words(differing(&one, &one[..2].to_vec())), "table 4");
    }
}
