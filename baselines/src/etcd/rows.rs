//! Loading of keys, and checks of the keys that every member has.

use std::ops::{ControlFlow, RangeInclusive};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, future, stream};
use pangea_core::key::KeyRange;
use pangea_core::workload::{Rows, Settings, Workload, ycsb};
use tonic::{Code, Status};
use xxhash_rust::xxh3::Xxh3;

use super::client::Client;
use super::wire::{KeyValue, Op, PutRequest, RangeRequest, RequestOp};
use crate::baseline::Checked;
use crate::conditions;
use crate::failure::Failure;
use crate::rows::model_of_load;

/// The maximum number of operations and bytes of a transaction; etcd's limits are 128 and 1.5 MB.
const OPS_MAX: usize = 100;
const BYTES_MAX: usize = 1_000_000;
/// The number of concurrent transactions during the load.
const LOADERS: usize = 8;
/// The number of keys per read.
const PAGE: i64 = 2_000;
/// Timeout for a member to catch up when no client writes any more.
const FOLLOW_DEADLINE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// A row's key, which is the same as in Pangea.
pub(super) fn key(row: i64) -> Vec<u8> {
    ycsb::key(row as u64).as_bytes().to_vec()
}

fn said(status: Status) -> Failure {
    Failure::failed("etcd", status.message())
}

pub(super) async fn load(
    clients: &[Client],
    workload: &Workload,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), Failure> {
    let calls = workload.load_calls();
    let all = calls.len() as u64;
    progress(0, all);
    for (done, call) in (1..).zip(calls) {
        let model = model_of_load(&call)?;
        let (mut txns, mut ops, mut bytes) = (Vec::new(), Vec::new(), 0);
        model.scan(ycsb::ROWS, &KeyRange::all(), &mut |key, value| {
            bytes += key.len() + value.len();
            let put = PutRequest { key: key.to_vec(), value: value.to_vec() };
            ops.push(RequestOp { op: Some(Op::Put(put)) });
            if ops.len() == OPS_MAX || bytes >= BYTES_MAX {
                txns.push(std::mem::take(&mut ops));
                bytes = 0;
            }
            ControlFlow::Continue(())
        });
        txns.extend((!ops.is_empty()).then_some(ops));
        let loading = txns.into_iter().enumerate().map(|(index, ops)| {
            let mut client = clients[index % clients.len()].clone();
            async move { client.txn(ops).await.map(drop).map_err(said) }
        });
        stream::iter(loading).buffer_unordered(LOADERS).try_collect::<()>().await?;
        progress(done, all);
    }
    Ok(())
}

/// The contents of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    keys: u64,
    of_another_len: u64,
    /// The total number of puts of the keys.
    versions: u64,
    digest: u64,
}

pub(super) async fn check(
    members: &mut [(String, Client)],
    settings: &Settings,
    puts: RangeInclusive<i64>,
) -> Result<Checked, Failure> {
    let latest = RangeRequest { key: key(0), ..RangeRequest::default() };
    let answer = members[0].1.range(latest).await.map_err(said)?;
    let revision = answer.header.map_or(0, |header| header.revision);
    let each = members.iter_mut().map(|(name, client)| async move {
        Ok::<_, Failure>((name.clone(), held(client, revision, settings.value_len).await?))
    });
    let all = future::try_join_all(each).await?;
    conditions::judge_equal("the rows of the members", &all)?;
    let Held { keys, of_another_len, versions, digest } = all[0].1;
    let rows = settings.rows as i64;
    conditions::judge_within("rows of YCSB", keys as i64, &(rows..=rows))?;
    let len = "rows of YCSB of another length";
    conditions::judge_within(len, of_another_len as i64, &(0..=0))?;
    let found = versions as i64 - keys as i64;
    conditions::judge_within("puts since the load", found, &puts)?;
    let (places, known) = (all.len(), puts.start());
    let facts = format!(
        "{keys} rows, the same in {places} places; {found} puts, {known} of them of transactions \
         whose commits clients received"
    );
    Ok(Checked { digest, facts })
}

/// Reads all keys from one member only, as of a revision.
async fn held(client: &mut Client, revision: i64, value_len: u32) -> Result<Held, Failure> {
    let mut found = Held { keys: 0, of_another_len: 0, versions: 0, digest: 0 };
    let mut digest = Xxh3::new();
    let mut from = vec![0];
    loop {
        let page = page(client, &from, revision).await?;
        for KeyValue { key, version, value } in &page.0 {
            found.keys += 1;
            found.versions += *version as u64;
            found.of_another_len += u64::from(value.len() != value_len as usize);
            digest.update(key);
            digest.update(&version.to_le_bytes());
            digest.update(value);
        }
        match page.0.last() {
            Some(last) if page.1 => from = [&last.key[..], &[0]].concat(),
            Some(_) | None => {
                found.digest = digest.digest();
                return Ok(found);
            }
        }
    }
}

/// Reads a page of keys, and whether there are more. Waits for a member that lags.
async fn page(
    client: &mut Client,
    from: &[u8],
    revision: i64,
) -> Result<(Vec<KeyValue>, bool), Failure> {
    let deadline = Instant::now() + FOLLOW_DEADLINE;
    loop {
        // A range end of one zero byte means the end of all keys.
        let (key, range_end) = (from.to_vec(), vec![0]);
        let request = RangeRequest { key, range_end, limit: PAGE, revision, serializable: true };
        match client.range(request).await {
            Ok(answer) => return Ok((answer.kvs, answer.more)),
            Err(status) if status.code() == Code::OutOfRange && Instant::now() < deadline => {
                tokio::time::sleep(LOOK).await;
            }
            Err(status) => return Err(said(status)),
        }
    }
}
