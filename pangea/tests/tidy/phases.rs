//! Checks phase tables: the chapter of a protocol must match its files.
//!
//! The chapter, `protocols/src/<protocol>/mod.rs`, has a table that begins `//! | phase | paper |
//! file |`. Each file that it names must exist, and it must name each file of the folder, except
//! for files that are not a phase.

use std::collections::{BTreeMap, BTreeSet};

use super::allowed::{NO_PHASE, PLUMBING};
use super::purity::{folder, protocols};
use super::source::{Finding, Source};

/// Finds files that a table names and that do not exist, and vice versa.
///
/// `shipped` are the files of the crate that are not only for tests.
pub fn check(shipped: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for protocol in protocols(shipped) {
        let files: Vec<&Source> =
            shipped.iter().filter(|file| folder(&file.path) == Some(protocol)).collect();
        let chapter = format!("protocols/src/{protocol}/mod.rs");
        let Some(chapter) = files.iter().find(|file| file.path == chapter) else {
            let what = "a protocol's folder has a mod.rs with its chapter".to_owned();
            findings.push(Finding { path: chapter, line: 1, what });
            continue;
        };
        findings.extend(check_protocol(chapter, &files));
    }
    findings
}

fn check_protocol(chapter: &Source, files: &[&Source]) -> Vec<Finding> {
    let base = chapter.path.strip_suffix("mod.rs").expect("the chapter is in mod.rs");
    let named = files_of_table(&chapter.text);
    if named.is_empty() {
        let what = "the chapter has no phase table: `| phase | paper | file | ..`";
        return vec![chapter.finding(1, what)];
    }
    let here: BTreeSet<&str> =
        files.iter().map(|file| file.path.strip_prefix(base).expect("in the folder")).collect();
    let missing = named.iter().filter(|(name, _)| !here.contains(name.as_str()));
    let mut findings: Vec<Finding> = missing
        .map(|(name, line)| chapter.finding(*line, format!("the phase table names {name}")))
        .collect();
    for file in files {
        let name = file.path.strip_prefix(base).expect("in the folder");
        if !has_a_place(name, &file.path, &named) {
            let what = "is in no row of the phase table, and not on the list of files that are not \
                        phases";
            findings.push(file.finding(1, what));
        }
    }
    findings
}

/// Returns whether a file is a phase, a part of one, or an exception with a reason.
fn has_a_place(name: &str, path: &str, named: &BTreeMap<String, usize>) -> bool {
    // If a phase has grown into a folder, its file is next to the folder, or a mod.rs in it.
    let outer = name.split_once('/').map(|(outer, _)| format!("{outer}.rs"));
    let is_phase = |name: &str| named.contains_key(name);
    let is_plumbing = |name: &str| PLUMBING.iter().any(|(plumbing, _)| *plumbing == name);
    let is_excepted = NO_PHASE.iter().any(|(excepted, _)| *excepted == path);
    let name = outer.as_deref().unwrap_or(name);
    is_phase(name) || is_plumbing(name) || is_excepted
}

/// Returns the files that the phase table names, each with its line.
fn files_of_table(text: &str) -> BTreeMap<String, usize> {
    let mut files = BTreeMap::new();
    let mut is_inside = false;
    for (at, line) in text.lines().enumerate() {
        let cells: Vec<&str> = match line.strip_prefix("//! |") {
            Some(row) => row.split('|').map(str::trim).collect(),
            None => {
                is_inside = false;
                continue;
            }
        };
        is_inside |= cells.starts_with(&["phase", "paper", "file"]);
        if let (true, Some(cell)) = (is_inside, cells.get(2)) {
            // Files outside of the protocol are named by their module.
            let names = cell.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs"));
            files.extend(names.map(|name| (name.to_owned(), at + 1)));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAPTER: &str = "//! A chapter.\n//!\n//! | phase | paper | file | messages |\n\
        //! |---|---|---|---|\n//! | cut | §3.4 | `cut.rs` | Agreement |\n//!\n\
        //! | not | a | `phase.rs` |\n";

    fn whats(files: &[(&str, &str)]) -> Vec<String> {
        let file = |&(name, text): &(&str, &str)| {
            Source::new(&format!("protocols/src/minerva/{name}"), text)
        };
        let files: Vec<Source> = files.iter().map(file).collect();
        check(&files).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn a_table_and_a_folder_that_agree_pass() {
        let files = [("mod.rs", CHAPTER), ("cut.rs", ""), ("state.rs", ""), ("cut/votes.rs", "")];
        assert_eq!(whats(&files), [""; 0]);
    }

    #[test]
    fn a_file_that_the_table_names_must_be_there() {
        let expected = "protocols/src/minerva/mod.rs:5: the phase table names cut.rs";
        assert_eq!(whats(&[("mod.rs", CHAPTER)]), [expected]);
    }

    #[test]
    fn a_file_that_no_row_names_is_found() {
        let found = whats(&[("mod.rs", CHAPTER), ("cut.rs", ""), ("extra.rs", "")]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("protocols/src/minerva/extra.rs:1: is in no row"),
            "{found:?}"
        );
        let found = whats(&[("mod.rs", CHAPTER), ("cut.rs", ""), ("extra/part.rs", "")]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_protocol_without_a_table_or_a_chapter_is_found() {
        assert_eq!(whats(&[("mod.rs", "//! No table.")]).len(), 1);
        assert_eq!(whats(&[("cut.rs", "")]).len(), 1);
    }
}
