//! Checks for words that must not be in the code, and for meaningless names.

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

use super::source::{Finding, Source, idents, is_punct, without_tests, without_trait_impls};

/// Macros that stand for missing code or temporary output.
const MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Notes about unfinished work. They are split here, because this file is checked, too.
const NOTES: [&str; 3] = [concat!("FIX", "ME"), concat!("X", "XX"), concat!("TO", "DO")];

/// Module names without a meaning.
const MODULES: [&str; 8] =
    ["util", "utils", "common", "helper", "helpers", "manager", "misc", "stuff"];

/// The file that defines the planted bugs.
const PLANTED: &str = "core/src/planted.rs";

/// Finds unfinished code, unfinished prose and disabled tests.
pub fn check_unfinished(files: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        unfinished_code(file, file.tokens(), &mut findings);
        for (at, line) in file.text.lines().enumerate() {
            let is_part = |c: char| !c.is_alphanumeric() && c != '_';
            if let Some(note) = line.split(is_part).find(|word| NOTES.contains(word)) {
                findings.push(file.finding(at + 1, format!("{note}: do it, or open an issue")));
            }
        }
    }
    findings
}

fn unfinished_code(file: &Source, tokens: TokenStream, findings: &mut Vec<Finding>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (i, token) in tokens.iter().enumerate() {
        let next = tokens.get(i + 1);
        let line = token.span().start().line;
        match token {
            TokenTree::Group(group) => unfinished_code(file, group.stream(), findings),
            TokenTree::Ident(name) => {
                let name = name.to_string();
                let is_called = next.is_some_and(|token| is_punct(token, '!'));
                if is_called && MACROS.contains(&name.as_str()) {
                    findings.push(file.finding(line, format!("`{name}!` is not finished code")));
                }
            }
            TokenTree::Punct(mark) if mark.as_char() == '#' && next.is_some_and(is_ignore) => {
                let what = "a test that does not run: repair it, or remove it and say why";
                findings.push(file.finding(line, what));
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Returns whether an attribute is `ignore`, possibly under a condition.
fn is_ignore(token: &TokenTree) -> bool {
    let TokenTree::Group(attribute) = token else { return false };
    let names: Vec<String> = idents(attribute.stream()).iter().map(Ident::to_string).collect();
    let is_ignore = names.first().is_some_and(|name| name == "ignore");
    let is_conditional = names.first().is_some_and(|name| name == "cfg_attr");
    attribute.delimiter() == Delimiter::Bracket
        && (is_ignore || is_conditional && names.iter().any(|name| name == "ignore"))
}

/// Finds modules and functions with meaningless or redundant names.
pub fn check_names(files: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let is_empty = |name: &str| MODULES.contains(&name);
        let parts = file.path.split(['/', '.']);
        if let Some(name) = parts.into_iter().find(|part| is_empty(part)) {
            findings.push(file.finding(1, format!("`{name}` has no meaning: name its contents")));
        }
        for pair in idents(without_trait_impls(file.tokens())).windows(2) {
            let name = pair[1].to_string();
            let line = pair[1].span().start().line;
            if pair[0] == "mod" && is_empty(&name) {
                findings.push(file.finding(line, format!("`{name}`: name its contents")));
            }
            if pair[0] == "fn" && name.starts_with("get_") {
                findings.push(file.finding(line, format!("`{name}`: leave out the `get_`")));
            }
        }
    }
    findings
}

/// Finds code outside of tests that asks for a planted bug in another form than `mutate!`, whose
/// reader sees the right expression first.
pub fn check_planted(files: &[&Source]) -> Vec<Finding> {
    let others = files.iter().filter(|file| file.path != PLANTED);
    let findings = others.flat_map(|file| {
        let names = idents(without_tests(file.tokens())).into_iter();
        names.filter(|name| name == "is_planted").map(|name| {
            let what = "plant a bug by `mutate!(Bug: right => wrong)`";
            file.finding(name.span().start().line, what)
        })
    });
    findings.collect()
}

/// Finds files that do not begin with a doc comment: the first file of a crate describes the crate,
/// any other file its module.
pub fn check_docs(files: &[Source]) -> Vec<Finding> {
    let begins_with_doc = |file: &&Source| file.text.starts_with("//! ");
    let bare = files.iter().filter(|file| !begins_with_doc(file));
    bare.map(|file| file.finding(1, "begins without a module doc (`//! ..`)")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unfinished(text: &str) -> usize {
        check_unfinished(&[Source::new("a.rs", text)]).len()
    }

    fn names(path: &str, text: &str) -> usize {
        check_names(&[Source::new(path, text)]).len()
    }

    #[test]
    fn unfinished_code_is_found() {
        let bad = [
            "fn f() { todo!() }",
            "fn f() { unimplemented!(\"later\") }",
            "fn f() { g(dbg!(1)); }",
            "#[test]\n#[ignore]\nfn f() {}",
            "#[test]\n#[ignore = \"slow\"]\nfn f() {}",
            "#[cfg_attr(not(unix), ignore)]\nfn f() {}",
            concat!("// FIX", "ME: this"),
            concat!("/* TO", "DO */"),
            concat!("let x = 1; // X", "XX"),
        ];
        for text in bad {
            assert_eq!(unfinished(text), 1, "{text}");
        }
    }

    #[test]
    fn words_that_look_like_it_are_not() {
        let good = [
            "//! There is no `todo!` here.",
            "fn f() { let s = \"dbg!\"; }",
            "#[serde(rename = \"ignore\")] struct S;",
            "let code = \"XX000\";",
            "#[allow(dead_code)] fn ignore() {}",
        ];
        for text in good {
            assert_eq!(unfinished(text), 0, "{text}");
        }
    }

    #[test]
    fn planted_bugs_beside_the_macro_are_found() {
        let lines = |path: &str, text: &str| -> Vec<usize> {
            let findings = check_planted(&[&Source::new(path, text)]);
            findings.iter().map(|finding| finding.line).collect()
        };
        let test = "#[cfg(test)]\nmod tests { fn f() { is_planted(Bug::A); } }";
        assert_eq!(lines("core/src/a.rs", "fn f() {\n    if is_planted(Bug::A) {}\n}"), [2]);
        assert_eq!(lines("core/src/a.rs", "fn f() { g!(planted::is_planted(Bug::A)); }"), [1]);
        assert_eq!(lines("core/src/a.rs", "use crate::planted::{Bug, is_planted};"), [1]);
        assert_eq!(lines("core/src/a.rs", "fn f() -> u8 { mutate!(A: 1 => 2) }"), [0; 0]);
        assert_eq!(lines("core/src/a.rs", test), [0; 0]);
        assert_eq!(lines(PLANTED, "fn is_planted(bug: Bug) {}"), [0; 0]);
    }

    #[test]
    fn names_that_say_nothing_are_found() {
        assert_eq!(names("core/src/util.rs", ""), 1);
        assert_eq!(names("core/src/helpers/a.rs", ""), 1);
        assert_eq!(names("core/src/a.rs", "mod common { }"), 1);
        assert_eq!(names("core/src/a.rs", "impl A { pub fn get_x(&self) -> u8 { 1 } }"), 1);
        assert_eq!(names("core/src/a.rs", "trait A { fn get_x(&self) -> u8; }"), 1);
        assert_eq!(names("core/src/a.rs", "impl A for B { fn get_x(&self) -> u8 { 1 } }"), 0);
        assert_eq!(names("core/src/a.rs", "fn get() {} fn target_x() {} mod utility {}"), 0);
        assert_eq!(names("node/src/common_prefix.rs", ""), 0);
    }

    #[test]
    fn a_file_without_a_doc_is_found() {
        assert_eq!(check_docs(&[Source::new("core/src/lib.rs", "pub mod a;")]).len(), 1);
        assert_eq!(check_docs(&[Source::new("core/src/a.rs", "// A comment.\n")]).len(), 1);
        assert_eq!(check_docs(&[Source::new("core/src/a.rs", "//! A doc.\n")]), []);
    }
}
