//! Two clusters with the same name on one network: the directory of a node, or an address in its
//! file, is of the other one.

use std::time::Duration;

use tokio::time::{interval, timeout};

use crate::cluster::Cluster;
use crate::processes::REGIONS;
use crate::{POLL, load, one_at_a_time};

/// The node with the wrong directory or address.
const WRONG: usize = 1;
/// The time limit for a node to find out.
const NOTICED_DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn a_node_with_the_directory_of_another_cluster_stops_and_changes_nothing() {
    one_at_a_time(async {
        let (mut ours, mut theirs) = (begin("ours").await, begin("theirs").await);
        ours.kill(WRONG);
        theirs.kill(WRONG);
        let aside = ours.data_dir(WRONG).with_extension("aside");
        std::fs::rename(ours.data_dir(WRONG), &aside).unwrap();
        std::fs::rename(theirs.data_dir(WRONG), ours.data_dir(WRONG)).unwrap();
        let log = wait_ended(&mut ours).await;
        assert!(log.contains("another cluster with the same name"), "{log}");
        work(&ours, 0).await;
        assert_rows(&ours, "ours", 2, &[0, 2]).await;
        std::fs::rename(ours.data_dir(WRONG), theirs.data_dir(WRONG)).unwrap();
        std::fs::rename(aside, ours.data_dir(WRONG)).unwrap();
        for (cluster, name, rows) in [(&mut ours, "ours", 2), (&mut theirs, "theirs", 1)] {
            cluster.restart(WRONG).await;
            assert_rows(cluster, name, rows, &[0, 1, 2]).await;
            cluster.assert_alive();
        }
        ours.stop().await;
        theirs.stop().await;
    });
}

#[test]
fn a_node_with_an_address_of_another_cluster_disturbs_neither() {
    one_at_a_time(async {
        let (mut ours, theirs) = (begin("ours").await, begin("theirs").await);
        ours.kill(WRONG);
        let file = ours.data_dir(WRONG).with_file_name("node.toml");
        let right = std::fs::read_to_string(&file).unwrap();
        let [mine, other] = [&ours, &theirs].map(|of| of.addresses[2].peer.to_string());
        std::fs::write(&file, right.replace(&mine, &other)).unwrap();
        ours.restart(WRONG).await;
        for _ in 0..10 {
            work(&ours, WRONG).await;
            work(&ours, 2).await;
            work(&theirs, 2).await;
            work(&theirs, WRONG).await;
        }
        assert_rows(&ours, "ours", 21, &[0, 1, 2]).await;
        assert_rows(&theirs, "theirs", 21, &[0, 1, 2]).await;
        let log = ours.log(WRONG);
        assert!(log.contains("is ignored, because its log is not the one"), "{log}");
        ours.kill(WRONG);
        std::fs::write(&file, right).unwrap();
        ours.restart(WRONG).await;
        assert_rows(&ours, "ours", 21, &[0, 1, 2]).await;
        ours.stop().await;
        theirs.stop().await;
    });
}

/// Starts a cluster with one row, which has its name.
async fn begin(name: &str) -> Cluster {
    let cluster = Cluster::start().await;
    let client = load::connect(&cluster.addresses[0]).await.expect("a session");
    let create = "create table rows (id serial primary key, cluster text)";
    client.batch_execute(create).await.expect("a table");
    let insert = format!("alter table rows alter cluster set default '{name}'");
    client.batch_execute(&insert).await.expect("a default value");
    work(&cluster, 0).await;
    cluster
}

/// Inserts a row.
async fn work(cluster: &Cluster, node: usize) {
    cluster.fresh(node).await;
    let client = load::connect(&cluster.addresses[node]).await.expect("a session");
    let insert = client.execute("insert into rows default values", &[]);
    let inserted = timeout(NOTICED_DEADLINE, insert).await;
    let inserted = inserted.unwrap_or_else(|_| panic!("no commit:\n{}", cluster.log_ends()));
    assert_eq!(inserted.expect("a commit"), 1);
}

/// Checks that these nodes have so many rows, all of their own cluster.
async fn assert_rows(cluster: &Cluster, name: &str, rows: i64, nodes: &[usize]) {
    for &node in nodes {
        cluster.fresh(node).await;
        let client = load::connect(&cluster.addresses[node]).await.expect("a session");
        let count = "select count(*), count(*) filter (where cluster = $1) from rows";
        let row = client.query_one(count, &[&name]).await.expect("the rows");
        let counts: (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(counts, (rows, rows), "{} of {name}:\n{}", REGIONS[node], cluster.log_ends());
    }
}

/// Starts the node and waits until it ends by itself. Returns its log.
async fn wait_ended(cluster: &mut Cluster) -> String {
    cluster.launch(WRONG);
    let wait = async {
        let mut poll = interval(POLL);
        while !cluster.has_ended(WRONG) {
            poll.tick().await;
        }
    };
    let ended = timeout(NOTICED_DEADLINE, wait).await;
    assert!(ended.is_ok(), "it goes on:\n{}", cluster.log_ends());
    cluster.log(WRONG)
}
