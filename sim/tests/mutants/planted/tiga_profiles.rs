//! The profiles of Tiga.

use pangea_core::planted::Bug;

use super::Profile;

impl Profile {
    /// The profiles that are tried first for a bug in Tiga.
    pub(super) fn of_bug_in_tiga(bug: Bug) -> &'static [Self] {
        match bug {
            Bug::RecoveredForgotten | Bug::FreshWithoutLeader => &[Self::Mute],
            Bug::SettledAlone
            | Bug::OldViewCounts
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
}
