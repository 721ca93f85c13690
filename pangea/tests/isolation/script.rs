//! The notation of the scripts.
//!
//! ```text
//! # What it is about, and what PostgreSQL would allow.
//! a: begin
//! a: select v from t where {1} -> 100
//! b: update t set v = 101 where {1} &
//! c: select v from t where {all} order by id -> 100, 200
//! a: commit -> 40001 by b
//! ```
//!
//! A line is a step of a session: `a` and `d` are in the first region, `b` in the second, `c` in
//! the third. Steps run one after the other, but for one that ends with `&`, which runs at once
//! with the next. Each statement outside of `begin` and `commit` is a transaction of its own.
//! Behind `->` stands what must come of the step: the values of a column, `commit`, `40001 by
//! b`, where the
//! refusal names the winner, or `commit or 40001`, where serializability allows both. `# by chance`
//! marks a script that can't force its anomaly.

use super::Variant;

/// The sessions of a script, and the region of each.
pub const SESSIONS: [(char, usize); 4] = [('a', 0), ('b', 1), ('c', 2), ('d', 0)];

/// What must come of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// That it succeeds.
    Success,
    /// The values of the only column.
    Values(Vec<String>),
    /// COMMIT succeeds.
    Commit,
    /// COMMIT is refused, because of what this session wrote.
    Refused(usize),
    /// COMMIT succeeds or is refused.
    Either,
}

/// A statement of a session.
#[derive(Clone, Debug)]
pub struct Step {
    /// Which, as an index into [`SESSIONS`].
    pub session: usize,
    /// What it says.
    pub sql: String,
    /// What must come of it.
    pub expected: Expected,
    /// Whether the next step begins with it.
    pub is_joined: bool,
}

/// A script, for one of its variants.
#[derive(Clone, Debug)]
pub struct Script {
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// Whether it can't force its anomaly.
    pub is_by_chance: bool,
}

impl Script {
    /// Reads a script, whose rows are found as `variant` says.
    pub fn parse(text: &str, variant: &Variant) -> Self {
        let mut steps = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (name, rest) =
                line.split_once(": ").unwrap_or_else(|| panic!("no session: {line}"));
            let is_joined = rest.ends_with(" &");
            let rest = rest.trim_end_matches(" &");
            let (sql, outcome) = rest.split_once(" -> ").unwrap_or((rest, ""));
            let sql = variant
                .places
                .iter()
                .fold(sql.to_owned(), |sql, (place, condition)| sql.replace(place, condition));
            assert!(!sql.contains('{'), "no such place: {line}");
            let expected = expected(outcome);
            steps.push(Step { session: session(name), sql, expected, is_joined });
        }
        assert!(!steps.is_empty(), "an empty script shows nothing");
        let is_by_chance = text.lines().any(|line| line == "# by chance");
        Self { steps, is_by_chance }
    }
}

fn session(name: &str) -> usize {
    let found = SESSIONS.iter().position(|(it, _)| name.chars().eq([*it]));
    found.unwrap_or_else(|| panic!("no session {name}"))
}

fn expected(outcome: &str) -> Expected {
    match outcome {
        "" => Expected::Success,
        "commit" => Expected::Commit,
        "commit or 40001" => Expected::Either,
        _ => match outcome.strip_prefix("40001 by ") {
            Some(winner) => Expected::Refused(session(winner)),
            None => Expected::Values(outcome.split(", ").map(str::to_owned).collect()),
        },
    }
}
