//! Checks phase tables: the chapter of a protocol must match its files.
//!
//! The chapter, `protocols/src/<protocol>/mod.rs`, has a table that begins `//! | phase | paper |
//! file |`. Each file that it names must exist, and it must name each file of the folder, except
//! for files that are not a phase.
//!
//! The page of a protocol has its phases, too. Each must have the messages of a chapter.

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

/// Finds phases of documents that no chapter has with the same messages.
pub fn check_pages(shipped: &[Source], docs: &[Source]) -> Vec<Finding> {
    let chapters = shipped.iter().flat_map(|file| rows(&file.text));
    let chapters: BTreeSet<(String, String)> = chapters.map(|(_, row)| row).collect();
    let mut findings = Vec::new();
    for doc in docs {
        for (line, row) in rows(&doc.text) {
            if !chapters.contains(&row) {
                let (phase, messages) = row;
                let what = format!("no chapter has the phase {phase} with messages {messages:?}");
                findings.push(doc.finding(line, what));
            }
        }
    }
    findings
}

/// Returns each row of a text's phase tables: its line, its phase and its messages.
fn rows(text: &str) -> Vec<(usize, (String, String))> {
    let mut rows = Vec::new();
    let mut column: Option<usize> = None;
    for (at, line) in text.lines().enumerate() {
        let Some(row) = line.trim_start_matches("//! ").strip_prefix("| ") else {
            // The line below the header has no spaces, and ends no table.
            column = column.filter(|_| line.contains("|---"));
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if cells[0] == "phase" {
            column = cells.iter().position(|cell| *cell == "messages");
        } else if let Some(messages) = column.and_then(|column| cells.get(column)) {
            rows.push((at + 1, (cells[0].to_owned(), (*messages).to_owned())));
        }
    }
    rows
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
    fn a_phase_of_a_page_has_the_messages_of_a_chapter() {
        let chapter = [Source::new("protocols/src/minerva/mod.rs", CHAPTER)];
        let page = |row: &str| {
            let text = format!("| phase | file | messages |\n|---|---|---|\n{row}\n\n| a | b |\n");
            check_pages(&chapter, &[Source::new("docs/protocols/minerva.md", &text)])
        };
        assert!(page("| cut | `cut.rs` | Agreement |").is_empty());
        assert_eq!(page("| cut | `cut.rs` | |").len(), 1);
        assert_eq!(page("| cuts | `cut.rs` | Agreement |")[0].line, 3);
    }

    #[test]
    fn a_protocol_without_a_table_or_a_chapter_is_found() {
        assert_eq!(whats(&[("mod.rs", "//! No table.")]).len(), 1);
        assert_eq!(whats(&[("cut.rs", "")]).len(), 1);
    }
}
