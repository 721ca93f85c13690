//! Checks the layers of the crates, and that each dependency is documented.

use super::repository::CRATES;
use super::source::{Finding, Source};

/// The crates of the workspace that each crate may use, including in tests.
const MAY_USE: [(&str, &[&str]); 10] = [
    ("core", &[]),
    ("protocols", &["core"]),
    ("sim", &["core", "protocols"]),
    ("sql", &["core"]),
    ("node", &["core", "protocols", "sql"]),
    ("baselines", &["core"]),
    ("lab", &[]),
    ("sweep", &[]),
    ("mutation", &[]),
    ("pangea", &["core", "protocols", "sim", "sql", "node", "baselines", "lab", "sweep"]),
];

/// The page that lists what the workspace depends on, with reasons and licences.
const LIST: &str = "docs/DEPENDENCIES.md";

/// One line of a dependency section.
struct Dependency<'a> {
    name: &'a str,
    line: usize,
    /// Whether version and source come from the workspace.
    is_shared: bool,
}

/// Finds crates that use a crate that is not allowed, or that choose the version of a dependency.
pub fn check_layers(manifests: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in manifests.iter().filter(|manifest| manifest.path != "Cargo.toml") {
        let own = manifest.path.strip_suffix("/Cargo.toml").expect("a manifest of a crate");
        let Some((_, may_use)) = MAY_USE.iter().find(|(name, _)| *name == own) else {
            let what = format!("{own} is not one of the crates");
            findings.push(manifest.finding(1, what));
            continue;
        };
        for dependency in dependencies(&manifest.text) {
            let other = dependency.name.strip_prefix("pangea-").unwrap_or(dependency.name);
            if CRATES.contains(&other) && !may_use.contains(&other) {
                let what = format!("{own} must not depend on {other}");
                findings.push(manifest.finding(dependency.line, what));
            }
            if !dependency.is_shared {
                let what = format!("{}: versions are in the root Cargo.toml", dependency.name);
                findings.push(manifest.finding(dependency.line, what));
            }
        }
    }
    findings
}

/// Finds dependencies of the workspace that the list in the docs does not contain.
pub fn check_list(manifests: &[Source], docs: &[Source]) -> Vec<Finding> {
    let list = docs.iter().find(|doc| doc.path == LIST).map_or("", |doc| doc.text.as_str());
    let root = manifests.iter().filter(|manifest| manifest.path == "Cargo.toml");
    let is_listed = |name: &str| {
        list.lines().any(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            // `| crate | licence | reason |`: five parts, the outer ones empty.
            let is_row = cells.len() == 5 && cells[2..4].iter().all(|cell| !cell.is_empty());
            is_row && cells[1].split('`').any(|word| word == name)
        })
    };
    root.flat_map(|manifest| {
        let others = dependencies(&manifest.text)
            .into_iter()
            .filter(|dependency| !dependency.name.starts_with("pangea-"));
        others.filter(|dependency| !is_listed(dependency.name)).map(|dependency| {
            let what = format!("{} needs a licence and a reason in {LIST}", dependency.name);
            manifest.finding(dependency.line, what)
        })
    })
    .collect()
}

/// Returns the dependencies of a manifest, of every kind and for every target.
fn dependencies(text: &str) -> Vec<Dependency<'_>> {
    let mut found: Vec<Dependency<'_>> = Vec::new();
    let mut is_inside = false;
    let mut has_own_section = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let (kind, name) = match section.rsplit_once('.') {
                Some((kind, name)) if kind.ends_with("dependencies") => (kind, Some(name)),
                _ => (section, None),
            };
            is_inside = kind.ends_with("dependencies");
            has_own_section = is_inside && name.is_some();
            if let (true, Some(name)) = (is_inside, name) {
                found.push(Dependency { name, line: at + 1, is_shared: false });
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| is_inside) else { continue };
        if key.starts_with('#') {
            continue;
        }
        let is_shared = format!("{key}={value}").replace(' ', "").contains("workspace=true");
        if has_own_section {
            let last = found.last_mut().expect("the section named it");
            last.is_shared |= is_shared;
        } else {
            let name = key.split('.').next().expect("a split has a first part").trim();
            found.push(Dependency { name, line: at + 1, is_shared });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(path: &str, text: &str) -> Vec<String> {
        let findings = check_layers(&[Source::new(path, text)]);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_crate_that_must_not_be_known_is_found_in_every_kind_of_section() {
        let bad = [
            "[dependencies]\npangea-sim.workspace = true\n",
            "[dev-dependencies]\npangea-sim = { workspace = true }\n",
            "[build-dependencies.pangea-sim]\nworkspace = true\n",
            "[target.'cfg(unix)'.dependencies]\npangea-sim.workspace = true\n",
        ];
        for text in bad {
            let found = layers("node/Cargo.toml", text);
            assert_eq!(found.len(), 1, "{text} {found:?}");
            assert!(found[0].ends_with("node must not depend on sim"), "{found:?}");
        }
        assert_eq!(layers("core/Cargo.toml", "[dependencies]\npangea.workspace = true").len(), 1);
    }

    #[test]
    fn what_is_allowed_passes_and_sections_end() {
        let text = "[package]\nname = \"pangea-sim\"\n[dependencies]\n# pangea-node = \"1\"\n\
            pangea-core.workspace = true\nserde = { workspace = true, features = [\"rc\"] }\n\
            [features]\npangea-node = []\n";
        assert_eq!(layers("sim/Cargo.toml", text), [""; 0]);
    }

    #[test]
    fn a_version_of_its_own_and_a_crate_that_nobody_knows_are_found() {
        assert_eq!(layers("sql/Cargo.toml", "[dependencies]\nserde = \"1\"\n").len(), 1);
        assert_eq!(layers("extra/Cargo.toml", "").len(), 1);
    }

    #[test]
    fn a_dependency_that_is_not_listed_is_found() {
        let root = "[workspace.dependencies]\npangea-core = { path = \"core\" }\nserde = \"1\"\n";
        let unlisted = |list: &str| {
            check_list(&[Source::new("Cargo.toml", root)], &[Source::new(LIST, list)]).len()
        };
        assert_eq!(unlisted(""), 1);
        assert_eq!(unlisted("We use `serde` too."), 1);
        assert_eq!(unlisted("| `serde` | | |"), 1);
        assert_eq!(unlisted("| `serde` | MIT | structures to bytes |"), 0);
    }
}
