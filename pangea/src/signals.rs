//! How a command is told to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Everything that tells a command to end.
pub struct Signals {
    /// What may be meant for what runs at the moment.
    pub interrupts: Interrupts,
    /// What is meant for the command.
    pub ends: Ends,
}

/// SIGINT, which a terminal sends for Ctrl-C.
pub struct Interrupts(Signal);

/// SIGTERM; SIGQUIT, for Ctrl-\ in a terminal; and SIGHUP, for a terminal that is closed.
pub struct Ends {
    terminate: Signal,
    quit: Signal,
    /// Nothing where SIGHUP is ignored, as `nohup` has it.
    hang_up: Option<Signal>,
}

impl Signals {
    /// From now on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// When the system refuses.
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

    /// Waits for any.
    pub async fn received(&mut self) {
        tokio::select! {
            () = self.interrupts.received() => {}
            () = self.ends.received() => {}
        }
    }
}

impl Interrupts {
    /// Waits for one.
    pub async fn received(&mut self) {
        self.0.recv().await;
    }
}

impl Ends {
    /// Waits for any.
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

/// Whether whoever started the process wants it to outlive its terminal. Only Linux tells.
fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (SignalKind::hangup().as_raw_value() - 1) & 1 == 1)
}
