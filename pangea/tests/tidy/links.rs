//! Checks that the prose refers to existing things: links between documents, and paths of the code.

use std::collections::BTreeSet;

use super::repository::CRATES;
use super::source::{Finding, Source};

/// Finds links to files and headings that do not exist, and names of files that do not exist.
pub fn check(docs: &[Source], paths: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for doc in docs {
        let mut is_code = false;
        for (at, line) in doc.text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            if is_code {
                continue;
            }
            for target in targets(line) {
                if let Some(what) = broken(doc, target, docs, paths) {
                    findings.push(doc.finding(at + 1, what));
                }
            }
            let gone = line.split('`').skip(1).step_by(2).filter(|code| {
                let is_gone = !paths.contains(code.trim_end_matches('/'));
                is_path_of_code(code) && is_gone
            });
            findings.extend(gone.map(|code| doc.finding(at + 1, format!("there is no {code}"))));
        }
    }
    findings
}

/// Returns whether the text in backticks is the path of a file or folder of a crate.
fn is_path_of_code(code: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
    let first = code.split_once('/').map_or("", |(first, _)| first);
    CRATES.contains(&first) && code.chars().all(is_plain)
}

/// Returns the targets of the links of a line.
fn targets(line: &str) -> Vec<&str> {
    let ends = line.split("](").skip(1);
    ends.filter_map(|rest| rest.split([')', ' ']).next()).collect()
}

fn broken(doc: &Source, target: &str, docs: &[Source], paths: &BTreeSet<String>) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { doc.path.clone() } else { resolve(&doc.path, file) };
    if !path.is_empty() && !paths.contains(&path) {
        return Some(format!("the link leads to {path}, which does not exist"));
    }
    let page = docs.iter().find(|page| page.path == path)?;
    let mut headings = page.text.lines().filter(|line| line.starts_with('#')).map(anchor);
    let is_there = heading.is_empty() || headings.any(|name| name == heading);
    (!is_there).then(|| format!("{path} has no heading for #{heading}"))
}

/// Returns the path, from the root, that a link in `from` refers to.
fn resolve(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        let docs =
            [Source::new(path, text), Source::new("docs/OTHER.md", "# A `b`, and C\n## Second\n")];
        let paths = ["LICENSE", "README.md", "docs", "docs/OTHER.md", "core/src", "core/src/a.rs"];
        check(&docs, &paths.into_iter().map(str::to_owned).collect()).len()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let bad = [
            "See [it](docs/GONE.md).",
            "See [it](LICENSE), [that](docs/GONE.md \"title\").",
            "![drawing](docs/drawing.svg)",
            "[there](docs/OTHER.md#third)",
            "[here](#nowhere)",
        ];
        for text in bad {
            assert_eq!(findings("README.md", text), 1, "{text}");
        }
        assert_eq!(findings("docs/X.md", "[up](../GONE.md)"), 1);
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let good = [
            "[a](docs/OTHER.md) [b](./docs/OTHER.md#second) [c](docs/OTHER.md#a-b-and-c)",
            "[web](https://example.org/x) [mail](mailto:a@example.org)",
            "# Top\n[top](#top)",
            "```\n[not](a-link.md) `core/src/gone.rs`\n```",
            "[folder](docs/)",
        ];
        for text in good {
            assert_eq!(findings("README.md", text), 0, "{text}");
        }
        assert_eq!(findings("docs/X.md", "[up](../LICENSE) [beside](OTHER.md)"), 0);
    }

    #[test]
    fn names_of_files_that_are_gone_are_found() {
        assert_eq!(findings("README.md", "In `core/src/gone.rs`."), 1);
        assert_eq!(findings("README.md", "In `core/src/a.rs`, `core/src/`, `core/src/*.rs`."), 0);
    }
}
