//! A stop in order: the protocol finishes what is in flight and takes a checkpoint
//! ([`Input::Stop`]), so that a later version of the program can continue from it.

use pangea_core::protocol::{Input, Protocol};

use super::{Closed, Driver};

impl<P: Protocol> Driver<P> {
    /// Handles the request to stop in order. Requests are refused from now on.
    pub(super) fn begin_stop(&mut self) {
        self.catch_up();
        let now = self.clock.now().at;
        // A node that stores nothing has nothing to finish.
        let has_time = self.stop_within.us > 0 && self.checkpointer.is_some();
        self.stop_at = Some(if has_time { now + self.stop_within } else { now });
        if has_time {
            tracing::info!("stopping: writing a checkpoint");
            self.step(Input::Stop);
        }
    }

    /// Ends the node if it was asked to stop and has finished, or takes too long.
    pub(super) fn end_stop(&mut self) {
        let Some(at) = self.stop_at else { return };
        let is_late = self.clock.now().at >= at;
        let is_over = self.is_stopped || self.protocol.may_stop();
        if is_late && !is_over && self.stop_within.us > 0 && self.checkpointer.is_some() {
            tracing::warn!(
                "the node ends without its last checkpoint, because that took longer than stop_s. \
                 Nothing is lost, but a program with other procedures may not be able to continue"
            );
        }
        if is_late || is_over {
            let reason = "the node was stopped".to_owned();
            self.inbox.close(Closed { reason, is_failure: false });
        }
    }
}
