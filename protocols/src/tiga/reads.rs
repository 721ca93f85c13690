//! Strict reads: a snapshot with everything that was acknowledged anywhere before.
//!
//! ```text
//!   replica                        peers
//!     | FreshRequest ------------> |
//!     | <--- FreshReply(view 3, log up to cell 71, replies up to cell 74)   |   from f of them
//!     waits until the cell is published here
//! ```
//!
//! Every answer is later than everything that was acknowledged before the read arrived. So the read
//! waits for the last cell that may have an acknowledged transaction, by the answers of f + 1
//! replicas of each shard ([`last_acknowledged`]). Let the transaction be in a cell, and be
//! acknowledged on a shard in view v.
//!
//! - *By the logs.* It is in the logs of f + 1 replicas, and in the logs of all later views. One of
//!   these replicas has answered, and its log ends at the cell or later.
//! - *On the fast path.* A super quorum has replied in view v, its leader among them. A replica
//!   replies with the log of view v on its disk, and its log is never one of an earlier view again.
//!   One that has lost its disk answers only with the log of a later view (`rejoin.rs`). Of the
//!   super quorum, ⌈f/2⌉ + 1 replicas are among any f + 1. So the newest view of the answers is v
//!   or later.
//!   - If it is later, the log of the replica that tells it ends at the cell or later, because the
//!     log with which a view begins has all that was acknowledged in earlier ones.
//!   - If it is v, and the leader of v has answered, the leader's log ends at the cell or later:
//!     the leader replies when the cell is in its log, and on its disk.
//!   - If it is v without an answer of its leader, ⌈f/2⌉ + 1 of f + 1 answers have told a reply at
//!     the stamp or later, or a later log. With more answers there are as many more of them.
//!
//! So the ends of the logs are enough if the leader of the newest view has answered. A follower
//! whose clock is far ahead may have replied to a transaction at a stamp that the leader has
//! replaced. No cell comes up to there for a long time. Without the leader, such replies count only
//! if ⌈f/2⌉ + 1 replicas have told them. As soon as the leader answers, they count no more.
//!
//! The reader only asks. So it may be a replica without a vote, or one of some shards only. Answers
//! of replicas without a vote do not count, and the answers of each shard are counted alone.
//!
//! Some replicas may have cells that are never committed, because their leader was replaced. So the
//! question is repeated when that has taken long, and a later answer may tell an earlier cell. All
//! answers to requests after the arrival of a read are valid for it.

use std::collections::{BTreeMap, BTreeSet};

use pangea_core::ids::{NodeId, SnapshotVersion, Ticket};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;

use super::Tiga;
use super::cells::cell_of;
use super::log::{Position, ViewNumber};
use super::messages::Message;
use super::quorum::Sizes;
use super::state::State;

/// A request is repeated after this number of round trips.
const PATIENCE_ROUND_TRIPS: u64 = 4;

/// Strict reads that wait.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    /// In the order of their arrival.
    waiting: Vec<FreshRead>,
    /// The last request, and its time.
    asked: Option<(u64, Timestamp)>,
    /// The last answer of each node, and its request.
    answers: BTreeMap<NodeId, (u64, Answer)>,
}

/// A strict read.
#[derive(Debug)]
struct FreshRead {
    ticket: Ticket,
    /// The first request that was sent after the read arrived.
    token: Option<u64>,
    /// The cell that it waits for.
    cell: Option<SnapshotVersion>,
}

/// A replica's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The view of its log.
    pub view: ViewNumber,
    /// Whether it is the leader of this view, and has all that it has had in its log.
    pub leads: bool,
    /// The last cell of its log.
    pub end: SnapshotVersion,
    /// It has replied to nothing in a later cell.
    pub told: SnapshotVersion,
}

impl Fresh {
    /// Whether no strict read waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// The last cell that may have an acknowledged transaction of a shard with n replicas, by the
/// answers of f + 1 or more of them. Without a fast path, nothing is acknowledged by replies.
fn last_acknowledged(n: usize, is_fast: bool, answers: &[Answer]) -> SnapshotVersion {
    let end = answers.iter().map(|it| it.end).max().unwrap_or_default();
    let newest = answers.iter().map(|it| it.view).max();
    let has_led = answers.iter().any(|it| it.leads && Some(it.view) == newest);
    if !is_fast || mutate!(FreshWithoutLeader: has_led => true) {
        return end;
    }
    let mut told: Vec<SnapshotVersion> = answers.iter().map(|it| it.told.max(it.end)).collect();
    told.sort_unstable_by(|a, b| b.cmp(a));
    // The members of any super quorum that have answered, at least (§4).
    let members = (answers.len() + Sizes::of(n).super_quorum()).saturating_sub(n);
    let members = mutate!(FreshToldByAll: members => answers.len());
    end.max(told.get(members.saturating_sub(1)).copied().unwrap_or_default())
}

impl State {
    /// Whether this replica's answer counts. Otherwise it may have lost cells that it had told, or
    /// have some that were never committed. Before it is ready it may not even know that.
    fn may_answer_reads(&self) -> bool {
        self.presence.is_ready && self.is_whole() && self.replica.votes()
    }

    /// This replica's answer for strict reads.
    fn answer_for_reads(&self) -> Answer {
        let end = self.log.last_version();
        // The log of a view has all that was told in earlier ones.
        let may_have_told = self.has_fast_path && (self.is_fast_view() || !self.is_normal());
        let told = if may_have_told { cell_of(self.fast.told()) } else { end };
        // Behind a peer's checkpoint, cells that it had may be gone.
        let is_complete = self.log.needed_base() == Position(0);
        let leads = self.is_normal() && self.is_leader() && is_complete;
        Answer { view: self.log.view, leads, end, told }
    }

    /// The last cell that may have a transaction which was acknowledged before a request was sent,
    /// if f + 1 replicas of each shard have answered it, or a later one.
    fn last_acknowledged(&self, token: u64) -> Option<SnapshotVersion> {
        let of_shard = |voters: &Vec<NodeId>| {
            let answers = voters.iter().filter_map(|node| self.fresh.answers.get(node));
            let answers = answers.filter(|(to, _)| *to >= token).map(|(_, answer)| *answer);
            let (answers, n): (Vec<Answer>, usize) = (answers.collect(), voters.len());
            let is_enough = mutate!(FreshWithoutAsking: answers.len() > n / 2 => true);
            is_enough.then(|| last_acknowledged(n, self.has_fast_path, &answers))
        };
        let cells: Option<Vec<SnapshotVersion>> = self.groups.iter().map(of_shard).collect();
        cells?.into_iter().max()
    }
}

impl Tiga {
    /// A strict read arrives.
    pub(super) fn await_fresh(&mut self, cx: &mut Cx<'_, Self>, ticket: Ticket) {
        cx.mark("tiga.strict_read");
        self.state.fresh.waiting.push(FreshRead { ticket, token: None, cell: None });
    }

    /// Asks the peers for the strict reads that have arrived, unless a request is under way.
    pub(super) fn ask_for_new_reads(&mut self, cx: &mut Cx<'_, Self>) {
        let is_new = self.state.fresh.waiting.iter().any(|read| read.token.is_none());
        let is_answered = |(token, _)| self.state.last_acknowledged(token).is_some();
        if is_new && self.state.fresh.asked.is_none_or(is_answered) {
            self.ask_for_cells(cx);
        }
    }

    /// Asks again if a reply may have been lost, or if a cell may never be committed.
    pub(super) fn ask_again(&mut self, cx: &mut Cx<'_, Self>) {
        let patience = PATIENCE_ROUND_TRIPS * self.state.cluster.round_trip_max().us;
        let is_late = |(_, at): (u64, Timestamp)| cx.now.at.since(at).us > patience;
        let fresh = &self.state.fresh;
        if !fresh.is_idle() && fresh.asked.is_none_or(is_late) {
            cx.mark("tiga.strict_read_asks_again");
            self.ask_for_cells(cx);
        }
    }

    fn ask_for_cells(&mut self, cx: &mut Cx<'_, Self>) {
        let token = self.state.replica.next_token();
        self.state.raised_at = self.state.clock_us(cx);
        let State { fresh, node, cluster, .. } = &mut self.state;
        fresh.asked = Some((token, cx.now.at));
        for read in &mut fresh.waiting {
            read.token.get_or_insert(token);
        }
        for peer in cluster.peers_of(*node) {
            cx.send(peer, Message::FreshRequest { token });
        }
        if self.state.may_answer_reads() {
            let own = self.state.answer_for_reads();
            self.state.fresh.answers.insert(self.state.node, (token, own));
        }
        self.give_cells(cx);
    }

    pub(super) fn on_fresh_request(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, token: u64) {
        if !self.state.may_answer_reads() {
            return;
        }
        // A leader with a fast path closes the cell in the end, if it has no transactions.
        self.state.raised_at = self.state.clock_us(cx);
        let Answer { view, leads, end, told } = self.state.answer_for_reads();
        cx.send(from, Message::FreshReply { token, view: view.0, leads, version: end, told });
    }

    pub(super) fn on_fresh_reply(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (token, answer): (u64, Answer),
    ) {
        let fresh = &mut self.state.fresh;
        let first = fresh.waiting.first().and_then(|read| read.token);
        let is_of_use = first.is_some_and(|first| first <= token);
        let is_of_use = is_of_use && fresh.asked.is_some_and(|(last, _)| token <= last);
        let is_new = fresh.answers.get(&from).is_none_or(|(known, _)| *known < token);
        if is_of_use && is_new {
            fresh.answers.insert(from, (token, answer));
            self.give_cells(cx);
            self.ask_for_new_reads(cx);
        }
    }

    /// Lets the reads wait only for a cell, if f + 1 replicas have answered. It may be an earlier
    /// one than before.
    fn give_cells(&mut self, cx: &mut Cx<'_, Self>) {
        let waiting = self.state.fresh.waiting.iter();
        let tokens: BTreeSet<u64> = waiting.filter_map(|read| read.token).collect();
        let mut given = BTreeSet::new();
        for token in tokens {
            let Some(cell) = self.state.last_acknowledged(token) else { break };
            for read in &mut self.state.fresh.waiting {
                if read.token == Some(token) && read.cell.is_none_or(|known| cell < known) {
                    read.cell = Some(cell);
                    given.insert(cell);
                }
            }
        }
        if self.state.is_divided() && self.state.is_fast_view() {
            // A replica may have replied to what is in no log.
            given.into_iter().for_each(|cell| self.ask_all_to_close(cx, cell));
        }
    }

    /// Answers the strict reads whose cells are published.
    pub(super) fn answer_fresh(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.fresh.waiting.is_empty() {
            return;
        }
        let version = cx.store.published();
        self.state.fresh.waiting.retain(|read| {
            let is_there = |cell| mutate!(FreshUnmerged: cell <= version => true);
            let is_done = read.cell.is_some_and(is_there);
            if is_done {
                cx.fresh(read.ticket, version);
            }
            !is_done
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica of a shard to which one transaction was sent, at the cell `AT`, in view 3. Replica
    /// 0 leads this view, and the last one leads the next.
    #[derive(Clone, Copy, Debug)]
    enum At {
        /// It has not replied.
        Silent,
        /// It has replied, and its log ends before the cell.
        Replied,
        /// It has the cell in its log.
        Logged,
        /// It has the log of the next view, which has the cell.
        Next,
        /// It has not replied to the transaction. It has replied to a later one, which is
        /// acknowledged nowhere.
        Ahead,
        /// It has the log of the view before.
        Before,
    }

    const AT: SnapshotVersion = SnapshotVersion(70);
    const FAR: SnapshotVersion = SnapshotVersion(3_600_000);
    const ALL: [At; 6] = [At::Silent, At::Replied, At::Logged, At::Next, At::Ahead, At::Before];

    fn answer(replica: usize, n: usize, at: At) -> Answer {
        let end = SnapshotVersion(60);
        let (view, end, told) = match at {
            At::Silent => (3, end, end),
            At::Replied => (3, end, AT),
            At::Logged => (3, AT, AT),
            At::Next => (4, AT, AT),
            At::Ahead => (3, end, FAR),
            At::Before => (2, SnapshotVersion(50), SnapshotVersion(50)),
        };
        let leader = if view == 4 { n - 1 } else { 0 };
        Answer { view: ViewNumber(view), leads: view != 2 && replica == leader, end, told }
    }

    /// Whether the transaction can have been acknowledged on the fast path in view 3.
    fn is_acknowledged(n: usize, states: &[At]) -> bool {
        let has_replied = |at: &&At| matches!(at, At::Replied | At::Logged | At::Next);
        let is_led = matches!(states[0], At::Logged | At::Next);
        is_led && states.iter().filter(has_replied).count() >= Sizes::of(n).super_quorum()
    }

    /// The sets of answers after which a strict read misses the transaction.
    fn missed(n: usize) -> Vec<(Vec<At>, usize)> {
        let mut missed = Vec::new();
        for number in 0..ALL.len().pow(n as u32) {
            let states = (0..n).map(|replica| ALL[number / ALL.len().pow(replica as u32) % 6]);
            let states: Vec<At> = states.collect();
            if !is_acknowledged(n, &states) {
                continue;
            }
            for set in (0..1_usize << n).filter(|set| set.count_ones() as usize > n / 2) {
                let asked = (0..n).filter(|replica| set & 1 << replica != 0);
                let answers = asked.map(|replica| answer(replica, n, states[replica]));
                if last_acknowledged(n, true, &answers.collect::<Vec<_>>()) < AT {
                    missed.push((states.clone(), set));
                }
            }
        }
        missed
    }

    /// §3.4, §4: of a super quorum, ⌈f/2⌉ + 1 members are among any f + 1 replicas.
    #[test]
    fn a_strict_read_misses_nothing_that_was_acknowledged() {
        for n in [1, 3, 5] {
            let missed = missed(n);
            assert!(missed.is_empty(), "{n} replicas: {:?}", missed.first());
        }
    }

    #[cfg(feature = "planted")]
    #[test]
    fn with_planted_bugs_a_strict_read_misses_something() {
        use pangea_core::planted::{Bug, Planted};

        for bug in [Bug::FreshWithoutLeader, Bug::FreshToldByAll] {
            let planted = Planted::new(Some(bug));
            let found = missed(5);
            drop(planted);
            assert!(!found.is_empty(), "{bug}");
        }
    }

    /// A follower's clock is an hour ahead. With the leader's answer, or that of another follower,
    /// nobody waits for an hour.
    #[test]
    fn replies_of_one_clock_in_the_far_future_do_not_count() {
        let of = |states: &[(usize, At)]| {
            let answers = states.iter().map(|(replica, at)| answer(*replica, 3, *at));
            last_acknowledged(3, true, &answers.collect::<Vec<_>>())
        };
        assert_eq!(of(&[(0, At::Logged), (1, At::Ahead)]), AT);
        assert_eq!(of(&[(1, At::Ahead), (2, At::Replied)]), AT);
        assert_eq!(of(&[(1, At::Ahead), (2, At::Ahead)]), FAR);
        assert_eq!(of(&[(0, At::Logged), (1, At::Ahead), (2, At::Ahead)]), AT);
    }
}
