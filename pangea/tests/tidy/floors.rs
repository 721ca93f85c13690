//! The floors of the modules of `sql`: a module imports only from the floors below its own.

use super::source::{CodePath, Finding, Source, paths, without_tests};

/// The top-level modules of `sql/src`, the bottom floor first. The modules of a floor do not import
/// each other.
const FLOORS: &[&[&str]] = &[
    &["data_fusion"],
    &["error", "guarded", "history", "profile", "scram", "writes"],
    &["notice", "remote_rows", "subtransaction", "types"],
    &["losses"],
    &["engine", "keys", "result_memory", "rows", "settings", "vocabulary"],
    &["catalog", "delta", "insight"],
    &["authorization", "copy", "sequence"],
    &["syntax"],
    &["conflict", "search_path"],
    EXPRESSIONS,
    EXECUTION,
    &["concurrent_index", "explain", "statement"],
    &["native", "replay"],
    &["session"],
    &["memory"],
];

/// Modules of one floor that may import each other: functions read the system catalog, which shows
/// expressions, also those of indexes. The list only gets shorter.
const EXPRESSIONS: &[&str] = &["access", "expr", "system"];

/// Modules of one floor that may import each other: a plan calls procedures, which execute plans;
/// DataFusion asks for rows, which the executor reads. The list only gets shorter.
const EXECUTION: &[&str] = &["exec", "plan", "procedure", "relational"];

/// Finds imports from the same floor or from a floor above, and modules without a floor.
pub fn check(files: &[&Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let Some(modules) = modules(&file.path) else { continue };
        let own = modules[0];
        let Some(floor) = floor_of(own) else {
            findings.push(file.finding(1, format!("`{own}` has no floor: add it to FLOORS")));
            continue;
        };
        for path in paths(without_tests(file.tokens())) {
            let Some((other, above)) = imported(&path, modules.len()) else { continue };
            let is_knotted =
                [EXPRESSIONS, EXECUTION].iter().any(|it| it.contains(&own) && it.contains(&other));
            if other != own && above >= floor && !is_knotted {
                let what = format!("`{own}` imports `{other}`, which is not on a floor below it");
                findings.push(file.finding(path.line, what));
            }
        }
    }
    findings
}

/// Returns the modules of a file, the top-level one first; `None` for the root of the crate.
fn modules(path: &str) -> Option<Vec<&str>> {
    let path = path.strip_prefix("sql/src/")?.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    (path != "lib").then(|| path.split('/').collect())
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// Returns the top-level module that a path begins with, and its floor, for a file `depth` modules
/// below the root.
fn imported(path: &CodePath, depth: usize) -> Option<(&'static str, usize)> {
    let supers = path.parts.iter().take_while(|part| *part == "super").count();
    let name = match path.parts.first()?.as_str() {
        "crate" => path.parts.get(1)?,
        "super" if supers == depth => path.parts.get(supers)?,
        _ => return None,
    };
    let floor = floor_of(name)?;
    let module = FLOORS[floor].iter().find(|module| *module == name)?;
    Some((module, floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&[&Source::new(path, text)]).len()
    }

    #[test]
    fn an_import_from_a_floor_above_is_found() {
        let bad = [
            ("sql/src/catalog/table.rs", "use crate::expr::Expr;"),
            ("sql/src/catalog/mod.rs", "use crate::{types, syntax::quoted};"),
            ("sql/src/keys.rs", "use super::catalog;"),
            ("sql/src/types/json/parse.rs", "fn f() { super::super::super::session::now() }"),
            ("sql/src/engine.rs", "use crate::rows;"),
            ("sql/src/expr/mod.rs", "use crate::relational::Query;"),
            ("sql/src/new.rs", ""),
        ];
        for (path, text) in bad {
            assert_eq!(findings(path, text), 1, "{path}: {text}");
        }
    }

    #[test]
    fn imports_from_below_from_the_own_module_and_within_a_knot_pass() {
        let good = [
            ("sql/src/session/mod.rs", "use crate::{Shared, plan, types}; mod session;"),
            ("sql/src/catalog/table.rs", "use super::session; use crate::catalog::name;"),
            ("sql/src/expr/mod.rs", "use crate::system::SystemCatalog;"),
            ("sql/src/types/mod.rs", "#[cfg(test)] mod tests { use crate::session; }"),
            ("sql/src/lib.rs", "use crate::session::Session;"),
        ];
        for (path, text) in good {
            assert_eq!(findings(path, text), 0, "{path}: {text}");
        }
    }

    #[test]
    fn a_module_has_one_floor() {
        for module in FLOORS.concat() {
            let floors = FLOORS.iter().filter(|floor| floor.contains(&module)).count();
            assert_eq!(floors, 1, "{module}");
        }
    }
}
