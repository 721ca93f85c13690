//! A stop in order: the protocol finishes what is in flight and takes a checkpoint
//! ([`Input::Stop`]), so that a later version of the program can continue from it.

use pangea_core::ids::SnapshotVersion;
use pangea_core::protocol::{Input, Protocol};
use pangea_core::time::Timestamp;

use super::{Closed, Driver};

/// The way in which a node has ended that was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// With its last checkpoint, or none was wanted or needed.
    InOrder,
    /// Without its last checkpoint, for this reason. Nothing is lost, but a program with other
    /// procedures may not be able to continue.
    WithoutCheckpoint(&'static str),
}

/// The newest checkpoint, and the state of a stop in order.
#[derive(Debug)]
pub(super) struct Stopping {
    /// The time at which the stop ends, whatever is left; `None` before one is requested.
    pub at: Option<Timestamp>,
    /// The newest checkpoint.
    newest: Option<SnapshotVersion>,
    /// Whether a checkpoint was written since the stop was requested.
    has_written: bool,
    /// Whether the last checkpoint could not be written.
    has_failed: bool,
}

impl Stopping {
    /// The state of a node that has started from this checkpoint, or from none.
    pub fn new(newest: Option<SnapshotVersion>) -> Self {
        Self { at: None, newest, has_written: false, has_failed: false }
    }

    pub fn on_checkpointed(&mut self, version: SnapshotVersion) {
        self.newest = self.newest.max(Some(version));
        (self.has_written, self.has_failed) = (self.at.is_some(), false);
    }

    pub fn on_checkpoint_failed(&mut self) {
        self.has_failed = true;
    }
}

impl<P: Protocol> Driver<P> {
    /// Handles the request to stop in order. Requests are refused from now on.
    pub(super) fn begin_stop(&mut self) {
        self.catch_up();
        let now = self.clock.now().at;
        let has_time = self.wants_last_checkpoint();
        self.stopping.at = Some(if has_time { now + self.stop_within } else { now });
        if has_time {
            tracing::info!("stopping: writing a checkpoint");
            self.step(Input::Stop);
        }
    }

    /// Ends the node if it was asked to stop and has finished, or takes too long.
    pub(super) fn end_stop(&mut self) {
        let Some(at) = self.stopping.at.filter(|_| !self.is_stopped) else { return };
        let is_over = self.protocol.may_stop();
        if !is_over && self.clock.now().at < at {
            return;
        }
        let stopped = self.stopped(is_over);
        if let Stopped::WithoutCheckpoint(why) = stopped {
            tracing::warn!(
                "the node ends without its last checkpoint, because {why}. Nothing is lost, but a \
                 program with other procedures may not be able to continue"
            );
        }
        if stopped == Stopped::InOrder && self.protocol.ends_alone() {
            tracing::warn!(
                "the node ends without its release, because too few other nodes are connected. If \
                 they were not stopped in order, a program with other procedures may refuse the \
                 last {}s until this program has run them",
                P::WORDS.epoch
            );
        }
        self.has_last_words = true;
        self.inbox.close(Closed::Requested(stopped));
    }

    /// A node that stores nothing has nothing to finish.
    fn wants_last_checkpoint(&self) -> bool {
        self.stop_within.us > 0 && self.checkpointer.is_some()
    }

    /// Whether the last checkpoint is there. `is_over` tells whether the protocol has finished.
    fn stopped(&self, is_over: bool) -> Stopped {
        if !self.wants_last_checkpoint() {
            return Stopped::InOrder;
        }
        let confirmed = self.protocol.confirmed().unwrap_or_else(|| self.store.published());
        let is_covered = self.stopping.newest.unwrap_or_default() >= confirmed;
        match is_over {
            false => Stopped::WithoutCheckpoint("it took longer than stop_s"),
            true if self.stopping.has_failed => {
                Stopped::WithoutCheckpoint("it could not be written")
            }
            // If the others go on, there is always a later epoch.
            true if self.stopping.has_written || is_covered => Stopped::InOrder,
            true => Stopped::WithoutCheckpoint("the node has not joined the others yet"),
        }
    }

    /// The last line of the log of a node that was stopped in order.
    pub(super) fn farewell(&self) -> Option<String> {
        if self.inbox.closed() != Some(Closed::Requested(Stopped::InOrder)) {
            return None;
        }
        let epoch = P::WORDS.epoch;
        Some(match self.stopping.newest {
            _ if !self.wants_last_checkpoint() => {
                "the node has stopped, without a checkpoint: stop_s is 0, or it stores nothing"
                    .to_owned()
            }
            Some(SnapshotVersion(number)) => {
                format!("the checkpoint of {epoch} {number} is written, and the node has stopped")
            }
            None => format!("the node has stopped: it had no {epoch} to write a checkpoint of"),
        })
    }
}
