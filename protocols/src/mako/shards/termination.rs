//! Termination: transactions that hang when an epoch ends, because their coordinator has not said
//! how they ended (§5.2: "its last transactions").
//!
//! ```text
//!   leader that stays                          next leader of the coordinator's shard
//!     | takes part in the last epoch no more     | takes the best log, brings it to a majority
//!     | Ask: T, U ----------------------------> |
//!     | <------------------------- T at 7, U not |
//!     | installs T, drops U: its log is closed for the epoch
//! ```
//!
//! Meanwhile the rows of T and U stay locked, and everything else goes on (`passage.rs`).
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
//! its log. One that stays has never certified what is not in its log, and certifies no attempt of
//! the epochs before any more. Both have entered the last epoch before, and so has the shard that
//! asks: it takes no item of an earlier one.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion, TxnId};
use pangea_core::mutate;
use pangea_core::partition::SHARDS_MAX;
use pangea_core::protocol::Cx;

use super::super::Mako;
use super::super::across::Kind;
use super::super::clocks::Clock;
use super::super::log::Entry;
use super::super::messages::Message;
use super::super::state::{Role, State};
use super::super::versions::{Epoch, epoch_of};
use super::Coordination;
use super::items::Attempt;
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

impl Coordination {
    /// The transactions of epochs before this one whose coordinators have not said how they ended.
    fn hanging(&self, own: ShardId, epoch: Epoch) -> impl Iterator<Item = (&TxnId, &Pending)> {
        let hangs = move |it: &Pending| it.coordinator != own && epoch_of(it.draw) < epoch;
        self.pending.iter().filter(move |(_, pending)| hangs(pending))
    }
}

impl Mako {
    /// A leader that stays asks the leaders of the coordinators' shards how transactions have
    /// ended.
    pub(in super::super) fn ask_for_fates(&mut self, cx: &mut Cx<'_, Self>) {
        let State { shards: Some(shards), role: Role::Leading(leading), .. } = &self.state else {
            return;
        };
        let epoch = shards.config.number;
        for shard in shards.ids() {
            let hanging = leading.over.hanging(shards.own, epoch);
            let of_shard = hanging.filter(|(_, pending)| pending.coordinator == shard);
            let mut all = Vec::new();
            of_shard.for_each(|(txn, _)| all.put_u64(txn.to_bits()));
            if let Some(node) = shards.leader_of(shard).filter(|_| !all.is_empty()) {
                cx.send(node, Message::Ask { epoch: epoch.0, txns: all.into() });
            }
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
        let leads = shards.since(shards.own) == self.state.epochs.current.number;
        let is_current = epoch == shards.config.number && leads;
        let Some(shard) = shards.shard_of(from).filter(|_| is_current) else { return };
        let is_final = match self.state.role {
            Role::Leading(_) => true,
            Role::Closing(_) => {
                let is_closed = self.state.is_closed();
                mutate!(MakoFateOfOpenLog: is_closed => true)
            }
            Role::Following => false,
        };
        if !is_final {
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
        let is_current = epoch == shards.config.number;
        let shard = shards.shard_of(from).filter(|shard| shards.leader_of(*shard) == Some(from));
        let Some(shard) = shard.filter(|_| is_current) else { return };
        let Ok(fates) = decode_fates(fates) else {
            return cx.mark("mako.malformed_items");
        };
        for (txn, fate) in fates {
            let Some(over) = self.coordination() else { return };
            let Some(pending) = over.pending.get(&txn) else { continue };
            let (draw, number) = (pending.draw, pending.attempt);
            if pending.coordinator != shard || epoch_of(draw) >= epoch {
                continue;
            }
            self.shards().counts.hanging_resolved += 1;
            let attempt = Attempt { txn, number };
            // An attempt of a later epoch is another one.
            match fate.filter(|(version, _)| epoch_of(*version) == epoch_of(draw)) {
                Some(outcome) => {
                    cx.mark("mako.installed_late");
                    self.install(cx, attempt, outcome, None);
                }
                None => {
                    cx.mark("mako.dropped_late");
                    self.forget(attempt);
                }
            }
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
