//! Checks the language of comments, documents and texts for operators by measures that plain
//! English meets easily.
//!
//! A free relative ("what came", "who has it") in the place of a noun, and a comment that opens
//! with one, are the marks of a text that has to be read twice. Both are rare in prose by the
//! engineers of this field: fewer than 1 in 1,000 words, and 0.3 % of comments.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::source::{Finding, Source, is_ident, without_tests};

/// The most uses of "what" for each 1,000 words of comments, of a document, or of the texts of a
/// crate.
const WHAT_PER_1000_MAX: usize = 3;
/// The most comments that open with one of [`OPENINGS`], in percent.
const OPENINGS_PERCENT_MAX: usize = 2;
/// Words that open a sentence without its subject.
const OPENINGS: [&str; 7] = ["What", "Who", "Whose", "Where", "So", "Of", "As"];
/// The longest cell of a table in a document, in characters.
const CELL_MAX: usize = 200;
/// The most lines of the README.
const README_LINES_MAX: usize = 130;
/// The mark of a section.
const SECTION: &str = "\u{a7}";
/// Names of papers, or of their authors.
const PAPERS: [&str; 9] = [
    "Minerva",
    "Calvin",
    "GeoGauss",
    "Mako",
    "Tiga",
    "Adya",
    "Berenson",
    "Herlihy",
    "Papadimitriou",
];
/// Phrases that leave a reader without the subject, the cause or the remedy. "such a" refers to
/// something that the reader does not see, and "of what" and "what others" stand for a noun.
const VAGUE: [&str; 12] = [
    "beside",
    "by now",
    "comes to",
    "may yet",
    "of it",
    "of what",
    "so many",
    "such a",
    "such an",
    "what others",
    "what was",
    "who may",
];
/// The fewest words of a string literal that is a text.
const TEXT_WORDS_MIN: usize = 4;
/// Too few words to measure.
const WORDS_MIN: usize = 400;

/// The counts of one crate.
#[derive(Default)]
struct Measure {
    words: usize,
    whats: usize,
    comments: usize,
    openings: usize,
}

impl Measure {
    fn add(&mut self, comment: &str) {
        let words = words(comment);
        self.words += words.len();
        self.whats += whats(&words);
        self.comments += 1;
        self.openings += usize::from(words.first().is_some_and(|word| OPENINGS.contains(word)));
    }
}

fn words(text: &str) -> Vec<&str> {
    let is_part = |c: char| !c.is_alphabetic() && c != '\'';
    text.split(is_part).filter(|word| !word.is_empty()).collect()
}

fn whats(words: &[&str]) -> usize {
    words.iter().filter(|word| word.eq_ignore_ascii_case("what")).count()
}

fn is_over(whats: usize, words: usize) -> bool {
    whats * 1_000 > words * WHAT_PER_1000_MAX && words >= WORDS_MIN
}

/// The string literals of tokens, each with the number of its first line. Documentation is not
/// included.
fn literals(tokens: TokenStream) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.starts_with(['"', 'r']) {
                    found.push((literal.span().start().line, without_placeholders(&text)));
                }
            }
            TokenTree::Group(group) if !is_doc(&group) => found.extend(literals(group.stream())),
            TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
    found
}

/// Whether this is the content of a documentation attribute, which every doc comment becomes.
fn is_doc(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket && first.is_some_and(|token| is_ident(&token, "doc"))
}

/// Returns a literal with a blank in the place of each placeholder and each escape sequence.
fn without_placeholders(literal: &str) -> String {
    let mut text = String::new();
    let mut chars = literal.chars();
    while let Some(c) = chars.next() {
        let blank = match c {
            '\\' => chars.next(),
            '{' => chars.find(|c| *c == '}'),
            _ => None,
        };
        text.push(if blank.is_some() { ' ' } else { c });
    }
    text
}

/// The comments of a file, each with the number of its first line. A comment is consecutive lines
/// with the same mark and indentation.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut before = None;
    for (at, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let marks = ["///", "//!", "//"];
        let mark = marks.into_iter().find(|mark| line.trim_start().starts_with(mark));
        if let Some(mark) = mark {
            let rest = &line[indent + mark.len()..];
            match comments.last_mut() {
                Some((_, comment)) if before == Some((indent, mark)) => {
                    comment.push(' ');
                    comment.push_str(rest);
                }
                _ => comments.push((at + 1, rest.to_owned())),
            }
        }
        before = mark.map(|mark| (indent, mark));
    }
    comments
}

/// Finds crates whose comments are above the measures.
pub fn check_comments(files: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, (&Source, Measure)> = BTreeMap::new();
    for file in files {
        let name = file.path.split('/').next().unwrap_or_default();
        let (_, measure) = crates.entry(name).or_insert((file, Measure::default()));
        comments(&file.text).iter().for_each(|(_, comment)| measure.add(comment));
    }
    let mut findings = Vec::new();
    for (name, (first, Measure { words, whats, comments, openings })) in crates {
        if is_over(whats, words) {
            let text = format!("{name}: {whats} uses of \"what\" in {words} words of comments");
            findings.push(first.finding(1, text));
        }
        if openings * 100 > comments * OPENINGS_PERCENT_MAX {
            let text = format!("{name}: {openings} of {comments} comments open with {OPENINGS:?}");
            findings.push(first.finding(1, text));
        }
    }
    findings
}

/// Finds texts with vague phrases, and crates whose texts are above the measure. Texts are the
/// string literals of code that is not only for tests: errors, log lines, help.
pub fn check_texts(files: &[&Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, (&Source, Measure)> = BTreeMap::new();
    let mut findings = Vec::new();
    for &file in files {
        let name = file.path.split('/').next().unwrap_or_default();
        let (_, measure) = crates.entry(name).or_insert((file, Measure::default()));
        for (line, text) in literals(without_tests(file.tokens())) {
            let words = words(&text);
            if words.len() < TEXT_WORDS_MIN {
                continue;
            }
            measure.words += words.len();
            measure.whats += whats(&words);
            let text = format!(" {} ", words.join(" ").to_lowercase());
            for phrase in VAGUE.iter().filter(|phrase| text.contains(&format!(" {phrase} "))) {
                findings.push(file.finding(line, format!("\"{phrase}\": name the thing")));
            }
        }
    }
    for (name, (first, Measure { words, whats, .. })) in crates {
        if is_over(whats, words) {
            let text = format!("{name}: {whats} uses of \"what\" in {words} words of texts");
            findings.push(first.finding(1, text));
        }
    }
    findings
}

/// Finds documents above the measures.
pub fn check_documents(docs: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for doc in docs {
        let words = words(&doc.text);
        let whats = whats(&words);
        if is_over(whats, words.len()) {
            let count = words.len();
            findings.push(doc.finding(1, format!("{whats} uses of \"what\" in {count} words")));
        }
        for (at, line) in doc.text.lines().enumerate() {
            let is_row = line.starts_with('|');
            let longest = line.split('|').map(|cell| cell.trim().chars().count()).max();
            if is_row && longest.is_some_and(|cell| cell > CELL_MAX) {
                findings.push(doc.finding(at + 1, format!("a cell over {CELL_MAX} characters")));
            }
        }
        if doc.path == "README.md" && doc.text.lines().count() > README_LINES_MAX {
            findings.push(doc.finding(1, format!("over {README_LINES_MAX} lines")));
        }
    }
    findings
}

/// Finds comments outside of a protocol's folder that cite a section without naming the paper.
pub fn check_citations(files: &[Source], protocols: &[&str]) -> Vec<Finding> {
    let is_of_one = |path: &str| {
        let folders = protocols.iter().map(|name| format!("protocols/src/{name}/"));
        folders.into_iter().any(|folder| path.starts_with(&folder))
    };
    let mut findings = Vec::new();
    // The checks themselves have examples.
    let is_shared = |path: &str| !is_of_one(path) && !path.starts_with("pangea/tests/tidy/");
    for file in files.iter().filter(|file| is_shared(&file.path)) {
        for (line, comment) in comments(&file.text) {
            let is_named = PAPERS.iter().any(|paper| comment.contains(paper));
            if comment.contains(SECTION) && !is_named {
                findings.push(file.finding(line, "cites a section, and does not name the paper"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_that_open_with_a_free_relative_are_found() {
        let bad = "//! What came.\n\n// Of it.\nfn f() {}\n";
        assert_eq!(check_comments(&[Source::new("a/src/lib.rs", bad)]).len(), 1);
        let good = "//! Received messages.\n\n// Its length.\nfn f() {}\n";
        assert!(check_comments(&[Source::new("a/src/lib.rs", good)]).is_empty());
    }

    #[test]
    fn a_word_that_is_used_too_often_is_found() {
        let text = |count| format!("{}{}", "a word ".repeat(300), "what ".repeat(count));
        let found = |count| check_documents(&[Source::new("docs/A.md", &text(count))]).len();
        assert_eq!((found(1), found(9)), (0, 1));
        let comment = |count| format!("//! {}\n", text(count));
        let found = |count| check_comments(&[Source::new("a/src/lib.rs", &comment(count))]).len();
        assert_eq!((found(1), found(9)), (0, 1));
    }

    #[test]
    fn texts_with_vague_phrases_are_found() {
        let found = |text: &str| check_texts(&[&Source::new("a/src/lib.rs", text)]).len();
        let refused = "fn f() { fail(\"such a clause of {a} is refused\") }";
        assert_eq!(found(refused), 1);
        assert_eq!(found("fn f() { fail(\"it has what \\\n    others depend on\") }"), 1);
        assert_eq!(found("fn f() { fail(\"a clause such as {a} is refused\") }"), 0);
        assert_eq!(found("fn f() { fail(\"such a clause\") }"), 0, "too few words");
        assert_eq!(found(&format!("#[cfg(test)]\nmod tests {{ {refused} }}")), 0);
        assert_eq!(found("/// Returns such a clause of it.\nfn f() {}"), 0, "a comment");
    }

    #[test]
    fn texts_with_a_word_that_is_used_too_often_are_found() {
        let found = |count: usize| {
            let words = format!("{}{}", "a word ".repeat(300), "what ".repeat(count));
            let text = format!("fn f() {{ fail(\"{words}\", \"{{what}} failed on this node\") }}");
            check_texts(&[&Source::new("a/src/lib.rs", &text)]).len()
        };
        assert_eq!((found(1), found(9)), (0, 1));
    }

    #[test]
    fn long_cells_and_a_long_readme_are_found() {
        let row = format!("| {} |\n", "x".repeat(CELL_MAX + 1));
        assert_eq!(check_documents(&[Source::new("docs/A.md", &row)]).len(), 1);
        let readme = "line\n".repeat(README_LINES_MAX + 1);
        assert_eq!(check_documents(&[Source::new("README.md", &readme)]).len(), 1);
    }

    #[test]
    fn a_bare_section_is_found_in_shared_code_only() {
        let bare = format!("//! A module.\n// {SECTION}3.4: a cut.\n");
        let named = format!("//! A module.\n// Minerva {SECTION}3.4: a cut.\n");
        let found =
            |path, text: &str| check_citations(&[Source::new(path, text)], &["calvin"]).len();
        assert_eq!(found("protocols/src/inputs/cut.rs", &bare), 1);
        assert_eq!(found("protocols/src/calvin/mod.rs", &bare), 0);
        assert_eq!(found("core/src/a.rs", &named), 0);
    }
}
