//! Termination: transactions that hang when an epoch ends, because their coordinator has not said
//! how they ended (§5.2: "its last transactions").
//!
//! ```text
//!   leader that stays                          next leader of the coordinator's shard
//!     | takes part in the last epoch no more     | takes the best log, brings it to a majority
//!     | Ask: T, U ----------------------------> |
//!     | <------------------------- T at 7, U not |
//!     | installs T, drops U, closes its log
//! ```
//!
//! The paper lowers the final watermark of the shard below a transaction that hangs. All later ones
//! of the shard then fall, although nothing of them is lost. Here the shard asks. The outcome of
//! every transaction is in the log of its coordinator's shard, which has drawn a number for it,
//! too:
//!
//! - If that log has it, it is installed here.
//! - If not, it was never certified, or its outcome is lost. Then its version is above the end of
//!   that log, so it is void everywhere, and dropped here.
//!
//! The answer must not change any more: a leader that has taken over gives it when a majority has
//! its log. One that stays has never certified what is not in its log. Both have ended the last
//! epoch before, so nothing is installed late.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::partition::SHARDS_MAX;
use pangea_core::protocol::Cx;
use pangea_core::txn::Write;

use super::super::Mako;
use super::super::across::{Across, Kind};
use super::super::clocks::Clock;
use super::super::log::{Entry, Executed, Logged};
use super::super::messages::Message;
use super::super::state::{Role, State};
use super::super::versions::Epoch;
use super::Shards;
use super::participant::Pending;
use crate::streams::number;

/// How a transaction ended: at a version with a clock, or without effect.
pub(in super::super) type Fate = Option<(SnapshotVersion, Clock)>;

const WHAT: &str = "fates";

pub(in super::super) fn encode_fates(fates: &[(TxnId, Fate)]) -> Bytes {
    let mut out = Vec::new();
    for (txn, fate) in fates {
        out.put_u64(txn.to_bits());
        out.put_u8(u8::from(fate.is_some()));
        if let Some((version, clock)) = fate {
            out.put_varint(version.0);
            clock.encode(&mut out);
        }
    }
    out.into()
}

pub(in super::super) fn decode_fates(bytes: &[u8]) -> Result<Vec<(TxnId, Fate)>, DecodeError> {
    let (from, mut fates) = (&mut Reader::new(bytes), Vec::new());
    while !from.is_empty() {
        let txn = TxnId::from_bits(from.u64(WHAT)?);
        let fate = match from.u8(WHAT)? {
            0 => None,
            1 => {
                let version = SnapshotVersion(number(from, WHAT)?);
                Some((version, Clock::decode(from, usize::from(SHARDS_MAX))?))
            }
            _ => return Err(DecodeError::new(WHAT)),
        };
        fates.push((txn, fate));
    }
    Ok(fates)
}

impl State {
    /// Whether this leader has led the last epoch that has begun, without an end.
    fn stays(&self) -> bool {
        let stays = |shards: &Shards| shards.stays && shards.config.begun == self.log.epoch;
        self.shards.as_deref().is_some_and(stays)
    }

    /// How a transaction ended that this shard has coordinated, for a shard that has a part in it.
    fn fate_of(&self, txn: TxnId, shard: ShardId) -> Fate {
        let shards = self.shards.as_ref()?;
        let is_it = |entry: &&std::sync::Arc<Entry>| {
            let across = entry.across.as_ref();
            let is_part = across
                .is_some_and(|across| across.kind == Kind::Own && across.written.contains(shard));
            is_part && entry.txns.iter().any(|executed| executed.txn == txn)
        };
        let entry = shards.replay.iter().find(is_it)?;
        Some((entry.at(), entry.across.as_ref()?.clock.clone()))
    }
}

impl Mako {
    /// A leader that stays ends its part in the last epoch: it certifies nothing more, and knows
    /// which transactions hang.
    pub(in super::super) fn end_divided(&mut self, cx: &mut Cx<'_, Self>, is_leader: bool) {
        let State { shards, role, .. } = &mut self.state;
        let Some(shards) = shards else { return };
        let stays = match role {
            Role::Leading(_) => is_leader,
            Role::Closing(_) => is_leader && shards.stays,
            Role::Following => false,
        };
        shards.stays = stays;
        if !stays {
            shards.hanging.clear();
            return;
        }
        let Role::Leading(leading) = role else { return };
        let own = shards.own;
        let pending = std::mem::take(&mut leading.over.pending);
        shards.hanging = pending.into_iter().filter(|(_, it)| it.coordinator != own).collect();
        leading.batch.is_due = true;
        self.close_batch(cx);
        mutate!(MakoHangingDropped: () => self.shards().hanging.clear());
        if self.shards().hanging.is_empty() {
            self.close_log(cx);
        }
    }

    /// Appends a last entry of the epoch before, with the part of a transaction that is installed
    /// late, or with nothing.
    fn append_late(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (at, clock): (Option<SnapshotVersion>, Clock),
        (txn, writes): (Option<TxnId>, Vec<Write>),
    ) {
        let (last, shards) = (self.state.log.last(), self.shards());
        let version = last.next().max(at.unwrap_or_default());
        let draws = shards.hanging.values().map(|pending| pending.draw);
        let closed = draws.min().map_or(version, |draw| SnapshotVersion(draw.0 - 1));
        let (closed, at) = (closed.min(version), at.unwrap_or(version));
        let kind = if txn.is_some() { Kind::Piece } else { Kind::Own };
        let across = Across { closed, at, clock, kind, written: Default::default() };
        let txns = txn.map(|txn| Executed { txn, outcome: Ok(Vec::new()) });
        let entry = Entry {
            version,
            before: last,
            txns: txns.into_iter().collect(),
            over: Vec::new(),
            writes: writes.into_iter().map(|write| (0, write)).collect(),
            across: Some(across),
        };
        self.append(cx, vec![Logged::new(entry)]);
    }

    /// Nothing hangs: the log is closed up to its end.
    fn close_log(&mut self, cx: &mut Cx<'_, Self>) {
        if self.state.log.closed() < self.state.log.last() {
            self.append_late(cx, (None, Clock::default()), (None, Vec::new()));
        }
    }

    /// Whether transactions hang. Those of a leader that has missed an epoch are void.
    pub(in super::super) fn has_hanging(&mut self) -> bool {
        let stays = self.state.stays();
        let Some(shards) = &mut self.state.shards else { return false };
        let is_known = shards.config.number == self.state.epochs.current.number;
        if is_known && !stays {
            shards.hanging.clear();
        }
        !shards.hanging.is_empty()
    }

    /// Asks the leaders of the coordinators' shards.
    pub(in super::super) fn ask_for_fates(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(shards) = &self.state.shards else { return };
        let is_closing = matches!(self.state.role, Role::Closing(_));
        let is_known = shards.config.number == self.state.epochs.current.number;
        if !is_closing || !is_known || shards.hanging.is_empty() {
            return;
        }
        for shard in shards.ids() {
            let of_shard = shards.hanging.iter().filter(|(_, it)| it.coordinator == shard);
            let txns: Vec<u64> = of_shard.map(|(txn, _)| txn.to_bits()).collect();
            let Some(node) = shards.leader_of(shard).filter(|_| !txns.is_empty()) else {
                continue;
            };
            let epoch = shards.config.number.0;
            let mut all = Vec::new();
            txns.into_iter().for_each(|txn| all.put_u64(txn));
            cx.send(node, Message::Ask { epoch, txns: all.into() });
        }
    }

    /// Another leader asks how transactions have ended that this shard has coordinated.
    pub(in super::super) fn on_ask(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, txns): (Epoch, &Bytes),
    ) {
        let Some(shards) = &self.state.shards else { return };
        let is_current = epoch == shards.config.number && epoch == self.state.epochs.current.number;
        let Some(shard) = shards.shard_of(from).filter(|_| is_current) else { return };
        let is_final = self.state.is_closed() || self.state.stays();
        let is_final = mutate!(MakoFateOfOpenLog: is_final => true);
        if !matches!(self.state.role, Role::Closing(_)) || !is_final {
            // It is asked again.
            return cx.mark("mako.asked_early");
        }
        let reader = &mut Reader::new(txns);
        let mut fates = Vec::new();
        while !reader.is_empty() {
            let Ok(bits) = reader.u64(WHAT) else {
                return cx.mark("mako.malformed_items");
            };
            let txn = TxnId::from_bits(bits);
            fates.push((txn, self.state.fate_of(txn, shard)));
        }
        let fates = encode_fates(&fates);
        cx.send(from, Message::Fates { epoch: epoch.0, fates });
    }

    /// How transactions have ended that hang here.
    pub(in super::super) fn on_fates(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (epoch, fates): (Epoch, &Bytes),
    ) {
        let Some(shards) = &self.state.shards else { return };
        let is_current = epoch == shards.config.number && epoch == self.state.epochs.current.number;
        let shard = shards.shard_of(from).filter(|shard| shards.leader_of(*shard) == Some(from));
        let (Role::Closing(_), Some(shard)) = (&self.state.role, shard.filter(|_| is_current))
        else {
            return;
        };
        let Ok(fates) = decode_fates(fates) else {
            return cx.mark("mako.malformed_items");
        };
        for (txn, fate) in fates {
            let hanging = &mut self.shards().hanging;
            if hanging.get(&txn).is_none_or(|pending| pending.coordinator != shard) {
                continue;
            }
            let Pending { writes, .. } = hanging.remove(&txn).expect("it was found just now");
            self.shards().counts.hanging_resolved += 1;
            match fate {
                Some((version, clock)) => {
                    cx.mark("mako.installed_late");
                    self.append_late(cx, (Some(version), clock), (Some(txn), writes));
                }
                None => cx.mark("mako.dropped_late"),
            }
        }
        if !self.has_hanging() {
            self.close_log(cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::clocks::Slot;
    use super::*;

    #[test]
    fn fates_survive_their_message() {
        let mut clock = Clock::default();
        clock.raise(Slot(1), SnapshotVersion(8));
        let txn = |sequence| TxnId::new(NodeId(3), sequence);
        let fates = vec![(txn(1), None), (txn(2), Some((SnapshotVersion(9), clock)))];
        let bytes = encode_fates(&fates);
        assert_eq!(decode_fates(&bytes), Ok(fates));
        assert!(decode_fates(&bytes[..bytes.len() - 1]).is_err());
    }
}
