//! A statement that waits for the cluster: what its client is told, and whether it is still there.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use pangea_sql::engine::Engine;

use super::connection::{Connection, End};

/// How long a statement waits before somebody asks why, and how long until somebody asks again:
/// longer than an epoch and the longest round trips.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a client can do about a cluster without a majority, or one that has yet to start.
const HINT: &str = "The statement goes on when enough nodes are there. To stop waiting, cancel \
                    it; statement_timeout sets how long later ones wait.";

/// And about nodes that are behind.
const HINT_OF_LATE: &str = "The statement goes on when they have caught up. To stop waiting, \
                            cancel it; statement_timeout sets how long later ones wait.";

/// Why a statement takes long, as far as the node knows, and what to do about it.
fn why(engine: &dyn Engine) -> Option<(String, &'static str)> {
    let too_few = engine.cut_off().map(|why| (format!("{why}; waiting"), HINT));
    too_few.or_else(|| engine.waits_for().map(|whom| (whom, HINT_OF_LATE)))
}

/// Awaits what the session answers. Where that takes long because too few nodes can be reached, or
/// one is behind, the client is told, once; and when it leaves meanwhile, the wait ends with it.
pub(super) async fn patiently<T>(
    engine: &dyn Engine,
    connection: &mut Connection,
    answer: impl Future<Output = T>,
) -> Result<T, End> {
    let mut answer = pin!(answer);
    let (mut is_long, mut is_told) = (false, false);
    loop {
        tokio::select! {
            // An answer that is there is given, and costs no look at the clock or the socket.
            biased;
            answer = &mut answer => return Ok(answer),
            () = tokio::time::sleep(PATIENCE) => is_long = true,
            end = connection.gone(), if is_long => return Err(end),
        }
        if !is_told && let Some((why, hint)) = why(engine) {
            connection.replies.warning(&why, hint);
            connection.flush().await?;
            is_told = true;
        }
    }
}
