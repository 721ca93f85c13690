//! Restart (Minerva §4, "Fault Tolerance"): from the checkpoint and the log, through the normal
//! phases.
//!
//! ```text
//!   checkpoint at epoch c --> batches and decisions of the log, in order
//!                         --> epochs c+1 .. of which the log has a record: the protocol's to apply
//!                         --> agreement catches up, missing batches are fetched, and so on
//! ```

use bytes::Bytes;
use pangea_core::ids::LogPosition;
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Durable};

use super::collection::{Meta, PROGRESS};
use super::rejoin::Rejoined;
use super::state::Cut;
use super::{Host, Inputs, Timer};
use crate::agreement::{self, Record};
use crate::digests::Digests;
use crate::replica::{INTACT, kind};
use crate::streams::FETCH;

/// A record of the protocol in the log: its position, kind and payload.
pub(crate) type ProtocolRecord = (LogPosition, u8, Bytes);

/// The state recovered from the log, between the two halves of a restart.
pub(crate) struct RecoveredLog<R> {
    /// The epoch records that the protocol has logged since the checkpoint, in order.
    pub epochs: Vec<(LogPosition, Bytes)>,
    agreement: Vec<Record<Cut<R>>>,
    /// The records of the rules that the protocol adds.
    own: Vec<ProtocolRecord>,
    /// Agreement records up to this position are in the checkpoint.
    agreement_from: LogPosition,
    was_ready: bool,
    is_replaced: bool,
}

impl<H: Host> Inputs<H> {
    /// The first half of a restart, which is the first input of every run: reads the checkpoint and
    /// the log. The protocol then applies the epochs in [`RecoveredLog::epochs`] and calls
    /// [`Self::start`].
    pub(crate) fn on_restart(
        &mut self,
        cx: &mut Cx<'_, H>,
        durable: Durable,
    ) -> RecoveredLog<H::Rules> {
        assert!(!self.cut.driver.is_started(), "a node restarts once in each run");
        let mut found = RecoveredLog {
            epochs: Vec::new(),
            agreement: Vec::new(),
            own: Vec::new(),
            agreement_from: LogPosition(0),
            was_ready: durable.checkpoint.is_some(),
            is_replaced: durable.is_replaced,
        };
        if let Some(checkpoint) = &durable.checkpoint {
            let meta =
                Meta::decode(&checkpoint.meta).expect("the driver has checked the checkpoint");
            found.agreement_from = meta.log_head;
            self.install_meta(&meta);
            found.agreement = meta.agreement;
            self.cut.applied = checkpoint.version;
            self.checkpoints.start_from(checkpoint.version);
            if cx.store.published() < checkpoint.version {
                cx.store.publish_alone(checkpoint.version);
            }
        }
        for (position, record) in durable.records {
            found.was_ready |= matches!(record[0], kind::AGREEMENT | kind::REJOINED);
            self.read_record(position, &record, &mut found);
        }
        self.streams.finish_restore(&self.replica);
        self.cut.confirm_applied();
        found
    }

    /// The second half of a restart: the logged decisions are applied, and this replica continues
    /// from there.
    pub(crate) fn start(&mut self, cx: &mut Cx<'_, H>, found: RecoveredLog<H::Rules>) {
        self.checkpoints.durable = self.cut.applied;
        self.start_agreement(found.agreement);
        self.cut.confirm_applied();
        H::on_started(self, cx, found.own);
        self.cut.last_proposal.proposer = self.replica.me;
        let incarnation = cx.rng.u64(..);
        self.cut.last_proposal.incarnation = incarnation;
        self.replica.begin_run(incarnation);
        self.cut.heard_at.fill(cx.now.at);
        Digests::begin(cx, &self.replica);
        self.begin_greetings(cx, found.was_ready, found.is_replaced);
        cx.set_timer(Timer::Tick.into(), agreement::TICK);
        cx.set_timer(Timer::Epoch.into(), self.settings.epoch);
        cx.set_timer(Timer::Progress.into(), PROGRESS);
        cx.set_timer(Timer::Fetch.into(), FETCH);
    }

    /// Restores the contents of a checkpoint in addition to the tables.
    pub(crate) fn install_meta(&mut self, meta: &Meta<H::Rules>) {
        self.cut.heads.clone_from(&meta.heads);
        mutate!(MembersForgotten: self.cut.is_member.clone_from(&meta.is_member) => ());
        self.presence.log_identities.clone_from(&meta.log_identities);
        let sequences = &meta.sequences;
        let sequences = mutate!(SequencesForgotten: sequences.clone() => vec![0; sequences.len()]);
        self.streams.skip_to(&meta.heads, &sequences);
        if let Some(target) = &meta.rejoin {
            self.aim_at(target.clone());
        }
        self.streams.next_sequence = self.streams.next_sequence.max(meta.next_sequence);
    }

    fn read_record(
        &mut self,
        position: LogPosition,
        record: &Bytes,
        found: &mut RecoveredLog<H::Rules>,
    ) {
        // The next restart has to read it again, even if this node is killed repeatedly before it
        // has written as much again.
        self.replica.owe(record.len());
        let (&kind, _) = record.split_first().expect(INTACT);
        let payload = record.slice(1..);
        let is_covered = position <= found.agreement_from;
        match kind {
            kind::BATCH => self.streams.restore(position, payload),
            kind::AGREEMENT if mutate!(BoundaryReplayed: is_covered => false) => {}
            kind::AGREEMENT => {
                let records: Vec<Record<_>> = postcard::from_bytes(&payload).expect(INTACT);
                found.agreement.extend(records);
            }
            kind::EPOCH => found.epochs.push((position, payload)),
            kind::SKIPPED => self.skips.restore(position, &payload),
            kind::EARLY | kind::GIVEN_UP => found.own.push((position, kind, payload)),
            // A checkpoint written after it contains its effects.
            kind::REJOINED if position <= found.agreement_from => {}
            kind::REJOINED => {
                let rejoined = Rejoined::decode(&payload).expect(INTACT);
                self.presence.log_identities = rejoined.log_identities;
                self.streams.next_sequence = rejoined.next_sequence;
                found.agreement.extend(rejoined.agreement);
                self.aim_at(rejoined.target);
            }
            kind::DISCARD => self.streams.restore_discard(&payload),
            kind::LOG_IDENTITY => self.presence.restore_log_identity(&payload),
            other => panic!("record {position} has the unknown kind {other}"),
        }
    }
}
