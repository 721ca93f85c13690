//! Checks that `core` and `protocols` do not access the outside world, and that protocols do not
//! know each other.
//!
//! `clippy.toml` in both crates bans functions and types that it can resolve. This check looks at
//! names, and so detects code that clippy has no list for: `async`, a whole module, another
//! protocol.

use super::allowed::SHARED;
use super::source::{CodePath, Finding, Source, idents, paths, without_tests};

/// The crates that are deterministic.
pub const DETERMINISTIC: [&str; 2] = ["core", "protocols"];

/// Paths that lead out of a deterministic crate, and their replacements.
const WORLD: [(&str, &str); 9] = [
    ("std::thread", "parallel work goes through cx.pool"),
    ("std::net", "messages are effects"),
    ("std::fs", "persistence is an effect"),
    ("std::env", "configuration is an argument"),
    ("std::process", "a driver decides what a process does"),
    ("std::time::Instant", "time is an input: use cx.now"),
    ("std::time::SystemTime", "time is an input: use cx.now"),
    ("tokio", "waiting is up to the driver"),
    ("rand", "randomness is an input: use cx.rng"),
];

/// Exceptions within these paths.
const HARMLESS: [&str; 1] = ["std::thread::panicking"];

/// Names that are as bad as these paths wherever they appear.
const WORLDLY_NAMES: [(&str, &str); 4] = [
    ("Instant", "time is an input: use cx.now"),
    ("SystemTime", "time is an input: use cx.now"),
    ("async", "waiting is up to the driver"),
    ("await", "waiting is up to the driver"),
];

/// Finds access to the outside world in the files of deterministic crates, except for tests.
pub fn check_world(files: &[&Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let tokens = without_tests(file.tokens());
        for path in paths(tokens) {
            if let Some((name, instead)) = leads_out(&path) {
                let what = format!("`{name}` in a deterministic crate: {instead}");
                findings.push(file.finding(path.line, what));
            }
        }
    }
    findings
}

fn leads_out(path: &CodePath) -> Option<(&'static str, &'static str)> {
    let begins_with = |name: &str| {
        let mut parts = path.parts.iter();
        name.split("::").all(|part| parts.next().is_some_and(|found| found == part))
    };
    let has = |name: &str| path.parts.iter().any(|part| part == name);
    if HARMLESS.into_iter().any(begins_with) {
        return None;
    }
    let outside = WORLD.into_iter().find(|(name, _)| begins_with(name));
    outside.or_else(|| WORLDLY_NAMES.into_iter().find(|(name, _)| has(name)))
}

/// Returns the protocol or shared folder of `protocols/src` that contains a file.
pub fn folder(path: &str) -> Option<&str> {
    path.strip_prefix("protocols/src/")?.split_once('/').map(|(folder, _)| folder)
}

/// Returns the protocols: the folders of `protocols/src` that are not shared.
pub fn protocols(files: &[Source]) -> Vec<&str> {
    let is_protocol = |name: &&str| !SHARED.iter().any(|(shared, _)| shared == name);
    let mut names: Vec<&str> =
        files.iter().filter_map(|file| folder(&file.path)).filter(is_protocol).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Finds protocols that name another protocol, and shared folders that name any.
pub fn check_siblings(files: &[Source]) -> Vec<Finding> {
    let protocols = protocols(files);
    let mut findings = Vec::new();
    for file in files {
        let Some(own) = folder(&file.path) else { continue };
        for ident in idents(file.tokens()) {
            let other = protocols.iter().find(|name| ident == **name && **name != own);
            if let Some(other) = other {
                let what = format!(
                    "{own} names {other}: code that two protocols share belongs next to them"
                );
                findings.push(file.finding(ident.span().start().line, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let file = Source::new("core/src/a.rs", text);
        check_world(&[&file]).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn every_way_to_the_world_is_found() {
        let bad = [
            "use std::time::Instant;",
            "use std::{collections::BTreeMap, time::{Duration, SystemTime}};",
            "use std::time; fn f() { time::Instant::now(); }",
            "fn f() { std::thread::yield_now(); }",
            "use std::thread;",
            "use ::std::net::TcpStream;",
            "use std::fs::{self, File};",
            "fn f() { let _ = std::env::args(); }",
            "fn f() { std::process::exit(1); }",
            "use tokio::sync::mpsc;",
            "fn f() -> u8 { rand::random() }",
            "async fn f() {}",
            "fn f() { let _ = async { g.await }; }",
            "call!(std::thread::spawn(f));",
        ];
        for text in bad {
            assert!(!lines(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn words_in_prose_and_what_only_tests_do_are_no_way_to_the_world() {
        let good = [
            "//! Not std::thread, and no async.\nfn f() { let s = \"tokio\"; }",
            "#[cfg(test)]\nmod tests { use std::thread; }",
            "use std::time::Duration;",
            "use std::sync::Mutex;",
            "fn f() { assert!(!std::thread::panicking()); }",
            "fn f(net: u8, fs: u8) {}",
        ];
        for text in good {
            assert_eq!(lines(text), [0; 0], "{text}");
        }
    }

    #[test]
    fn the_line_of_the_finding_is_that_of_the_name() {
        assert_eq!(lines("use std::{\n    fmt,\n    fs,\n};\n"), [3]);
    }

    #[test]
    fn a_protocol_that_names_another_is_found() {
        let file = |path: &str, text: &str| Source::new(&format!("protocols/src/{path}"), text);
        let two = |text| vec![file("calvin/mod.rs", ""), file("minerva/cut.rs", text)];
        let bad = [
            "use crate::calvin::Sequencer;",
            "use super::super::calvin::lock;",
            "use crate::{agreement, calvin};",
            "fn f() { crate::calvin::lock::f(); }",
        ];
        for text in bad {
            assert_eq!(check_siblings(&two(text)).len(), 1, "{text}");
        }
        let good = ["use crate::agreement::Agreement;", "//! As calvin does.", "use super::state;"];
        for text in good {
            assert_eq!(check_siblings(&two(text)), [], "{text}");
        }
    }

    #[test]
    fn what_is_shared_names_no_protocol_and_the_list_of_modules_may() {
        let minerva = Source::new("protocols/src/minerva/mod.rs", "");
        let shared = Source::new("protocols/src/agreement/mod.rs", "use crate::minerva::Cut;");
        let list = Source::new("protocols/src/lib.rs", "pub mod agreement; pub mod minerva;");
        assert_eq!(check_siblings(&[minerva.clone(), shared]).len(), 1);
        assert_eq!(check_siblings(&[minerva, list]), []);
    }
}
