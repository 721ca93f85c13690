//! How fast files are written that nobody waits for: checkpoints, and the log's next files.
//!
//! A sync waits for whatever else is on its way to the disk. So such files are written in small
//! pieces, each synced, and the disk is left to the log's syncs for as long as the piece has taken.

use std::time::Duration;

/// So much is written before others have their turn: some milliseconds of a slow disk.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// The longest rest. A disk that takes longer for a piece is overloaded, whoever waits.
const REST_MAX: Duration = Duration::from_millis(200);

/// For how long the disk is left to others, after a piece has taken so long.
pub(crate) fn rest_after(took: Duration) -> Duration {
    took.min(REST_MAX)
}
