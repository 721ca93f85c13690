//! What a node of a divided cluster shows of it.

use super::Region;
use super::script::{Ground, answers};

#[test]
fn each_node_shows_its_shard_how_far_others_are_and_what_it_counts() {
    let mut region = Region::start(2);
    for node in 0..2 {
        let mut session = region.session(node);
        let mut ask = |sql: &str| answers(&region, &mut session, sql, "");
        // One epoch at least has been run, of which the other has told.
        let table = format!("create table t{node} (a int primary key)");
        assert_eq!(ask(&table), ["= CREATE TABLE"]);
        let own = ask("select node, shard, shards, members from pangea.cluster");
        assert_eq!(own, [&format!("{node}|{node}|2|1"), "= SELECT 1"]);
        let known = |ask: &mut dyn FnMut(&str) -> Vec<String>| {
            ask(
                "select node, shard, is_connected, is_member, version > 0 from pangea.replication order by node",
            )
        };
        let member = |of: i32| if of == node as i32 { "t" } else { "NULL" };
        let all = [0, 1].map(|of| format!("{of}|{of}|t|{}|t", member(of)));
        assert_eq!(known(&mut ask), [&all[0], &all[1], "= SELECT 2"]);
        let counted = "select value > 0 from pangea.counters where name = 'txns_committed'";
        assert_eq!(ask(counted), ["t", "= SELECT 1"]);
        region.wait(async { drop(session) });
    }
    region.nodes.into_iter().for_each(|node| node.stop().unwrap());
}
