//! The corpus of `sql/tests/corpus`, which also runs on PostgreSQL.

#[path = "../../../../sql/tests/corpus/answer.rs"]
mod answer;
#[path = "../../../../sql/tests/corpus/pangea.rs"]
mod pangea;
#[path = "../../../../sql/tests/corpus/runner.rs"]
mod runner;
#[expect(dead_code, reason = "parts are only used by the tests of that crate")]
#[path = "../../../../sql/tests/corpus/script.rs"]
mod script;

use std::future::Future;
use std::sync::Arc;

use pangea_core::protocol::Protocol;
use pangea_node::driver::Handle;
use pangea_sql::Shared;

use super::{Cluster, Layout};

impl<P: Protocol> pangea::Ground for Cluster<P> {
    type Node = Handle<P>;

    fn node(&self) -> (Handle<P>, Arc<Shared>) {
        (self.nodes[0].handle().clone(), self.shared[0].clone())
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

/// Runs the whole corpus on a cluster, and returns the differences.
pub fn check<P: Protocol>(layout: Layout) -> Vec<String> {
    let scripts = script::scripts();
    let run = |script: &script::Script| {
        let database = pangea::Database::new(Cluster::<P>::start(layout), &script.name);
        runner::run(script, || database.connect())
    };
    scripts.iter().flat_map(run).collect()
}
