//! Checks the sizes of functions, files and lines, as a ratchet.

use std::collections::BTreeMap;

use super::allowed;
use super::source::{Finding, Function, Source, functions};

/// The maximum number of lines of a function, so that it fits on a screen.
const FUNCTION_LINES_MAX: usize = 70;

/// The maximum number of lines of a file, so that it has one subject.
const FILE_LINES_MAX: usize = 600;

/// The maximum number of characters of a line.
const COLUMNS_MAX: usize = 100;

/// The allowed exceptions.
pub struct Allowed<'a> {
    /// Path, name, reason.
    pub dispatch_tables: &'a [(&'a str, &'a str, &'a str)],
    /// Path, name, lines.
    pub functions: &'a [(&'a str, &'a str, usize)],
    /// Path, lines.
    pub files: &'a [(&'a str, usize)],
    /// Path, number of lines that are too long.
    pub lines: &'a [(&'a str, usize)],
}

impl Allowed<'static> {
    /// The exceptions of this repository.
    pub const HERE: Self = Self {
        dispatch_tables: allowed::DISPATCH_TABLES,
        functions: allowed::LONG_FUNCTIONS,
        files: allowed::LONG_FILES,
        lines: allowed::LONG_LINES,
    };
}

/// Measured sizes by path and name, each with its line.
type Measured = BTreeMap<(String, String), (usize, usize)>;

/// Finds sizes above the limits, and exceptions that are larger than necessary.
pub fn check(files: &[Source], allowed: &Allowed<'_>) -> Vec<Finding> {
    let mut longest_functions = Measured::new();
    let mut file_lines = Measured::new();
    let mut long_lines = Measured::new();
    for file in files {
        for function in functions(file.tokens()) {
            let key = (file.path.clone(), function.name);
            let longest = longest_functions.entry(key).or_default();
            *longest = (*longest).max((function.lines, function.line));
        }
        let whole = (file.path.clone(), String::new());
        file_lines.insert(whole.clone(), (file.text.lines().count(), 1));
        let first = file.text.lines().position(is_too_long).map_or(1, |at| at + 1);
        long_lines
            .insert(whole, (file.text.lines().filter(|line| is_too_long(line)).count(), first));
    }
    let mut findings = dispatch_tables(&mut longest_functions, allowed.dispatch_tables);
    let numbers: Vec<_> =
        allowed.functions.iter().map(|&(path, name, lines)| ((path, name), lines)).collect();
    let what = "lines in a function";
    findings.extend(ratchet(what, FUNCTION_LINES_MAX, &longest_functions, &numbers));
    let numbers: Vec<_> = allowed.files.iter().map(|&(path, lines)| ((path, ""), lines)).collect();
    findings.extend(ratchet("lines in a file", FILE_LINES_MAX, &file_lines, &numbers));
    let numbers: Vec<_> = allowed.lines.iter().map(|&(path, lines)| ((path, ""), lines)).collect();
    findings.extend(ratchet("lines over 100 columns", 0, &long_lines, &numbers));
    findings
}

/// Returns the current contents of the lists in `allowed`, except for dispatch tables.
pub fn lists(files: &[Source], allowed: &Allowed<'_>) -> String {
    let is_table = |path: &str, name: &str| {
        allowed.dispatch_tables.iter().any(|(p, n, _)| (*p, *n) == (path, name))
    };
    let mut lists = vec![String::from("LONG_FUNCTIONS")];
    for file in files {
        for Function { name, lines, .. } in functions(file.tokens()) {
            if lines > FUNCTION_LINES_MAX && !is_table(&file.path, &name) {
                lists.push(format!("    ({:?}, {name:?}, {lines}),", file.path));
            }
        }
    }
    let sizes: [(&str, usize, Size); 2] = [
        ("LONG_FILES", FILE_LINES_MAX, |file| file.text.lines().count()),
        ("LONG_LINES", 0, |file| file.text.lines().filter(|line| is_too_long(line)).count()),
    ];
    for (list, max, size) in sizes {
        lists.push(list.to_owned());
        let large = files.iter().map(|file| (file, size(file))).filter(|(_, size)| *size > max);
        lists.extend(large.map(|(file, size)| format!("    ({:?}, {size}),", file.path)));
    }
    lists.join("\n")
}

/// A function that measures a file.
type Size = fn(&Source) -> usize;

/// Returns whether a line exceeds the limit and could be broken.
fn is_too_long(line: &str) -> bool {
    line.chars().count() > COLUMNS_MAX && !is_table_row(line)
}

/// Returns whether a line is a row of a table in a doc comment, which cannot be broken.
fn is_table_row(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//! |") || line.starts_with("/// |")
}

/// Removes the dispatch tables from the measured functions.
fn dispatch_tables(measured: &mut Measured, tables: &[(&str, &str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for &(path, name, reason) in tables {
        assert!(!reason.is_empty(), "{path} {name}: an exception has a reason");
        let key = (path.to_owned(), name.to_owned());
        let is_needed = measured.remove(&key).is_some_and(|(lines, _)| lines > FUNCTION_LINES_MAX);
        if !is_needed {
            let what = format!("{name} needs no exception any more: take it off the list");
            findings.push(Finding { path: path.to_owned(), line: 1, what });
        }
    }
    findings
}

/// Compares each measured number with the limit, or with its number in the list.
fn ratchet(
    what: &str,
    max: usize,
    measured: &Measured,
    numbers: &[((&str, &str), usize)],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut listed: BTreeMap<(String, String), usize> = numbers
        .iter()
        .map(|&((path, name), number)| ((path.to_owned(), name.to_owned()), number))
        .collect();
    assert_eq!(listed.len(), numbers.len(), "the list of {what} has a duplicate");
    for (key, &(number, line)) in measured {
        let (path, name) = key.clone();
        let mut find = |say: String| {
            let what = format!("{name} {what}: {say}").trim_start().to_owned();
            findings.push(Finding { path: path.clone(), line, what });
        };
        match listed.remove(key) {
            None if number > max => find(format!("{number}, and {max} is the limit")),
            None => {}
            Some(_) if number <= max => find(format!("{number}: take it off the list")),
            Some(before) if number > before => find(format!("{number}, and it was {before}")),
            Some(before) if number < before => {
                find(format!("{number}, and the list says {before}: lower it"));
            }
            Some(_) => {}
        }
    }
    findings.extend(listed.into_keys().map(|(path, name)| {
        let what =
            format!("{name} {what}: is on the list, but does not exist").trim_start().to_owned();
        Finding { path, line: 1, what }
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Allowed<'static> =
        Allowed { dispatch_tables: &[], functions: &[], files: &[], lines: &[] };

    fn function(lines: usize) -> Vec<Source> {
        let body = "    x();\n".repeat(lines - 2);
        vec![Source::new("a.rs", &format!("fn long() {{\n{body}}}\n"))]
    }

    fn whats(files: &[Source], allowed: &Allowed<'_>) -> Vec<String> {
        check(files, allowed).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_function_over_the_limit_is_found_and_one_at_it_is_not() {
        assert_eq!(whats(&function(70), &NOTHING), [""; 0]);
        assert_eq!(
            whats(&function(71), &NOTHING),
            ["long lines in a function: 71, and 70 is the limit"]
        );
    }

    #[test]
    fn a_number_on_the_list_moves_down_only() {
        let allowed = Allowed { functions: &[("a.rs", "long", 80)], ..NOTHING };
        let cases = [
            (80, vec![]),
            (81, vec!["long lines in a function: 81, and it was 80"]),
            (79, vec!["long lines in a function: 79, and the list says 80: lower it"]),
            (70, vec!["long lines in a function: 70: take it off the list"]),
        ];
        for (lines, expected) in cases {
            assert_eq!(whats(&function(lines), &allowed), expected, "{lines} lines");
        }
        assert_eq!(
            whats(&[], &allowed),
            ["long lines in a function: is on the list, but does not exist"]
        );
    }

    #[test]
    fn a_dispatch_table_may_be_long_and_nothing_else_may_claim_to_be_one() {
        let tables = &[("a.rs", "long", "one line for each case")];
        let allowed = Allowed { dispatch_tables: tables, ..NOTHING };
        assert_eq!(whats(&function(100), &allowed), [""; 0]);
        let expected = ["long needs no exception any more: take it off the list"];
        assert_eq!(whats(&function(10), &allowed), expected);
        assert_eq!(whats(&[], &allowed), expected);
    }

    #[test]
    fn the_lists_hold_what_is_too_large_and_nothing_else() {
        let mut files = function(71);
        files.push(Source::new("b.rs", &format!("// {}\n", "b".repeat(98))));
        files.push(Source::new("c.rs", &"\n".repeat(601)));
        let expected = "LONG_FUNCTIONS\n    (\"a.rs\", \"long\", 71),\n\
            LONG_FILES\n    (\"c.rs\", 601),\nLONG_LINES\n    (\"b.rs\", 1),";
        assert_eq!(lists(&files, &NOTHING), expected);
    }

    #[test]
    fn a_file_over_the_limit_is_found() {
        let file = |lines| vec![Source::new("a.rs", &"\n".repeat(lines))];
        assert_eq!(whats(&file(600), &NOTHING), [""; 0]);
        let expected = ["lines in a file: 601, and 600 is the limit"];
        assert_eq!(whats(&file(601), &NOTHING), expected);
    }

    #[test]
    fn columns_are_characters_and_rows_of_tables_are_free() {
        let file = |line: String| vec![Source::new("a.rs", &format!("{line}\n"))];
        assert_eq!(whats(&file(format!("//! {}", "§".repeat(96))), &NOTHING), [""; 0]);
        let expected = ["lines over 100 columns: 1, and 0 is the limit"];
        assert_eq!(whats(&file(format!("//! {}", "§".repeat(97))), &NOTHING), expected);
        assert_eq!(whats(&file(format!("//! | {} |", "a".repeat(100))), &NOTHING), [""; 0]);
    }
}
