//! The write rate of files that nothing waits for: checkpoints and preallocated log segments.
//!
//! A sync waits for all other writes in flight to the disk. Therefore these files are written in
//! small pieces, each followed by a sync. The disk is then left to the log's syncs for as long as
//! the piece took.

use std::time::Duration;

/// Bytes written before a pause: some milliseconds on a slow disk.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// The longest pause. A disk that takes longer for a piece is overloaded anyway.
const REST_MAX: Duration = Duration::from_millis(200);

/// The pause after a piece that took this long to write.
pub(crate) fn rest_after(took: Duration) -> Duration {
    took.min(REST_MAX)
}
