//! A copy of the repository in which all mutants are behind switches, and its build.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use crate::Failure;
use crate::checks;
use crate::places::{self, Mutant};
use crate::rewrite::{Edit, Switched, switched};

/// The code that decides, and so has mutants.
const MUTATED: [&str; 3] = ["protocols/src", "core/src/exec", "core/src/store"];

/// Files and folders of tests in there.
const TESTS: [&str; 9] = [
    "tests",
    "tests.rs",
    "fuzz.rs",
    "exhaustive",
    "exhaustive.rs",
    "interleavings",
    "interleavings.rs",
    "testing.rs",
    "bench.rs",
];

/// Statements with this text count for reports.
const COUNTERS: &str = "counters.";

/// Files that only make the same faster.
const SPEED: [&str; 1] = ["core/src/store/cache_prefetch.rs"];

/// Folders whose contents the checks depend on.
const BUILT: [&str; 4] = ["core/", "protocols/", "sim/", "fuzz/"];

/// The switch, which becomes a module of `core`.
const SWITCH: &str = include_str!("../switch.rs");
/// The module's name.
const MODULE: &str = "mutation_switch";

/// Lints that mutants break, among them one that fails only when code is generated.
const ALLOWED: &str = "warnings = \"allow\"\narithmetic_overflow = \"allow\"\n\
                       unconditional_panic = \"allow\"\n";

/// The packages, with features, that have mutants or checks.
const PACKAGES: [&str; 8] = [
    "-p",
    "pangea-core",
    "-p",
    "pangea-protocols",
    "-p",
    "pangea-sim",
    "--features",
    "pangea-sim/planted",
];

/// The most rounds in which mutants that do not compile are left out. rustc reports errors in
/// phases, and each crate after those below.
const ROUNDS_MAX: usize = 40;

/// The repository's files, and the folder with the copy.
pub struct Tree {
    copy: PathBuf,
    target: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
    /// The places of each file with mutants.
    edits: BTreeMap<String, Vec<Edit>>,
    /// All mutants; a mutant's number is its index.
    pub mutants: Vec<Mutant>,
    /// A digest of all files that the checks depend on.
    pub digest: String,
}

/// A build of the copy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Built {
    /// Mutants that do not compile.
    pub left_out: BTreeSet<u32>,
    /// Test executables by the name of their target, with the folder of their package.
    pub executables: BTreeMap<String, (PathBuf, PathBuf)>,
}

impl Tree {
    /// Reads the repository and finds the mutants.
    ///
    /// # Errors
    /// If git does not list the files, or one cannot be read or parsed.
    pub fn read(root: &Path, work: &Path) -> Result<Self, Failure> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "-co", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| Failure::new("can't run git", &error))?;
        let mut files = BTreeMap::new();
        for path in String::from_utf8_lossy(&listed.stdout).split('\0') {
            let full = root.join(path);
            // A file that is deleted but still in the index is listed, too.
            if !path.is_empty() && full.is_file() {
                let bytes = fs::read(&full).map_err(|error| Failure::new(path, &error))?;
                files.insert(path.to_owned(), bytes);
            }
        }
        if files.is_empty() {
            return Err(Failure::text("git lists no files: is this a working tree of git?"));
        }
        let mut hash = Xxh3::new();
        for (path, bytes) in &files {
            if BUILT.iter().any(|folder| path.starts_with(folder)) || path.starts_with("Cargo") {
                hash.update(path.as_bytes());
                hash.update(bytes);
            }
        }
        hash.update(SWITCH.as_bytes());
        let mut tree = Self {
            copy: work.join("tree"),
            target: work.join("target"),
            files,
            edits: BTreeMap::new(),
            mutants: Vec::new(),
            digest: String::new(),
        };
        tree.find_mutants()?;
        for mutant in &tree.mutants {
            hash.update(format!("{mutant:?}").as_bytes());
        }
        tree.digest = format!("{:016x}", hash.digest());
        Ok(tree)
    }

    /// Returns whether a mutant changes something that decides: no statement that only counts for
    /// reports, no file that only makes the same faster, no settings that are drawn for the
    /// simulator, and no mistake of a planted bug.
    pub fn decides(&self, mutant: &Mutant) -> bool {
        let text = String::from_utf8_lossy(&self.files[&mutant.file]);
        let line = text.lines().nth(mutant.line - 1).unwrap_or_default();
        let is_drawn = mutant.file.ends_with("options.rs") && line.contains("rng");
        let is_mistake = || {
            let before = text.lines().take(mutant.line).collect::<Vec<_>>();
            let mut item = before.iter().rev().take_while(|line| **line != "}");
            let head = item.find(|line| line.starts_with("fn "));
            let name = head.and_then(|head| head["fn ".len()..].split(['<', '(']).next());
            name.is_some_and(|name| text.contains(&format!("=> {name}(")))
        };
        let is_counted = line.contains(COUNTERS);
        let is_speed = SPEED.contains(&mutant.file.as_str());
        !is_counted && !is_speed && !is_drawn && !is_mistake()
    }

    fn find_mutants(&mut self) -> Result<(), Failure> {
        let is_mutated = |path: &str| {
            let is_test = || path.split('/').any(|part| TESTS.contains(&part));
            path.ends_with(".rs")
                && MUTATED.iter().any(|folder| path.starts_with(&format!("{folder}/")))
                && !is_test()
        };
        let mut only_tests = BTreeSet::new();
        let mut found = BTreeMap::new();
        for (path, bytes) in self.files.iter().filter(|(path, _)| is_mutated(path)) {
            let text = std::str::from_utf8(bytes).map_err(|error| Failure::new(path, &error))?;
            let places = places::find(path, text, 0).map_err(|error| Failure::new(path, &error))?;
            let folder = match Path::new(path).file_stem().and_then(|stem| stem.to_str()) {
                Some("mod" | "lib") => Path::new(path).with_file_name(""),
                _ => Path::new(path).with_extension(""),
            };
            for module in &places.test_modules {
                only_tests.insert(folder.join(format!("{module}.rs")));
                only_tests.insert(folder.join(module).join("mod.rs"));
            }
            found.insert(path.clone(), text.to_owned());
        }
        for (path, text) in found {
            if only_tests.contains(Path::new(&path)) {
                continue;
            }
            let first = self.mutants.len() as u32;
            let places = places::find(&path, &text, first);
            let places = places.map_err(|error| Failure::new(&path, &error))?;
            self.mutants.extend(places.mutants);
            self.edits.insert(path, places.edits);
        }
        Ok(())
    }

    /// A digest of all mutants.
    fn names(&self) -> String {
        let mut hash = Xxh3::new();
        self.mutants.iter().for_each(|mutant| hash.update(format!("{mutant:?}").as_bytes()));
        format!("{:016x}", hash.digest())
    }

    /// Writes the copy, leaves out mutants that do not compile, and builds the tests.
    ///
    /// # Errors
    /// If the copy cannot be written, or does not compile for another reason.
    pub fn build(&self, jobs: usize) -> Result<Built, Failure> {
        let kinds = ["--no-run", "--lib", "--test", "phases", "--test", "mutants"];
        let known = self.copy.with_file_name("left-out.json");
        // Found by an earlier call, if the mutants are the same.
        let earlier: Option<(String, BTreeSet<u32>)> = checks::load(&known);
        let earlier = earlier.filter(|(names, _)| *names == self.names());
        let left_out = earlier.map(|(_, left_out)| left_out).unwrap_or_default();
        let mut built = Built { left_out, ..Built::default() };
        for _ in 0..ROUNDS_MAX {
            let switched = self.write(&built.left_out)?;
            let (is_checked, messages) = self.cargo(&["check"], &[], jobs)?;
            // A few errors are found only when code is generated.
            let (is_built, messages) = match is_checked {
                true => self.cargo(&["test"], &kinds, jobs)?,
                false => (false, messages),
            };
            if is_built {
                built.executables = self.executables(&messages);
                return Ok(built);
            }
            let before = built.left_out.len();
            for error in errors(&messages) {
                built.left_out.extend(blamed(&error, &switched));
            }
            if built.left_out.len() == before {
                return Err(Failure::text(&rendered(&messages)));
            }
            eprintln!("{} mutants do not compile and are left out", built.left_out.len());
            let text = serde_json::to_vec(&(self.names(), &built.left_out)).expect("numbers");
            fs::write(&known, text).map_err(|error| Failure::new("left-out.json", &error))?;
        }
        Err(Failure::text("there are mutants that do not compile in every round"))
    }

    /// Writes files that changed, so that cargo builds no more than necessary.
    fn write(&self, left_out: &BTreeSet<u32>) -> Result<BTreeMap<String, Switched>, Failure> {
        let mut out = BTreeMap::new();
        let mut files: BTreeMap<&str, Vec<u8>> =
            self.files.iter().map(|(path, bytes)| (path.as_str(), bytes.clone())).collect();
        for (path, edits) in &self.edits {
            let source = String::from_utf8_lossy(&self.files[path]).into_owned();
            let owner = if path.starts_with("core/") { "crate" } else { "pangea_core" };
            let on = format!("{owner}::{MODULE}::on");
            let file = switched(&source, edits, &on, &|mutant| left_out.contains(&mutant));
            files.insert(path, file.text.clone().into_bytes());
            out.insert(path.clone(), file);
        }
        let module = format!("core/src/{MODULE}.rs");
        let count = self.mutants.len();
        let switch =
            format!("{SWITCH}/// The number of mutants.\nconst MUTANTS: usize = {count};\n");
        files.insert(&module, switch.into_bytes());
        let mut append = |path: &'static str, change: &dyn Fn(String) -> String| {
            let text = String::from_utf8_lossy(&self.files[path]).into_owned();
            files.insert(path, change(text).into_bytes());
        };
        append("core/src/lib.rs", &|text| {
            format!("{text}\n#[allow(clippy::all, reason = \"a copy\")]\npub mod {MODULE};\n")
        });
        // Switches have parentheses that are not necessary, and branches that cannot be reached.
        append("Cargo.toml", &|text| {
            let text = text.replace("\"deny\"", "\"allow\"");
            text.replace("[workspace.lints.rust]", &format!("[workspace.lints.rust]\n{ALLOWED}"))
        });
        self.remove_others(&self.copy, &files)?;
        for (path, bytes) in files {
            let full = self.copy.join(path);
            if fs::read(&full).ok().as_ref() != Some(&bytes) {
                let folder = full.parent().expect("a file is in a folder");
                let written = fs::create_dir_all(folder).and_then(|()| fs::write(&full, bytes));
                written.map_err(|error| Failure::new(path, &error))?;
            }
        }
        Ok(out)
    }

    /// Removes files of the copy that are not among these, such as cases that failing tests write.
    fn remove_others(&self, folder: &Path, files: &BTreeMap<&str, Vec<u8>>) -> Result<(), Failure> {
        let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
        for entry in entries.flatten() {
            let path = entry.path();
            let relative = path.strip_prefix(&self.copy).expect("it is in the copy");
            if path.is_dir() {
                self.remove_others(&path, files)?;
            } else if !files.contains_key(relative.to_string_lossy().as_ref())
                && !path.ends_with("Cargo.lock")
            {
                let removed = fs::remove_file(&path);
                removed.map_err(|error| Failure::new(&path.display().to_string(), &error))?;
            }
        }
        Ok(())
    }

    fn cargo(&self, verb: &[&str], rest: &[&str], jobs: usize) -> Result<(bool, String), Failure> {
        let jobs = jobs.to_string();
        let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(verb)
            .args(["--locked", "--message-format", "json", "--jobs", &jobs])
            .args(PACKAGES)
            .args(rest)
            .current_dir(&self.copy)
            .env("CARGO_TARGET_DIR", &self.target)
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| Failure::new("can't run cargo", &error))?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    fn executables(&self, messages: &str) -> BTreeMap<String, (PathBuf, PathBuf)> {
        let artifacts = parsed(messages).filter(|message| message["profile"]["test"] == true);
        artifacts
            .filter_map(|message| {
                let executable = PathBuf::from(message["executable"].as_str()?);
                let manifest = PathBuf::from(message["manifest_path"].as_str()?);
                let name = message["target"]["name"].as_str()?.to_owned();
                Some((name, (executable, manifest.parent()?.to_owned())))
            })
            .collect()
    }
}

fn parsed(messages: &str) -> impl Iterator<Item = Value> {
    messages.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// A place that a compiler error names.
struct Named {
    file: String,
    bytes: Range<usize>,
    is_primary: bool,
}

/// All errors with the places that they name.
fn errors(messages: &str) -> Vec<Vec<Named>> {
    let errors = parsed(messages).filter(|message| message["message"]["level"] == "error");
    let named = |span: &Value| {
        let [start, end] = [&span["byte_start"], &span["byte_end"]].map(|it| it.as_u64());
        Some(Named {
            file: span["file_name"].as_str()?.to_owned(),
            bytes: start? as usize..end? as usize,
            is_primary: span["is_primary"].as_bool()?,
        })
    };
    let places = |message: Value| {
        message["message"]["spans"].as_array().into_iter().flatten().filter_map(named).collect()
    };
    errors.map(places).collect()
}

/// The mutants that an error is about: those at its first place, or else at the others. An error of
/// the borrow checker may name no place with a mutant, but only what comes before and after it.
fn blamed(error: &[Named], switched: &BTreeMap<String, Switched>) -> Vec<u32> {
    for is_primary in [true, false] {
        let places = error.iter().filter(|named| named.is_primary == is_primary);
        let files = places.filter_map(|it| Some(switched.get(&it.file)?.blamed(&it.bytes)));
        let numbers: Vec<u32> = files.flatten().copied().collect();
        if !numbers.is_empty() {
            return numbers;
        }
    }
    let Some(Named { file, .. }) = error.first() else { return Vec::new() };
    let of_file = || error.iter().filter(|named| named.file == *file);
    let start = of_file().map(|named| named.bytes.start).min().unwrap_or_default();
    let end = of_file().map(|named| named.bytes.end).max().unwrap_or_default();
    switched.get(file).map(|file| file.inside(&(start..end))).unwrap_or_default()
}

fn rendered(messages: &str) -> String {
    let errors = parsed(messages).filter(|message| message["message"]["level"] == "error");
    let texts = errors.filter_map(|it| it["message"]["rendered"].as_str().map(str::to_owned));
    format!("the copy does not compile:\n{}", texts.collect::<Vec<_>>().join("\n"))
}
