//! Statements that write many rows on two nodes.

use pangea_core::protocol::Protocol;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::mako::Mako;
use pangea_protocols::tiga::Tiga;

use super::script::{Ground, answers};
use super::{Cluster, TWO_SHARDS};

const ROWS: usize = 10_000;

/// Each row on the other node once needed a round trip, after which the statement restarted: this
/// took minutes.
#[test]
fn many_rows_of_two_nodes_are_loaded_changed_and_deleted() {
    change_many::<Calvin>();
    change_many::<Tiga>();
    change_many::<Mako>();
}

fn change_many<P: Protocol>() {
    let mut cluster = Cluster::<P>::start(TWO_SHARDS);
    let mut session = cluster.session(0);
    let rows: String = (1..=ROWS).map(|at| format!("{at}\t{}\n", at % 100)).collect();
    let mut check = |sql: &str, answer: &[&str]| {
        assert_eq!(answers(&cluster, &mut session, sql, &rows), answer, "{sql}");
    };
    check("create table parent (a int primary key)", &["= CREATE TABLE"]);
    check("insert into parent select * from generate_series(0, 99)", &["= INSERT 0 100"]);
    let table = "create table t (a int primary key, p int references parent, u int unique)";
    check(table, &["= CREATE TABLE"]);
    check("copy t (a, p) from stdin", &["= COPY 10000"]);
    let some = (1..=ROWS).step_by(2).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
    let some = format!("a = any ('{{{some}}}'::int[])");
    check(&format!("update t set u = a where {some}"), &["= UPDATE 5000"]);
    check("select count(u), count(*), count(distinct p) from t", &["5000|10000|100", "= SELECT 1"]);
    check(&format!("delete from t where {some}"), &["= DELETE 5000"]);
    check("select count(u), count(*), min(a) from t", &["0|5000|2", "= SELECT 1"]);
    cluster.wait(async { drop(session) });
    cluster.nodes.into_iter().for_each(|node| node.stop().unwrap());
}
