//! A node: its brain, its disk, and the effects that wait for the disk.

use std::fmt::Debug;

use xxhash_rust::xxh3::Xxh3;

use super::{Act, Event};

/// A message that leaves a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub to: u8,
    pub lane: u8,
    pub bytes: Vec<u8>,
}

/// The reply to a client that its transaction has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The number of the decision that contains it.
    pub decision: u64,
    /// The entry of a durable log that contains it.
    pub held: (u8, u64),
}

/// The answer to a client's strict read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// The number of the read, which its act had.
    pub read: u8,
    /// The number of the last decision that it sees.
    pub decision: u64,
}

/// The effects of a brain. `after` counts the log records that must be durable first.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub records: Vec<Vec<u8>>,
    pub sends: Vec<(usize, Sent)>,
    pub replies: Vec<(usize, Reply)>,
    pub fresh: Vec<Fresh>,
    /// The reason why it stopped itself.
    pub stop: Option<String>,
}

/// The checked properties of a node, and its possible actions.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// The facts that it considers settled, by kind and number, with their digests. Kind 0 is
    /// decisions.
    pub known: Vec<((u8, u64), u64)>,
    /// For each decision that it knows, the entries of durable logs that the decision requires.
    pub needs: Vec<(u64, Vec<(u8, u64)>)>,
    /// The entries that its disk has durably, with their digests.
    pub held: Vec<((u8, u64), u64)>,
    pub is_up: bool,
    pub is_leader: bool,
    pub has_unsynced: bool,
}

/// A replica.
pub(crate) trait Brain: Sized {
    /// Starts a replica from this log; `starts` is the number of earlier starts.
    fn start(me: u8, starts: u64, log: &[Vec<u8>]) -> (Self, Out);
    /// Handles an event other than a start or a power loss.
    fn step(&mut self, event: &Happened<'_>) -> Out;
    /// Adds its state to a digest that differs for different states. `synced` records are durable.
    fn digest(&self, synced: usize, hasher: &mut Xxh3);
    /// Adds the state that a start restores from a durable log to a digest.
    fn digest_log(log: &[Vec<u8>], hasher: &mut Xxh3);
    /// The entries in a durable log.
    fn held(log: &[Vec<u8>]) -> Vec<((u8, u64), u64)>;
    /// Fills in the known facts, the entries that they require, and whether it leads. The log is
    /// all that was written.
    fn look(&self, log: &[Vec<u8>], view: &mut View);
    /// Describes a message, for humans.
    fn describe(bytes: &[u8]) -> String;
}

/// An input of a brain.
#[derive(Debug)]
pub(crate) enum Happened<'a> {
    Durable(usize),
    Message { from: u8, bytes: &'a [u8] },
    PeerUp(u8),
    PeerDown(u8),
    Act(Act),
}

/// A node.
pub(crate) struct Node<B> {
    me: u8,
    starts: u64,
    brain: Option<B>,
    log: Vec<Vec<u8>>,
    synced: usize,
    sends: Vec<(usize, Sent)>,
    replies: Vec<(usize, Reply)>,
}

/// The effects of a step outside of its node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub sent: Vec<Sent>,
    pub replies: Vec<Reply>,
    pub fresh: Vec<Fresh>,
    pub stop: Option<String>,
}

impl<B: Brain> Node<B> {
    /// A node that does not run, with the contents of its disk.
    pub(crate) fn new(me: u8, starts: u64, log: Vec<Vec<u8>>) -> Self {
        let synced = log.len();
        Self { me, starts, brain: None, log, synced, sends: Vec::new(), replies: Vec::new() }
    }

    /// The state that survives a power loss, if the node is without power now.
    pub(crate) fn disk(&self) -> Option<(u64, Vec<Vec<u8>>)> {
        self.brain.is_none().then(|| (self.starts, self.log.clone()))
    }

    pub(crate) fn step(&mut self, event: Event, message: &[u8]) -> Done {
        let happened = match event {
            Event::Start => {
                assert!(self.brain.is_none(), "the node is not running");
                let (brain, out) = B::start(self.me, self.starts, &self.log);
                self.brain = Some(brain);
                self.starts += 1;
                return self.carry_out(out);
            }
            Event::Crash => {
                self.brain = None;
                self.log.truncate(self.synced);
                self.sends.clear();
                self.replies.clear();
                return Done::default();
            }
            Event::Sync => {
                self.synced = self.log.len();
                let mut done = self.release();
                let durable = Happened::Durable(self.synced);
                let out = self.brain_mut().step(&durable);
                let more = self.carry_out(out);
                done.sent.extend(more.sent);
                done.replies.extend(more.replies);
                return Done { stop: more.stop, fresh: more.fresh, ..done };
            }
            Event::Message { from, .. } => Happened::Message { from, bytes: message },
            Event::PeerUp(peer) => Happened::PeerUp(peer),
            Event::PeerDown(peer) => Happened::PeerDown(peer),
            Event::Act(act) => Happened::Act(act),
        };
        let out = self.brain_mut().step(&happened);
        self.carry_out(out)
    }

    fn brain_mut(&mut self) -> &mut B {
        self.brain.as_mut().expect("only a running node takes steps")
    }

    fn carry_out(&mut self, out: Out) -> Done {
        self.log.extend(out.records);
        self.sends.extend(out.sends);
        self.replies.extend(out.replies);
        Done { stop: out.stop, fresh: out.fresh, ..self.release() }
    }

    /// Takes the effects that wait for no more records. Of two messages to one peer the second may
    /// wait for fewer.
    fn release(&mut self) -> Done {
        let synced = self.synced;
        let sent = self.sends.extract_if(.., |(after, _)| *after <= synced);
        let sent = sent.map(|(_, sent)| sent).collect();
        let replies = self.replies.extract_if(.., |(after, _)| *after <= synced);
        let replies = replies.map(|(_, reply)| reply).collect();
        Done { sent, replies, ..Done::default() }
    }

    pub(crate) fn digest(&self) -> u128 {
        let mut hasher = Xxh3::new();
        hasher.update(&[self.me, u8::from(self.brain.is_some()), self.starts as u8]);
        B::digest_log(&self.log[..self.synced], &mut hasher);
        let rest = (&self.log[self.synced..], self.waiting());
        hasher.update(format!("{rest:?}").as_bytes());
        if let Some(brain) = &self.brain {
            brain.digest(self.synced, &mut hasher);
        }
        hasher.digest128()
    }

    fn waiting(&self) -> impl Debug + '_ {
        let synced = self.synced;
        let sends = self.sends.iter().map(move |(after, sent)| (after - synced, sent));
        let replies = self.replies.iter().map(move |(after, reply)| (after - synced, reply));
        (sends.collect::<Vec<_>>(), replies.collect::<Vec<_>>())
    }

    pub(crate) fn view(&self) -> View {
        let mut view = View {
            held: B::held(&self.log[..self.synced]),
            is_up: self.brain.is_some(),
            has_unsynced: self.brain.is_some() && self.synced < self.log.len(),
            ..View::default()
        };
        if let Some(brain) = &self.brain {
            brain.look(&self.log, &mut view);
        }
        view
    }
}
