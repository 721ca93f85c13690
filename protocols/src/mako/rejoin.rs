//! Lost disks: how a replica takes part again that has forgotten its promises
//! ([`crate::presence`]).
//!
//! The replica had told that it had a part of the log durably, and its disk does not have it any
//! more. Until it has the log of an epoch that began without its report, its reports and
//! acknowledgements do not count, and it does not lead. That epoch is later than each one of which
//! a peer knew when it answered: nobody can have counted a report of the earlier life for an epoch
//! that was not known to anybody. The manager begins such an epoch when it hears of the replica.
//!
//! - **Names.** Those that reached a peer are known there. Others may be in messages alone: many
//!   numbers are skipped.
//! - **Agreement.** See `agreement/durable_state.rs`.

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::{Cx, Rejoining};

use super::Mako;
use super::epochs::{Decided, Leadership, may_lead};
use super::shards::Config;
use super::state::State;
use super::versions::{EPOCH_MAX, Epoch};
use crate::agreement::{Agreement, DurableState, Record};
use crate::messages::NUMBER_MAX;
use crate::presence::{self, Memory, remembering_min};
use crate::replica::{INTACT, kind};
use crate::streams::number;

/// More transactions of the replica than these can't be in messages alone.
const UNKNOWN_MAX: u64 = 1 << 32;

/// The knowledge of a peer about a replica that lost its disk.
#[derive(Clone, Debug)]
pub struct Known {
    /// Whether the peer itself has its complete log.
    pub(super) is_whole: bool,
    /// The last epoch that the peer has heard of.
    pub(super) leadership: Leadership,
    /// With several shards: the configuration.
    pub(super) config: Config,
    /// The last version that readers see there.
    pub(super) published: SnapshotVersion,
    /// The last number of the replica that the peer knows.
    pub(super) last_name: u64,
    pub(super) agreement: DurableState<Decided>,
}

/// The log record of a replica that lost its disk and has heard from its peers.
#[derive(Debug)]
pub(super) struct Rejoined {
    pub(super) leadership: Leadership,
    pub(super) upto: SnapshotVersion,
    pub(super) reserved: u64,
    pub(super) log_identities: Vec<u64>,
    pub(super) agreement: Vec<Record<Decided>>,
}

/// Why a replica does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replaced {
    /// It counts when it has the log of a later epoch than this one.
    pub after: Epoch,
    /// The version that peers had published when it asked.
    pub upto: SnapshotVersion,
}

impl Leadership {
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.put_varint(self.number.0);
        out.put_u16(self.leader.0);
    }

    /// Decodes an epoch and its leader.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = Epoch(number(from, "epoch")?);
        let leader = NodeId(from.u16("epoch")?);
        match number.0 <= EPOCH_MAX {
            true => Ok(Self { number, leader }),
            false => Err(DecodeError::new("epoch")),
        }
    }
}

impl Replaced {
    pub(super) fn encode(this: Option<Self>, out: &mut Vec<u8>) {
        out.put_varint(this.map_or(0, |it| it.after.0 + 1));
        out.put_varint(this.map_or(0, |it| it.upto.0));
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        let after = number(from, "replacement")?.checked_sub(1).map(Epoch);
        let upto = SnapshotVersion(number(from, "replacement")?);
        Ok(after.map(|after| Self { after, upto }))
    }
}

impl State {
    /// Whether this replica counts, and may lead.
    pub(super) fn is_whole(&self) -> bool {
        mutate!(MakoRejoinedVotes: self.replaced.is_none() => true)
    }

    /// The status for operators while this replica does not count.
    pub(super) fn rejoining(&self) -> Option<Rejoining> {
        let needed = remembering_min(&self.replica);
        let status =
            |it: Replaced| Rejoining { needed, upto: Some(it.upto), ..Rejoining::default() };
        self.replaced.map(status).or_else(|| self.presence.asking_status(&self.replica))
    }

    /// This replica's part of agreement, with these records. One without a vote takes no part, and
    /// hears of decisions by `Progress`.
    pub(super) fn agreement(&self, records: Vec<Record<Decided>>) -> Agreement<Decided> {
        let (me, topology) = (self.replica.me, &self.replica.topology);
        match topology.votes(me) {
            true => Agreement::new(me, &topology.voters(), records, 0),
            false => Agreement::new(NodeId(0), &topology.alone(me), Vec::new(), 0),
        }
    }

    /// The last number of a node's transactions that this replica knows.
    fn last_name_of(&self, node: NodeId) -> u64 {
        let logged = self.log.after(self.log.base()).into_iter().flatten();
        let txns = logged.flat_map(|logged| &logged.entry.txns).map(|executed| executed.txn);
        let logged = txns.filter(|txn| txn.node() == node).map(|txn| txn.sequence()).max();
        self.outcomes.last_of(node).max(logged.unwrap_or(0))
    }

    pub(super) fn known_of(&self, node: NodeId, is_whole: bool) -> Known {
        Known {
            is_whole,
            leadership: self.epochs.current,
            config: self.shards.as_ref().map_or_else(Config::default, |it| it.config.clone()),
            published: self.commit.published,
            last_name: self.last_name_of(self.replica.node(node)),
            agreement: self.epochs.driver.agreement().durable_state(),
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

    fn take_rejoined(&mut self, Rejoined { leadership, upto, reserved, .. }: &Rejoined) {
        self.epochs.current = *leadership;
        self.origin.restore(*reserved);
        self.replaced = Some(Replaced { after: leadership.number, upto: *upto });
    }
}

impl Mako {
    /// Starts the exchange with the peers after the log was read. `was_ready` is whether this
    /// replica has taken part before; `is_replaced` is whether it may have done so before its disk
    /// was lost.
    pub(super) fn begin_greetings(
        &mut self,
        cx: &mut Cx<'_, Self>,
        was_ready: bool,
        is_replaced: bool,
    ) {
        let is_whole = self.state.replaced.is_none();
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
        let (mut leadership, mut upto) = (state.epochs.current, SnapshotVersion::ZERO);
        let mut last_name = 0;
        let mut agreement = Vec::new();
        for (peer, known) in all {
            upto = upto.max(known.published);
            if let Some(shards) = state.shards.as_mut().filter(|it| it.is_sound(&known.config)) {
                shards.config.learn(&known.config);
            }
            last_name = last_name.max(known.last_name);
            let is_sound = may_lead(&state.replica.topology, known.leadership.leader);
            if known.leadership.number > leadership.number && is_sound {
                leadership = known.leadership;
            }
            if state.replica.topology.votes(peer) {
                agreement.push(known.agreement);
            }
        }
        let reserved = last_name + UNKNOWN_MAX;
        let log_identities = state.presence.log_identities.clone();
        let agreement = DurableState::merge(agreement);
        let rejoined = Rejoined { leadership, upto, reserved, log_identities, agreement };
        let position = state.replica.persist(cx, &kind::REJOINED, rejoined.encode());
        state.take_rejoined(&rejoined);
        (state.epochs.record, state.origin.record) = (position, position);
        let agreement = state.agreement(rejoined.agreement);
        let driver = &mut state.epochs.driver;
        driver.note_record(position);
        driver.start(agreement);
        state.epochs.hear_all(cx.now.at);
        state.presence.end_asking(cx, position);
        for peer in state.replica.peers() {
            if self.state.replica.is_up[peer.index()] {
                presence::meet(self, cx, peer);
            }
        }
    }

    /// This replica counts again when it has the log of an epoch that began without its report.
    pub(super) fn end_rejoin(&mut self, cx: &mut Cx<'_, Self>) {
        let State { replaced, log, checkpoints, replica, commit, .. } = &mut self.state;
        let Some(Replaced { after, upto }) = *replaced else { return };
        // One without a vote has promised nothing, so no epoch begins for it.
        let may_count = log.epoch > after || !replica.votes() && commit.published >= upto;
        let is_here = log.durable().is_some() && checkpoints.installed.is_none();
        if may_count && is_here {
            *replaced = None;
            cx.mark("mako.rejoined");
            cx.rejoined();
            self.send_ack(cx);
            self.send_progress(cx);
        }
    }
}

impl Known {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u8(self.is_whole.into());
        self.leadership.encode(&mut out);
        self.config.encode(&mut out);
        out.put_varint(self.published.0);
        out.put_varint(self.last_name);
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
        let leadership = Leadership::decode(from)?;
        let config = Config::decode(from)?;
        let published = SnapshotVersion(number(from, WHAT)?);
        let last_name = number(from, WHAT)?;
        let is_sound = |decided: &Decided| decided.is_plausible();
        let agreement = DurableState::decode(from.bytes(WHAT)?, node_count, &is_sound);
        let agreement = agreement.map_err(|_| DecodeError::new(WHAT))?;
        match from.is_empty() && last_name < NUMBER_MAX - UNKNOWN_MAX {
            true => Ok(Self { is_whole, leadership, config, published, last_name, agreement }),
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
        self.leadership.encode(&mut out);
        out.put_varint(self.upto.0);
        out.put_varint(self.reserved);
        self.log_identities.iter().for_each(|log_identity| out.put_u64(*log_identity));
        let agreement = postcard::to_stdvec(&self.agreement).expect("records can be encoded");
        out.put_bytes(&agreement);
        out.into()
    }

    pub(super) fn decode(bytes: &[u8], node_count: usize) -> Result<Self, DecodeError> {
        const WHAT: &str = "rejoin";
        let from = &mut Reader::new(bytes);
        let leadership = Leadership::decode(from)?;
        let upto = SnapshotVersion(number(from, WHAT)?);
        let reserved = number(from, WHAT)?;
        let log_identities = (0..node_count).map(|_| from.u64(WHAT)).collect::<Result<_, _>>()?;
        let agreement =
            postcard::from_bytes(from.bytes(WHAT)?).map_err(|_| DecodeError::new(WHAT))?;
        Ok(Self { leadership, upto, reserved, log_identities, agreement })
    }
}
