//! Closing: a new leader takes the best log of the voters, and brings it to a majority (§5.2).
//!
//! An entry is committed when a majority has it in the log of one epoch. Of any `n - majority + 1`
//! voters one has it, in a log of that epoch or of a later one. So the best of their logs, by its
//! epoch and then by its length, has everything that is committed. Whatever else it has is
//! committed with it: with one shard, nothing depends on what was lost.
//!
//! A follower takes the log of a new leader as a whole, with one record. Part of it would look like
//! a log of the new epoch, and lack what was committed before.
//!
//! The leader executes transactions when a majority has its log and that is decided. A leader of a
//! later epoch then finds this log, or a later one: every epoch is closed once, with one end
//! (Lemma 4).

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;

use super::Mako;
use super::epochs::Leadership;
use super::log::{Logged, decode_entries, encode_entries};
use super::messages::Message;
use super::state::{Role, State};
use super::versions::{EPOCH_MAX, Epoch};
use super::watermark::commit_point;
use crate::presence::remembering_min;
use crate::replica::kind;
use crate::streams::number;

/// The log of a replica, as it reports that to a new leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// The epoch of its log, and the last version of it.
    pub rank: (Epoch, SnapshotVersion),
    /// The last version that readers see there.
    pub published: SnapshotVersion,
    /// Whether it votes, and has everything that it ever acknowledged.
    pub is_whole: bool,
}

/// The progress of a leader that can't execute transactions yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Closing {
    /// The replica that was asked for the tail of its log.
    asked: Option<NodeId>,
}

/// The log of a new leader, as far as a follower has received it.
#[derive(Debug)]
pub(super) struct Adopting {
    /// The version before the first entry, which this replica has published.
    pub after: SnapshotVersion,
    pub entries: Vec<Logged>,
}

impl Adopting {
    pub(super) fn last(&self) -> SnapshotVersion {
        self.entries.last().map_or(self.after, Logged::version)
    }
}

/// The log record of a log that was taken.
#[derive(Debug)]
pub(super) struct Adopted {
    pub epoch: Epoch,
    pub after: SnapshotVersion,
    pub entries: Vec<Logged>,
}

impl Adopted {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_varint(self.epoch.0);
        out.put_varint(self.after.0);
        out.extend_from_slice(&encode_entries(&self.entries));
        out.into()
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(bytes);
        let epoch = Epoch(number(from, "log of an epoch")?);
        let after = SnapshotVersion(number(from, "log of an epoch")?);
        let entries = decode_entries(&bytes.slice_ref(from.rest()), after)?;
        match epoch.0 <= EPOCH_MAX {
            true => Ok(Self { epoch, after, entries }),
            false => Err(DecodeError::new("log of an epoch")),
        }
    }
}

/// The replica with the best log: this one, if no other is better.
pub(super) fn best_of(
    (me, own): (NodeId, (Epoch, SnapshotVersion)),
    others: impl Iterator<Item = (NodeId, (Epoch, SnapshotVersion))>,
) -> NodeId {
    let better = others.filter(|(_, rank)| *rank > own);
    let better = mutate!(MakoFirstTailTaken: better.max_by_key(|(_, rank)| *rank) => None);
    better.map_or(me, |(node, _)| node)
}

impl State {
    /// Whether this replica is a leader whose log a majority has, and that is not decided.
    pub(super) fn is_closed(&self) -> bool {
        let is_closing = matches!(self.role, Role::Closing(_)) && self.has_log_of_epoch();
        is_closing && commit_point(&self.acked()) >= Some(self.epochs.end)
    }

    /// The replica whose log is taken, once enough voters have reported.
    fn best_log(&self) -> Option<NodeId> {
        let is_promised = self.epochs.record <= self.synced;
        let reported = self.replica.topology.voter_ids().filter_map(|node| {
            let report = self.reports[node.index()].filter(|report| report.is_whole)?;
            Some((node, report.rank))
        });
        let reported: Vec<_> = reported.collect();
        let own_vote = usize::from(self.replica.votes());
        let is_enough = reported.len() + own_vote >= remembering_min(&self.replica);
        let own = (self.replica.me, self.log.rank());
        (is_promised && is_enough).then(|| best_of(own, reported.into_iter()))
    }
}

impl Mako {
    /// A replica reports its log.
    pub(super) fn on_report(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, is_again): (Epoch, bool),
        report: Report,
    ) {
        let Leadership { number, leader } = self.state.epochs.current;
        if number != epoch || leader != self.state.replica.me {
            return cx.mark("mako.report_for_another");
        }
        self.state.reports[from.index()] = Some(report);
        if is_again || self.state.sent[from.index()].is_none() {
            self.begin_stream(cx, from);
        }
    }

    /// Makes progress with the log of a new leader.
    pub(super) fn advance_closing(&mut self, cx: &mut Cx<'_, Self>) {
        let Role::Closing(closing) = self.state.role else { return };
        if self.state.has_log_of_epoch() {
            let was_told = self.state.told_closed;
            self.state.told_closed = self.state.is_closed();
            if self.state.told_closed && !was_told {
                // The manager waits for it.
                self.send_progress(cx);
            }
            let is_begun = self.state.epochs.begun == self.state.log.epoch;
            if is_begun && self.state.is_cut_known() {
                self.begin_to_lead(cx);
            }
            return;
        }
        let Some(best) = self.state.best_log() else { return };
        if best == self.state.replica.me {
            let last = self.state.log.last();
            return self.adopt(cx, last, Vec::new());
        }
        if closing.asked != Some(best) {
            cx.mark("mako.tail_fetched");
            self.state.role = Role::Closing(Closing { asked: Some(best) });
            let (epoch, after) = (self.state.epochs.current.number.0, self.state.commit.floor);
            self.state.replica.send(cx, best, Message::Fetch { epoch, after });
        }
    }

    /// The connection to a replica that was asked may be new: it is asked again.
    pub(super) fn fetch_again(&mut self, peer: NodeId) {
        if let Role::Closing(closing) = &mut self.state.role {
            closing.asked.take_if(|asked| *asked == peer);
        }
    }

    /// A new leader asks for the tail of this replica's log.
    pub(super) fn on_fetch(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, after): (Epoch, SnapshotVersion),
    ) {
        let State { epochs, log, replica, .. } = &self.state;
        let is_current = epochs.current == Leadership { number: epoch, leader: from };
        let Some(entries) = log.after(after).filter(|_| is_current) else {
            // The leader takes a checkpoint first.
            return cx.mark("mako.tail_forgotten");
        };
        let entries = encode_entries(entries);
        replica.send(cx, from, Message::Tail { epoch: epoch.0, after, entries });
    }

    /// The tail of a better log arrives.
    pub(super) fn on_tail(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, after): (Epoch, SnapshotVersion),
        entries: &Bytes,
    ) {
        let Ok(entries) = decode_entries(entries, after) else {
            return cx.mark("mako.malformed_log");
        };
        let Role::Closing(Closing { asked: Some(asked) }) = self.state.role else { return };
        let State { epochs, log, commit, .. } = &self.state;
        let is_current = epochs.current.number == epoch && asked == from && log.epoch < epoch;
        let is_complete = self.state.reports[from.index()]
            .is_some_and(|report| report.rank.1 <= entries.last().map_or(after, Logged::version));
        // What follows a checkpoint that was installed meanwhile is asked for again.
        if !is_current || !is_complete || after != commit.floor || !log.contains(after) {
            return self.fetch_again(from);
        }
        self.adopt(cx, after, entries);
    }

    /// Takes the log of the epoch: that of its leader, or the one that this leader has chosen.
    pub(super) fn adopt(
        &mut self,
        cx: &mut Cx<'_, Self>,
        after: SnapshotVersion,
        mut entries: Vec<Logged>,
    ) {
        cx.mark("mako.log_adopted");
        let epoch = self.state.epochs.current.number;
        if self.state.is_leader() {
            let last = entries.last().map_or(after, Logged::version);
            let closed = self.state.log.closed_at(after);
            let closed = entries.last().map_or(closed, |logged| logged.entry.closed());
            entries.extend(self.state.missing_cut(last, closed));
        }
        let State { log, replica, .. } = &mut self.state;
        let adopted = Adopted { epoch, after, entries };
        let record = adopted.encode();
        log.adopt(epoch, after, adopted.entries);
        let position = replica.persist(cx, &kind::ADOPTED, record);
        log.note_record(position);
        let State { log, shown, adopting, epochs, replica, commit, shards, .. } = &mut self.state;
        if let Some(shards) = shards {
            shards.replay.rebuild(log, commit.published);
        }
        // What is not in this log was never committed, so no reader has seen it.
        *shown = log.last().min(*shown);
        *adopting = None;
        if epochs.current.leader == replica.me {
            epochs.end = log.last();
            self.state.told_closed = false;
            for peer in self.state.replica.peers() {
                if self.state.reports[peer.index()].is_some() {
                    self.begin_stream(cx, peer);
                }
            }
        } else {
            self.send_ack(cx);
        }
    }

    /// A follower receives a part of the log of a new leader.
    pub(super) fn adopt_part(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (after, end): (SnapshotVersion, SnapshotVersion),
        entries: Vec<Logged>,
    ) {
        let State { log, commit, adopting, .. } = &mut self.state;
        let is_first = after <= commit.floor && log.contains(after);
        match adopting {
            Some(part) if part.last() == after => part.entries.extend(entries),
            _ if is_first => *adopting = Some(Adopting { after, entries }),
            _ => {
                cx.mark("mako.log_with_gap");
                *adopting = None;
                return self.send_report(cx, true);
            }
        }
        let is_whole = |part: &mut Adopting| part.last() >= end;
        if let Some(Adopting { after, entries }) = adopting.take_if(is_whole) {
            self.state.epochs.end = end;
            self.adopt(cx, after, entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::versions::version_of;
    use super::*;

    /// §5.2: a later leader has closed the epochs before, so its log is better than a longer one.
    #[test]
    fn the_log_of_the_latest_epoch_is_the_best_and_then_the_longest() {
        let rank = |epoch, of, count| (Epoch(epoch), version_of(Epoch(of), count));
        let best = |own, others: &[(u16, (Epoch, SnapshotVersion))]| {
            best_of((NodeId(0), own), others.iter().map(|(node, rank)| (NodeId(*node), *rank))).0
        };
        assert_eq!(best(rank(2, 2, 5), &[(1, rank(2, 2, 5)), (2, rank(1, 1, 90))]), 0);
        assert_eq!(best(rank(2, 2, 5), &[(1, rank(2, 2, 6)), (2, rank(2, 2, 7))]), 2);
        assert_eq!(best(rank(2, 2, 5), &[(1, rank(3, 1, 4)), (2, rank(2, 2, 7))]), 1);
    }
}
