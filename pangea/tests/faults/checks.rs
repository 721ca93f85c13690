//! Checks that a database contains what was acknowledged to its clients.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

use crate::load::{AttemptOutcome, Record, TALLIES, Work};

/// The maximum number of wrong rows that are named.
const NAMED_MAX: usize = 5;

/// The data of a node, as read by a client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The client and number of each row, as often as it was found.
    pub entries: Vec<(i32, i64)>,
    pub counter: i64,
    /// The client, number and tally of each transfer.
    pub transfers: Vec<(i32, i64, i64)>,
    pub tallies: BTreeMap<i64, i64>,
}

impl Contents {
    /// Reads the data, including everything that was acknowledged before now.
    pub async fn read(client: &Client) -> Self {
        client.batch_execute("set reads = strict").await.unwrap();
        let entries = client.query("select client, seq from entries", &[]).await.unwrap();
        let counter = client.query_one("select n from counters where id = 1", &[]).await.unwrap();
        let transfers = "select client, seq, tally from transfers";
        let transfers = client.query(transfers, &[]).await.unwrap();
        let tallies = client.query("select id, n from tallies", &[]).await.unwrap();
        Self {
            entries: entries.iter().map(|row| (row.get(0), row.get(1))).collect(),
            counter: counter.get(0),
            transfers: transfers.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect(),
            tallies: tallies.iter().map(|row| (row.get(0), row.get(1))).collect(),
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.entries.len() + 1 + self.transfers.len() + self.tallies.len()
    }

    /// Returns the violations: data that contradict the acknowledgements.
    pub fn check(&self, records: &[Record]) -> Vec<String> {
        let mut wrong = check_rows("entries", &self.entries, Work::Insert, records);
        let transfers: Vec<_> =
            self.transfers.iter().map(|(client, seq, _)| (*client, *seq)).collect();
        wrong.extend(check_rows("transfers", &transfers, Work::Transfer, records));
        wrong.extend(self.check_counter(records));
        for tally in 0..TALLIES {
            let count = self.transfers.iter().filter(|(_, _, of)| *of == tally).count();
            let found = self.tallies.get(&tally).copied();
            if found != i64::try_from(count).ok() {
                wrong.push(format!("tally {tally} is {found:?}, and {count} transfers raised it"));
            }
        }
        wrong
    }

    fn check_counter(&self, records: &[Record]) -> Option<String> {
        let counters = records.iter().filter(|record| record.work == Work::Count);
        let (mut least, mut most) = (0, 0);
        for record in counters {
            least += record.count(AttemptOutcome::Acknowledged);
            most += record.count(AttemptOutcome::Acknowledged)
                + record.count(AttemptOutcome::Ambiguous);
        }
        let is_right = usize::try_from(self.counter).is_ok_and(|n| (least..=most).contains(&n));
        let counter = self.counter;
        (!is_right).then(|| format!("the counter is {counter}, not from {least} to {most}"))
    }
}

/// Checks that each acknowledged row exists, no row exists twice, and no impossible row exists.
fn check_rows(table: &str, found: &[(i32, i64)], work: Work, records: &[Record]) -> Vec<String> {
    let mut keys = BTreeSet::new();
    let twice: Vec<_> = found.iter().filter(|key| !keys.insert(**key)).copied().collect();
    let (mut lost, mut phantoms) = (Vec::new(), Vec::new());
    for record in records.iter().filter(|record| record.work == work) {
        for (&seq, fate) in &record.fates {
            let key = (record.client, seq);
            match (fate, keys.remove(&key)) {
                (AttemptOutcome::Acknowledged, false) => lost.push(key),
                (AttemptOutcome::Never, true) => phantoms.push(key),
                (AttemptOutcome::Acknowledged, true)
                | (AttemptOutcome::Never, false)
                | (AttemptOutcome::Ambiguous, _) => {}
            }
        }
    }
    // The remaining rows were never attempted.
    phantoms.extend(keys);
    let kinds = [
        (twice, "exist twice"),
        (lost, "were acknowledged but are lost"),
        (phantoms, "were not committed but exist"),
    ];
    let some = kinds.into_iter().filter(|(keys, _)| !keys.is_empty());
    some.map(|(keys, what)| {
        let named = &keys[..keys.len().min(NAMED_MAX)];
        format!("{table}: {} rows {what}, such as {named:?}", keys.len())
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(work: Work, fates: [AttemptOutcome; 3]) -> Record {
        let fates = (0..).zip(fates).collect();
        Record { client: 1, work, fates, conflicts: 0, connections_lost: 0, wrong: Vec::new() }
    }

    fn records() -> Vec<Record> {
        let fates =
            [AttemptOutcome::Acknowledged, AttemptOutcome::Ambiguous, AttemptOutcome::Never];
        [Work::Insert, Work::Count, Work::Transfer].map(|work| record(work, fates)).into()
    }

    fn good() -> Contents {
        Contents {
            entries: vec![(1, 0)],
            counter: 1,
            transfers: vec![(1, 0, 1), (1, 1, 2)],
            tallies: (0..TALLIES).map(|id| (id, i64::from(id > 0))).collect(),
        }
    }

    #[test]
    fn what_was_told_is_right_whatever_became_of_what_is_not_known() {
        assert_eq!(good().check(&records()), [""; 0]);
        let more = Contents { entries: vec![(1, 0), (1, 1)], counter: 2, ..good() };
        assert_eq!(more.check(&records()), [""; 0]);
    }

    #[test]
    fn each_kind_of_wrong_is_found() {
        let cases = [
            (Contents { entries: vec![], ..good() }, "acknowledged but are lost"),
            (Contents { entries: vec![(1, 0), (1, 0)], ..good() }, "exist twice"),
            (Contents { entries: vec![(1, 0), (1, 2)], ..good() }, "not committed but exist"),
            (Contents { entries: vec![(1, 0), (7, 0)], ..good() }, "not committed but exist"),
            (Contents { counter: 0, ..good() }, "the counter is 0, not from 1 to 2"),
            (Contents { counter: 3, ..good() }, "the counter is 3, not from 1 to 2"),
            (Contents { transfers: vec![(1, 0, 1)], ..good() }, "tally 2 is Some(1), and 0"),
            (Contents { tallies: BTreeMap::new(), ..good() }, "tally 0 is None, and 0"),
        ];
        for (contents, what) in cases {
            let wrong = contents.check(&records());
            assert!(!wrong.is_empty() && wrong[0].contains(what), "{what}: {wrong:?}");
        }
    }
}
