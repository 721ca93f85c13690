//! Lost disks: how a replica takes part again that does not know what it had promised
//! ([`crate::presence`]).
//!
//! ```text
//!   replaced                     peers                        view manager
//!     | Rejoin ----------------> |
//!     | <------- view 7, numbers |   all have answered
//!     | takes the log of view 7, and does not count
//!     |                          | ---- not whole since view 7 --> |  begins view 8
//!     | <-------------------- the log of view 8
//!     | has it on its disk: counts again
//! ```
//!
//! The replica had told that it had a part of the log durably, and that transactions had arrived in
//! time. Both may have been counted, and its disk does not have them any more. Until it has the log
//! of a view that began without its report, it sends no report and no fast replies, does not tell
//! how far its log is durable, and answers no strict reads of others. Each such view contains all
//! that was committed before, because f + 1 others have reported. It is later than each view of
//! which a peer knew when it answered: nobody can have counted a report of the earlier life for a
//! view that was not known to anybody.
//!
//! - **Views.** The replica had promised to follow views that were decided, so that enough peers
//!   know them. It does not lead one of them again, because it may have begun it before.
//! - **Numbers and stamps.** Those that reached a peer are known there. Others are free. With
//!   several shards, nodes of other shards may know more: many numbers are skipped. Their stamps
//!   are below the begin of the view with which the replica counts again, or never will be in a
//!   log.
//! - **Agreement.** See `agreement/durable_state.rs`.
//!
//! A replica without a vote had told nothing that was counted, so no view begins for it. It takes
//! the log of the present view, and continues when it has published what its peers had.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Rejoining};

use super::Tiga;
use super::ceiling::Limit;
use super::cells::end_of;
use super::decided::{Decided, View};
use super::log::{Position, ViewNumber};
use super::stamp::{Issuer, Role, Stamp};
use super::state::State;
use crate::agreement::{Agreement, DurableState, Record};
use crate::presence::{self, Memory, remembering_min};
use crate::replica::{INTACT, kind};
use crate::streams::number;

/// With several shards, more transactions of the replica than these can't be on other shards alone.
/// Each peer knows how many were over when it last heard the replica.
const UNKNOWN_MAX: u64 = 1 << 32;

/// The knowledge of a peer about a replica that lost its disk.
#[derive(Clone, Debug)]
pub struct Known {
    /// Whether the peer itself has its complete log.
    pub(super) is_whole: bool,
    /// The last view that the peer has heard of.
    pub(super) view: View,
    /// The last version that readers see there.
    pub(super) published: SnapshotVersion,
    /// The last stamp and number of the replica that the peer knows.
    pub(super) issued: Limit,
    pub(super) agreement: DurableState<Decided>,
}

/// The log record of a replica that lost its disk and has heard from its peers.
#[derive(Debug)]
pub(super) struct Rejoined {
    pub(super) view: View,
    pub(super) upto: SnapshotVersion,
    pub(super) issued: Limit,
    pub(super) log_identities: Vec<u64>,
    pub(super) agreement: Vec<Record<Decided>>,
}

/// Why a replica does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replaced {
    /// It counts when it has the log of a later view than this one.
    pub after: ViewNumber,
    /// The version that peers had published when it asked.
    pub upto: SnapshotVersion,
}

impl Replaced {
    pub(super) fn encode(this: Option<Self>, out: &mut Vec<u8>) {
        let Self { after, upto } = this.unwrap_or(Self::NOT);
        out.put_varint(u64::from(this.is_some()));
        out.put_varint(after.0);
        out.put_varint(upto.0);
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        const WHAT: &str = "replacement";
        let is_some = number(from, WHAT)?;
        let after = ViewNumber(number(from, WHAT)?);
        let upto = SnapshotVersion(number(from, WHAT)?);
        Ok((is_some == 1).then_some(Self { after, upto }))
    }

    const NOT: Self = Self { after: ViewNumber(0), upto: SnapshotVersion::ZERO };
}

impl State {
    /// Whether this replica counts in views and commits.
    pub(super) fn is_whole(&self) -> bool {
        mutate!(RejoinedVotes: self.replaced.is_none() => true)
    }

    /// Whether this replica may begin its view, as the leader: it did not begin it before a crash.
    pub(super) fn may_lead(&self) -> bool {
        !self.is_normal() && self.may_begin()
    }

    /// Whether this replica has not begun its view before it lost its disk.
    pub(super) fn may_begin(&self) -> bool {
        let may_begin = self.replaced.is_none_or(|it| it.after < self.views.view.number);
        mutate!(RejoinedLeads: may_begin => true)
    }

    /// The status for operators while this replica does not count.
    pub(super) fn rejoining(&self) -> Option<Rejoining> {
        let needed = remembering_min(&self.replica);
        let status =
            |it: Replaced| Rejoining { needed, upto: Some(it.upto), ..Rejoining::default() };
        self.replaced.map(status).or_else(|| self.presence.asking_status(&self.replica))
    }

    /// This replica's part of agreement, with these records. One without a vote takes no part, and
    /// hears of decisions by `View`.
    pub(super) fn agreement(&self, records: Vec<Record<Decided>>) -> Agreement<Decided> {
        let (me, topology) = (self.replica.me, &self.replica.topology);
        match topology.votes(me) {
            true => Agreement::new(me, &topology.voters(), records, 0),
            false => Agreement::new(NodeId(0), &topology.alone(me), Vec::new(), 0),
        }
    }

    /// The number of reports with which a view begins: of any majority, one has reported.
    pub(super) fn reports_needed(&self) -> usize {
        remembering_min(&self.replica)
    }

    /// The last stamp and number of a replica that this one knows. Of cells that are forgotten only
    /// the version is known.
    fn issued_by(&self, peer: NodeId) -> Limit {
        let node = self.replica.node(peer);
        let own = self.transactions.of(node);
        let sequence = own.clone().next_back().map_or(0, |it| it.request.txn.sequence());
        let cells = (self.log.base().0 + 1..=self.log.last().0).map(Position);
        let logged = cells.flat_map(|position| &self.log.cell(position).txns);
        let stamps = own.map(|it| it.stamp).chain(logged.map(|(_, stamp)| *stamp));
        let last = stamps.filter(|stamp| stamp.node() == node).max().unwrap_or_default();
        let us = last.us().max(end_of(self.log.version_at(self.log.base())));
        Limit { us, sequence: sequence.max(self.done.last_of(node)) }
    }

    pub(super) fn known_of(&self, node: NodeId, is_whole: bool) -> Known {
        Known {
            is_whole,
            view: self.views.view.clone(),
            published: self.log.version_at(self.commit.published),
            issued: self.issued_by(node),
            agreement: self.views.driver.agreement().durable_state(),
        }
    }

    /// Restores the knowledge of the peers from the log, after a restart. Returns the records of
    /// agreement.
    pub(super) fn restore_rejoined(&mut self, payload: &[u8]) -> Vec<Record<Decided>> {
        let rejoined = Rejoined::decode(payload, self.replica.topology.node_count());
        let rejoined = rejoined.expect(INTACT);
        self.presence.log_identities.clone_from(&rejoined.log_identities);
        self.take_rejoined(&rejoined);
        rejoined.agreement
    }

    fn take_rejoined(&mut self, Rejoined { view, upto, issued, .. }: &Rejoined) {
        self.views.view = view.clone();
        self.ceiling.restore(*issued);
        let replaced = Some(Replaced { after: view.number, upto: *upto });
        self.replaced = replaced;
    }

    /// This replica issues nothing at or below its ceiling.
    pub(super) fn issue_above_ceiling(&mut self) {
        let ceiling = Stamp::last_of(self.ceiling.durable.us);
        self.coordinator.issuer = Issuer::new(self.node, Role::Coordinator, ceiling);
        self.coordinator.next_sequence = self.ceiling.durable.sequence + 1;
        self.raised = ceiling;
    }
}

impl Tiga {
    /// Starts the exchange with the peers after the log was read. `was_ready` is whether this
    /// replica has taken part before; `is_replaced` is whether it may have done so before its disk
    /// was lost.
    pub(super) fn begin_greetings(
        &mut self,
        cx: &mut Cx<'_, Self>,
        was_ready: bool,
        is_replaced: bool,
    ) {
        let is_whole = self.state.is_whole();
        let State { presence, replica, .. } = &mut self.state;
        presence.begin(replica, was_ready);
        if is_replaced && !was_ready {
            return presence.start_rejoin(cx, replica);
        }
        if is_replaced && is_whole {
            // An earlier run completed the rejoin but stopped before the driver had recorded it.
            cx.rejoined();
        }
        presence.draw_log_identity(cx, replica);
        if replica.topology.voter_count() == 1 && replica.votes() {
            presence.become_ready(cx);
        }
    }

    /// The peers have told their knowledge of this replica.
    pub(super) fn continue_from(&mut self, cx: &mut Cx<'_, Self>, all: Vec<(NodeId, Known)>) {
        let state = &mut self.state;
        let (mut view, mut upto) = (state.views.view.clone(), SnapshotVersion::ZERO);
        let mut issued = Limit::default();
        let mut agreement = Vec::new();
        for (peer, known) in all {
            upto = upto.max(known.published);
            issued.us = issued.us.max(known.issued.us);
            issued.sequence = issued.sequence.max(known.issued.sequence);
            if known.view.number > view.number && known.view.is_sound(&state.cluster) {
                view = known.view;
            }
            if state.replica.topology.votes(peer) {
                agreement.push(known.agreement);
            }
        }
        if state.is_divided() {
            issued.sequence += mutate!(NumbersOfShardsReused: UNKNOWN_MAX => 0);
        }
        let log_identities = state.presence.log_identities.clone();
        let agreement = DurableState::merge(agreement);
        let rejoined = Rejoined { view, upto, issued, log_identities, agreement };
        let position = state.replica.persist(cx, &kind::REJOINED, rejoined.encode());
        state.take_rejoined(&rejoined);
        state.issue_above_ceiling();
        state.views.record = position;
        let agreement = state.agreement(rejoined.agreement);
        let driver = &mut state.views.driver;
        driver.note_record(position);
        driver.start(agreement);
        state.views.hear_all(cx.now.at);
        state.presence.end_asking(cx, position);
        for peer in state.replica.peers() {
            if self.state.replica.is_up[peer.index()] {
                presence::meet(self, cx, peer);
            }
        }
    }

    /// This replica counts again when it has the log of a view that began without its report. If it
    /// has no vote, it continues when readers see what they may have seen before.
    pub(super) fn end_rejoin(&mut self, cx: &mut Cx<'_, Self>) {
        let state = &mut self.state;
        let Some(Replaced { after, upto }) = state.replaced else { return };
        let has_view = match state.replica.votes() {
            true => state.log.view > after,
            false => state.log.view > ViewNumber(0) && cx.store.published() >= upto,
        };
        let has_view = has_view && state.log.is_view_durable();
        if mutate!(RejoinedVotes: has_view => true) {
            state.replaced = None;
            cx.mark("tiga.rejoined");
            cx.rejoined();
            self.tell_synced(cx);
            self.send_progress(cx);
        }
    }
}

impl Known {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u8(self.is_whole.into());
        self.view.encode(&mut out);
        out.put_varint(self.published.0);
        out.put_bytes(&self.issued.encode());
        out.put_bytes(&self.agreement.encode());
        out.into()
    }
}

impl Memory for Known {
    fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "recollection";
        let from = &mut Reader::new(bytes);
        let is_whole = match from.u8(WHAT)? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::new(WHAT)),
        };
        let view = View::decode(from)?;
        let published = SnapshotVersion(number(from, WHAT)?);
        let issued = Limit::decode(from.bytes(WHAT)?)?;
        let is_sound = |decided: &Decided| decided.is_plausible();
        let agreement = DurableState::decode(from.bytes(WHAT)?, node_count, &is_sound);
        let agreement = agreement.map_err(|_| DecodeError::new(WHAT))?;
        match from.is_empty() && issued.is_sound() {
            true => Ok(Self { is_whole, view, published, issued, agreement }),
            false => Err(DecodeError::new(WHAT)),
        }
    }

    fn is_whole(&self) -> bool {
        self.is_whole
    }
}

impl Rejoined {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.view.encode(&mut out);
        out.put_varint(self.upto.0);
        out.put_bytes(&self.issued.encode());
        self.log_identities.iter().for_each(|log_identity| out.put_u64(*log_identity));
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        out.into()
    }

    pub(super) fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "rejoin";
        let from = &mut Reader::new(bytes);
        let view = View::decode(from)?;
        let upto = SnapshotVersion(number(from, WHAT)?);
        let issued = Limit::decode(from.bytes(WHAT)?)?;
        let log_identities = (0..node_count).map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        Ok(Self { view, upto, issued, log_identities, agreement })
    }
}
