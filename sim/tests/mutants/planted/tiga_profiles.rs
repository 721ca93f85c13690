//! The profiles of Tiga.

use pangea_core::planted::Bug;
use pangea_protocols::tiga::Tiga;
use pangea_sim::{Report, Settings, run};

use super::Profile;
use crate::tiga_drawn;

impl Profile {
    /// The profiles that are tried first for a bug in Tiga.
    pub(super) fn of_bug_in_tiga(bug: Bug) -> &'static [Self] {
        match bug {
            Bug::RecoveredForgotten | Bug::FreshWithoutLeader => &[Self::Mute],
            Bug::OldViewCounts
            | Bug::OtherShardsUncommitted
            | Bug::ReceivedForgotten
            | Bug::UsedForgotten
            | Bug::VoidRun
            | Bug::ListsIncomplete
            | Bug::PlacesForgotten => &[Self::DrawnDivided],
            Bug::FastOnOneShard | Bug::FastAtRaised | Bug::RecoveredOnFirst => &[Self::DrawnFast],
            Bug::EndPublished => &[Self::DrawnDivided, Self::UpgradedDivided],
            Bug::RetainedForgotten
            | Bug::OutcomesForgotten
            | Bug::BegunForgotten
            | Bug::EvictedForgotten
            | Bug::TruncatedUntold => &[Self::AwayDivided],
            Bug::RejoinedLeads | Bug::NumbersOfShardsReused => &[Self::ReplacedDivided],
            Bug::ClosedHandedOnEarly => &[Self::CutDivided],
            Bug::NonVotingCounts => &[Self::CutFromVoters],
            Bug::RunTwice | Bug::StartAfterOther => &[Self::Away],
            Bug::RejoinedVotes => &[Self::Replaced],
            _ => &[Self::Drawn],
        }
    }

    /// Runs Tiga with a planted bug, or without one.
    pub(super) fn run_tiga(self, seed: u64, planted: Option<Bug>) -> Report {
        let (settings, options) = match self {
            Self::Mute => tiga_drawn::mute(seed, "list-append"),
            Self::Away => tiga_drawn::away(seed, "list-append"),
            Self::Replaced => tiga_drawn::replaced(seed, "list-append"),
            Self::Upgraded => tiga_drawn::upgraded(seed),
            Self::DrawnDivided => tiga_drawn::drawn_divided(seed),
            Self::DrawnFast => tiga_drawn::drawn_fast(seed),
            Self::AwayDivided => tiga_drawn::away_divided(seed),
            Self::ReplacedDivided => tiga_drawn::replaced_divided(seed),
            Self::UpgradedDivided => tiga_drawn::upgraded_divided(seed),
            Self::CutDivided => tiga_drawn::cut_divided(seed),
            Self::CutFromVoters => tiga_drawn::cut_from_voters(seed),
            _ => tiga_drawn::drawn(seed),
        };
        run::<Tiga>(&Settings { planted, ..settings }, &options).unwrap()
    }
}
