//! A source file and its tokens.
//!
//! Checks use tokens instead of text, so that a word in a comment or a string does not count as
//! code. Code inside macro calls is included.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};

/// Keywords that can precede a path and are not part of it.
const KEYWORDS: [&str; 12] =
    ["as", "dyn", "else", "for", "impl", "in", "move", "mut", "pub", "return", "use", "where"];

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The violation and the remedy.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path from the root of the repository, with `/` between the parts.
    pub path: String,
    /// The contents.
    pub text: String,
}

/// A function with a body.
#[derive(Debug, PartialEq)]
pub struct Function {
    /// The name.
    pub name: String,
    /// The line of its `fn`, from 1.
    pub line: usize,
    /// The number of lines from `fn` to the closing brace, inclusive.
    pub lines: usize,
}

/// A path such as `std::time::Instant`, with the groups of a `use` expanded.
#[derive(Debug, PartialEq)]
pub struct CodePath {
    /// The parts of the path.
    pub parts: Vec<String>,
    /// The line of the last part, from 1.
    pub line: usize,
}

impl Source {
    /// Creates a file with this path and text.
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Returns a finding in this file.
    pub fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    /// Returns the name of the file without folders and extension.
    pub fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().expect("a split has a last part");
        name.strip_suffix(".rs").unwrap_or(name)
    }

    /// Returns the file as tokens.
    ///
    /// # Panics
    /// If it is not valid Rust.
    pub fn tokens(&self) -> TokenStream {
        TokenStream::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{} has tokens that don't match: {error}", self.path))
    }
}

/// Returns the functions of a file, including those within functions and macro calls.
pub fn functions(tokens: TokenStream) -> Vec<Function> {
    let mut found = Vec::new();
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (i, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            found.extend(functions(group.stream()));
        }
        let (true, Some(TokenTree::Ident(name))) = (is_ident(token, "fn"), tokens.get(i + 1))
        else {
            continue;
        };
        let body = tokens[i..].iter().find_map(|token| match token {
            TokenTree::Punct(punct) if punct.as_char() == ';' => Some(None),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(Some(group)),
            _ => None,
        });
        if let Some(Some(body)) = body {
            let line = token.span().start().line;
            let lines = body.span_close().end().line - line + 1;
            found.push(Function { name: name.to_string(), line, lines });
        }
    }
    found
}

/// Returns the tokens without items that are only compiled for tests.
pub fn without_tests(tokens: TokenStream) -> TokenStream {
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if is_punct(&token, '#') && tokens.peek().is_some_and(is_cfg_test) {
            let ends_item = |token: &TokenTree| {
                is_punct(token, ';')
                    || matches!(token, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace)
            };
            let _item = tokens.by_ref().find(ends_item);
            continue;
        }
        kept.push(match token {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), without_tests(group.stream()));
                inner.set_span(group.span());
                TokenTree::Group(inner)
            }
            other => other,
        });
    }
    kept.into_iter().collect()
}

/// Returns the tokens without the bodies of `impl <trait> for <type>`, where the trait determines
/// the names.
pub fn without_trait_impls(tokens: TokenStream) -> TokenStream {
    let mut kept = Vec::new();
    let mut is_head = false;
    let mut is_trait = false;
    for token in tokens {
        is_head |= is_ident(&token, "impl");
        is_trait |= is_head && is_ident(&token, "for");
        let TokenTree::Group(group) = &token else {
            kept.push(token);
            continue;
        };
        let is_body = group.delimiter() == Delimiter::Brace;
        if !(is_body && is_trait) {
            let mut inner = Group::new(group.delimiter(), without_trait_impls(group.stream()));
            inner.set_span(group.span());
            kept.push(TokenTree::Group(inner));
        }
        if is_body {
            (is_head, is_trait) = (false, false);
        }
    }
    kept.into_iter().collect()
}

/// Returns the modules of a file that are only compiled for tests and that have their own files:
/// their paths without the extension.
pub fn test_modules(source: &Source) -> BTreeSet<String> {
    let (folder, _) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let is_folder = ["mod", "lib", "main"].contains(&source.stem());
    let base = if is_folder {
        folder.to_owned()
    } else {
        format!("{folder}/{stem}", stem = source.stem())
    };
    let tokens: Vec<TokenTree> = source.tokens().into_iter().collect();
    let mut modules = BTreeSet::new();
    for window in tokens.windows(5) {
        let [hash, cfg, module, TokenTree::Ident(name), end] = window else { continue };
        let is_module = is_ident(module, "mod") && is_punct(end, ';');
        if is_punct(hash, '#') && is_cfg_test(cfg) && is_module {
            modules.insert(format!("{base}/{name}"));
        }
    }
    modules
}

/// Returns all identifiers, in order.
pub fn idents(tokens: TokenStream) -> Vec<Ident> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(ident) => vec![ident],
            TokenTree::Group(group) => idents(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => Vec::new(),
        })
        .collect()
}

/// Returns all paths of the code. A single identifier is a path, too.
pub fn paths(tokens: TokenStream) -> Vec<CodePath> {
    let mut found = Vec::new();
    collect_paths(&[], tokens, &mut found);
    found
}

fn collect_paths(prefix: &[String], tokens: TokenStream, found: &mut Vec<CodePath>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if KEYWORDS.iter().any(|keyword| word == keyword) => at += 1,
            TokenTree::Ident(_) => at = collect_path(prefix, &tokens, at, found),
            TokenTree::Group(group) => {
                collect_paths(&[], group.stream(), found);
                at += 1;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
        }
    }
}

/// Collects the path that begins at `at`, and returns the position of its end.
fn collect_path(
    prefix: &[String],
    tokens: &[TokenTree],
    mut at: usize,
    found: &mut Vec<CodePath>,
) -> usize {
    let mut parts = prefix.to_vec();
    loop {
        let TokenTree::Ident(part) = &tokens[at] else { unreachable!("begins with an identifier") };
        parts.push(part.to_string());
        let line = part.span().start().line;
        at += 1;
        let is_longer = tokens[at..].iter().take(2).filter(|t| is_punct(t, ':')).count() == 2;
        match tokens.get(at + 2).filter(|_| is_longer) {
            Some(TokenTree::Ident(_)) => at += 2,
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                collect_paths(&parts, group.stream(), found);
                return at + 3;
            }
            _ => {
                found.push(CodePath { parts, line });
                return at;
            }
        }
    }
}

/// Returns whether a token is this identifier.
pub fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}

/// Returns whether a token is this punctuation mark.
pub fn is_punct(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

fn is_cfg_test(token: &TokenTree) -> bool {
    let TokenTree::Group(attribute) = token else { return false };
    let names: Vec<String> = idents(attribute.stream()).iter().map(Ident::to_string).collect();
    attribute.delimiter() == Delimiter::Bracket && names == ["cfg", "test"]
}

#[test]
fn a_function_is_measured_from_its_fn_to_its_closing_brace() {
    let text = "/// Doc.\n#[inline]\nfn a(x: u8)\n    -> u8\n{\n    x\n}\ntrait T { fn b(); }\n";
    let found = functions(Source::new("a.rs", text).tokens());
    assert_eq!(found, [Function { name: "a".to_owned(), line: 3, lines: 5 }]);
}

#[test]
fn functions_in_macro_calls_and_modules_are_found() {
    let text = "proptest! { #[test] fn p(x in 0..1) {\n} }\nmod m { impl A { fn q() {} } }";
    let names: Vec<String> =
        functions(Source::new("a.rs", text).tokens()).into_iter().map(|f| f.name).collect();
    assert_eq!(names, ["p", "q"]);
}

#[test]
fn a_brace_in_a_string_or_a_comment_ends_nothing() {
    let text = "fn a() {\n let s = \"}\"; // }\n let c = '}'; /* } */\n}\n";
    assert_eq!(functions(Source::new("a.rs", text).tokens())[0].lines, 4);
}

#[test]
fn groups_of_a_use_are_written_out() {
    let text = "use std::{fs, time::{Duration, Instant as I}}; let x = a::b::<C>();";
    let found: Vec<String> =
        paths(Source::new("a.rs", text).tokens()).iter().map(|p| p.parts.join("::")).collect();
    for path in ["std::fs", "std::time::Duration", "std::time::Instant", "a::b", "C"] {
        assert!(found.iter().any(|p| p == path), "{path} in {found:?}");
    }
}

#[test]
fn a_path_begins_behind_a_keyword() {
    let text = "use ::std::fs; fn f() -> impl ::a::B { return ::c::d }";
    let found: Vec<String> =
        paths(Source::new("a.rs", text).tokens()).iter().map(|p| p.parts.join("::")).collect();
    assert_eq!(found, ["std::fs", "fn", "f", "a::B", "c::d"]);
}

#[test]
fn what_a_trait_has_named_is_left_out() {
    let text = "impl A { fn own() {} } impl<T> B for A<T> { fn foreign() {} } fn g(x: impl C) {}";
    let kept = without_trait_impls(Source::new("a.rs", text).tokens()).to_string();
    assert!(kept.contains("own") && kept.contains("fn g") && !kept.contains("foreign"), "{kept}");
}

#[test]
fn what_only_tests_see_is_left_out() {
    let text = "#[cfg(test)]\n#[allow(x)]\nmod tests { fn hidden() {} }\nfn shown() {}";
    let kept = without_tests(Source::new("a.rs", text).tokens()).to_string();
    assert!(kept.contains("shown") && !kept.contains("hidden"), "{kept}");
}

#[test]
fn the_file_of_a_test_module_is_found() {
    let text = "#[cfg(test)]\nmod tests;\nmod real;";
    let modules = |path| test_modules(&Source::new(path, text));
    assert_eq!(modules("core/src/store/mod.rs"), ["core/src/store/tests".to_owned()].into());
    assert_eq!(modules("core/src/key/encode.rs"), ["core/src/key/encode/tests".to_owned()].into());
}
