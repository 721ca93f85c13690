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
    let mut section = "";
    for feature in features {
        if feature.section != section {
            section = &feature.section;
            page.push_str(&format!(
                "\n## {section}\n\n| feature | supported | example | notes | statements |\n\
                 |---|---|---|---|---|\n"
            ));
        }
        page.push_str(&row(feature));
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
    let mut notes = feature.notes.clone();
    for (kind, is_refused) in [("not supported", true), ("differs", false)] {
        let mut texts: Vec<&str> = Vec::new();
        for difference in feature.differences.iter().filter(|it| it.is_refused == is_refused) {
            if !texts.contains(&difference.what.as_str()) {
                texts.push(&difference.what);
            }
        }
        if !texts.is_empty() {
            notes.push(format!("{kind}: {}", texts.join(", ")));
        }
    }
    let example = feature.example.split_whitespace().collect::<Vec<_>>().join(" ");
    let cells = [
        feature.name.clone(),
        supported.to_owned(),
        code(&example),
        notes.join("<br>"),
        feature.same.to_string(),
    ];
    // A bar ends a cell, even in code.
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

/// Formats a text as code, even if it contains backticks.
fn code(text: &str) -> String {
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}
