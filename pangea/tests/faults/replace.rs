//! A node's disk is lost, or a bit on it flips, while clients write.

use std::path::{Path, PathBuf};

use tokio::time::sleep;

use crate::cluster::Cluster;
use crate::processes::REGIONS;
use crate::{
    Scene, WHOLE, check_contents, end, one_at_a_time, say, start, wait_other_coordinator,
    wait_working,
};

#[test]
fn a_node_whose_disk_is_lost_is_replaced_and_nothing_acknowledged_is_lost_with_it() {
    one_at_a_time(run(|cluster, node| {
        std::fs::remove_dir_all(cluster.data_dir(node)).unwrap();
        None
    }));
}

#[test]
fn a_node_with_a_flipped_bit_does_not_start_until_it_is_replaced() {
    one_at_a_time(run(|cluster, node| Some(flip_bit(&cluster.data_dir(node).join("log")))));
}

/// Kills the coordinator, damages its disk, and replaces the node under load. If a file is damaged,
/// the node must report that first. Then each other node is killed for a while.
async fn run(harm: fn(&Cluster, usize) -> Option<PathBuf>) {
    let Scene { mut cluster, load, clients, _shown_on_panic } = start().await;
    let lost = cluster.coordinator().await;
    say(&load, &format!("kill -9 {}, whose disk is damaged", REGIONS[lost]));
    cluster.kill(lost);
    let damaged = harm(&cluster, lost);
    wait_other_coordinator(&cluster, lost).await;
    if let Some(path) = &damaged {
        let log = cluster.start_in_vain(lost).await;
        let file = path.file_name().unwrap().to_str().unwrap();
        let reported = ["corrupt at offset", file, "pangea start --replace"];
        assert!(reported.iter().all(|what| log.contains(what)), "{log}");
    }
    say(&load, &format!("start {} with --replace", REGIONS[lost]));
    cluster.replace(lost).await;
    say(&load, &format!("{} has all data again", REGIONS[lost]));
    let aside = cluster.data_dir(lost).join("set-aside-1");
    assert_eq!(aside.join("log").exists(), damaged.is_some(), "the previous data is set aside");
    assert!(!cluster.data_dir(lost).join("replaced").exists(), "the replacement is complete");
    wait_working(&load, lost).await;
    for other in (0..REGIONS.len()).filter(|node| *node != lost) {
        say(&load, &format!("kill -9 {}", REGIONS[other]));
        cluster.kill(other);
        wait_working(&load, lost).await;
        cluster.restart(other).await;
        wait_working(&load, other).await;
    }
    cluster.kill(lost);
    cluster.restart(lost).await;
    wait_working(&load, lost).await;
    sleep(WHOLE).await;
    let records = end(&load, clients).await;
    cluster.assert_alive();
    let wrong = check_contents(&cluster, &records).await;
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), cluster.log_ends());
    cluster.stop().await;
}

/// Flips a bit of the first remaining record in the log.
fn flip_bit(log: &Path) -> PathBuf {
    let names = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    let first = names.min().expect("a log has a segment");
    let mut bytes = std::fs::read(&first).unwrap();
    // This is after the headers of the segment and of the record.
    bytes[100] ^= 4;
    std::fs::write(&first, bytes).unwrap();
    first
}
