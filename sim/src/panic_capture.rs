//! Captures panics as values: a bug that a run finds ends that run, not the swarm.

use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{self, PanicHookInfo, UnwindSafe};
use std::sync::Once;

thread_local! {
    static IS_CAPTURING: Cell<bool> = const { Cell::new(false) };
    static CAPTURED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The maximum number of our own stack frames that are printed with a panic.
const FRAMES_MAX: usize = 6;

static HOOK: Once = Once::new();

/// Runs `step`.
///
/// # Errors
/// The message and the location of the panic, if `step` panicked.
pub fn panics<T>(step: impl FnOnce() -> T + UnwindSafe) -> Result<T, String> {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IS_CAPTURING.get() {
                // The last panic of a step is reported: earlier ones were handled by the program.
                CAPTURED.set(describe_panic(info));
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

/// Formats a panic on one line, followed by the frames of our own code that led to it.
fn describe_panic(info: &PanicHookInfo<'_>) -> String {
    let trace = Backtrace::force_capture().to_string();
    let mut frames = Vec::new();
    let mut function = "";
    for line in trace.lines().map(str::trim) {
        let Some(place) = line.strip_prefix("at ") else {
            function = line.split_once(": ").map_or(line, |(_, name)| name);
            continue;
        };
        let is_ours = !place.starts_with('/') && !place.contains("capture.rs");
        if is_ours && frames.len() < FRAMES_MAX {
            frames.push(format!("\n    {function} at {place}"));
        }
    }
    format!("{}{}", info.to_string().replace('\n', " "), frames.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_with_its_place() {
        assert_eq!(panics(|| 1), Ok(1));
        let message = panics(|| panic!("a count of one does not exceed two")).unwrap_err();
        assert!(
            message.contains("a count of one does not exceed two")
                && message.contains("capture.rs"),
            "{message}"
        );
    }
}
