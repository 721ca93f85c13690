//! Panics of the node's threads. Each panic is a bug. The code that starts a thread defines how to
//! handle one, so that nothing waits for a thread that no longer exists.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a thread's work. If it panics, calls `report` with a message.
pub(crate) fn caught(thread: &str, work: impl FnOnce(), report: impl FnOnce(String)) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        report(format!("thread {thread} failed: {} (this is a bug)", message_of(&*panic)));
    }
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_with_its_thread_and_its_words_and_what_goes_well_is_not() {
        let mut reported = Vec::new();
        caught("quiet", || (), |reason| reported.push(reason));
        caught("loud", || panic!("no {}", 7), |reason| reported.push(reason));
        caught("odd", || std::panic::panic_any(7), |reason| reported.push(reason));
        let words = ["no 7", "a panic"];
        let threads = ["loud", "odd"].into_iter().zip(words);
        let expected =
            threads.map(|(it, why)| format!("thread {it} failed: {why} (this is a bug)"));
        assert_eq!(reported, expected.collect::<Vec<_>>());
    }
}
