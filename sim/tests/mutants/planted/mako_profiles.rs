//! The profiles of Mako.

use pangea_core::planted::Bug;
use pangea_sim::{Report, Settings, run};

use pangea_protocols::mako::Mako;

use super::Profile;
use crate::{mako_divided, mako_drawn, mako_moving};

impl Profile {
    /// The profiles that are tried first for a bug in Mako.
    pub(super) fn of_bug_in_mako(bug: Bug) -> &'static [Self] {
        match bug {
            Bug::MakoForwardedTwice
            | Bug::MakoZombieAnswers
            | Bug::MakoReadsToldAtOnce
            | Bug::MakoReplayAboveWatermark
            | Bug::MakoFreshWithoutEntry => &[Self::Deposed],
            Bug::MakoOutcomesForgotten | Bug::MakoOutcomesNotTransferred => &[Self::Away],
            Bug::MakoRejoinedVotes | Bug::MakoFirstTailTaken => &[Self::Replaced],
            Bug::MakoOwnEntrySuffices | Bug::MakoAckBeforeFsync | Bug::MakoEpochForgotten => {
                &[Self::Successive, Self::Deposed]
            }
            _ => &[Self::Drawn],
        }
    }

    /// The profiles that are tried first for a bug in Mako over several shards.
    pub(super) fn of_bug_in_mako_shards(bug: Bug) -> &'static [Self] {
        match bug {
            Bug::MakoDecisionDroppedEarly => &[Self::Flaps],
            Bug::MakoDependencyIgnored
            | Bug::MakoIdleClosedUnlogged
            | Bug::MakoOwnLogSuffices
            | Bug::MakoPublishesOwnCut
            | Bug::MakoReplayAboveClosed
            | Bug::MakoCutByOwnLog
            | Bug::MakoClosedToldTooHigh
            | Bug::MakoDoubtfulRead => &[Self::Deposed],
            Bug::MakoGroupOfFirstMember => &[Self::Grouped],
            Bug::MakoHangingDropped | Bug::MakoFateOfOpenLog => &[Self::Successive],
            Bug::MakoMovesAccessed
            | Bug::MakoMovesOriginalsDroppedEarly
            | Bug::MakoMovesEpochForgets
            | Bug::MakoMovesNewOwnerOfOld => &[Self::Moved],
            _ => &[Self::Calm],
        }
    }

    /// Runs Mako over several shards with a planted bug, or without one.
    pub(super) fn run_mako_shards(self, seed: u64, planted: Option<Bug>) -> Report {
        let (settings, options) = match self {
            Self::Calm => mako_divided::crowded(seed),
            Self::Deposed => mako_divided::deposed(seed),
            Self::Successive => mako_divided::several(seed),
            Self::Flaps => mako_divided::flapping(seed),
            Self::Grouped => mako_divided::grouped(seed),
            Self::Moved if seed.is_multiple_of(2) => mako_moving::calm(seed),
            Self::Moved => mako_moving::faulty(seed),
            _ => mako_divided::drawn(seed),
        };
        run::<Mako>(&Settings { planted, ..settings }, &options).unwrap()
    }

    /// Runs Mako with a planted bug, or without one.
    pub(super) fn run_mako(self, seed: u64, planted: Option<Bug>) -> Report {
        let (settings, options) = match self {
            Self::Deposed => mako_drawn::deposed(seed, "list-append"),
            Self::Successive => mako_drawn::several(seed, "list-append"),
            Self::Away => mako_drawn::away(seed, "list-append"),
            Self::Replaced => mako_drawn::replaced(seed, "list-append"),
            Self::Upgraded => mako_drawn::upgraded(seed),
            _ => mako_drawn::drawn(seed),
        };
        run::<Mako>(&Settings { planted, ..settings }, &options).unwrap()
    }
}
