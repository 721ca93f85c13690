//! A statement that waits for the cluster: warns its client, and notices if the client disconnects.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use pangea_sql::engine::Engine;

use super::connection::{Connection, End};

/// The time that a statement waits before the reason is checked, and between checks. It is longer
/// than an epoch and the longest round trips.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// Hint for a cluster without a majority, or one that has yet to start.
const HINT: &str = "The statement continues when enough nodes are connected. To stop waiting, \
                    cancel it; statement_timeout limits the wait of later ones.";

/// Hint for lagging nodes.
const HINT_OF_LATE: &str = "The statement continues when these nodes have caught up, or others \
                            replace them. To stop waiting, cancel it; statement_timeout limits \
                            the wait of later ones.";

/// The reason why a statement waits, as far as the node knows, and the hint.
fn why(engine: &dyn Engine) -> Option<(String, &'static str)> {
    let too_few = engine.cut_off().map(|why| (format!("{why}; waiting"), HINT));
    too_few.or_else(|| engine.waits_for().map(|whom| (whom, HINT_OF_LATE)))
}

/// Awaits the session's answer. If that takes long because too few nodes are reachable, or a node
/// lags, the client gets a warning, once. If the client disconnects, the wait ends.
pub(super) async fn with_wait_notice<T>(
    engine: &dyn Engine,
    connection: &mut Connection,
    answer: impl Future<Output = T>,
) -> Result<T, End> {
    let mut answer = pin!(answer);
    let (mut is_long, mut is_told) = (false, false);
    loop {
        tokio::select! {
            // An available answer has priority, and needs no check of the clock or the socket.
            biased;
            answer = &mut answer => return Ok(answer),
            () = tokio::time::sleep(NOTICE_INTERVAL) => is_long = true,
            end = connection.gone(), if is_long => return Err(end),
        }
        if !is_told && let Some((why, hint)) = why(engine) {
            connection.replies.warning(&why, hint);
            connection.flush().await?;
            is_told = true;
        }
    }
}
