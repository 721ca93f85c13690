//! Planted bugs: deliberate errors that the checkers must detect.
//!
//! Each [`Bug`] is a mistake that a good engineer could make: a wrong expression in place of the
//! right one, by [`mutate!`](crate::mutate). A run of the simulator plants one bug. If a swarm does
//! not detect it, a checker, a fault or a workload is missing.
//!
//! The cargo feature `planted` enables the bugs; no binary for users has it. Without it
//! [`is_planted`] is a constant `false`, and the compiler removes all bugs.

use std::fmt;
use std::str::FromStr;

macro_rules! bugs {
    ($($bug:ident, $name:literal, $breaks:literal;)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $(#[doc = $breaks] $bug,)*
        }

        impl Bug {
            /// All bugs, in the order of the phases.
            pub const ALL: &[Self] = &[$(Self::$bug),*];

            /// The bug's name on the command line and in tables.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }

            /// A description of the error.
            pub fn mistake(self) -> &'static str {
                match self {
                    $(Self::$bug => $breaks,)*
                }
            }
        }
    };
}

bugs! {
    SendBeforeFsync, "send-before-fsync", "A source sends a batch before it is durable there.";
    AckBeforeFsync, "ack-before-fsync", "A replica acknowledges a batch before it is durable.";
    AckCountedTwice, "ack-counted-twice", "The same acknowledgement counts twice.";
    HeldPastGap, "held-past-gap", "A batch after a gap counts as if the gap were filled.";
    CutPastGap, "cut-past-gap", "A cut names batches that are known but not available.";
    VoteBeforeFsync, "vote-before-fsync", "Agreement sends votes before they are durable.";
    OldCutDropped, "old-cut-dropped",
        "A coordinator's last cuts are dropped after another takes over.";
    HeadsGoBack, "heads-go-back", "A cut with older heads moves the heads backwards.";
    PromiseForgotten, "promise-forgotten", "A restart forgets promises made in agreement.";
    EntriesKept, "entries-kept",
        "Undecided entries of agreement are not overwritten by newer ones.";
    FreshWithoutCut, "fresh-without-cut",
        "A strict read waits for no cut if this node has nothing in flight.";
    BarrierOfBefore, "barrier-of-before",
        "A strict read takes the answer to an earlier request for the one to its own.";
    SnapshotSeesUncommitted, "snapshot-sees-uncommitted", "A read sees uncommitted writes.";
    ChainsNotJoined, "chains-not-joined",
        "Runs that read each other's writes form separate chains.";
    PointsNotValidated, "points-not-validated", "Reads of single keys are assumed to be current.";
    RangesNotValidated, "ranges-not-validated", "The stale check ignores ranges.";
    PhantomsPass, "phantoms-pass", "A row that appeared in a range does not make its reader stale.";
    StaleAlone, "stale-alone", "A stale transaction does not make its chain stale.";
    LocalWriterSuffices, "local-writer-suffices",
        "A local read is valid even if its writer was re-executed.";
    WriteEdgesOnly, "write-edges-only", "Conflicts of reads with writes are ignored.";
    RangeEdgesLost, "range-edges-lost", "Conflicts of ranges with writes are ignored.";
    ReadHidesWrite, "read-hides-write", "If a chain reads and writes a key, only the read counts.";
    OwnChainsFirst, "own-chains-first", "Each replica breaks ties in favor of its own chains.";
    ModeDecides, "mode-decides", "In high-contention mode a replica runs whole epochs in order.";
    ArrivalOrder, "arrival-order", "The ordered queue has the order in which batches arrived.";
    FirstAnswerKept, "first-answer-kept",
        "A client gets the result of the invalid first execution.";
    ExecutedAgainUnmarked, "executed-again-unmarked",
        "Re-executed writes are marked as first executed.";
    DoomedTooMuch, "doomed-too-much",
        "Readers of a certified write that committed are invalidated.";
    ReadersDoNotWait, "readers-do-not-wait",
        "A shared lock is granted while an exclusive one is held.";
    WritersDoNotWait, "writers-do-not-wait",
        "An exclusive lock is granted while shared ones are held.";
    KeysIntendNothing, "keys-intend-nothing", "Locked ranges do not block writers of their keys.";
    CertifiedPointsOnly, "certified-points-only",
        "A certified transaction's ranges are not checked.";
    EpochNotLogged, "epoch-not-logged",
        "An epoch's record lacks the transactions that ran in order.";
    LoggedInQueueOrder, "logged-in-queue-order", "An epoch's record ignores the order of passes.";
    BoundaryReplayed, "boundary-replayed", "A restart replays votes that its checkpoint contains.";
    NumbersReused, "numbers-reused", "A restart numbers transactions from those of its checkpoint.";
    TornTrusted, "torn-trusted", "A torn record is accepted.";
    ValidBitsReversed, "valid-bits-reversed",
        "The valid bits of an epoch's record are read backwards.";
    CheckpointOfOldRows, "checkpoint-of-old-rows",
        "A checkpoint names batches that its rows do not include.";
    TruncatedTooFar, "truncated-too-far", "The log is truncated although batches are still needed.";
    ChunkRowLost, "chunk-row-lost", "Each later chunk of a transfer omits its first row.";
    TransferMixesVersions, "transfer-mixes-versions",
        "Later chunks of a transfer are of a newer version.";
    DeletionsNotTransferred, "deletions-not-transferred", "Deleted rows survive a transfer.";
    CollectedForOne, "collected-for-one", "A batch is dropped when one member has applied it.";
    RejoinedAfterOne, "rejoined-after-one", "A replaced node rejoins after the first answer.";
    RejoinForgetsVotes, "rejoin-forgets-votes", "A replaced node votes as if it had never voted.";
    RejoinReusesNumbers, "rejoin-reuses-numbers", "A replaced node reuses batch numbers.";
    OrphansKept, "orphans-kept", "Batches after a gap outlive their source's disk.";
    VotesWhileRejoining, "votes-while-rejoining",
        "A replaced node votes before it knows its earlier votes.";
    SequencesForgotten, "sequences-forgotten",
        "A checkpoint forgets the transaction numbers of other sources.";
    MembersForgotten, "members-forgotten", "A checkpoint forgets who is a member.";
    MembersNotTransferred, "members-not-transferred", "A transfer forgets who is a member.";
    AckedBehindCheckpoint, "acked-behind-checkpoint",
        "A replica acknowledges batches behind a peer's checkpoint that its disk does not have.";
    ReadsGoBack, "reads-go-back", "Reads are answered from the epoch before the last.";
    ReverseEdgeLost, "reverse-edge-lost",
        "A reverse scan that ends early does not record the last row that it saw.";
    ReclaimedBelowPin, "reclaimed-below-pin", "Versions that a pinned reader needs are reclaimed.";
    ReclaimedEarly, "reclaimed-early", "Versions are reclaimed one epoch early.";
    OverwrittenPinned, "overwritten-pinned", "A record that a pinned reader needs is overwritten.";
    BeforeOverwritten, "before-overwritten",
        "The version before a point is overwritten after the point.";
    OverwrittenUndecided, "overwritten-undecided",
        "Versions that a master may roll back to are overwritten.";
    ScanUnsettled, "scan-unsettled", "A scan misses new keys that are not sorted in yet.";
    DeletionLostInCodec, "deletion-lost-in-codec", "A deletion is decoded as an empty value.";
    EvictedUnchecked, "evicted-unchecked", "A value is evicted although it was overwritten.";
    ColdIsAbsent, "cold-is-absent", "A transaction treats a row that is not in memory as absent.";
    HeldForgotten, "held-forgotten", "A request is dropped when its predicted delay has elapsed.";
    GrantedOutOfOrder, "granted-out-of-order", "One node's scheduler runs a slice backwards.";
    RoundRobinDiffers, "round-robin-differs", "Each node begins each round with its own batch.";
    ProposesWhileStopping, "proposes-while-stopping",
        "A coordinator proposes cuts although too few replicas stay.";
    OtherCodeRuns, "other-code-runs",
        "An upgraded node runs the epochs of the earlier program.";
    SlicesDiffer, "slices-differ", "One node runs its epochs in slices of another length.";
    StepsUnbounded, "steps-unbounded", "A replica applies all cuts that are ready in one step.";
    StrictReadsAtOnce, "strict-reads-at-once", "A strict read of a procedure does not wait.";
    FrozenTogether, "frozen-together",
        "Replicas are frozen for checkpoints without the checkpoint turn.";
    FrozenReadsAtOnce, "frozen-reads-at-once", "A strict read on a frozen replica does not wait.";
    OutcomesInvented, "outcomes-invented",
        "A frozen replica answers with outcomes that no peer sent.";
    RemoteRowsLost, "remote-rows-lost", "A transaction runs without the rows of another shard.";
    ServedOutOfTurn, "served-out-of-turn",
        "Rows are sent to other shards before earlier writers end.";
    WaitsWithoutLocks, "waits-without-locks",
        "A transaction waits for other shards' rows without locks.";
    DividedOnFirst, "divided-on-first",
        "Only the first shard of a divisible transaction runs its part.";
    DividedWithoutLocks, "divided-without-locks", "A divisible transaction takes no locks.";
    RegionsOrderDiffers, "regions-order-differs", "One region sorts an epoch by sequencer first.";
    LeftIsDone, "left-is-done", "A transaction that left its footprint counts as committed.";
    SentNotKept, "sent-not-kept", "Data for another shard is dropped before it has arrived there.";
    FollowsNobody, "follows-nobody", "A shard without writes does not follow the other shards.";
    ReceivedNotLogged, "received-not-logged", "An epoch's record lacks other shards' rows.";
    EarlyBeforeFsync, "early-before-fsync",
        "The master runs an epoch before it is durable on its disk.";
    MasterStays, "master-stays", "A deposed master keeps the epochs it ran, whatever is decided.";
    VoidRunLater, "void-run-later",
        "A later master sequences requests of an earlier one's void cuts.";
    VoidItemsUsed, "void-items-used", "A shard uses rows that were sent for void slices.";
    NeighbourStays, "neighbour-stays", "A shard keeps epochs that it ran on another's void slices.";
    DifferencesPass, "differences-pass", "A replica compares digests and continues if they differ.";
    RowsNotCompared, "rows-not-compared", "Digests cover no rows that nobody writes.";
    ReplayedBySource, "replayed-by-source", "A restart runs an epoch's batches source by source.";
    EpochOverwritesUnseen, "epoch-overwrites-unseen",
        "Transactions are compared with those of their epoch, and not with earlier ones.";
    SnapshotOffByOne, "snapshot-off-by-one", "The epoch after a snapshot counts as seen.";
    ValidatedAtOrigin, "validated-at-origin", "Reads are validated at their origin alone.";
    DeletionForgotten, "deletion-forgotten", "A row that was deleted counts as unchanged.";
    RangesNotMet, "ranges-not-met", "Writes of the same epoch to a range are not noticed.";
    GuardsSkipped, "guards-skipped", "Below serializable, guards are not checked.";
    CertifiedOnNewest, "certified-on-newest",
        "An interactive transaction's writes are checked against a newer snapshot.";
    LoserStopsClaiming, "loser-stops-claiming",
        "A transaction that has lost a row claims no more rows, in the order of arrival.";
    TieByArrival, "tie-by-arrival", "Ties in rank are broken by the order of arrival.";
    OwnPartFirst, "own-part-first", "Each replica ranks its own transactions first.";
    InOrderBySource, "in-order-by-source",
        "One replica runs the programs of an epoch source by source.";
    MergedBeforeAvailable, "merged-before-available",
        "An epoch is merged before f + 1 replicas have its batches.";
    EofOvertakesBatches, "eof-overtakes-batches",
        "The end of an epoch counts before its batches are here.";
    EofOfNewerView, "eof-of-newer-view", "Ends of epochs from a later view count.";
    WriteAfterEof, "write-after-eof", "A transaction is added to an epoch that has ended.";
    CachesNotAsked, "caches-not-asked",
        "A replica is removed, and nobody asks its cache for its last batches.";
    KeptAfterSeal, "kept-after-seal",
        "A cache confirms batches after it was asked for the last one.";
    LoggedEarly, "logged-early", "An epoch is logged before it is confirmed.";
    RetreatForgotten, "retreat-forgotten",
        "Early epochs stay although their batches do not count.";
    LossUntold, "loss-untold", "The loss of an acknowledged commit is not reported.";
    LostReadCounts, "lost-read-counts", "A transaction commits that has read a lost epoch.";
    EarlierLifeMissing, "earlier-life-missing",
        "A replica that joins has ended its epochs although its batches are missing.";
    EpochReopened, "epoch-reopened", "A restart begins after the last epoch in its log.";
    DeletionsNotReplayed, "deletions-not-replayed", "A restart forgets which rows were deleted.";
    DeletionsNotKept, "deletions-not-kept", "A checkpoint forgets which rows were deleted.";
    LifeNotLost, "life-not-lost", "A replaced node continues its earlier life.";
    ReplayedAfterGap, "replayed-after-gap",
        "A restart replays the epochs after a checkpoint of a peer that it lost.";
    ReplayedOutOfRank, "replayed-out-of-rank",
        "A restart applies the write sets of an epoch source by source.";
    SealForgotten, "seal-forgotten", "A restart forgets a seal and its report.";
    TakenAfterSeal, "taken-after-seal", "Batches of a replica count after its removal was decided.";
    ReservedAfterReport, "reserved-after-report",
        "A replica ends epochs that it has reserved after its report.";
    ViewByMajority, "view-by-majority",
        "A view begins when a majority of its members has reported.";
    JoinsTooEarly, "joins-too-early",
        "A replica joins in an epoch that the others may have ended without it.";
    LifeEndsTooEarly, "life-ends-too-early",
        "A removed replica counts up to the last epoch that all reporters have.";
    LifeReusesNumbers, "life-reuses-numbers",
        "A replica that joins again reuses the numbers of batches that did not count.";
    CountedAndRunAgain, "counted-and-run-again",
        "A removed replica runs transactions again that count.";
    ChainOutlivesItsHead, "chain-outlives-its-head",
        "A transaction commits although one whose writes it has read has lost.";
    DeltaLastWins, "delta-last-wins",
        "Of several additions to a row in one epoch, only the last one counts.";
    DeltaNotMet, "delta-not-met",
        "An addition is no write for the transactions of its epoch that have read the row.";
    FreshUnmerged, "fresh-unmerged", "A strict read does not wait for the epochs that have ended.";
    FreshWithoutAsking, "fresh-without-asking",
        "A strict read does not ask whether its replica was removed.";
    NotifiedOnArrival, "notified-on-arrival",
        "A leader says that a transaction is ready when it arrives.";
    NotifiedOnExpiry, "notified-on-expiry",
        "A leader says that a transaction is ready although conflicting ones are before it.";
    ReleasedAfterOneRound, "released-after-one-round",
        "A leader with the largest timestamp does not wait until the others have it.";
    RaisedToldAtHead, "raised-told-at-head",
        "A leader keeps a raised timestamp to itself until the transaction is ready.";
    FloorAtRelease, "floor-at-release",
        "Earlier transactions are accepted while a later one is ready.";
    ReadsLeaveNoFloor, "reads-leave-no-floor", "A write is accepted before a read that was made.";
    RangesLeaveNoFloor, "ranges-leave-no-floor",
        "A row is accepted before the read of a range that lacked it.";
    BoundedWithoutExchange, "bounded-without-exchange",
        "With clocks of a known error, leaders do not compare timestamps.";
    BoundedClockNoFloor, "bounded-clock-no-floor",
        "With clocks of a known error, a leader accepts timestamps that its clock has passed.";
    BoundedErrorIgnored, "bounded-error-ignored",
        "With clocks of a known error, the clocks of other leaders count as equal to the own one.";
    MarksOfInvolvedOnly, "marks-of-involved-only",
        "A release waits for the watermarks of the transaction's own shards only.";
    PrefixWithoutStamp, "prefix-without-stamp",
        "Fast replies are equal if their prefixes are, whatever the timestamps.";
    PrefixIsShallow, "prefix-is-shallow",
        "A prefix covers the transactions before, and not those on which they depend.";
    FastOnOneShard, "fast-on-one-shard",
        "The super quorum of one of its shards commits a transaction of several.";
    FastWithoutOthers, "fast-without-others",
        "Shards without a part in a transaction need not close its cell before the answer.";
    ClosedByLeader, "closed-by-leader",
        "The leader's word that a cell is closed counts for its followers, too.";
    FastAtRaised, "fast-at-raised",
        "A leader replies at the coordinator's stamp for a transaction that it has raised.";
    PassedAccepted, "passed-accepted",
        "A follower accepts transactions as in time below what it has promised.";
    PassedForgotten, "passed-forgotten", "A restart forgets that a follower has passed a cell.";
    ClosedWithoutCell, "closed-without-cell",
        "A leader closes a cell without an entry in its log, although its followers may have more.";
    RecoveredOnFirst, "recovered-on-first",
        "Only the first shard recovers transactions that are in no log.";
    SimpleQuorumIsFast, "simple-quorum-is-fast",
        "Equal replies of f + 1 replicas commit a transaction on the fast path.";
    QuorumWithoutLeader, "quorum-without-leader",
        "Equal replies of followers commit a transaction although the leader's differs.";
    LeaderCountsUndurable, "leader-counts-undurable",
        "A leader's fast reply counts as its word that the transaction is in its durable log.";
    CommitPointIsMax, "commit-point-is-max",
        "The log is committed up to the largest position of any replica.";
    UnsyncedDropped, "unsynced-dropped",
        "A follower drops transactions that commute with later ones of the leader's log.";
    RecoveredAboveSynced, "recovered-above-synced",
        "A new leader recovers no transaction that is before any one of the log.";
    LateRecovered, "late-recovered", "A new leader recovers transactions that came late.";
    ClosedForgotten, "closed-forgotten",
        "A new leader recovers transactions before a timestamp up to which nothing more may come.";
    FloorForgotten, "floor-forgotten",
        "A new leader accepts transactions below the promises and reads of the former view.";
    RecoveredForgotten, "recovered-forgotten",
        "A new leader forgets transactions that were committed by equal replies alone.";
    FreshWithoutLeader, "fresh-without-leader",
        "A strict read relies on the ends of logs, although the leader has not answered.";
    FreshToldByAll, "fresh-told-by-all",
        "A strict read waits only for what all replicas that have answered have replied to.";
    FastBehindCheckpoint, "fast-behind-checkpoint",
        "A replica whose log is behind a peer's checkpoint in memory sends fast replies.";
    KeptBehindCheckpoint, "kept-behind-checkpoint",
        "A replica behind a checkpoint in memory says that it needs no rows of its cells.";
    BaseForgotten, "base-forgotten",
        "A restart continues another log with cells behind a peer's checkpoint in memory.";
    LeadsBeforeFsync, "leads-before-fsync",
        "A leader begins its view before the log of the view is on its disk.";
    RetainedByAny, "retained-by-any",
        "Replicas without a vote make up the majority that has the rows of other shards.";
    ViewOfFewer, "view-of-fewer", "A view begins with the log of one replica.";
    ShortestLog, "shortest-log", "A view begins with the shortest of several logs.";
    ViewForgotten, "view-forgotten", "A restarted replica takes part in an earlier view.";
    SyncedBeforeFsync, "synced-before-fsync",
        "A replica tells that its log is durable before it is.";
    CeilingForgotten, "ceiling-forgotten",
        "A restarted replica uses the numbers of transactions again.";
    StartAfterOther, "start-after-other",
        "A replica continues a log of another view with that of the one that begins.";
    StopUnknown, "stop-unknown",
        "A node leaves the log to replicas that do not know of its stop.";
    OldViewCounts, "old-view-counts",
        "A leader counts stamps and promises of leaders of an earlier view.";
    OtherShardsUncommitted, "other-shards-uncommitted",
        "A shard runs and publishes cells before the logs of the other shards are committed.";
    EndPublished, "end-published",
        "A view begins with a cell that may be published already.";
    RejoinedLeads, "rejoined-leads",
        "A leader that has lost its disk begins its view a second time.";
    TruncatedUntold, "truncated-untold",
        "A node does not say that it has dropped rows that another shard needs.";
    EvictedForgotten, "evicted-forgotten",
        "Rows for which there was no room are not asked for again.";
    BegunForgotten, "begun-forgotten",
        "A peer's checkpoint is taken that lacks writes of cells which are begun here.";
    NumbersOfShardsReused, "numbers-of-shards-reused",
        "A replaced disk forgets numbers that only other shards know.";
    UsedForgotten, "used-forgotten",
        "A checkpoint lacks rows of other shards for cells that are run and not published.";
    RetainedForgotten, "retained-forgotten",
        "A checkpoint lacks the rows that are retained for other shards.";
    OutcomesForgotten, "outcomes-forgotten",
        "A checkpoint lacks outcomes for which clients wait on other shards.";
    ClosedHandedOnEarly, "closed-handed-on-early",
        "A replica hands on that its shard is closed, and lacks cells up to there.";
    ReceivedForgotten, "received-forgotten",
        "A restarted node has not got the rows that other shards had sent it.";
    RunTwice, "run-twice",
        "A checkpoint forgets which transactions a coordinator may send again.";
    VoidRun, "void-run",
        "A transaction runs although another of its shards has it at another place.";
    ListsIncomplete, "lists-incomplete",
        "A missing list of places counts as an empty one before it has arrived.";
    PlacesForgotten, "places-forgotten",
        "A restarted node has not got the places that other shards had sent it.";
    RejoinedVotes, "rejoined-votes",
        "A replaced node counts in views and commits at once.";
    NonVotingCounts, "non-voting-counts",
        "Replicas without a vote count in commits.";
    MakoForwardedTwice, "mako-forwarded-twice",
        "A leader executes a transaction again that is in the log.";
    MakoNamesReused, "mako-names-reused", "A restart forgets which names were reserved.";
    MakoZombieAnswers, "mako-zombie-answers",
        "A leader tells its clients what is not replicated.";
    MakoReadsToldAtOnce, "mako-reads-told-at-once",
        "Clients are told what a leader has read before that is replicated.";
    MakoOwnEntrySuffices, "mako-own-entry-suffices", "One log is enough for a commit.";
    MakoLearnerVotes, "mako-learner-votes", "Replicas without a vote count in commits.";
    MakoAckBeforeFsync, "mako-ack-before-fsync",
        "A follower acknowledges entries before they are durable.";
    MakoFirstTailTaken, "mako-first-tail-taken",
        "A new leader takes its own log, although another one is better.";
    MakoReplayAboveWatermark, "mako-replay-above-watermark",
        "A follower publishes what is not committed.";
    MakoEpochForgotten, "mako-epoch-forgotten", "A restart forgets the promised epoch.";
    MakoRejoinedVotes, "mako-rejoined-votes",
        "A replica that lost its disk counts before it has the log of another epoch.";
    MakoOutcomesForgotten, "mako-outcomes-forgotten", "A checkpoint lacks the outcomes.";
    MakoOutcomesNotTransferred, "mako-outcomes-not-transferred",
        "A peer's checkpoint lacks the outcomes.";
    MakoFreshWithoutEntry, "mako-fresh-without-entry",
        "A leader answers a strict read with what it has published.";
    MakoLockedPassesValidate, "mako-locked-passes-validate",
        "A row that another transaction has locked is valid.";
    MakoReadShardsUnvalidated, "mako-read-shards-unvalidated",
        "Shards that are only read are not asked whether their rows are current.";
    MakoInstallDoesNotRaise, "mako-install-does-not-raise",
        "An installation leaves the counter of the shard.";
    MakoParkedForgotten, "mako-parked-forgotten",
        "Transactions that wait for a locked row are not run when it is unlocked.";
    MakoLockedRowsRead, "mako-locked-rows-read", "Local transactions read locked rows.";
    MakoDependencyIgnored, "mako-dependency-ignored",
        "Local transactions that read rows which depend on other shards do not.";
    MakoClosedAbovePending, "mako-closed-above-pending",
        "The log is closed above the number of a transaction that is not installed.";
    MakoIdleClosedUnlogged, "mako-idle-closed-unlogged",
        "A leader tells a watermark that is not in a majority's log.";
    MakoIdleStreamLeftOut, "mako-idle-stream-left-out", "An idle shard logs no closings.";
    MakoOwnLogSuffices, "mako-own-log-suffices",
        "A client is told when the shard of the coordinator has replicated its transaction.";
    MakoPublishesOwnCut, "mako-publishes-own-cut",
        "Each shard publishes what it has replicated itself.";
    MakoReplayAboveClosed, "mako-replay-above-closed",
        "A follower publishes up to where its own log is closed.";
    MakoDecisionDroppedEarly, "mako-decision-dropped-early",
        "A coordinator forgets a decision before all shards have it.";
    MakoCutByOwnLog, "mako-cut-by-own-log",
        "What depends on entries that another shard has lost survives.";
    MakoClosedToldTooHigh, "mako-closed-told-too-high",
        "A leader reports that its log is closed up to its last entry.";
    MakoHangingDropped, "mako-hanging-dropped",
        "A leader that stays drops what hangs at the end of an epoch, and asks nobody.";
    MakoFateOfOpenLog, "mako-fate-of-open-log",
        "A leader says how transactions have ended before a majority has its log.";
    MakoDoubtfulRead, "mako-doubtful-read",
        "Transactions of a new epoch read versions of the one before that may be void.";
    MakoRangesUnshared, "mako-ranges-unshared",
        "A shard does not lock the ranges that a transaction has read there against writes.";
    MakoOthersUncompared, "mako-others-uncompared",
        "Other shards install writes that depend on rows which have changed since.";
    MakoGroupOfFirstMember, "mako-group-of-first-member",
        "The watermark of a group of shards is that of the first one.";
    MakoRangeMissesLockedInsert, "mako-range-misses-locked-insert",
        "A scan does not notice rows that are about to be inserted.";
    MakoMovesAccessed, "mako-moves-accessed",
        "Transactions access slots while their rows are copied to another shard.";
    MakoMovesOriginalsDroppedEarly, "mako-moves-originals-dropped-early",
        "The rows of slots that move are deleted before they are on their shards.";
    MakoMovesEpochForgets, "mako-moves-epoch-forgets",
        "A leader that takes over in a migration does not begin the copy anew.";
    MakoMovesNewOwnerOfOld, "mako-moves-new-owner-of-old",
        "A snapshot from before the end of a migration is read on the shards after it.";
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|bug| bug.name()).collect();
            format!("unknown planted bug {name:?}; known: {}", names.join(", "))
        })
    }
}

/// The place of a planted bug: `mutate!(Bug: right => wrong)` is the expression `right`, or `wrong`
/// if the bug is planted on this thread. Only the chosen one is evaluated.
///
/// `() => wrong` is a statement that only the bug runs; `right => ()` is one that the bug skips. A
/// mistake of several lines is a function at the end of the file, named after the bug.
///
/// ```
/// # use pangea_core::ids::LogPosition;
/// use pangea_core::mutate;
///
/// # let position = LogPosition(7);
/// let after = mutate!(SendBeforeFsync: position => LogPosition(0));
/// assert_eq!(after, LogPosition(7), "without a bug");
///
/// let mut accesses = vec![1, 2];
/// mutate!(ReadHidesWrite: accesses.reverse() => ());
/// mutate!(WriteEdgesOnly: () => accesses.clear());
/// assert_eq!(accesses, [2, 1]);
/// ```
#[macro_export]
macro_rules! mutate {
    ($bug:ident: $right:expr => $wrong:expr) => {
        if $crate::planted::is_planted($crate::planted::Bug::$bug) { $wrong } else { $right }
    };
}

/// Whether this bug is planted on this thread. Always false without the feature `planted`.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
pub use switch::{Planted, is_planted};

#[cfg(feature = "planted")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether this bug is planted on this thread.
    #[inline]
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// A guard that plants a bug on this thread until it is dropped.
    #[derive(Debug)]
    pub struct Planted(());

    impl Planted {
        /// Plants `bug`, or no bug for `None`.
        pub fn new(bug: Option<Bug>) -> Self {
            PLANTED.set(bug);
            Self(())
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_is_found_by_its_name() {
        for &bug in Bug::ALL {
            assert_eq!(bug.name().parse(), Ok(bug));
            assert!(!is_planted(bug), "{bug}");
        }
        assert!("earthquake".parse::<Bug>().unwrap_err().contains("ack-before-fsync"));
    }
}
