//! The configuration: who leads each shard (§5.2). The voters of the first shard agree on it.
//!
//! ```text
//!   epoch 4: leaders 0, 4, 8    closed: shard 0 at 3.90, shard 2 at 3.77, shard 1 ..
//!   all shards are closed: epoch 4 begins, with the cut 3.90, 3.81, 3.77
//! ```
//!
//! An epoch begins with a leader for every shard, most of them those of the epoch before. Each
//! leader closes its shard's log (`closing.rs`), and reports the last version up to which the log
//! is closed. When all are decided, the epoch begins: the versions are the cut (`cut.rs`).
//!
//! The managers tell the configuration to all nodes with each report, and so do leaders. Whoever
//! hears of an epoch takes part in no earlier one.

use std::collections::BTreeMap;

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::ids::{NodeId, ShardId, SnapshotVersion};
use pangea_core::mutate;
use pangea_core::protocol::Cx;
use pangea_core::time::Timestamp;

use super::super::Mako;
use super::super::epochs::{Decided, Leadership, may_lead};
use super::super::messages::Message;
use super::super::options::Leaders;
use super::super::progress::PeerState;
use super::super::state::{Role, State};
use super::super::suspicion::View;
use super::super::versions::{EPOCH_MAX, Epoch, start_of};
use super::Shards;
use super::placement::Slots;
use crate::replica::kind;
use crate::streams::number;

/// The decisions about epochs, as far as a node knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Config {
    /// The last epoch.
    pub number: Epoch,
    /// The leader of each shard, by its number in the shard.
    pub leaders: Vec<NodeId>,
    /// The epoch since which each of them leads without interruption: it has lost nothing since.
    pub since: Vec<Epoch>,
    /// The last epoch that has begun.
    pub begun: Epoch,
    /// The cut with which it has begun: up to which version the log of each shard was closed.
    pub finals: Vec<SnapshotVersion>,
    /// Which slots have moved, and which are to move.
    pub slots: Slots,
    /// The shards whose logs are closed for the last epoch. Known to managers.
    closed: BTreeMap<ShardId, SnapshotVersion>,
}

impl Config {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.number.0);
        out.put_varint(self.leaders.len() as u64);
        self.leaders.iter().for_each(|leader| out.put_u16(leader.0));
        out.put_varint(self.since.len() as u64);
        self.since.iter().for_each(|since| out.put_varint(since.0));
        out.put_varint(self.begun.0);
        out.put_varint(self.finals.len() as u64);
        self.finals.iter().for_each(|version| out.put_varint(version.0));
        self.slots.encode(out);
    }

    /// Decodes a configuration.
    ///
    /// # Errors
    /// If the bytes are malformed.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "configuration";
        let epoch = |from: &mut Reader<'_>| match number(from, WHAT)? {
            number if number <= EPOCH_MAX => Ok(Epoch(number)),
            _ => Err(DecodeError::new(WHAT)),
        };
        let number_ = epoch(from)?;
        let leaders = (0..from.count(WHAT)?).map(|_| Ok(NodeId(from.u16(WHAT)?)));
        let leaders = leaders.collect::<Result<_, DecodeError>>()?;
        let since = (0..from.count(WHAT)?).map(|_| epoch(from));
        let since = since.collect::<Result<_, DecodeError>>()?;
        let begun = epoch(from)?;
        let finals = (0..from.count(WHAT)?).map(|_| Ok(SnapshotVersion(number(from, WHAT)?)));
        let finals = finals.collect::<Result<_, DecodeError>>()?;
        let (slots, closed) = (Slots::decode(from)?, BTreeMap::new());
        Ok(Self { number: number_, leaders, since, begun, finals, slots, closed })
    }

    /// Whether another node knows other leaders of the same epoch.
    fn contradicts(&self, other: &Self) -> bool {
        let is_same = (&self.leaders, &self.since) == (&other.leaders, &other.since);
        self.number == other.number && !is_same
    }

    /// Adds what another node knows. Returns whether that is news.
    pub fn learn(&mut self, other: &Self) -> bool {
        let mut is_news = false;
        if other.number > self.number {
            (self.number, self.closed) = (other.number, BTreeMap::new());
            self.leaders.clone_from(&other.leaders);
            self.since.clone_from(&other.since);
            self.slots.clone_from(&other.slots);
            is_news = true;
        }
        if other.begun > self.begun {
            self.begun = other.begun;
            self.finals.clone_from(&other.finals);
            is_news = true;
        }
        is_news
    }
}

/// What a node has told about the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Announced {
    /// The last epoch of which it knows.
    pub number: Epoch,
    /// The last one of which it knows that it has begun.
    pub begun: Epoch,
    /// Up to which version its shard's log is closed for the last epoch, once a majority has that.
    pub closed: Option<SnapshotVersion>,
    /// The last epoch whose migration has all its rows in its log.
    pub moved: Epoch,
}

impl Shards {
    /// Whether a node knows the last epoch that is known here.
    pub(super) fn is_of_epoch(&self, node: NodeId) -> bool {
        self.told.get(&node).is_some_and(|told| told.number == self.config.number)
    }

    /// Up to which version a leader has closed its shard's log for the last epoch.
    fn closed_by(&self, node: NodeId) -> Option<SnapshotVersion> {
        self.told.get(&node).filter(|_| self.is_of_epoch(node))?.closed
    }

    /// The last epoch whose migration has all its rows in a leader's log, as it has told.
    pub(super) fn moved_by(&self, node: NodeId) -> Epoch {
        self.told.get(&node).map_or(Epoch(0), |told| told.moved)
    }

    /// Whether the configuration is one of this cluster.
    pub(in super::super) fn is_sound(&self, config: &Config) -> bool {
        let shards = self.groups.len();
        let votes = |(leader, group): (&NodeId, &pangea_core::topology::Group)| {
            may_lead(&group.topology, *leader)
        };
        let are_leaders =
            config.leaders.len() == shards && config.leaders.iter().zip(&self.groups).all(votes);
        let is_since = |since: &Epoch| (Epoch(1)..=config.number).contains(since);
        let are_leaders =
            are_leaders && config.since.len() == shards && config.since.iter().all(is_since);
        let is_first = config.number == Epoch(0);
        (is_first || are_leaders)
            && config.begun <= config.number
            && (config.finals.is_empty() || config.finals.len() == shards)
            && config.slots.is_sound(shards as u16, config.number.0)
    }

    /// The leader of this shard, and the epoch since which it leads.
    fn own_leadership(&self) -> Leadership {
        let leader = self.config.leaders[usize::from(self.own.0)];
        Leadership { number: self.since(self.own), leader }
    }

    /// The epoch since which the leader of a shard leads; 0 if there is none.
    pub(in super::super) fn since(&self, shard: ShardId) -> Epoch {
        self.config.since.get(usize::from(shard.0)).copied().unwrap_or_default()
    }

    /// Whether the last epoch has not begun.
    pub(super) fn is_open(&self) -> bool {
        self.config.begun < self.config.number
    }

    /// Whether somebody has to be replaced if the last epoch takes too long to begin: a new leader
    /// that has not closed its log, or if all have, one that stays and has not.
    fn holds_up(&self, shard: ShardId) -> bool {
        let is_missing = |shard: &ShardId| !self.config.closed.contains_key(shard);
        let is_new = |shard: &ShardId| self.since(*shard) > self.config.begun;
        let are_new_ones_missing = self.ids().filter(is_missing).any(|shard| is_new(&shard));
        is_missing(&shard) && (is_new(&shard) || !are_new_ones_missing)
    }
}

impl State {
    /// Whether this node takes part in decisions about epochs.
    pub(in super::super) fn decides(&self) -> bool {
        match self.shards {
            Some(_) => self.manages(),
            None => self.replica.votes(),
        }
    }

    /// Whether this node manages the configuration.
    pub(super) fn manages(&self) -> bool {
        self.own_manager().is_some()
    }

    fn own_manager(&self) -> Option<&Shards> {
        let shards = self.shards.as_ref()?;
        (shards.own == ShardId(0) && self.replica.votes()).then_some(shards)
    }

    /// Up to which version this leader has closed its shard's log for the last epoch, once a
    /// majority has that. One that stays has lost nothing: its log is closed up to the first
    /// version of the epoch, when nothing of the epochs before hangs.
    fn final_version(&self) -> Option<SnapshotVersion> {
        let shards = self.shards.as_ref()?;
        let start = start_of(shards.config.number);
        if shards.since(shards.own) != self.epochs.current.number {
            return None;
        }
        match self.role {
            Role::Leading(_) => {
                let closed = self.log.closed_at(self.commit.committed);
                (closed >= start).then_some(start)
            }
            Role::Closing(_) if self.is_closed() => {
                let closed = self.log.closed();
                let closed = mutate!(MakoClosedToldTooHigh: closed => self.log.last());
                Some(closed.min(start))
            }
            Role::Closing(_) | Role::Following => None,
        }
    }

    /// What this manager knows of each shard.
    pub(in super::super) fn views(&self, now: Timestamp) -> Vec<View> {
        match &self.shards {
            Some(shards) => shards.ids().map(|shard| self.view_of(shard, now)).collect(),
            None => vec![self.view(now)],
        }
    }

    /// What this manager knows of a shard.
    fn view_of(&self, shard: ShardId, now: Timestamp) -> View {
        let shards = self.shards.as_ref().expect("it manages several shards");
        let (number, since) = (shards.config.number, shards.since(shard));
        let group = &shards.groups[usize::from(shard.0)];
        let leader = shards.config.leaders.get(usize::from(shard.0)).copied();
        let has_begun = !shards.is_open() && number > Epoch(0);
        let is_stuck = self.is_stuck(now) && shards.holds_up(shard);
        if shard == shards.own {
            return View { is_stuck, has_begun, ..self.view(now) };
        }
        let patience = self.patience();
        let other = |node: &NodeId| &shards.others[node];
        let nodes = group.nodes();
        View {
            topology: group.topology.clone(),
            first: match self.options.leaders {
                Leaders::First => 0,
                Leaders::Rotated => usize::from(shard.0),
            },
            number: since,
            counted: number,
            leader: leader.filter(|_| number > Epoch(0)),
            has_begun,
            is_stuck,
            is_outdone: self.is_outdone(shard, now),
            told: nodes.iter().map(|node| other(node).told.clone()).collect(),
            heard: nodes
                .iter()
                .map(|node| now.since(other(node).heard_at).us < patience.us)
                .collect(),
            up: nodes.iter().map(|node| other(node).is_up).collect(),
        }
    }
}

impl Mako {
    /// The manager's part, with several shards.
    pub(in super::super) fn manage_shards(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.state.manages() {
            return;
        }
        let now = cx.now.at;
        let config = self.shards().config.clone();
        let views = self.state.views(now);
        if views.iter().any(View::is_epoch_due) {
            // The leaders of a region often fail together, and are not noticed at once.
            let is_up = |view: &View| view.leader.is_some_and(|it| view.up[it.index()]);
            let next = |view: &View| match (view.is_epoch_due(), is_up(view)) {
                (true, _) => view.candidate(),
                (false, false) => view.candidate().or(view.leader),
                (false, true) => view.leader,
            };
            let Some(leaders) = views.iter().map(next).collect::<Option<Vec<NodeId>>>() else {
                return;
            };
            if config.number.0 < EPOCH_MAX {
                cx.mark("mako.epoch_proposed");
                if views.iter().any(|view| view.is_outdone) {
                    cx.mark("mako.outdone");
                }
                let (number, begun) = (config.number.0 + 1, config.begun.0);
                let since = |((view, leader), before): ((&View, &NodeId), Option<&Epoch>)| {
                    let stays = !view.is_epoch_due() && view.leader == Some(*leader);
                    before.filter(|_| stays).map_or(number, |before| before.0)
                };
                let before = config.since.iter().map(Some).chain(std::iter::repeat(None));
                let since = views.iter().zip(&leaders).zip(before).map(since).collect();
                let Config { finals, slots, .. } = config;
                self.propose(Decided::Leaders { number, leaders, since, begun, finals, slots });
            }
            return;
        }
        if config.begun == config.number {
            return self.manage_moves(cx);
        }
        for (shard, view) in (0..).map(ShardId).zip(views) {
            let Some(leader) = view.leader.filter(|_| !config.closed.contains_key(&shard)) else {
                continue;
            };
            let node = self.shards().groups[usize::from(shard.0)].node(leader);
            let closed = match node == self.state.node {
                true => self.state.final_version(),
                false => self.shards().closed_by(node),
            };
            if let Some(closed) = closed {
                cx.mark("mako.end_proposed");
                let number = config.number.0;
                self.propose(Decided::ShardClosed { number, shard: shard.0, closed });
            }
        }
    }

    /// A decision about several shards.
    pub(in super::super) fn take_divided(&mut self, cx: &mut Cx<'_, Self>, decision: Decided) {
        let Some(shards) = &mut self.state.shards else { return };
        match decision {
            Decided::Leaders { number, leaders, since, begun, finals, slots } => {
                let (number, begun) = (Epoch(number), Epoch(begun));
                let (since, closed) = (since.into_iter().map(Epoch).collect(), BTreeMap::new());
                let config = Config { number, leaders, since, begun, finals, slots, closed };
                self.learn(cx, &config);
            }
            Decided::ShardClosed { number, shard, closed } => {
                let Config { number: last, begun, .. } = shards.config;
                let is_sound = usize::from(shard) < shards.groups.len();
                if last != Epoch(number) || begun == last || !is_sound {
                    return;
                }
                shards.config.closed.entry(ShardId(shard)).or_insert(closed);
                if shards.config.closed.len() < shards.groups.len() {
                    return;
                }
                let finals = shards.config.closed.values().copied().collect();
                let config = Config { begun: last, finals, ..shards.config.clone() };
                self.learn(cx, &config);
            }
            Decided::Epoch { .. } | Decided::Closed { .. } => {}
        }
    }

    /// Adds what was decided, or another node knows, to the configuration.
    pub(in super::super) fn learn(&mut self, cx: &mut Cx<'_, Self>, config: &Config) {
        let State { shards, replica, epochs, .. } = &mut self.state;
        let Some(shards) = shards else { return };
        if !shards.is_sound(config) {
            return cx.mark("mako.malformed_epoch");
        }
        let (number, begun) = (shards.config.number, shards.config.begun);
        if !shards.config.learn(config) {
            return;
        }
        shards.place();
        let is_new = shards.config.number > number;
        let has_begun = shards.config.begun > begun;
        if is_new {
            shards.since = cx.now.at;
            epochs.failures += u32::from(begun < number);
        }
        if !shards.is_open() {
            epochs.failures = 0;
        }
        let mut record = Vec::new();
        shards.config.encode(&mut record);
        let position = replica.persist(cx, &kind::CONFIGURATION, record.into());
        let (leadership, begun) = (shards.own_leadership(), shards.config.begun);
        self.begin_epoch(cx, leadership);
        let epochs = &mut self.state.epochs;
        epochs.record = epochs.record.max(position);
        self.note_begun(begun);
        if has_begun {
            self.take_cut(cx);
        }
        if is_new {
            self.enter_epoch(cx);
        }
        self.note_placement();
        self.send_config(cx);
        self.ask_for_fates(cx);
        self.answer_moves(cx);
    }

    /// The message about the configuration.
    fn config_message(&self) -> Option<Message> {
        let shards = self.state.shards.as_ref()?;
        let mut config = Vec::new();
        shards.config.encode(&mut config);
        let closed = self.state.final_version();
        let closed = SnapshotVersion(closed.map_or(0, |closed| closed.0 + 1));
        let moved = self.state.moved().0;
        Some(Message::Config { config: config.into(), closed, moved })
    }

    /// Tells the nodes that this one reports to.
    pub(in super::super) fn send_config(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(message) = self.config_message() else { return };
        if !self.state.presence.is_ready {
            return;
        }
        let peers: Vec<NodeId> = self.state.replica.peers().collect();
        for peer in peers {
            self.state.replica.send(cx, peer, message.clone());
        }
        self.send_to_others(cx, &message);
    }

    /// Sends a report to nodes of other shards: the managers, and everybody if this node is one or
    /// leads.
    pub(in super::super) fn send_to_others(&self, cx: &mut Cx<'_, Self>, message: &Message) {
        let Some(shards) = &self.state.shards else { return };
        let is_wanted = self.state.manages() || !matches!(self.state.role, Role::Following);
        let managers = &shards.groups[0];
        for (node, other) in &shards.others {
            let manager = managers.member(*node);
            let manages = manager.is_some_and(|member| managers.topology.votes(member));
            if other.is_up && (is_wanted || manages) {
                cx.send(*node, message.clone());
            }
        }
    }

    /// Another node tells its configuration, and up to which version its log is closed.
    pub(in super::super) fn on_config(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        (config, closed, moved): (&Bytes, SnapshotVersion, Epoch),
    ) {
        let Ok(config) = Config::decode(&mut Reader::new(config)) else {
            return cx.mark("mako.malformed_epoch");
        };
        if !self.state.presence.is_ready {
            return;
        }
        let Some(shards) = &mut self.state.shards else { return };
        if shards.config.contradicts(&config) {
            return cx.mark("mako.two_leaders");
        }
        let closed = closed.0.checked_sub(1).map(SnapshotVersion);
        let told = Announced { number: config.number, begun: config.begun, closed, moved };
        let is_news = shards.told.insert(from, told) != Some(told);
        self.learn(cx, &config);
        if is_news && closed.is_some() {
            // It may know how transactions have ended.
            self.ask_for_fates(cx);
        }
    }

    /// A node of another shard reports its progress.
    pub(in super::super) fn on_progress_of_other(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        message: Message,
    ) {
        let Some(told) = PeerState::of(message) else {
            return cx.mark("mako.malformed_progress");
        };
        let Some(shards) = &mut self.state.shards else { return };
        if let Some(other) = shards.others.get_mut(&from) {
            other.told = told;
        }
    }

    /// Tells that this leader, which stays, has closed its log for the last epoch.
    pub(super) fn tell_closed(&mut self, cx: &mut Cx<'_, Self>) {
        let closed = self.state.final_version();
        let shards = self.shards();
        let number = shards.config.number;
        if shards.is_open() && closed.is_some() && shards.closed_at < number {
            shards.closed_at = number;
            self.send_config(cx);
        }
    }

    /// Handles a message of a node of another shard.
    pub(in super::super) fn handle_of_other_shard(
        &mut self,
        cx: &mut Cx<'_, Self>,
        from: NodeId,
        message: Message,
    ) {
        let Some(shards) = &mut self.state.shards else { return };
        let Some(other) = shards.others.get_mut(&from) else { return };
        other.heard_at = cx.now.at;
        if !self.state.presence.is_ready || self.state.presence.is_asking() {
            return;
        }
        match message {
            Message::Progress { .. } => self.on_progress_of_other(cx, from, message),
            message => self.handle_divided(cx, from, message),
        }
    }
}
