//! Sessions that wait until their node has published a version.
//!
//! A client can be told of a commit before its node has published it: another node was the first to
//! know (with Tiga, one that runs it for this one, or the replies of a super quorum). The session's
//! next read then waits for this node alone.

use pangea_core::ids::SnapshotVersion;
use tokio::sync::watch;

/// The last version that a node has published.
#[derive(Debug)]
pub struct Publications(watch::Sender<SnapshotVersion>);

impl Default for Publications {
    fn default() -> Self {
        Self(watch::Sender::new(SnapshotVersion::ZERO))
    }
}

impl Publications {
    /// Notes the last published version, which is an earlier one after a rollback.
    pub(super) fn note(&self, version: SnapshotVersion) {
        self.0.send_replace(version);
    }

    /// Waits until a version or a later one is published.
    pub(super) async fn reached(&self, version: SnapshotVersion) {
        let mut published = self.0.subscribe();
        let reached = published.wait_for(|published| *published >= version).await;
        reached.expect("the sender is in `self`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_reader_waits_for_its_version_and_no_longer() {
        let publications = Publications::default();
        publications.note(SnapshotVersion(6));
        assert_eq!(publications.reached(SnapshotVersion(6)).now_or_never(), Some(()));
        let mut waiting = Box::pin(publications.reached(SnapshotVersion(8)));
        assert_eq!((&mut waiting).now_or_never(), None);
        // A rollback, and other versions after it.
        for version in [7, 5, 7] {
            publications.note(SnapshotVersion(version));
            assert_eq!((&mut waiting).now_or_never(), None, "{version}");
        }
        publications.note(SnapshotVersion(9));
        assert_eq!(waiting.now_or_never(), Some(()));
    }
}
