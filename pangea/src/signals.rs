//! How a command is told to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Ctrl-C and SIGTERM.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::failed("can't listen for signals", error));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for either.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
