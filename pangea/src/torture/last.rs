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
use super::history::{Attempt, History, Key};
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
    shards: usize,
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
            let mut attempt = history.begin(number, &format!("{}, final", place.region), true);
            attempt.is_final();
            in_time(place, async |client| read(client, keys, &mut attempt).await).await?;
            attempt.end(Outcome::Committed);
        }
    }
    Ok(())
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
