//! The signals that end a command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// All signals that end a command.
pub struct Signals {
    /// Signals that may be intended for the current operation only.
    pub interrupts: Interrupts,
    /// Signals that are intended for the command.
    pub ends: Ends,
}

/// SIGINT, which a terminal sends for Ctrl-C.
pub struct Interrupts(Signal);

/// SIGTERM; SIGQUIT, which a terminal sends for Ctrl-\; and SIGHUP, sent when a terminal is closed.
pub struct Ends {
    terminate: Signal,
    quit: Signal,
    /// `None` if SIGHUP is ignored, as under `nohup`.
    hang_up: Option<Signal>,
}

impl Signals {
    /// Installs the handlers. From now on these signals do not end the process by default.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::failed("can't listen for signals", error));
        let hang_up = match is_hang_up_ignored() {
            true => None,
            false => Some(listen(SignalKind::hangup())?),
        };
        let interrupts = Interrupts(listen(SignalKind::interrupt())?);
        let (terminate, quit) = (listen(SignalKind::terminate())?, listen(SignalKind::quit())?);
        let ends = Ends { terminate, quit, hang_up };
        Ok(Self { interrupts, ends })
    }

    /// Waits for any of the signals.
    pub async fn received(&mut self) {
        tokio::select! {
            () = self.interrupts.received() => {}
            () = self.ends.received() => {}
        }
    }
}

impl Interrupts {
    /// Waits for the signal.
    pub async fn received(&mut self) {
        self.0.recv().await;
    }
}

impl Ends {
    /// Waits for any of the signals.
    pub async fn received(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.quit.recv() => {}
            _ = hang_up => {}
        }
    }
}

/// Returns whether SIGHUP is ignored, so that the process outlives its terminal. Only Linux reports
/// this.
fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (SignalKind::hangup().as_raw_value() - 1) & 1 == 1)
}
