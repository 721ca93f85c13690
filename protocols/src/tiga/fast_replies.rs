//! Fast replies on their way, and the coordinator that counts them (§3.4).

use std::collections::VecDeque;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{LogPosition, NodeId, TxnId};
use pangea_core::protocol::Cx;
use pangea_core::txn::Abort;

use super::Tiga;
use super::cells::cell_of;
use super::fast_path::entries_of;
use super::hashes::PrefixHash;
use super::log::{Position, ViewNumber};
use super::messages::Message;
use super::quorum::{FastReply, Replies, Sizes, Verdict};
use super::rebuild::Entry;
use super::stamp::Stamp;
use super::state::State;

/// The result of a run.
pub(super) type RunResult = Result<Vec<u8>, Abort>;

/// Replies of this replica to itself, each with the record that must be durable first.
pub(super) type OwnReplies = VecDeque<(LogPosition, ViewNumber, Reply)>;

/// A fast reply for one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub txn: TxnId,
    pub stamp: Stamp,
    pub prefix: Option<PrefixHash>,
    /// The leader's result.
    pub result: Option<RunResult>,
}

/// Encodes fast replies. [`decode_replies`] is the inverse.
pub(super) fn encode_replies(replies: &[Reply]) -> Bytes {
    let mut out = Vec::new();
    out.put_varint(replies.len() as u64);
    for Reply { txn, stamp, prefix, result } in replies {
        out.put_u64(txn.to_bits());
        out.put_u64(stamp.to_bits());
        out.put_u8(u8::from(prefix.is_some()) | u8::from(result.is_some()) << 1);
        if let Some(prefix) = prefix {
            out.extend_from_slice(&prefix.to_bits().to_le_bytes());
        }
        if let Some(result) = result {
            out.put_bytes(&postcard::to_stdvec(result).expect("a result can be encoded"));
        }
    }
    out.into()
}

pub(super) fn decode_replies(bytes: &[u8]) -> Result<Vec<Reply>, DecodeError> {
    const WHAT: &str = "fast replies";
    let from = &mut Reader::new(bytes);
    let next = |from: &mut Reader<'_>| {
        let txn = TxnId::from_bits(from.u64(WHAT)?);
        let stamp = Stamp::from_bits(from.u64(WHAT)?);
        let flags = from.u8(WHAT)?;
        if flags > 3 {
            return Err(DecodeError::new(WHAT));
        }
        let prefix = match flags & 1 {
            0 => None,
            _ => {
                let bits = from.take(16, WHAT)?.try_into().map_err(|_| DecodeError::new(WHAT))?;
                Some(PrefixHash::from_bits(u128::from_le_bytes(bits)))
            }
        };
        let result = match flags & 2 {
            0 => None,
            _ => {
                let result = postcard::from_bytes(from.bytes(WHAT)?);
                Some(result.map_err(|_| DecodeError::new(WHAT))?)
            }
        };
        Ok(Reply { txn, stamp, prefix, result })
    };
    let count = from.count(WHAT)?;
    let replies = (0..count).map(|_| next(from)).collect::<Result<_, _>>()?;
    if from.is_empty() { Ok(replies) } else { Err(DecodeError::new(WHAT)) }
}

impl State {
    /// The replies that a coordinator waits for.
    pub(super) fn no_replies(&self) -> Option<Replies<RunResult>> {
        let n = self.replica.topology.voter_count();
        self.has_hashes().then(|| Replies::new(Sizes::of(n)))
    }
}

impl Tiga {
    /// The leader replies for the transactions of a cell that it has run.
    pub(super) fn reply_run(&mut self, cx: &Cx<'_, Self>, position: Position) {
        let results = std::mem::take(&mut self.state.commit.results);
        let start = self.state.leading.as_ref().map(|leading| leading.start);
        if start.is_none_or(|start| position <= start) || !self.state.has_hashes() {
            return;
        }
        let entries: Vec<Entry> = entries_of([self.state.log.cell(position)]).collect();
        for (entry, result) in entries.into_iter().zip(results) {
            let Entry { stamp, txn } = entry;
            let prefix = self.state.lead_prefix(entry);
            if prefix.is_some() {
                let reply = Reply { txn, stamp, prefix, result: Some(result) };
                self.state.fast.push(txn.node(), reply, cx.log_head());
            }
        }
    }

    /// Sends the fast replies of this step.
    pub(super) fn send_replies(&mut self, cx: &mut Cx<'_, Self>) {
        let view = self.state.log.view;
        for (to, (replies, record)) in std::mem::take(&mut self.state.fast.replies) {
            if to == self.state.node {
                let own = replies.into_iter().map(|reply| (record, view, reply));
                self.state.own_replies.extend(own);
            } else {
                let message =
                    Message::FastReplies { view: view.0, replies: encode_replies(&replies) };
                cx.send_after(record, to, message);
            }
        }
        self.take_own_replies(cx);
    }

    /// Counts the replies of this replica to itself whose records are durable.
    fn take_own_replies(&mut self, cx: &mut Cx<'_, Self>) {
        let synced = self.state.synced;
        while let Some((_, view, reply)) =
            self.state.own_replies.pop_front_if(|(record, ..)| *record <= synced)
        {
            let node = self.state.node;
            self.count_reply(cx, node, view, reply);
        }
    }

    pub(super) fn on_fast_replies(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        view: ViewNumber,
        bytes: &[u8],
    ) {
        let Ok(replies) = decode_replies(bytes) else {
            return cx.mark("tiga.malformed_fast_replies");
        };
        let votes = self.state.cluster.votes(from);
        for reply in replies.into_iter().filter(|_| votes) {
            self.count_reply(cx, from, view, reply);
        }
    }

    /// Answers the client if the transaction is committed with this reply.
    fn count_reply(&mut self, cx: &mut Cx<'_, Self>, from: NodeId, view: ViewNumber, reply: Reply) {
        if self.state.is_divided() {
            return self.count_reply_of_shard(cx, from, view, reply);
        }
        let Reply { txn, stamp, prefix, result } = reply;
        let Some(own) = self.state.coordinator.in_flight.get_mut(&txn) else { return };
        let Some(replies) = &mut own.replies else { return };
        // A leader also replaces stamps that are too far in the future.
        own.is_late |= prefix.is_none() || stamp > own.stamped.stamp;
        replies.on_fast_reply(from, FastReply { view, stamp, prefix, result });
        let Verdict::Committed { stamp, .. } = replies.verdict() else { return };
        cx.mark("tiga.fast_commit");
        own.is_by_replies = true;
        let version = cell_of(stamp);
        self.state.told_version = version.max(self.state.told_version);
        let result = replies.result().cloned().expect("the leader has replied");
        self.state.counters.txns_fast += 1;
        self.state.coordinator.unsettled.insert(txn, version);
        self.answer(cx, txn, version, result);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp::{Issuer, Role};
    use super::*;
    use pangea_core::txn::SqlState;

    #[test]
    fn replies_survive_their_encoding_and_cut_ones_are_refused() {
        let txn = TxnId::new(NodeId(1), 7);
        let stamp = Issuer::new(NodeId(1), Role::Coordinator, Stamp::ZERO).issue(90);
        let prefix = Some(PrefixHash::from_bits(1 << 100 | 5));
        let abort = Abort::new(SqlState::RAISE_EXCEPTION, "no");
        let results = [None, Some(Ok(vec![1, 2])), Some(Err(abort))];
        let all = results.into_iter().flat_map(|result| {
            [None, prefix].map(|prefix| Reply { txn, stamp, prefix, result: result.clone() })
        });
        let all: Vec<Reply> = all.collect();
        let bytes = encode_replies(&all);
        assert_eq!(decode_replies(&bytes), Ok(all));
        for len in 0..bytes.len() {
            assert!(decode_replies(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
