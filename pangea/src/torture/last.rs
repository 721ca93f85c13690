//! The end of a run, after all faults are healed and all clients have finished: every region
//! commits, the replicas are compared, and all data are read in every region.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pangea_core::ids::SnapshotVersion;
use pangea_node::client::Client as Native;
use pangea_sim::record::Outcome;
use tokio_postgres::{Client, Error, NoTls};

use super::clients::Place;
use super::history::{Attempt, History, Increments, Key};
use crate::cluster::replicas;
use crate::failure::Failure;

/// The time limit for each operation.
const DEADLINE: Duration = Duration::from_secs(60);
/// The maximum number of rows that one transaction reads: lists are long.
const ROWS_PER_READ: usize = 500;
/// The table that regions write to at the end.
const PROBES: &str = "create table probes (region text primary key)";
/// The first client number of the final reads; each region has its own number.
const NUMBERS: u64 = 1 << 40;

/// Creates the tables.
///
/// # Errors
/// If the tables cannot be created.
pub async fn create_tables(place: &Place, schema: &str) -> Result<(), Failure> {
    let made = in_time(place, async |client| {
        client.batch_execute(schema).await?;
        client.batch_execute(PROBES).await
    });
    made.await
}

/// Commits in every region and compares the replicas. A commit of a region is ordered after
/// everything that was submitted there before, so that no transaction is in progress afterwards.
///
/// # Errors
/// If a region does not respond or replicas differ.
pub async fn settle(
    places: &[Place],
    natives: &[Native],
    shards: &[usize],
) -> Result<(SnapshotVersion, String), Failure> {
    for place in places {
        let insert = "insert into probes values ($1)";
        in_time(place, async |client| client.execute(insert, &[&place.region]).await.map(drop))
            .await?;
    }
    let (version, digests) = replicas::equal_by_shard(natives, shards).await?;
    let digests: Vec<String> = digests.iter().map(|digest| format!("{digest:016x}")).collect();
    Ok((version, digests.join(" ")))
}

/// Reads all keys in every region, as the last transactions of the history.
///
/// # Errors
/// If a region does not respond.
pub async fn read_all(history: &Arc<History>, places: &[Place]) -> Result<(), Failure> {
    let attempted: Vec<Key> = history.attempted().into_iter().collect();
    for (number, place) in (NUMBERS..).zip(places) {
        let kinds =
            attempted.chunk_by(|a, b| std::mem::discriminant(a) == std::mem::discriminant(b));
        for keys in kinds.flat_map(|keys| keys.chunks(ROWS_PER_READ)) {
            let mut attempt =
                history.begin(number, &format!("{}, final", place.region), (true, None));
            attempt.is_final();
            in_time(place, async |client| read(client, keys, &mut attempt).await).await?;
            attempt.end(Outcome::Committed);
        }
    }
    Ok(())
}

/// Compares the counters with the increments of all transactions: none may be lost, and none may be
/// there twice. If a failover `may_lose` acknowledged ones, it only compares what is too much.
/// Returns the number of increments, for the report.
///
/// # Errors
/// If a region does not respond, or a counter is wrong.
pub async fn count_increments(
    history: &History,
    places: &[Place],
    may_lose: bool,
) -> Result<String, Failure> {
    let mut counters = BTreeMap::new();
    let select = "select id, n from counters";
    let read = async |client: &Client| {
        client.batch_execute("set reads = strict").await?;
        for row in client.query(select, &[]).await? {
            counters.insert(row.try_get(0)?, row.try_get(1)?);
        }
        Ok(())
    };
    in_time(&places[0], read).await?;
    check_counters(&history.increments(), &counters, may_lose).map_err(Failure::Failed)
}

fn check_counters(
    increments: &BTreeMap<i64, Increments>,
    counters: &BTreeMap<i64, i64>,
    may_lose: bool,
) -> Result<String, String> {
    let (mut committed, mut unknown) = (0, 0);
    for (counter, found) in counters {
        let made = increments.get(counter).copied().unwrap_or_default();
        let least = if may_lose { 0 } else { made.committed };
        if !(least..=made.committed + made.unknown).contains(found) {
            return Err(format!(
                "check failed: counter {counter} is {found}, but {} increments were acknowledged, \
                 and {} more may have committed",
                made.committed, made.unknown
            ));
        }
        (committed, unknown) = (committed + made.committed, unknown + made.unknown);
    }
    let missing = increments.keys().find(|counter| !counters.contains_key(counter));
    match missing {
        Some(counter) => Err(format!("check failed: counter {counter} is missing")),
        None => {
            let verdict = if may_lose { "is there twice" } else { "is lost" };
            Ok(format!("{committed}, and {unknown} of unknown outcome; none {verdict}"))
        }
    }
}

/// Reads the rows of one table from the first of these keys to the last, including unexpected rows
/// between them.
async fn read(client: &Client, keys: &[Key], attempt: &mut Attempt) -> Result<(), Error> {
    let [first, .., last] = keys else {
        return match keys {
            [] => Ok(()),
            [only, ..] => Box::pin(read(client, &[*only, *only], attempt)).await,
        };
    };
    let table = match first {
        Key::List(_) => "lists",
        Key::Every(_) => "every",
        Key::Register(_) => "registers",
        Key::Row(_) => "rows",
        Key::Mark(_) => "marks",
    };
    let is_list = matches!(first, Key::List(_) | Key::Every(_));
    let column = if is_list { "items" } else { "v" };
    client.batch_execute("set reads = strict").await?;
    let select = format!("select id, {column} from {table} where id >= $1 and id <= $2");
    let rows = client.query(&select, &[&first.id(), &last.id()]).await?;
    let mut found = BTreeMap::new();
    for row in &rows {
        found.insert(first.sibling(row.try_get(0)?), row);
    }
    let mut all: Vec<Key> = keys.to_vec();
    all.extend(found.keys());
    all.sort_unstable();
    all.dedup();
    for key in all {
        let row = found.get(&key);
        match key {
            Key::List(_) | Key::Every(_) => {
                attempt.read_list(key, row.map(|row| row.try_get(1)).transpose()?);
            }
            Key::Register(_) | Key::Row(_) | Key::Mark(_) => {
                attempt.read(key, row.map(|row| row.try_get(1)).transpose()?);
            }
        }
    }
    Ok(())
}

/// Runs an operation in a separate session, within the time limit.
async fn in_time(
    place: &Place,
    what: impl AsyncFnOnce(&Client) -> Result<(), Error>,
) -> Result<(), Failure> {
    let region = &place.region;
    let done = async {
        let (client, connection) = place.sql.connect(NoTls).await?;
        // The client sees how the connection ends.
        tokio::spawn(connection);
        what(&client).await
    };
    let done = tokio::time::timeout(DEADLINE, done).await;
    let done = done.map_err(|_| {
        let seconds = DEADLINE.as_secs();
        Failure::Failed(format!("{region} is healthy, but did not respond within {seconds} s"))
    });
    done?.map_err(|error| {
        let words = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
        Failure::failed(region, words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_all_acknowledged_increments_and_no_more_than_all() {
        let made = BTreeMap::from([(1, Increments { committed: 5, unknown: 2 })]);
        let check = |found: &[(i64, i64)], may_lose| {
            check_counters(&made, &found.iter().copied().collect(), may_lose)
        };
        for (found, is_right, may_be_lost) in [(4, false, true), (5, true, true), (7, true, true)] {
            assert_eq!(check(&[(1, found), (2, 0)], false).is_ok(), is_right, "{found}");
            assert_eq!(check(&[(1, found)], true).is_ok(), may_be_lost, "{found}");
        }
        for found in [&[(1, 8)][..], &[(1, 5), (2, 1)], &[(2, 0)]] {
            assert!(check(found, false).is_err() && check(found, true).is_err(), "{found:?}");
        }
    }
}
