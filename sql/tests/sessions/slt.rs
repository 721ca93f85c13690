//! Runs the scripts in `tests/slt`: sessions of statements with the expected responses.

use crate::script;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::script::{Ground, scripts, session};
use pangea_sql::Shared;
use pangea_sql::memory::MemoryEngine;

/// The engine in memory, which answers immediately.
struct Memory {
    engine: MemoryEngine,
    shared: Arc<Shared>,
    setting: Option<(&'static str, &'static str)>,
}

impl Ground for Memory {
    fn session(&mut self, _: usize) -> script::Session {
        session(Arc::new(self.engine.clone()), &self.shared, self.setting)
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the memory engine never waits"),
        }
    }
}

/// Runs all scripts, and returns how often a table was read in parallel.
fn check_scripts(setting: Option<(&'static str, &'static str)>) -> u64 {
    let scripts = scripts(Path::new(env!("CARGO_MANIFEST_DIR")));
    let run = |path| {
        let (engine, shared) = (MemoryEngine::remembering(), Arc::new(Shared::default()));
        let mut memory = Memory { engine, shared, setting };
        (script::run(path, &mut memory), memory.engine.side_by_side_count())
    };
    let (differences, counts): (Vec<_>, Vec<u64>) = scripts.iter().map(|it| run(it)).unzip();
    let differences = differences.concat();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    counts.iter().sum()
}

#[test]
fn every_script_sees_what_postgresql_shows() {
    assert_eq!(check_scripts(None), 0, "their tables are small");
}

#[test]
fn every_script_sees_the_same_where_the_smallest_table_is_read_side_by_side() {
    let count = check_scripts(Some(("min_parallel_table_scan_size", "0")));
    assert!(count > 100, "only {count} times");
}
