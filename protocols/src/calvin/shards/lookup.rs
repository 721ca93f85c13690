//! Reconnaissance if rows are on other shards (§3.2.1).
//!
//! The program runs on this node's rows. The rows that it reads on other shards are requested from
//! their nodes in this region, and the program runs again, until it has all of them. A reply
//! contains as many rows as fit in a message, and the rest is requested again.

use std::collections::BTreeMap;

use pangea_core::cpu_stage::CpuStage;
use pangea_core::exec::ordered::concerned;
use pangea_core::exec::reconnaissance::{
    KnownRows, LookupKeys, LookupRows, Reconnaissance, reconnoiter,
};
use pangea_core::exec::{check_request, declared_footprint, is_bulk};
use pangea_core::ids::{NodeId, ShardId, Ticket};
use pangea_core::protocol::Cx;
use pangea_core::txn::{Abort, Footprint, Outcome, Program, SqlState};

use super::super::batch::UnsequencedRequest;
use super::super::{Calvin, Message};

/// The maximum number of times that a transaction is sequenced again after it left its footprint.
/// After that, the rows that it follows change faster than they can be looked up.
const TRIES_MAX: u32 = 16;

/// Reconnaissances that wait for rows.
#[derive(Default)]
pub(in super::super) struct Lookups {
    waiting: BTreeMap<u64, Lookup>,
}

struct Lookup {
    ticket: Ticket,
    program: Program,
    known: KnownRows,
    /// The requested rows that have not arrived.
    requested: BTreeMap<ShardId, LookupKeys>,
    /// How often the transaction has left its footprint.
    tries: u32,
}

fn left_too_often(times: u32) -> Abort {
    let message = format!(
        "could not serialize access: the footprint of the transaction changed {times} times \
         before it ran"
    );
    Abort::new(SqlState::SERIALIZATION_FAILURE, message)
        .with_hint("The transaction might succeed if retried.")
}

impl Lookups {
    /// The number of waiting reconnaissances.
    pub(in super::super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

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
        let (known, requested) = (KnownRows::default(), BTreeMap::new());
        let lookup = Lookup { ticket, program, known, requested, tries };
        self.run_reconnaissance(cx, lookup);
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
        let Program::Call { procedure, args } = program else { return None };
        let declared = declared_footprint(&self.state.registry, *procedure, args)?;
        let shards = self.state.shards.as_ref().expect("only called if tables are partitioned");
        let concerned = self.concerned(&declared);
        let is_wide = concerned.len() > 1
            && !is_bulk(&self.state.registry, *procedure, args)
            && declared.ranges.iter().any(|lock| {
                lock.mode.reads() && shards.partitions.shards_of(lock.table, &lock.range).is_some()
            });
        (!is_wide).then_some(declared)
    }

    fn run_reconnaissance(&mut self, cx: &mut Cx<'_, Self>, mut lookup: Lookup) {
        let shards = self.state.shards.as_mut().expect("only called if tables are partitioned");
        let at = self.state.inputs.cut.applied;
        cx.begin_work();
        let place = (&*shards.partitions, shards.own_shard);
        let registry = &self.state.registry;
        let result =
            reconnoiter(registry, &lookup.program, (&**cx.store, at), place, &lookup.known);
        cx.end_work(CpuStage::Probe, 1);
        match result {
            Reconnaissance::Footprint(footprint) => {
                let Lookup { ticket, program, tries, .. } = lookup;
                let footprint = match self.narrow_declaration(&program) {
                    // It may touch everything that it declares, whatever it touches now.
                    Some(Footprint { mut points, mut ranges }) => {
                        points.extend(footprint.points);
                        ranges.extend(footprint.ranges);
                        Footprint::new(points, ranges)
                    }
                    None => footprint,
                };
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
            Reconnaissance::TooMuch(abort) => {
                cx.mark("calvin.looked_too_far");
                cx.reply(lookup.ticket, Outcome::Aborted(abort));
            }
            Reconnaissance::Wants(missing) => {
                let token = self.state.inputs.replica.next_token();
                for (shard, keys) in &missing {
                    cx.mark("calvin.looked");
                    let node = shards.streams[shard].inbound.source;
                    cx.send(node, Message::LookupRequest { token, keys: keys.clone() });
                }
                lookup.requested = missing;
                shards.lookups.waiting.insert(token, lookup);
            }
        }
    }

    /// Repeats the requests to a shard whose replies may be lost.
    pub(super) fn repeat_lookups(&mut self, cx: &mut Cx<'_, Self>, shard: ShardId) {
        let shards = self.shards();
        let node = shards.streams[&shard].inbound.source;
        for (token, lookup) in &shards.lookups.waiting {
            if let Some(keys) = lookup.requested.get(&shard) {
                cx.send(node, Message::LookupRequest { token: *token, keys: keys.clone() });
            }
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
        let waiting = &mut self.shards().lookups.waiting;
        let Some(lookup) = waiting.get_mut(&token) else {
            return cx.mark("calvin.found_late");
        };
        let Some(keys) = lookup.requested.remove(&shard) else {
            return cx.mark("calvin.found_late");
        };
        lookup.known.learn(shard, &keys, rows);
        if lookup.requested.is_empty()
            && let Some(lookup) = waiting.remove(&token)
        {
            self.run_reconnaissance(cx, lookup);
        }
    }
}
