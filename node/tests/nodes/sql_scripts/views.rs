//! The system views of a node with partitioned tables.

use std::time::{Duration, Instant};

use pangea_core::protocol::Protocol;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::mako::Mako;
use pangea_protocols::tiga::Tiga;

use super::script::{Ground, answers};
use super::{Cluster, TWO_SHARDS};

const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn each_node_shows_its_shard_how_far_others_are_and_what_it_counts() {
    show::<Calvin>();
    show::<Tiga>();
    show::<Mako>();
}

fn show<P: Protocol>() {
    let mut cluster = Cluster::<P>::start(TWO_SHARDS);
    for node in 0..2 {
        let mut session = cluster.session(node);
        let mut ask = |sql: &str| answers(&cluster, &mut session, sql, "");
        let table = format!("create table t{node} (a int primary key)");
        assert_eq!(ask(&table), ["= CREATE TABLE"]);
        let own = ask("select node, shard, shards, members from pangea.cluster");
        assert_eq!(own, [&format!("{node}|{node}|2|1"), "= SELECT 1"]);
        let member = |of: usize| if of == node { "t" } else { "NULL" };
        let all = [0, 1].map(|of| format!("{of}|{of}|t|{}|t", member(of)));
        let all = [&all[0], &all[1], "= SELECT 2"];
        let known = "select node, shard, is_connected, is_member, version > 0 \
                     from pangea.replication order by node";
        // Nodes exchange their progress a few times a second, and this produces no event to wait
        // for. The test therefore polls.
        let began = Instant::now();
        let mut shown = ask(known);
        while shown != all && began.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(10));
            shown = ask(known);
        }
        assert_eq!(shown, all);
        let counted = "select value > 0 from pangea.counters where name = 'txns_committed'";
        assert_eq!(ask(counted), ["t", "= SELECT 1"]);
        cluster.wait(async { drop(session) });
    }
    cluster.nodes.into_iter().for_each(|node| node.stop().unwrap());
}
