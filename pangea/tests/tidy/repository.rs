//! The files of the repository, in the form that the checks need.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::source::{Source, test_modules};

/// The crates of the workspace, in the order of docs/ARCHITECTURE.md.
pub const CRATES: [&str; 10] =
    ["core", "protocols", "sim", "sql", "node", "baselines", "lab", "sweep", "mutation", "pangea"];

/// Folders without source files.
const NOT_OURS: [&str; 3] = ["target", ".git", ".scratch"];

/// All files that are checked.
#[derive(Debug, Default)]
pub struct Repository {
    /// `*.rs`, in the order of their paths.
    pub rust: Vec<Source>,
    /// `*.md`.
    pub docs: Vec<Source>,
    /// `Cargo.toml` of the workspace and of each crate.
    pub manifests: Vec<Source>,
    /// The path of every file and folder.
    pub paths: BTreeSet<String>,
}

impl Repository {
    /// Reads the repository that contains this test.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut repository = Self::default();
        let mut folders: Vec<PathBuf> = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("the repository can be read") {
                let path = entry.expect("the repository can be read").path();
                if NOT_OURS.iter().any(|name| path.ends_with(name)) {
                    continue;
                }
                repository.paths.insert(relative(&root, &path));
                if path.is_dir() {
                    folders.push(path);
                } else {
                    repository.add(&root, &path);
                }
            }
        }
        for files in [&mut repository.rust, &mut repository.docs, &mut repository.manifests] {
            files.sort_by(|a, b| a.path.cmp(&b.path));
        }
        repository
    }

    fn add(&mut self, root: &Path, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let files = match name {
            // A client is a separate program.
            "Cargo.toml" if !path.starts_with(root.join("pangea/tests/clients")) => {
                &mut self.manifests
            }
            _ if name.ends_with(".rs") => &mut self.rust,
            _ if name.ends_with(".md") => &mut self.docs,
            _ => return,
        };
        let text = fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("{} can't be read: {error}", path.display()));
        files.push(Source { path: relative(root, path), text });
    }

    /// Returns the Rust files of these crates, except for those that are only for tests, benches or
    /// examples.
    pub fn shipped(&self, crates: &[&str]) -> Vec<&Source> {
        let of_crate = |source: &&Source| {
            crates.iter().any(|name| source.path.starts_with(&format!("{name}/src/")))
        };
        let files: Vec<&Source> = self.rust.iter().filter(of_crate).collect();
        let tests: BTreeSet<String> = files.iter().flat_map(|file| test_modules(file)).collect();
        let is_test = |file: &Source| {
            let module = file.path.strip_suffix(".rs").expect("a Rust file");
            tests.iter().any(|test| module == test || module.starts_with(&format!("{test}/")))
        };
        files.into_iter().filter(|file| !is_test(file)).collect()
    }
}

fn relative(root: &Path, path: &Path) -> String {
    let path = path.strip_prefix(root).expect("below the root");
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

#[test]
fn files_of_test_modules_are_not_shipped() {
    let rust = vec![
        Source::new("core/benches/b.rs", ""),
        Source::new("core/src/a.rs", "#[cfg(test)] mod tests; mod b;"),
        Source::new("core/src/a/b.rs", ""),
        Source::new("core/src/a/tests.rs", ""),
        Source::new("core/src/a/tests/more.rs", ""),
        Source::new("node/src/n.rs", ""),
    ];
    let repository = Repository { rust, ..Repository::default() };
    let shipped: Vec<_> =
        repository.shipped(&["core"]).iter().map(|file| file.path.as_str()).collect();
    assert_eq!(shipped, ["core/src/a.rs", "core/src/a/b.rs"]);
}

#[test]
fn the_repository_is_found() {
    let repository = Repository::read();
    assert!(repository.paths.contains("Cargo.toml"));
    assert_eq!(repository.manifests.len(), CRATES.len() + 1);
}
