//! Acknowledged commits that a node has lost, so that their sessions tell their clients.
//!
//! With settings such as `geogauss.ack = "merged"`, a commit can be lost after its client was told
//! of it. The node learns of that before later versions are final:
//!
//! ```text
//!   session                           node
//!      | <------- committed in v7 --- |  v7 is not final
//!      |  notes its commit in v7      |  the commit is lost, or its fate is unknown: `report`
//!      |                              |  v7 is final with other transactions: `confirm`
//!      |-- next statement ----------> |
//!      | `take`: is one of mine lost? |
//!      | <------- WARNING 01000 ----- |
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pangea_core::ids::{SnapshotVersion, TxnId};

use crate::error::code;
use crate::notice::Notice;

/// The maximum number of losses that are kept for their sessions; the oldest ones are forgotten
/// first. Sessions that have ended, and native clients, never ask.
const LOSSES_MAX: usize = 100_000;

/// The acknowledged commits that a node has lost.
#[derive(Debug)]
pub struct Losses {
    /// No commit below this version is reported any more. All versions are final if the node never
    /// answers before.
    unconfirmed: AtomicU64,
    /// The number of reports.
    reports: AtomicU64,
    /// The commits that no session has asked for yet, and whether their loss is certain.
    open: Mutex<BTreeMap<TxnId, bool>>,
}

impl Default for Losses {
    fn default() -> Self {
        let (unconfirmed, reports) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        Self { unconfirmed, reports, open: Mutex::default() }
    }
}

impl Losses {
    /// The node publishes a version that is not final.
    pub fn publish_early(&self, version: SnapshotVersion) {
        self.unconfirmed.fetch_min(version.0, Ordering::SeqCst);
    }

    /// All losses of commits before this version have been reported.
    pub fn confirm(&self, version: SnapshotVersion) {
        // Without early versions there is nothing to remember.
        let is_after = |before: u64| (before < version.0).then_some(version.0);
        let _ = self.unconfirmed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_after);
    }

    /// An acknowledged commit is lost. If that is not certain, it may be.
    pub fn report(&self, txn: TxnId, is_certain: bool) {
        let mut open = self.open();
        open.insert(txn, is_certain);
        if open.len() > LOSSES_MAX {
            open.pop_first();
        }
        self.reports.fetch_add(1, Ordering::SeqCst);
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<TxnId, bool>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The commits of one session that can still be lost.
#[derive(Debug)]
pub(crate) struct OwnCommits {
    commits: Vec<(TxnId, SnapshotVersion)>,
    /// The number of reports that were looked at.
    seen: u64,
}

impl OwnCommits {
    /// Those of a new session.
    pub(crate) fn new(losses: Option<&Losses>) -> Self {
        let seen = losses.map_or(0, |losses| losses.reports.load(Ordering::SeqCst));
        Self { commits: Vec::new(), seen }
    }

    /// Notes an acknowledged commit, also if its version is final: its loss may have been reported
    /// before the acknowledgement was delivered.
    pub(crate) fn note(&mut self, losses: &Losses, txn: TxnId, version: SnapshotVersion) {
        if losses.unconfirmed.load(Ordering::SeqCst) != u64::MAX {
            self.commits.push((txn, version));
        }
    }

    /// Returns warnings about the commits that were lost since the last call, and forgets those
    /// that are final.
    pub(crate) fn take(&mut self, losses: &Losses) -> Vec<Notice> {
        if self.commits.is_empty() {
            return Vec::new();
        }
        // In this order: what is lost before this version has been reported by now.
        let unconfirmed = losses.unconfirmed.load(Ordering::SeqCst);
        let reports = losses.reports.load(Ordering::SeqCst);
        let (mut lost, mut unknown) = (Vec::new(), Vec::new());
        if std::mem::replace(&mut self.seen, reports) != reports {
            let mut open = losses.open();
            self.commits.retain(|(txn, version)| {
                match open.remove(txn) {
                    None => return true,
                    Some(true) => lost.push(*version),
                    Some(false) => unknown.push(*version),
                }
                false
            });
        }
        self.commits.retain(|(_, version)| version.0 >= unconfirmed);
        [(lost, true), (unknown, false)].into_iter().filter_map(warning).collect()
    }
}

/// The warning about commits in these versions, if there are any.
fn warning((versions, is_certain): (Vec<SnapshotVersion>, bool)) -> Option<Notice> {
    let (first, last) = (versions.iter().min()?, versions.iter().max()?);
    let commits = match versions.len() {
        1 => "1 commit".to_owned(),
        count => format!("{count} commits"),
    };
    let are = match (versions.len(), is_certain) {
        (_, false) => "may be",
        (1, true) => "is",
        (_, true) => "are",
    };
    let message = format!("{commits} of this session {are} lost, although acknowledged");
    let was = if first == last {
        format!("in snapshot version {}", first.0)
    } else {
        format!("in snapshot versions {} to {}", first.0, last.0)
    };
    let why = match is_certain {
        true => {
            "This node was removed from its cluster before another one had the last transactions \
             that it had acknowledged."
        }
        false => {
            "This node was removed from its cluster, and does not know which of the last \
             transactions that it had acknowledged another one had."
        }
    };
    let hint = "Check which changes are missing, and make them again. With geogauss.ack = \
                \"replicated\" no commit is acknowledged so early.";
    Some(Notice {
        detail: Some(format!("{why} It had committed them {was}.")),
        hint: Some(hint.to_owned()),
        ..Notice::warning(code::WARNING, &message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::NodeId;

    fn txn(sequence: u64) -> TxnId {
        TxnId::new(NodeId(1), sequence)
    }

    const fn v(version: u64) -> SnapshotVersion {
        SnapshotVersion(version)
    }

    fn messages(notices: &[Notice]) -> Vec<&str> {
        notices.iter().map(|notice| &*notice.message).collect()
    }

    #[test]
    fn a_session_is_told_of_its_own_losses_once_and_of_no_other() {
        let losses = Losses::default();
        let [mut one, mut other] = [(); 2].map(|()| OwnCommits::new(Some(&losses)));
        losses.publish_early(v(7));
        for (own, commits) in [(&mut one, [1, 2, 3]), (&mut other, [4, 5, 6])] {
            for commit in commits {
                own.note(&losses, txn(commit), v(6 + commit));
            }
        }
        assert!(one.take(&losses).is_empty(), "nothing is lost yet");
        for (commit, is_certain) in [(2, true), (3, true), (1, false), (9, true)] {
            losses.report(txn(commit), is_certain);
        }
        let told = one.take(&losses);
        assert_eq!(
            messages(&told),
            [
                "2 commits of this session are lost, although acknowledged",
                "1 commit of this session may be lost, although acknowledged",
            ]
        );
        assert!(told.iter().all(|it| it.code == code::WARNING && it.hint.is_some()));
        assert!(told[0].detail.as_ref().unwrap().ends_with("in snapshot versions 8 to 9."));
        assert!(told[1].detail.as_ref().unwrap().ends_with("in snapshot version 7."));
        assert!(one.take(&losses).is_empty(), "it is told once");
        assert!(other.take(&losses).is_empty(), "its commits are there");
    }

    #[test]
    fn commits_are_forgotten_when_their_version_is_final() {
        let losses = Losses::default();
        let mut own = OwnCommits::new(None);
        own.note(&losses, txn(1), v(1));
        assert!(own.commits.is_empty(), "no version is early");
        losses.confirm(v(2));
        losses.publish_early(v(3));
        own.note(&losses, txn(2), v(3));
        own.note(&losses, txn(3), v(4));
        losses.confirm(v(4));
        assert!(own.take(&losses).is_empty());
        assert_eq!(own.commits, [(txn(3), v(4))]);
    }

    /// The driver holds an answer back until its record is durable, and a loss need not wait.
    #[test]
    fn a_loss_that_is_reported_before_the_commit_is_acknowledged_is_told_of() {
        let losses = Losses::default();
        let mut own = OwnCommits::new(Some(&losses));
        losses.publish_early(v(3));
        losses.report(txn(1), true);
        losses.confirm(v(9));
        own.note(&losses, txn(1), v(3));
        assert_eq!(own.take(&losses).len(), 1);
    }

    #[test]
    fn losses_that_nobody_asks_for_are_forgotten() {
        let losses = Losses::default();
        (0..LOSSES_MAX as u64 + 5).for_each(|commit| losses.report(txn(commit), true));
        assert_eq!(losses.open().len(), LOSSES_MAX);
        assert!(!losses.open().contains_key(&txn(4)) && losses.open().contains_key(&txn(5)));
    }
}
