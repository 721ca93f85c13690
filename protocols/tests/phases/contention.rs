//! The high-contention mode (Minerva §4).

use pangea_protocols::minerva::Options;
use pangea_protocols::minerva::batch::{Batch, ExecutionMode};

use super::support::{Cluster, by_hand};

/// Minerva §4: "incoming transactions are statically probed to extract their read and write sets",
/// "the propagation of large write-sets is avoided".
#[test]
fn in_high_contention_mode_no_write_sets_are_shipped() {
    let mut cluster = Cluster::new(3, Options { high_contention_ms: 0, ..by_hand() });
    for _ in 0..2 {
        for id in 0..3 {
            cluster.call(id, "add hot 1");
            cluster.call(id, "add hot 1");
        }
        cluster.epoch();
    }
    assert_eq!(cluster.counter(1, "high_contention"), 1);
    cluster.sent.clear();
    let ticket = cluster.call(1, "get hot; add hot 1");
    cluster.epoch();
    let batches = cluster.sent.iter().filter_map(|(_, _, message)| match message {
        message!(Batch { bytes }) => Some(Batch::decode(bytes).expect("a whole batch")),
        _ => None,
    });
    let records: Vec<_> = batches.flat_map(|batch| batch.records).collect();
    assert!(!records.is_empty());
    let is_probed =
        |how: &ExecutionMode| matches!(how, ExecutionMode::Ordered { footprint: Some(_) });
    assert!(records.iter().all(|record| is_probed(&record.how)), "{records:?}");
    assert_eq!(cluster.result(1, ticket), "12");
    assert_eq!(cluster.counter(2, "txns_ordered"), 1);
    assert_eq!(cluster.everywhere("hot"), "13");
}
