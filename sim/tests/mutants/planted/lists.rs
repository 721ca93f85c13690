//! The bugs by the protocol in which they are planted, and those that no run catches.

use pangea_core::planted::Bug;

/// Bugs in Calvin's own phases. Bugs in none of these lists are planted in Minerva.
pub const OF_CALVIN: &[Bug] = &[
    Bug::GrantedOutOfOrder,
    Bug::RoundRobinDiffers,
    Bug::SlicesDiffer,
    Bug::ReplayedBySource,
    Bug::StrictReadsAtOnce,
    Bug::EvictedUnchecked,
    Bug::ColdIsAbsent,
    Bug::HeldForgotten,
    Bug::OverwrittenPinned,
    Bug::BeforeOverwritten,
    Bug::FrozenTogether,
    Bug::FrozenReadsAtOnce,
    Bug::OutcomesInvented,
];

/// Bugs in Calvin's shards, which are planted in runs with two shards.
pub const OF_SHARDS: &[Bug] = &[
    Bug::RemoteRowsLost,
    Bug::ServedOutOfTurn,
    Bug::WaitsWithoutLocks,
    Bug::DividedOnFirst,
    Bug::DividedWithoutLocks,
    Bug::RegionsOrderDiffers,
    Bug::LeftIsDone,
    Bug::SentNotKept,
    Bug::FollowsNobody,
    Bug::ReceivedNotLogged,
];

/// Bugs of a master that runs transactions before they are agreed on.
pub const OF_MASTERS: &[Bug] =
    &[Bug::EarlyBeforeFsync, Bug::MasterStays, Bug::VoidRunLater, Bug::OverwrittenUndecided];

/// Bugs of shards with masters of that kind.
pub const OF_SHARDS_OF_MASTERS: &[Bug] = &[Bug::VoidItemsUsed, Bug::NeighbourStays];

/// Bugs in GeoGauss, which are planted in runs with its own settings.
pub const OF_GEOGAUSS: &[Bug] = &[
    Bug::EpochOverwritesUnseen,
    Bug::SnapshotOffByOne,
    Bug::ValidatedAtOrigin,
    Bug::DeletionForgotten,
    Bug::RangesNotMet,
    Bug::GuardsSkipped,
    Bug::CertifiedOnNewest,
    Bug::LoserStopsClaiming,
    Bug::TieByArrival,
    Bug::OwnPartFirst,
    Bug::InOrderBySource,
    Bug::MergedBeforeAvailable,
    Bug::EofOvertakesBatches,
    Bug::EofOfNewerView,
    Bug::WriteAfterEof,
    Bug::CachesNotAsked,
    Bug::KeptAfterSeal,
    Bug::LoggedEarly,
    Bug::RetreatForgotten,
    Bug::LossUntold,
    Bug::LostReadCounts,
    Bug::EarlierLifeMissing,
    Bug::EpochReopened,
    Bug::DeletionsNotReplayed,
    Bug::DeletionsNotKept,
    Bug::LifeNotLost,
    Bug::ReplayedAfterGap,
    Bug::ReplayedOutOfRank,
    Bug::SealForgotten,
    Bug::TakenAfterSeal,
    Bug::ReservedAfterReport,
    Bug::ViewByMajority,
    Bug::JoinsTooEarly,
    Bug::LifeEndsTooEarly,
    Bug::LifeReusesNumbers,
    Bug::CountedAndRunAgain,
    Bug::ChainOutlivesItsHead,
    Bug::DeltaLastWins,
    Bug::DeltaNotMet,
    Bug::FreshUnmerged,
    Bug::FreshWithoutAsking,
];

/// Bugs in Tiga, which are planted in runs with its own settings.
pub const OF_TIGA: &[Bug] = &[
    Bug::FastOnOneShard,
    Bug::FastAtRaised,
    Bug::RecoveredOnFirst,
    Bug::RecoveredForgotten,
    Bug::FreshWithoutLeader,
    Bug::ViewOfFewer,
    Bug::ShortestLog,
    Bug::ViewForgotten,
    Bug::SyncedBeforeFsync,
    Bug::CeilingForgotten,
    Bug::RunTwice,
    Bug::RejoinedVotes,
    Bug::NonVotingCounts,
    Bug::StartAfterOther,
    Bug::StopUnknown,
    Bug::OldViewCounts,
    Bug::OtherShardsUncommitted,
    Bug::ReceivedForgotten,
    Bug::EndPublished,
    Bug::RejoinedLeads,
    Bug::TruncatedUntold,
    Bug::EvictedForgotten,
    Bug::BegunForgotten,
    Bug::NumbersOfShardsReused,
    Bug::UsedForgotten,
    Bug::RetainedForgotten,
    Bug::OutcomesForgotten,
    Bug::VoidRun,
    Bug::ListsIncomplete,
    Bug::PlacesForgotten,
    Bug::ClosedHandedOnEarly,
];

/// Bugs in Mako, which are planted in runs with its own settings.
pub const OF_MAKO: &[Bug] = &[
    Bug::MakoForwardedTwice,
    Bug::MakoNamesReused,
    Bug::MakoZombieAnswers,
    Bug::MakoReadsToldAtOnce,
    Bug::MakoOwnEntrySuffices,
    Bug::MakoLearnerVotes,
    Bug::MakoAckBeforeFsync,
    Bug::MakoFirstTailTaken,
    Bug::MakoReplayAboveWatermark,
    Bug::MakoEpochForgotten,
    Bug::MakoRejoinedVotes,
    Bug::MakoOutcomesForgotten,
    Bug::MakoOutcomesNotTransferred,
    Bug::MakoFreshWithoutEntry,
];

/// Bugs in Mako that need several shards.
pub const OF_MAKO_SHARDS: &[Bug] = &[
    Bug::MakoRangesUnshared,
    Bug::MakoOthersUncompared,
    Bug::MakoRangeMissesLockedInsert,
    Bug::MakoLockedPassesValidate,
    Bug::MakoReadShardsUnvalidated,
    Bug::MakoInstallDoesNotRaise,
    Bug::MakoParkedForgotten,
    Bug::MakoLockedRowsRead,
    Bug::MakoDependencyIgnored,
    Bug::MakoClosedAbovePending,
    Bug::MakoIdleClosedUnlogged,
    Bug::MakoIdleStreamLeftOut,
    Bug::MakoOwnLogSuffices,
    Bug::MakoPublishesOwnCut,
    Bug::MakoReplayAboveClosed,
    Bug::MakoDecisionDroppedEarly,
    Bug::MakoCutByOwnLog,
    Bug::MakoClosedToldTooHigh,
    Bug::MakoHangingDropped,
    Bug::MakoFateOfOpenLog,
    Bug::MakoDoubtfulRead,
    Bug::MakoGroupOfFirstMember,
    Bug::MakoMovesAccessed,
    Bug::MakoMovesOriginalsDroppedEarly,
    Bug::MakoMovesEpochForgets,
    Bug::MakoMovesNewOwnerOfOld,
];

/// Bugs that need too many events in one order for the simulator, and those of Tiga, which no node
/// runs yet. Exhaustive searches find them: `exhaustive.rs` in `protocols/src/minerva/` and
/// `protocols/src/tiga/`.
pub const OF_SEARCH: &[Bug] = &[
    Bug::BarrierOfBefore,
    Bug::NotifiedOnArrival,
    Bug::NotifiedOnExpiry,
    Bug::ReleasedAfterOneRound,
    Bug::RaisedToldAtHead,
    Bug::FloorAtRelease,
    Bug::ReadsLeaveNoFloor,
    Bug::RangesLeaveNoFloor,
    Bug::BoundedWithoutExchange,
    Bug::BoundedClockNoFloor,
    Bug::BoundedErrorIgnored,
    Bug::MarksOfInvolvedOnly,
    Bug::FastWithoutOthers,
    Bug::ClosedByLeader,
    Bug::PassedAccepted,
    Bug::PassedForgotten,
    Bug::ClosedWithoutCell,
    Bug::PrefixWithoutStamp,
    Bug::PrefixIsShallow,
    Bug::SimpleQuorumIsFast,
    Bug::QuorumWithoutLeader,
    Bug::LeaderCountsUndurable,
    Bug::CommitPointIsMax,
    Bug::UnsyncedDropped,
    Bug::RecoveredAboveSynced,
    Bug::LateRecovered,
    Bug::ClosedForgotten,
    Bug::FloorForgotten,
    Bug::FreshToldByAll,
];

/// Bugs in what finds a defect of memory, which the simulator does not have. Tests of the phases
/// find them: `protocols/tests/phases/digests.rs`. Also bugs in Tiga of which several failures at
/// certain moments show an effect: `tiga_disks.rs` in the same folder, and the tests of
/// `protocols/src/tiga/shards/checkpoint.rs`.
pub const OF_PHASES: &[Bug] = &[
    Bug::DifferencesPass,
    Bug::RowsNotCompared,
    Bug::FastBehindCheckpoint,
    Bug::KeptBehindCheckpoint,
    Bug::BaseForgotten,
    Bug::LeadsBeforeFsync,
    Bug::RetainedByAny,
];
