//! `docs/SQL.md`: the results of the scripts, feature by feature.

use super::script::Feature;

const HEAD: &str = "\
# SQL

This page lists the parts of PostgreSQL 15's SQL that Pangea supports. It is generated from the
scripts in `sql/tests/corpus/features`. Their expected answers (rows, column types, SQLSTATE) are
those of PostgreSQL. A feature is supported if Pangea answers each of its statements identically.
A statement also proves each known difference. See
[TESTING.md](TESTING.md#the-corpus-of-sql) for details.
";

/// Returns the page.
pub fn page(features: &[Feature]) -> String {
    let same: usize = features.iter().map(|feature| feature.same).sum();
    let differences: usize = features.iter().map(|feature| feature.differences.len()).sum();
    let mut page = format!(
        "{HEAD}\n{same} statements of {} features have the same answer as in PostgreSQL; \
         {differences} do not.\n",
        features.len()
    );
    for section in features.chunk_by(|a, b| a.section == b.section) {
        page.push_str(&format!(
            "\n## {}\n\n| feature | supported | example | statements |\n|---|---|---|---|\n",
            section[0].section
        ));
        section.iter().for_each(|feature| page.push_str(&row(feature)));
        section.iter().for_each(|feature| page.push_str(&details(feature)));
    }
    page
}

fn row(feature: &Feature) -> String {
    let is_refused = feature.differences.iter().any(|difference| difference.is_refused);
    let supported = match (feature.same, is_refused) {
        (0, _) => "no",
        (_, true) => "in part",
        (_, false) => "yes",
    };
    let example = feature.example.split_whitespace().collect::<Vec<_>>().join(" ");
    let cells =
        [feature.name.clone(), supported.to_owned(), code(&example), feature.same.to_string()];
    // A bar ends a cell, even in code.
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

/// Returns the notes of a feature as a list under its name, if it has any.
fn details(feature: &Feature) -> String {
    let mut notes = feature.notes.clone();
    for (kind, is_refused) in [("Not supported", true), ("Differs", false)] {
        let mut texts: Vec<&str> = Vec::new();
        for difference in feature.differences.iter().filter(|it| it.is_refused == is_refused) {
            if !texts.contains(&difference.what.as_str()) {
                texts.push(&difference.what);
            }
        }
        if !texts.is_empty() {
            notes.push(format!("{kind}: {}.", texts.join("; ")));
        }
    }
    if notes.is_empty() {
        return String::new();
    }
    let items: String = notes.iter().map(|note| item(note)).collect();
    format!("\n**{}**\n\n{items}", feature.name)
}

/// Formats an item of a list, with lines of at most 100 columns where words allow it.
fn item(text: &str) -> String {
    let (mut item, mut column) = ("-".to_owned(), 1);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column + 1 + width > 100 {
            item.push_str("\n ");
            column = 1;
        }
        item.push(' ');
        item.push_str(word);
        column += 1 + width;
    }
    item + "\n"
}

/// Formats a text as code, even if it contains backticks.
fn code(text: &str) -> String {
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}
