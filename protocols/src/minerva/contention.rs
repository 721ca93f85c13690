//! §4, high-contention mode: stops optimistic execution when most of it is wasted.
//!
//! In this mode transactions are probed for their footprint and not executed. They go straight to
//! the ordered queue, and no write sets are sent.
//!
//! The mode is entered if more than a threshold of the epochs' optimistic transactions were
//! re-executed, for a sustained time. The paper gives no rule for leaving it, and there is no
//! optimistic execution to measure in this mode. Therefore optimistic execution is tried again
//! after a hold time. The trial ends as soon as enough of its transactions have shown that it is
//! wasted: at long round trips all transactions that begin in the meantime are executed twice. Then
//! the hold time doubles, up to a limit, and is at least twenty times the length of the trial. When
//! a trial succeeds, the hold time is reset.

use pangea_core::time::{Span, Timestamp};

use super::options::Options;

/// The maximum number of doublings of the hold time.
const DOUBLINGS_MAX: u32 = 4;

/// The hold time after a failed trial is at least this multiple of its length. At a round trip of
/// 200 ms a trial takes half a second, in which everything is executed twice: at most a twentieth
/// of the time.
const HOLD_FACTOR: u64 = 20;

/// A trial has succeeded when the mode was not needed again for this multiple of the sustained
/// time.
const TRIAL_FACTOR: u64 = 5;

/// The number of transactions after which a trial can fail.
const TRIAL_SAMPLE: u64 = 100;

/// Epochs with fewer optimistic transactions are ignored.
const SAMPLE_MIN: u64 = 4;

/// Whether this replica executes optimistically, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contention {
    mode: Mode,
    /// The number of consecutive failed trials.
    failed_trials: u32,
    /// The length of the last of them.
    failed_for: Span,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Transactions are executed at once.
    #[default]
    Optimistic,
    /// The share of wasted executions has been high since then.
    Suspecting { since: Timestamp },
    /// Transactions have gone to the ordered queue since then.
    High { since: Timestamp },
    /// Transactions have been executed at once again since then, as a trial, with the number of
    /// executions and of wasted ones.
    Trial { since: Timestamp, optimistic: u64, reexecuted: u64 },
}

/// The change that a call to [`Contention::on_epoch`] or [`Contention::on_tick`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Entered,
    Left,
}

impl Contention {
    /// Whether transactions go straight to the ordered queue.
    pub(super) fn is_high(&self) -> bool {
        matches!(self.mode, Mode::High { .. })
    }

    /// Records the number of optimistic transactions in an epoch, and of those that were
    /// re-executed.
    pub(super) fn on_epoch(
        &mut self,
        options: &Options,
        now: Timestamp,
        optimistic: u64,
        reexecuted: u64,
    ) -> Change {
        if !options.high_contention_mode {
            return Change::None;
        }
        if let Mode::Trial { since, .. } = self.mode {
            return self.on_trial(options, now, since, optimistic, reexecuted);
        }
        if optimistic < SAMPLE_MIN {
            return Change::None;
        }
        let is_high = is_high(options, optimistic, reexecuted);
        let sustained = Span::from_ms(options.high_contention_ms);
        match &mut self.mode {
            Mode::High { .. } => Change::None,
            Mode::Optimistic if is_high => {
                self.mode = Mode::Suspecting { since: now };
                Change::None
            }
            Mode::Optimistic => Change::None,
            Mode::Suspecting { .. } if !is_high => {
                self.mode = Mode::Optimistic;
                Change::None
            }
            Mode::Suspecting { since } if now.since(*since) >= sustained => {
                (self.failed_trials, self.failed_for) = (0, Span::ZERO);
                self.mode = Mode::High { since: now };
                Change::Entered
            }
            Mode::Suspecting { .. } => Change::None,
            Mode::Trial { .. } => unreachable!("a trial has a separate rule"),
        }
    }

    fn on_trial(
        &mut self,
        options: &Options,
        now: Timestamp,
        since: Timestamp,
        optimistic: u64,
        reexecuted: u64,
    ) -> Change {
        let Mode::Trial { optimistic: all, reexecuted: in_vain, .. } = &mut self.mode else {
            unreachable!("only called in a trial");
        };
        *all += optimistic;
        *in_vain += reexecuted;
        if *all >= TRIAL_SAMPLE && is_high(options, *all, *in_vain) {
            self.failed_trials = (self.failed_trials + 1).min(DOUBLINGS_MAX);
            self.failed_for = now.since(since);
            self.mode = Mode::High { since: now };
            return Change::Entered;
        }
        if now.since(since).us >= TRIAL_FACTOR * options.high_contention_ms * 1_000 {
            self.failed_trials = 0;
            self.mode = Mode::Optimistic;
        }
        Change::None
    }

    /// Advances the clock.
    pub(super) fn on_tick(&mut self, options: &Options, now: Timestamp) -> Change {
        let Mode::High { since } = self.mode else { return Change::None };
        let hold = Span::from_ms(options.high_contention_hold_ms << self.failed_trials);
        let hold_us = hold.us.max(HOLD_FACTOR * self.failed_for.us);
        if now.since(since).us < hold_us {
            return Change::None;
        }
        self.mode = Mode::Trial { since: now, optimistic: 0, reexecuted: 0 };
        Change::Left
    }
}

/// Whether the share of wasted executions is above the threshold.
fn is_high(options: &Options, optimistic: u64, reexecuted: u64) -> bool {
    reexecuted * 100 > optimistic * options.high_contention_percent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_us(ms * 1_000)
    }

    #[test]
    fn the_mode_is_entered_when_the_share_is_above_the_threshold_for_the_sustained_time() {
        let options = Options::default();
        let mut contention = Contention::default();
        for ms in (0..200).step_by(20) {
            assert_eq!(contention.on_epoch(&options, at(ms), 100, 51), Change::None);
        }
        assert_eq!(contention.on_epoch(&options, at(200), 100, 51), Change::Entered);
        assert!(contention.is_high());
    }

    #[test]
    fn one_calm_epoch_starts_the_sustained_time_anew() {
        let options = Options::default();
        let mut contention = Contention::default();
        contention.on_epoch(&options, at(0), 100, 90);
        contention.on_epoch(&options, at(150), 100, 50);
        contention.on_epoch(&options, at(160), 100, 90);
        assert_eq!(contention.on_epoch(&options, at(300), 100, 90), Change::None);
        assert_eq!(contention.on_epoch(&options, at(360), 100, 90), Change::Entered);
    }

    #[test]
    fn a_trial_that_fails_doubles_the_hold_time_and_one_that_succeeds_ends_the_mode() {
        let options = Options::default();
        let mut contention = Contention::default();
        contention.on_epoch(&options, at(0), 100, 90);
        contention.on_epoch(&options, at(200), 100, 90);
        assert_eq!(contention.on_tick(&options, at(1_199)), Change::None);
        assert_eq!(contention.on_tick(&options, at(1_200)), Change::Left);
        assert_eq!(
            contention.on_epoch(&options, at(1_210), 90, 80),
            Change::None,
            "too few transactions"
        );
        assert_eq!(contention.on_epoch(&options, at(1_230), 10, 9), Change::Entered);
        assert_eq!(
            contention.on_tick(&options, at(3_229)),
            Change::None,
            "the mode lasts twice as long"
        );
        assert_eq!(contention.on_tick(&options, at(3_230)), Change::Left);
        contention.on_epoch(&options, at(3_250), 100, 10);
        assert!(matches!(contention.mode, Mode::Trial { .. }), "the trial continues");
        contention.on_epoch(&options, at(4_230), 100, 10);
        assert_eq!(contention.mode, Mode::Optimistic);
    }

    #[test]
    fn a_trial_that_took_long_is_followed_by_a_long_time_without_one() {
        let options = Options::default();
        let mut contention = Contention::default();
        contention.on_epoch(&options, at(0), 100, 90);
        contention.on_epoch(&options, at(200), 100, 90);
        assert_eq!(contention.on_tick(&options, at(1_200)), Change::Left);
        assert_eq!(contention.on_epoch(&options, at(1_700), 100, 90), Change::Entered);
        assert_eq!(contention.on_tick(&options, at(11_699)), Change::None, "20 times 500 ms");
        assert_eq!(contention.on_tick(&options, at(11_700)), Change::Left);
    }

    #[test]
    fn the_mode_can_be_switched_off_and_small_epochs_do_not_count() {
        let off = Options { high_contention_mode: false, ..Options::default() };
        let mut contention = Contention::default();
        for ms in 0..1_000 {
            assert_eq!(contention.on_epoch(&off, at(ms), 100, 100), Change::None);
            assert_eq!(contention.on_epoch(&Options::default(), at(ms), 3, 3), Change::None);
        }
    }
}
