//! Drives a replica's part of agreement: persists its records, sends its messages, and hands over
//! its decisions.

use std::collections::VecDeque;

use bytes::Bytes;
use pangea_core::ids::{LogPosition, NodeId};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Protocol};

use super::{Agreement, Decision, Ready};
use crate::replica::{Replica, kind};
use crate::streams::lost_log;

/// A replica's part of agreement, from the restart input on.
pub(crate) struct Driver<E: Decision> {
    agreement: Option<Agreement<E>>,
    /// Decisions of the only replica of a cluster, with their log positions. They take effect once
    /// those are durable.
    unsynced: VecDeque<(LogPosition, u64, E)>,
    /// The position of the last record that messages depend on.
    record: LogPosition,
    /// The last leader that this replica knew of.
    last_leader: Option<NodeId>,
}

/// What agreement has decided since the last call.
pub(crate) struct Settled<E> {
    /// Entries up to this one are decided, and those that were not handed over never will be.
    pub skipped: Option<u64>,
    /// The newly decided entries with their numbers, in order.
    pub decided: Vec<(u64, E)>,
}

impl<E: Decision> Driver<E> {
    /// Before the restart input.
    pub(crate) fn new() -> Self {
        Self {
            agreement: None,
            unsynced: VecDeque::new(),
            record: LogPosition(0),
            last_leader: None,
        }
    }

    /// Begins with the state that was recovered from the log, or from the peers.
    pub(crate) fn start(&mut self, agreement: Agreement<E>) {
        self.agreement = Some(agreement);
    }

    /// Whether the state was recovered.
    pub(crate) fn is_started(&self) -> bool {
        self.agreement.is_some()
    }

    /// Messages depend on the record at this position, too.
    pub(crate) fn note_record(&mut self, position: LogPosition) {
        self.record = position;
    }

    /// The position of the last record that messages depend on.
    #[cfg(test)]
    pub(crate) fn last_record(&self) -> LogPosition {
        self.record
    }

    /// The leader, as far as this replica knows.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        self.agreement.as_ref().and_then(Agreement::leader)
    }

    pub(crate) fn agreement(&self) -> &Agreement<E> {
        self.agreement.as_ref().expect("a node starts with a restart")
    }

    pub(crate) fn agreement_mut(&mut self) -> &mut Agreement<E> {
        self.agreement.as_mut().expect("a node starts with a restart")
    }

    fn note_leader<P: Protocol>(&mut self, cx: &mut Cx<'_, P>) {
        let leader = self.leader();
        if leader.is_some() && leader != self.last_leader {
            if self.last_leader.is_some() {
                cx.mark("agreement.leader_changed");
            }
            self.last_leader = leader;
        }
    }

    /// Persists records, sends messages, and returns decisions. The log is durable up to `synced`.
    pub(crate) fn settle<P, M>(
        &mut self,
        cx: &mut Cx<'_, P>,
        replica: &mut Replica,
        synced: LogPosition,
        wrap: impl Fn(Bytes) -> M,
    ) -> Settled<E>
    where
        P: Protocol<Message: From<M>>,
    {
        self.note_leader(cx);
        let drained = self.agreement_mut().take_ready();
        let Ready { records, messages, skipped, decided, is_decided_here } = drained;
        if !records.is_empty() {
            let encoded = postcard::to_stdvec(&records).expect("records can be encoded");
            self.record = replica.persist(cx, &kind::AGREEMENT, encoded.into());
        }
        let record = self.record;
        // A message may also depend on records that were drained earlier.
        let after = mutate!(VoteBeforeFsync: record => LogPosition(0));
        for (to, bytes) in messages {
            replica.send_after(cx, after, to, wrap(bytes.into()));
        }
        let mut settled = Settled { skipped, decided: Vec::new() };
        match is_decided_here {
            true => self.unsynced.extend(decided.into_iter().map(|(n, entry)| (record, n, entry))),
            false => settled.decided = decided,
        }
        while let Some((_, n, entry)) = self.unsynced.pop_front_if(|(at, ..)| *at <= synced) {
            settled.decided.push((n, entry));
        }
        settled
    }
}

/// The message with which a node stops if a peer knows a promise that is missing from its log.
pub(crate) fn lost_promises(peer: NodeId) -> String {
    lost_log(&format!(
        "this node made promises to node {} in agreement that are missing from its log",
        peer.0
    ))
}
