//! Transcripts: the actions of a test and their effects, as text that a test compares with a golden
//! one.
//!
//! ```text
//! > a client of n0 calls (put x 1): k4      an action of the test
//! n0 persists batch 0.1                     effects, in the order in which they are carried out
//!      0.1 (put x 1): ran, wrote x=1        a batch lists its transactions once
//! n0 syncs                                  its disk has all records so far
//! n0 -> n1 n2: Batch 0.1                    messages, sent when what they wait for is durable
//! n0 * a transaction is stale               a mark: its description in the protocol's table,
//!                                           unless another line says the same
//! n1 has epoch 3: x=1                       the rows that its readers see from now on
//! n0 answers k4: 0.1 committed in epoch 3   an answer to a client
//! ... not shown: Agreement                  a part of the run that is left out
//! ```
//!
//! The golden texts are in `transcripts/`, one file for each test, with the name of the test. To
//! accept the present transcripts as the golden ones, run the tests with `BLESS=1`, and read the
//! differences before you commit them:
//!
//! ```sh
//! BLESS=1 cargo test -p pangea-protocols --test phases transcripts
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The recorded lines.
#[derive(Default)]
pub struct Transcript {
    lines: Vec<String>,
    /// How often the last line was repeated.
    repeats: usize,
    is_on: bool,
    /// The nodes whose effects are recorded; all if it is empty.
    watched: Vec<usize>,
    /// The batches whose transactions have been listed.
    listed: BTreeSet<String>,
    /// Messages and marks whose text begins with one of these are left out.
    hidden: Vec<String>,
}

impl Transcript {
    /// Records from now on.
    pub fn start(&mut self) {
        self.is_on = true;
    }

    /// Whether it records.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Records nothing from now on, and says so.
    pub fn pause(&mut self, why: &str) {
        self.add(|| format!("... {why}"));
        self.is_on = false;
    }

    /// Records only the effects of these nodes; of all if there are none.
    pub fn watch(&mut self, nodes: &[usize]) {
        self.watched = nodes.to_vec();
        let nodes: String = nodes.iter().map(|node| format!(" n{node}")).collect();
        self.add(|| format!("... shown:{}", if nodes.is_empty() { " all nodes" } else { &nodes }));
    }

    /// Leaves out messages and marks whose text begins with one of these.
    pub fn hide(&mut self, texts: &[&str]) {
        self.hidden = texts.iter().map(|&text| text.to_owned()).collect();
        self.add(|| format!("... not shown: {}", texts.join(", ")));
    }

    /// An action of the test.
    pub fn act(&mut self, action: impl FnOnce() -> String) {
        self.add(|| format!("> {}", action()));
    }

    /// An effect on a node, or of one.
    pub fn note(&mut self, node: usize, effect: impl FnOnce() -> String) {
        if self.is_watched(node) {
            self.add(|| format!("n{node} {}", effect()));
        }
    }

    /// A mark.
    pub fn mark(&mut self, node: usize, when: &str) {
        if !self.is_hidden(when) {
            self.note(node, || format!("* {when}"));
        }
    }

    /// A message. Copies of it to other nodes right after it are on the same line.
    pub fn send(&mut self, from: usize, to: usize, message: impl FnOnce() -> String) {
        if !self.is_on || !self.is_watched(from) {
            return;
        }
        let message = message();
        if self.is_hidden(&message) {
            return;
        }
        let (start, end) = (format!("n{from} ->"), format!(": {message}"));
        if let Some(last) = self.lines.last_mut()
            && let Some(receivers) = last.strip_prefix(&start).and_then(|it| it.strip_suffix(&end))
            && !receivers.contains(':')
        {
            *last = format!("{start}{receivers} n{to}{end}");
            return;
        }
        self.add(|| format!("{start} n{to}{end}"));
    }

    /// A message that does not arrive now.
    pub fn withhold(&mut self, (from, to): (usize, usize), fate: &str, message: &str) {
        if self.is_watched(from) && !self.is_hidden(message) {
            self.add(|| format!("     {fate}: {message}, n{from} -> n{to}"));
        }
    }

    /// The transactions of a batch that a node has persisted.
    pub fn list(&mut self, node: usize, name: &str, txns: impl FnOnce() -> Vec<String>) {
        if self.is_on && self.is_watched(node) && self.listed.insert(name.to_owned()) {
            txns().into_iter().for_each(|txn| self.add(|| format!("     {txn}")));
        }
    }

    fn is_hidden(&self, message: &str) -> bool {
        self.hidden.iter().any(|hidden| message.starts_with(hidden.as_str()))
    }

    fn is_watched(&self, node: usize) -> bool {
        self.watched.is_empty() || self.watched.contains(&node)
    }

    /// Adds a line. A repetition of the last one is only counted.
    fn add(&mut self, line: impl FnOnce() -> String) {
        if !self.is_on {
            return;
        }
        let line = line();
        let is_again = |last: &String| last.split("   (").next() == Some(line.as_str());
        if !line.starts_with('>')
            && let Some(last) = self.lines.last_mut().filter(|last| is_again(last))
        {
            self.repeats += 1;
            *last = format!("{line}   ({} times)", self.repeats + 1);
            return;
        }
        self.repeats = 0;
        self.lines.push(line);
    }

    /// Compares the transcript with the golden text of the test.
    ///
    /// # Panics
    /// If they differ.
    #[track_caller]
    pub fn assert_golden(&self, test: &str) {
        let file = golden_file(test);
        let found = self.lines.join("\n") + "\n";
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&file, found).expect("the folder of golden texts can be written");
            return;
        }
        let golden = std::fs::read_to_string(&file).unwrap_or_default();
        if let Some(difference) = difference(&golden, &found) {
            panic!(
                "the transcript differs from {}\n{difference}\nTo accept it: BLESS=1 cargo test -p \
                 pangea-protocols --test phases {test}",
                file.display()
            );
        }
    }
}

/// The golden text of a test: in the folder of transcripts, in that of the test's module.
fn golden_file(test: &str) -> PathBuf {
    let mut path: Vec<&str> = test.split("::").collect();
    let name = path.pop().expect("a test has a name");
    let module = path.pop().expect("a test is in a module");
    folder().join(module).join(format!("{name}.txt"))
}

/// The folder with the modules of transcripts and their golden texts.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/phases/transcripts")
}

/// The first line that differs, with the lines before it; `None` if the texts are equal.
fn difference(golden: &str, found: &str) -> Option<String> {
    const CONTEXT: usize = 5;
    if golden == found {
        return None;
    }
    let (golden, found): (Vec<&str>, Vec<&str>) =
        (golden.lines().collect(), found.lines().collect());
    let same = golden.iter().zip(&found).take_while(|(a, b)| a == b).count();
    let before = golden[same.saturating_sub(CONTEXT)..same].iter().map(|line| format!("  {line}"));
    let line = |mark: char, lines: &[&str]| -> Vec<String> {
        lines.iter().skip(same).take(CONTEXT).map(|line| format!("{mark} {line}")).collect()
    };
    let lines: Vec<String> = before.chain(line('-', &golden)).chain(line('+', &found)).collect();
    Some(format!("line {}: - golden, + found\n{}", same + 1, lines.join("\n")))
}

/// The path of the function that this is used in.
macro_rules! name_of_test {
    () => {{
        fn here() {}
        fn name<T>(_: T) -> &'static str {
            std::any::type_name::<T>()
        }
        name(here).trim_end_matches("::here")
    }};
}

pub(crate) use name_of_test;

#[test]
fn a_difference_names_the_first_line_that_differs() {
    assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    let text = difference("a\nb\n", "a\nc\n").expect("they differ");
    assert!(text.contains("line 2") && text.contains("- b") && text.contains("+ c"), "{text}");
    let text = difference("a\n", "a\nb\n").expect("one is longer");
    assert!(text.contains("line 2") && text.contains("+ b"), "{text}");
}

#[test]
fn copies_of_a_message_share_a_line() {
    let mut transcript = Transcript::default();
    transcript.start();
    for (from, to, message) in
        [(0, 1, "Ack [1]"), (0, 2, "Ack [1]"), (0, 1, "Ack [2]"), (1, 0, "Ack [2]")]
    {
        transcript.send(from, to, || message.to_owned());
    }
    assert_eq!(
        transcript.lines,
        ["n0 -> n1 n2: Ack [1]", "n0 -> n1: Ack [2]", "n1 -> n0: Ack [2]"]
    );
}
