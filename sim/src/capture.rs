//! Panics as values: a bug that a run finds ends that run, not the swarm.

use std::cell::{Cell, RefCell};
use std::panic::{self, UnwindSafe};
use std::sync::Once;

thread_local! {
    static IS_CAPTURING: Cell<bool> = const { Cell::new(false) };
    static CAPTURED: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();

/// Runs `step`.
///
/// # Errors
/// What it panicked with, and where, when it panicked.
pub fn panics<T>(step: impl FnOnce() -> T + UnwindSafe) -> Result<T, String> {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IS_CAPTURING.get() {
                // The first panic of a step tells the story, unless the program handled it.
                CAPTURED.set(info.to_string());
            } else {
                before(info);
            }
        }));
    });
    let was_capturing = IS_CAPTURING.replace(true);
    let result = panic::catch_unwind(step);
    IS_CAPTURING.set(was_capturing);
    result.map_err(|_| CAPTURED.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_with_its_place() {
        assert_eq!(panics(|| 1), Ok(1));
        let told = panics(|| panic!("one is not more than two")).unwrap_err();
        assert!(told.contains("one is not more than two") && told.contains("capture.rs"), "{told}");
    }
}
