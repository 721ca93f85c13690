//! Moves: a client asks that slots are moved, and the manager begins and ends the migration (§6.2,
//! B).
//!
//! The client may ask any node. The node tells the managers, again with each report, until it hears
//! that the migration has ended, or why it can't begin. The request has a name, which is part of
//! the configuration. So a request that arrives twice leads to one migration, also if another
//! manager has taken over.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::Reader;
use pangea_core::ids::{NodeId, ShardId, Ticket, TxnId};
use pangea_core::partition::Slot;
use pangea_core::protocol::Cx;
use pangea_core::txn::{Abort, Outcome, SqlState};

use super::super::Mako;
use super::super::epochs::Decided;
use super::super::log::{decode_abort, encode_abort};
use super::super::messages::Message;
use super::super::state::State;
use super::super::versions::{Epoch, start_of};
use super::placement::{Migration, Moves, RequestId};
use super::{Config, Shards};
use crate::inputs::stopping;

/// The requests to move slots that a node knows of.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Those of its clients, by name.
    waiting: BTreeMap<u64, (Ticket, Moves)>,
    /// As the manager: the one that is to begin.
    next: Option<Migration>,
}

fn invalid(message: String) -> Abort {
    Abort::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

/// The error where there is nothing to move slots to.
pub(in super::super) fn one_shard() -> Abort {
    Abort::new(SqlState::FEATURE_NOT_SUPPORTED, "tables are not partitioned: there is one shard")
}

impl Shards {
    /// Why slots can't be moved.
    fn refusal(&self, request: RequestId, moves: &Moves) -> Option<Abort> {
        if moves.iter().next().is_none() {
            return Some(invalid("no slot is named".to_owned()));
        }
        let shards = self.partitions.shards();
        if !moves.is_sound(shards) {
            let message = format!("slots are below 1024, and shards below {shards}");
            return Some(invalid(message));
        }
        let is_other = |it: &Migration| it.request != request;
        let runs = self.config.slots.migration.as_ref().is_some_and(is_other);
        if runs || self.asked.next.as_ref().is_some_and(is_other) {
            let message = "slots are being moved already";
            let hint = "Try again when that has ended.";
            return Some(Abort::new(SqlState::OBJECT_IN_USE, message).with_hint(hint));
        }
        let placement = self.partitions.placement();
        let is_there = |(slot, shard): &(Slot, ShardId)| placement.owner(*slot) == *shard;
        let (slot, shard) = moves.iter().find(is_there)?;
        Some(invalid(format!("{slot} is on shard {} already", shard.0)))
    }
}

impl Mako {
    /// A client asks that slots are moved.
    pub(in super::super) fn on_move_request(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        moves: Vec<(Slot, ShardId)>,
    ) {
        let refuse = |cx: &mut Cx<'_, Self>, abort| cx.reply(ticket, Outcome::Aborted(abort));
        if self.state.stop.is_some() {
            return refuse(cx, stopping());
        }
        let State { node, replica, shards: Some(shards), .. } = &mut self.state else {
            return refuse(cx, one_shard());
        };
        if shards.partitions.shards() == 1 {
            return refuse(cx, one_shard());
        }
        let Some(moves) = Moves::new(moves) else {
            return refuse(cx, invalid("a slot is named twice".to_owned()));
        };
        let token = replica.next_token();
        let id = RequestId { node: *node, token };
        // What every manager would say needs no message.
        let is_wrong = moves.iter().next().is_none() || !moves.is_sound(shards.partitions.shards());
        if let Some(abort) = shards.refusal(id, &moves).filter(|_| is_wrong) {
            return refuse(cx, abort);
        }
        cx.mark("mako.move_asked");
        shards.asked.waiting.insert(token, (ticket, moves));
        self.ask_to_move(cx);
    }

    /// Tells the managers what clients of this node have asked for.
    pub(in super::super) fn ask_to_move(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(shards) = &self.state.shards else { return };
        let managers = &shards.groups[0];
        let is_one = |node: &&NodeId| {
            managers.member(**node).is_some_and(|member| managers.topology.votes(member))
        };
        let nodes: Vec<NodeId> = managers.nodes().iter().filter(is_one).copied().collect();
        let waiting: Vec<(u64, Moves)> = shards
            .asked
            .waiting
            .iter()
            .map(|(token, (_, moves))| (*token, moves.clone()))
            .collect();
        for (token, moves) in waiting {
            let mut bytes = Vec::new();
            moves.encode(&mut bytes);
            let moves = Bytes::from(bytes);
            for node in &nodes {
                match *node == self.state.node {
                    true => self.on_move(cx, *node, (token, &moves)),
                    false => cx.send(*node, Message::Move { token, moves: moves.clone() }),
                }
            }
        }
    }

    /// A node tells this manager that slots are to be moved.
    pub(in super::super) fn on_move(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (token, moves): (u64, &Bytes),
    ) {
        let manages = self.state.manages() && self.state.epochs.driver.leader().is_some();
        let is_manager = manages && self.state.epochs.driver.agreement().is_leader();
        let Ok(moves) = Moves::decode(&mut Reader::new(moves)) else {
            return cx.mark("mako.malformed_rows");
        };
        let Some(shards) = self.state.shards.as_mut().filter(|_| is_manager) else { return };
        let request = RequestId { node: from, token };
        if shards.config.slots.of_request(request).is_some() {
            return;
        }
        let Some(abort) = shards.refusal(request, &moves) else {
            shards.asked.next = Some(Migration { request, moves });
            return;
        };
        cx.mark("mako.move_refused");
        let epoch = shards.config.number.0;
        let abort = Bytes::from(encode_abort(&abort));
        match from == self.state.node {
            true => self.on_move_refused(cx, (token, epoch), &abort),
            false => cx.send(from, Message::MoveRefused { token, epoch, abort }),
        }
    }

    /// The manager does not move slots. One that knows less than this node may be mistaken.
    pub(in super::super) fn on_move_refused(
        &mut self,
        cx: &mut Cx<'_, Self>,
        (token, epoch): (u64, u64),
        abort: &Bytes,
    ) {
        let Ok(abort) = decode_abort(abort) else { return cx.mark("mako.malformed_rows") };
        let request = RequestId { node: self.state.node, token };
        let Some(shards) = &mut self.state.shards else { return };
        let is_known = shards.config.slots.of_request(request).is_some();
        if is_known || Epoch(epoch) < shards.config.number {
            return;
        }
        if let Some((ticket, _)) = shards.asked.waiting.remove(&token) {
            cx.reply(ticket, Outcome::Aborted(abort));
        }
    }

    /// Answers the clients whose slots have moved.
    pub(super) fn answer_moves(&mut self, cx: &mut Cx<'_, Self>) {
        let node = self.state.node;
        let Some(shards) = &mut self.state.shards else { return };
        let Config { slots, begun, .. } = &shards.config;
        let ended = |token: u64| {
            let epoch = slots.of_request(RequestId { node, token })??;
            (epoch <= *begun).then_some(epoch)
        };
        let waiting = shards.asked.waiting.keys();
        let all: Vec<_> = waiting.filter_map(|token| Some((*token, ended(*token)?))).collect();
        for (token, epoch) in all {
            if let Some((ticket, _)) = shards.asked.waiting.remove(&token) {
                // It has no name among transactions.
                let (txn, version) = (TxnId::new(node, 0), start_of(epoch));
                cx.reply(ticket, Outcome::Committed { txn, version, result: Vec::new() });
            }
        }
    }

    /// A node that stops waits for no migration.
    pub(in super::super) fn give_up_moves(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(shards) = &mut self.state.shards else { return };
        for (ticket, _) in std::mem::take(&mut shards.asked.waiting).into_values() {
            let detail = "The slots may be moved nevertheless.";
            cx.reply(ticket, Outcome::Aborted(stopping().with_detail(detail)));
        }
    }

    /// The manager's part: the last epoch has begun, and nothing has failed.
    pub(super) fn manage_moves(&mut self, cx: &mut Cx<'_, Self>) {
        let own = self.state.moved();
        let node = self.state.node;
        let shards = self.shards();
        let config = shards.config.clone();
        let number = config.number.0 + 1;
        let slots = match &config.slots.migration {
            Some(_) => {
                let has_moved = |shard: ShardId| match shards.leader_of(shard) {
                    Some(leader) if leader == node => own == config.number,
                    Some(leader) => shards.moved_by(leader) == config.number,
                    None => false,
                };
                if !shards.targets().iter().all(has_moved) {
                    return;
                }
                cx.mark("mako.migration_ends");
                config.slots.end(shards.initial.placement(), number)
            }
            None => {
                let Some(migration) = shards.asked.next.take() else { return };
                if shards.refusal(migration.request, &migration.moves).is_some() {
                    // Others have moved meanwhile. Its node asks again.
                    return;
                }
                cx.mark("mako.migration_begins");
                config.slots.begin(migration)
            }
        };
        let Config { leaders, since, begun, finals, .. } = config;
        let since = since.into_iter().map(|since| since.0).collect();
        let begun = begun.0;
        self.propose(Decided::Leaders { number, leaders, since, begun, finals, slots });
    }
}
