//! The shards of a transaction: from its declared footprint, or from a reconnaissance on the rows
//! of this region (Calvin §3.2.1).

use pangea_core::exec::check_request;
use pangea_core::exec::ordered::concerned;
use pangea_core::exec::reconnaissance::{LookupKeys, LookupRows};
use pangea_core::ids::{NodeId, ShardId, Ticket};
use pangea_core::partition::ShardSet;
use pangea_core::protocol::Cx;
use pangea_core::txn::{Certified, Footprint, Outcome, Program};

use super::super::Tiga;
use super::super::coordinator::Tries;
use super::super::messages::Message;
use crate::lookup::{self, Looked, Lookup, TRIES_MAX, left_too_often};

/// The client of a reconnaissance, and how often the transaction has left its footprint.
pub(in super::super) type Owner = (Ticket, u32);

/// A transaction that has left its footprint this often.
fn again(left: u32) -> Tries {
    Tries { left, late: 0 }
}

impl Tiga {
    /// Stamps a transaction, once its shards are known.
    pub(in super::super) fn look_up(
        &mut self,
        cx: &mut Cx<'_, Self>,
        ticket: Ticket,
        program: Program,
        tries: u32,
    ) {
        if tries > TRIES_MAX {
            cx.mark("tiga.left_too_often");
            return cx.reply(ticket, Outcome::Aborted(left_too_often(tries)));
        }
        if let Program::Certified(Certified { reads, writes, .. }) = &program {
            let shards = self.concerned(&Footprint::of_run(reads, writes));
            return self.stamp(cx, (ticket, again(tries)), program, (None, shards));
        }
        // A declaration that was left before is not complete.
        let declared = self.narrow_declaration(&program).filter(|_| tries == 0);
        if let Some(declared) = declared {
            let shards = self.concerned(&declared);
            return self.stamp(cx, (ticket, again(tries)), program, (None, shards));
        }
        cx.mark("tiga.looked_up");
        self.reconnoitre(cx, Lookup::new((ticket, tries), program));
    }

    /// The shards in a footprint of a transaction of this node.
    pub(in super::super) fn concerned(&self, footprint: &Footprint) -> ShardSet {
        concerned(&self.state.cluster.partitions, footprint, self.state.shard)
    }

    fn narrow_declaration(&self, program: &Program) -> Option<Footprint> {
        let place = (&self.state.cluster.partitions, self.state.shard);
        lookup::narrow_declaration(&self.state.registry, place, program)
    }

    fn reconnoitre(&mut self, cx: &mut Cx<'_, Self>, lookup: Lookup<Owner>) {
        let token = self.state.replica.next_token();
        let (here, registry) = (self.state.shard, self.state.registry.clone());
        let at = cx.store.published();
        let shards = self.shards();
        let place = (&*shards.partitions, here);
        match shards.lookups.run(cx, &registry, (place, at), token, lookup) {
            Looked::Found((ticket, tries), program, found) => {
                let declared = self.narrow_declaration(&program);
                let footprint = lookup::with_declared(declared, found);
                let shards = self.concerned(&footprint);
                let weight = crate::request::weight(&program, Some(&footprint), shards);
                match check_request(weight) {
                    Ok(()) => {
                        let tries = again(tries);
                        self.stamp(cx, (ticket, tries), program, (Some(footprint), shards));
                    }
                    Err(abort) => {
                        cx.mark("tiga.footprint_too_large");
                        cx.reply(ticket, Outcome::Aborted(abort));
                    }
                }
            }
            Looked::TooMuch((ticket, _), abort) => {
                cx.mark("tiga.looked_too_far");
                cx.reply(ticket, Outcome::Aborted(abort));
            }
            Looked::Wants(token, missing) => {
                for (shard, keys) in missing {
                    // Otherwise the request is sent with the next subscription.
                    if let Some(source) = shards.streams[&shard].source {
                        cx.send(source, Message::LookupRequest { token, keys });
                    }
                }
            }
        }
    }

    /// Repeats the requests to a shard whose replies may be lost.
    pub(super) fn repeat_lookups(&mut self, cx: &mut Cx<'_, Self>, shard: ShardId) {
        let shards = self.shards();
        let Some(source) = shards.streams[&shard].source else { return };
        for (token, keys) in shards.lookups.requested_of(shard) {
            cx.send(source, Message::LookupRequest { token, keys: keys.clone() });
        }
    }

    /// A node of another shard asks for rows.
    pub(in super::super) fn on_lookup_request(
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        token: u64,
        keys: &LookupKeys,
    ) {
        let rows = keys.look(cx.store, cx.store.published());
        cx.send(from, Message::LookupReply { token, rows });
    }

    /// Rows arrive for a reconnaissance.
    pub(in super::super) fn on_lookup_reply(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        token: u64,
        rows: LookupRows,
    ) {
        let shard = self.state.cluster.nodes[from.index()].shard;
        let Some(shards) = &mut self.state.shards else { return };
        match shards.lookups.on_reply(shard, token, rows) {
            Err(()) => cx.mark("tiga.found_late"),
            Ok(None) => {}
            Ok(Some(lookup)) => self.reconnoitre(cx, lookup),
        }
    }
}
