//! Reconnaissance if rows are on other shards (§3.2.1).
//!
//! The program runs on this node's rows. The rows that it reads on other shards are requested from
//! their nodes in this region, and the program runs again, until it has all of them. A reply
//! contains as many rows as fit in a message, and the rest is requested again.

use pangea_core::exec::check_request;
use pangea_core::exec::ordered::concerned;
use pangea_core::exec::reconnaissance::{LookupKeys, LookupRows};
use pangea_core::ids::{NodeId, ShardId, Ticket};
use pangea_core::protocol::Cx;
use pangea_core::txn::{Footprint, Outcome, Program};

use super::super::batch::UnsequencedRequest;
use super::super::{Calvin, Message};
use crate::lookup::{self, Looked, Lookup, TRIES_MAX, left_too_often};

/// The client of a reconnaissance, and how often the transaction has left its footprint.
type Owner = (Ticket, u32);

/// Reconnaissances that wait for rows.
pub(in super::super) type Lookups = crate::lookup::Lookups<Owner>;

impl Calvin {
    /// Sequences a transaction. If its declaration is not sufficient, a reconnaissance finds its
    /// footprint first.
    pub(in super::super) fn look_up(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        program: Program,
        tries: u32,
    ) {
        if tries > TRIES_MAX {
            cx.mark("calvin.left_too_often");
            return cx.reply(ticket, Outcome::Aborted(left_too_often(tries)));
        }
        // A declaration that was left before is not complete.
        if tries == 0
            && let Some(footprint) = self.narrow_declaration(&program)
        {
            let shards = self.concerned(&footprint);
            return self.sequence(cx, ticket, UnsequencedRequest::new(program, shards));
        }
        cx.mark("calvin.reconnoitred");
        self.state.counters.txns_reconnoitred += 1;
        self.run_reconnaissance(cx, Lookup::new((ticket, tries), program));
    }

    /// The shards in a footprint.
    pub(in super::super) fn concerned(
        &self,
        footprint: &Footprint,
    ) -> pangea_core::partition::ShardSet {
        let shards = self.state.shards.as_ref().expect("only called if tables are partitioned");
        concerned(&shards.partitions, footprint, shards.own_shard)
    }

    /// The footprint that a program declares, if it is narrow enough: otherwise other shards would
    /// have to send whole ranges of rows.
    fn narrow_declaration(&self, program: &Program) -> Option<Footprint> {
        let shards = self.state.shards.as_ref().expect("only called if tables are partitioned");
        let place = (&*shards.partitions, shards.own_shard);
        lookup::narrow_declaration(&self.state.registry, place, program)
    }

    fn run_reconnaissance(&mut self, cx: &mut Cx<'_, Self>, lookup: Lookup<Owner>) {
        let token = self.state.inputs.replica.next_token();
        let at = self.state.inputs.cut.applied;
        let shards = self.state.shards.as_mut().expect("only called if tables are partitioned");
        let place = (&*shards.partitions, shards.own_shard);
        let looked = shards.lookups.run(cx, &self.state.registry, (place, at), token, lookup);
        match looked {
            Looked::Found((ticket, tries), program, footprint) => {
                let declared = self.narrow_declaration(&program);
                let footprint = lookup::with_declared(declared, footprint);
                let shards = self.concerned(&footprint);
                let footprint = Some(footprint);
                let request = UnsequencedRequest { program, footprint, shards, tries };
                // The request is sent to all of these shards with its footprint, in one batch,
                // whatever the size.
                match check_request(request.weight()) {
                    Ok(()) => self.sequence(cx, ticket, request),
                    Err(abort) => {
                        cx.mark("calvin.footprint_too_large");
                        cx.reply(ticket, Outcome::Aborted(abort));
                    }
                }
            }
            Looked::TooMuch((ticket, _), abort) => {
                cx.mark("calvin.looked_too_far");
                cx.reply(ticket, Outcome::Aborted(abort));
            }
            Looked::Wants(token, missing) => {
                for (shard, keys) in missing {
                    cx.mark("calvin.looked");
                    let node = shards.streams[&shard].inbound.source;
                    cx.send(node, Message::LookupRequest { token, keys });
                }
            }
        }
    }

    /// Repeats the requests to a shard whose replies may be lost.
    pub(super) fn repeat_lookups(&mut self, cx: &mut Cx<'_, Self>, shard: ShardId) {
        let shards = self.shards();
        let node = shards.streams[&shard].inbound.source;
        for (token, keys) in shards.lookups.requested_of(shard) {
            cx.send(node, Message::LookupRequest { token, keys: keys.clone() });
        }
    }

    /// Handles the row request of another node of the region.
    pub(in super::super) fn on_lookup_request(
        &self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        token: u64,
        keys: &LookupKeys,
    ) {
        let rows = keys.look(cx.store, self.state.inputs.cut.applied);
        cx.send(from, Message::LookupReply { token, rows });
    }

    /// Handles the rows requested by a reconnaissance.
    pub(in super::super) fn on_lookup_reply(
        &mut self,
        cx: &mut Cx<'_, Self>,
        shard: ShardId,
        token: u64,
        rows: LookupRows,
    ) {
        match self.shards().lookups.on_reply(shard, token, rows) {
            Err(()) => cx.mark("calvin.found_late"),
            Ok(None) => {}
            Ok(Some(lookup)) => self.run_reconnaissance(cx, lookup),
        }
    }
}
