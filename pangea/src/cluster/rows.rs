//! The rows of an idle cluster, read by clients of its nodes; several shards appear as one store.

use std::cell::RefCell;
use std::ops::ControlFlow;

use pangea_core::ids::TableId;
use pangea_core::key::{Direction, KeyRange};
use pangea_core::partition::Partitions;
use pangea_core::txn::Visit;
use pangea_core::value::Value;
use pangea_core::workload::{Divided, Rows};
use pangea_node::client::{Client, ClientError};
use tokio::runtime::Handle;

use crate::failure::Failure;

/// The number of rows in one request.
const ROWS_AT_A_TIME: u32 = 5_000;

/// The rows of one node.
struct Far<'a> {
    client: &'a Client,
    runtime: &'a Handle,
    /// The first error, if rows could not be read.
    lost: &'a RefCell<Option<ClientError>>,
}

impl Far<'_> {
    /// Returns rows of a range, and whether they are all. After an error, every range appears
    /// empty.
    fn read(&self, table: TableId, range: KeyRange, most: u32) -> (Vec<(Vec<u8>, Value)>, bool) {
        if self.lost.borrow().is_some() {
            return (Vec::new(), true);
        }
        match self.runtime.block_on(self.client.table(table, None, range, Direction::Forward, most))
        {
            Ok((rows, is_end)) => {
                let row = |row: pangea_node::client::Row| (row.key, Value::from(&row.value[..]));
                (rows.into_iter().map(row).collect(), is_end)
            }
            Err(error) => {
                self.lost.replace(Some(error));
                (Vec::new(), true)
            }
        }
    }
}

impl Rows for Far<'_> {
    fn get(&self, table: TableId, key: &[u8]) -> Option<Value> {
        let (rows, _) = self.read(table, KeyRange::point(key), 1);
        rows.into_iter().next().map(|(_, value)| value)
    }

    fn scan(&self, table: TableId, range: &KeyRange, visit: &mut Visit<'_>) {
        let mut range = range.clone();
        loop {
            let (rows, is_end) = self.read(table, range.clone(), ROWS_AT_A_TIME);
            let visited = rows.iter().try_for_each(|(key, value)| visit(key, value));
            let Some((last, _)) = rows.into_iter().next_back().filter(|_| !is_end) else { return };
            if visited == ControlFlow::Break(()) {
                return;
            }
            range.start = KeyRange::point(&last).end.expect("a point range has an end");
        }
    }
}

/// Reads all rows of a partitioned cluster, with a client of one node for each shard. There must be
/// no more writes. The work runs on a blocking thread, because it waits for rows from the runtime.
///
/// # Errors
/// If rows could not be read.
pub async fn look<T: Send + 'static>(
    partitions: Partitions,
    clients: Vec<Client>,
    work: impl FnOnce(&dyn Rows) -> T + Send + 'static,
) -> Result<T, Failure> {
    let runtime = Handle::current();
    let looking = tokio::task::spawn_blocking(move || {
        let lost = RefCell::new(None);
        let far = |client| Far { client, runtime: &runtime, lost: &lost };
        let shards: Vec<Far<'_>> = clients.iter().map(far).collect();
        let each = shards.iter().map(|shard| shard as &dyn Rows).collect();
        let done = work(&Divided::new(&partitions, each));
        match lost.take() {
            None => Ok(done),
            Some(error) => Err(Failure::failed("rows could not be read", error)),
        }
    });
    looking.await.expect("the work does not panic")
}
