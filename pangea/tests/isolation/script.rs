//! The notation of the scripts.
//!
//! ```text
//! # The subject, and the result that PostgreSQL would allow.
//! a: begin
//! a: select v from t where {1} -> 100
//! b: update t set v = 101 where {1} &
//! c: select v from t where {all} order by id -> 100, 200
//! a: commit -> 40001 by b
//! ```
//!
//! A line is a step of a session: `a` and `d` are in the first region, `b` in the second, `c` in
//! the third. Steps run one after the other, except that a step that ends with `&` runs
//! concurrently with the next. Each statement outside of `begin` and `commit` is an autocommit
//! statement.
//!
//! The expected result of a step follows `->`. It is the values of a column, `commit`, `40001 by b`
//! if the error names the winner, or `commit or 40001` if serializability allows both. `# by
//! chance` marks a script that cannot force its anomaly.

use super::Variant;

/// The sessions of a script, and the region of each.
pub const SESSIONS: [(char, usize); 4] = [('a', 0), ('b', 1), ('c', 2), ('d', 0)];

/// The expected result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The step succeeds.
    Success,
    /// The values of the only column.
    Values(Vec<String>),
    /// COMMIT succeeds.
    Commit,
    /// COMMIT fails because of a write of this session.
    Refused(usize),
    /// COMMIT succeeds or fails.
    Either,
}

/// A statement of a session.
#[derive(Clone, Debug)]
pub struct Step {
    /// The session, as an index into [`SESSIONS`].
    pub session: usize,
    /// The statement.
    pub sql: String,
    /// The expected result.
    pub expected: Expected,
    /// Whether the next step starts concurrently.
    pub is_joined: bool,
}

/// A script, for one of its variants.
#[derive(Clone, Debug)]
pub struct Script {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Whether the script cannot force its anomaly.
    pub is_by_chance: bool,
}

impl Script {
    /// Parses a script for a variant.
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
