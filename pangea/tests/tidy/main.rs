//! The house rules, checked on every file: sizes, names, layers, and prose that refers to existing
//! things.
//!
//! Each check is a function from files to findings, in its own module, with tests that show it
//! failing on violations. The allowed exceptions are in `allowed`.

mod allowed;
mod floors;
mod former;
mod language;
mod links;
mod manifests;
mod phases;
mod purity;
mod repository;
mod shape;
mod source;
mod words;

use repository::{CRATES, Repository};
use source::{Finding, Source};

/// Fails with one line for each finding.
#[track_caller]
fn expect_none(rule: &str, findings: Vec<Finding>) {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "{rule}\n\n{}\n", lines.join("\n"));
}

#[test]
fn functions_files_and_lines_are_within_their_limits() {
    let files = Repository::read().rust;
    let findings = shape::check(&files, &shape::Allowed::HERE);
    let lists = shape::lists(&files, &shape::Allowed::HERE);
    let rule = format!("Sizes only go down. pangea/tests/tidy/allowed.rs would need:\n{lists}");
    expect_none(&rule, findings);
}

#[test]
fn core_and_protocols_reach_no_clock_thread_socket_or_file() {
    let repository = Repository::read();
    let findings = purity::check_world(&repository.shipped(&purity::DETERMINISTIC));
    expect_none("core and protocols are deterministic.", findings);
}

#[test]
fn no_protocol_names_another() {
    let findings = purity::check_siblings(&Repository::read().rust);
    expect_none("Protocols don't use each other.", findings);
}

#[test]
fn phase_tables_and_folders_agree() {
    let repository = Repository::read();
    let shipped: Vec<Source> = repository.shipped(&["protocols"]).into_iter().cloned().collect();
    assert!(!purity::protocols(&shipped).is_empty(), "no protocol was found");
    let pages = phases::check_pages(&shipped, &repository.docs);
    let findings = [phases::check(&shipped), pages].concat();
    expect_none("The phase table says where everything is.", findings);
}

#[test]
fn nothing_is_unfinished() {
    let findings = words::check_unfinished(&Repository::read().rust);
    expect_none("What is in the repository is finished.", findings);
}

#[test]
fn names_say_what_they_name() {
    expect_none("Names say something.", words::check_names(&Repository::read().rust));
}

#[test]
fn planted_bugs_stand_behind_the_right_code() {
    let repository = Repository::read();
    let findings = words::check_planted(&repository.shipped(&CRATES));
    expect_none("A bug is planted by `mutate!`.", findings);
}

#[test]
fn no_name_is_a_former_one() {
    let Repository { rust, docs, .. } = Repository::read();
    let findings = [former::check(&rust), former::check_documents(&docs)].concat();
    expect_none("Names have been replaced.", findings);
}

#[test]
fn every_file_begins_with_its_doc() {
    let findings = words::check_docs(&Repository::read().rust);
    expect_none("A file begins with what it is.", findings);
}

#[test]
fn crates_depend_on_what_they_may_know() {
    let findings = manifests::check_layers(&Repository::read().manifests);
    expect_none("The layers of docs/ARCHITECTURE.md hold.", findings);
}

#[test]
fn modules_of_sql_import_from_the_floors_below() {
    let repository = Repository::read();
    expect_none("sql is built in floors.", floors::check(&repository.shipped(&["sql"])));
}

#[test]
fn every_dependency_has_a_reason() {
    let Repository { manifests, docs, .. } = Repository::read();
    let findings = manifests::check_list(&manifests, &docs);
    expect_none("Each dependency has a licence and a reason.", findings);
}

#[test]
fn the_prose_points_at_what_is_there() {
    let Repository { docs, paths, .. } = Repository::read();
    expect_none("Links and names of files in the documents.", links::check(&docs, &paths));
}

#[test]
fn comments_and_documents_are_in_plain_english() {
    let Repository { rust, docs, .. } = Repository::read();
    let findings = [language::check_comments(&rust), language::check_documents(&docs)].concat();
    expect_none("The measures of language.rs hold.", findings);
}

#[test]
fn texts_for_operators_are_in_plain_english() {
    let repository = Repository::read();
    let findings = language::check_texts(&repository.shipped(&CRATES));
    expect_none("The measures of language.rs hold.", findings);
}

#[test]
fn shared_code_names_the_paper_that_it_cites() {
    let repository = Repository::read();
    let shipped: Vec<Source> = repository.shipped(&["protocols"]).into_iter().cloned().collect();
    let findings = language::check_citations(&repository.rust, &purity::protocols(&shipped));
    expect_none("A section is cited with its paper.", findings);
}
