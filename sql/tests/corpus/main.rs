//! SQL compared with PostgreSQL 15: a corpus of scripts, and generated queries.
//!
//! ```text
//!   features/*.slt ----> Pangea          always: `the_corpus_is_answered_as_postgresql_does`
//!        |    `--------> PostgreSQL 15   if it is installed: the expectations are its answers
//!        v
//!   docs/SQL.md                          generated, and checked against the scripts
//!
//!   a seed -> generated/ -> a statement -> Pangea and PostgreSQL 15, which must agree
//! ```
//!
//! The scripts are in the format of the crate `sqllogictest`; `script.rs` describes the subset in
//! use. `docs/TESTING.md` describes how expectations are rewritten.

mod answer;
mod generated;
mod memory;
mod page;
mod pangea;
mod postgres;
mod rewrite;
mod runner;
mod script;

use std::path::{Path, PathBuf};

use memory::Memory;
use page::page;
use postgres::Server;
use rewrite::rewritten;
use runner::run;
use script::{Feature, features, scripts, text};

/// Returns whether expectations and the page are rewritten.
fn is_rewriting() -> bool {
    std::env::var("PANGEA_CORPUS").is_ok_and(|value| value == "rewrite")
}

fn assert_none(engine: &str, failures: &[String]) {
    let count = failures.len();
    assert!(failures.is_empty(), "{engine}, {count} answers:\n{}", failures.join("\n"));
}

#[test]
fn the_corpus_is_answered_as_postgresql_does() {
    let mut failures = Vec::new();
    for script in scripts() {
        let database = pangea::Database::new(Memory::default(), &script.name);
        failures.extend(run(&script, || database.connect()));
    }
    assert_none("Pangea", &failures);
}

#[test]
fn the_corpus_expects_what_postgresql_answers() {
    let Some(server) = Server::start() else { return };
    let mut failures = Vec::new();
    for script in scripts() {
        server.create_database(&script.name);
        if is_rewriting() {
            let pangea = pangea::Database::new(Memory::default(), &script.name);
            let steps = rewritten(&script, || server.connect(&script.name), || pangea.connect());
            std::fs::write(&script.path, text(&steps)).unwrap();
        } else {
            failures.extend(run(&script, || server.connect(&script.name)));
        }
    }
    assert_none("PostgreSQL", &failures);
    if is_rewriting() {
        std::fs::write(page_path(), page(&all_features())).unwrap();
    }
}

fn all_features() -> Vec<Feature> {
    scripts().iter().flat_map(features).collect()
}

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/SQL.md")
}

#[test]
fn the_page_is_what_the_corpus_shows() {
    // A rewrite changes the corpus first, and the page after it.
    if is_rewriting() {
        return;
    }
    let written = std::fs::read_to_string(page_path()).unwrap_or_default();
    let how = "docs/TESTING.md says how to generate it";
    assert!(written == page(&all_features()), "docs/SQL.md is not what the corpus shows: {how}");
}
