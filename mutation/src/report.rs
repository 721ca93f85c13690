//! The table by file, and the list of survivors.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use crate::hunt::{Outcome, Tried};
use crate::places::Mutant;

/// The longest piece of code in a line of the list, in characters.
const CODE_MAX: usize = 70;

/// Counts of ends.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    mutants: usize,
    killed: usize,
    timeout: usize,
    survived: usize,
    not_reached: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Killed { .. } => self.killed += 1,
            Outcome::Timeout { .. } => self.timeout += 1,
            Outcome::Survived { .. } => self.survived += 1,
            Outcome::NotReached => self.not_reached += 1,
        }
    }

    fn row(&self, name: &str) -> String {
        let Self { mutants, killed, timeout, survived, not_reached } = *self;
        let tried = killed + timeout + survived + not_reached;
        let score = (100 * (killed + timeout)).checked_div(tried);
        let score = score.map_or("-".to_owned(), |score| format!("{score} %"));
        format!(
            "| {name} | {mutants} | {tried} | {killed} | {timeout} | {survived} | {not_reached} | \
             {score} |\n"
        )
    }
}

/// Returns the table by file and the list of survivors, as Markdown.
pub fn report<'a>(
    mutants: impl Iterator<Item = &'a Mutant>,
    tried: impl Iterator<Item = &'a Tried> + Clone,
) -> String {
    let mut by_file: BTreeMap<&str, Counts> = BTreeMap::new();
    for mutant in mutants {
        by_file.entry(&mutant.file).or_default().mutants += 1;
    }
    let mut all = Counts::default();
    for it in tried.clone() {
        by_file.entry(&it.mutant.file).or_default().add(&it.outcome);
        all.add(&it.outcome);
    }
    all.mutants = by_file.values().map(|counts| counts.mutants).sum();
    let mut text =
        "| file | mutants | tried | killed | timeout | survived | not reached | score |\n\
                    |---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for (file, counts) in &by_file {
        if counts.killed + counts.timeout + counts.survived + counts.not_reached > 0 {
            text += &counts.row(&format!("`{file}`"));
        }
    }
    text += &all.row("all");
    for (title, is_listed) in [
        ("Survived", (|it| matches!(it, Outcome::Survived { .. })) as fn(&Outcome) -> bool),
        ("Not reached", |it| matches!(it, Outcome::NotReached)),
    ] {
        let mut listed: Vec<&Tried> = tried.clone().filter(|it| is_listed(&it.outcome)).collect();
        listed.sort_by_key(|it| (&it.mutant.file, it.mutant.line, it.mutant.column));
        if !listed.is_empty() {
            write!(text, "\n{title}:\n\n").expect("a text takes everything");
        }
        for it in listed {
            let seen = match it.outcome {
                Outcome::Survived { tests, runs } => format!(" ({tests} tests, {runs} runs)"),
                _ => String::new(),
            };
            writeln!(text, "- {}{seen}", it.mutant).expect("a text takes everything");
        }
    }
    text
}

fn short(code: &str) -> String {
    let line = code.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(CODE_MAX) {
        Some((byte, _)) => format!("{} ..", &line[..byte]),
        None => line,
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, was, now, .. } = self;
        let was = short(was);
        match now.as_str() {
            "" => write!(f, "{file}:{line}:{column}  without `{was}`"),
            now => write!(f, "{file}:{line}:{column}  `{was}` -> `{}`", short(now)),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed { by } => write!(f, "killed by {by}"),
            Self::Timeout { by } => write!(f, "timeout of {by}"),
            Self::Survived { tests, runs } => write!(f, "SURVIVED {tests} tests and {runs} runs"),
            Self::NotReached => f.write_str("NOT REACHED"),
        }
    }
}
