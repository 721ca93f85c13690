//! Scripts of sessions: statements, and the responses that a client receives.
//!
//! ```text
//!   > select 1, null        a statement; indented lines continue it
//!   1|NULL                  a row of its result
//!   = SELECT 1              its command tag
//!   ! 22012 division ..     or its error: SQLSTATE and the start of the message
//!   < 1,a                   a line sent to a COPY FROM
//!   1,a                     a line received from a COPY TO
//!   @b                      the following statements run in session b
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pangea_sql::Shared;
use pangea_sql::engine::Engine;
use pangea_sql::session::Response;
pub use pangea_sql::session::Session;
use pangea_sql::types::text;

/// The environment of sessions.
pub trait Ground {
    /// Returns a new session. `number` is the number of sessions before it.
    fn session(&mut self, number: usize) -> Session;

    /// Waits for a future of a session.
    fn wait<T>(&self, future: impl Future<Output = T>) -> T;
}

/// Returns a session of the scripts' user.
pub fn session(
    engine: Arc<dyn Engine>,
    shared: &Arc<Shared>,
    setting: Option<(&str, &str)>,
) -> Session {
    let user = [Some(("user", "me")), setting].into_iter().flatten();
    let user: BTreeMap<_, _> = user.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    Session::new(engine, shared.clone(), &user).unwrap()
}

/// Returns the paths of all scripts of a crate, sorted.
pub fn scripts(of_crate: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of_crate.join("tests/slt")).unwrap();
    let mut scripts: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty());
    scripts
}

fn show(session: &Session, response: &Response) -> Vec<String> {
    match response {
        Response::Empty => vec!["= (empty)".to_owned()],
        Response::Command { tag } => vec![format!("= {tag}")],
        Response::Error(error) => {
            let mut line = format!("! {} {}", error.code, error.message);
            let extras =
                [("detail", &error.detail), ("hint", &error.hint), ("context", &error.context)];
            for (name, text) in extras {
                text.iter().for_each(|text| line.push_str(&format!(" [{name}: {text}]")));
            }
            line.lines().map(str::to_owned).collect()
        }
        Response::CopyIn(_) | Response::CopyOut(_) | Response::Stream { .. } => Vec::new(),
        Response::Rows { columns, rows, tag } => {
            let mut lines: Vec<String> = Vec::with_capacity(rows.len() + 1);
            for row in rows {
                assert_eq!(row.len(), columns.len(), "a row has a value for each column");
                let cells = row.iter().zip(columns).map(|(datum, column)| {
                    let is_null = datum.is_null();
                    let shown = text::format(column.ty.base, datum, session.zone());
                    if is_null { "NULL".to_owned() } else { shown }
                });
                let line = cells.collect::<Vec<_>>().join("|");
                lines.extend(line.split('\n').map(str::to_owned));
            }
            lines.push(format!("= {tag}"));
            lines
        }
    }
}

/// Sends data in chunks that are not aligned to lines, and returns the tag or the error.
fn copy_in<G: Ground>(ground: &G, session: &mut Session, data: &str) -> Vec<String> {
    for piece in data.as_bytes().chunks(5) {
        if let Err(error) = ground.wait(session.copy_data(piece)) {
            return show(session, &Response::Error(error));
        }
    }
    let response = match ground.wait(session.copy_done()) {
        Ok(tag) => Response::Command { tag },
        Err(error) => Response::Error(error),
    };
    show(session, &response)
}

fn copy_out(session: &mut Session) -> Vec<String> {
    let mut bytes = Vec::new();
    loop {
        match session.copy_next() {
            Ok(output) => {
                bytes.extend(output.messages.bytes);
                let Some(tag) = output.tag else { continue };
                let text = String::from_utf8(bytes).unwrap();
                let lines = text.lines().map(str::to_owned);
                return lines.chain([format!("= {tag}")]).collect();
            }
            Err(error) => return show(session, &Response::Error(error)),
        }
    }
}

/// Returns whether an actual line is as expected. An error may be longer than expected.
fn agrees(expected: &str, actual: &str) -> bool {
    expected == actual || (expected.starts_with("! ") && actual.starts_with(expected))
}

/// A statement of a script, and the responses that a client should receive.
struct Step {
    line: usize,
    speaker: String,
    sql: String,
    data: String,
    expected: Vec<String>,
}

fn steps(script: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut speaker = "a".to_owned();
    let mut lines = script.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        if let Some(name) = line.strip_prefix('@') {
            speaker = name.to_owned();
        } else if let Some(first) = line.strip_prefix("> ") {
            let mut sql = first.to_owned();
            while let Some((_, more)) = lines.next_if(|(_, line)| line.starts_with("  ")) {
                sql = format!("{sql}\n{more}");
            }
            let speaker = speaker.clone();
            let (data, expected) = (String::new(), Vec::new());
            steps.push(Step { line: number + 1, speaker, sql, data, expected });
        } else if let Some(data) = line.strip_prefix("< ") {
            let step = steps.last_mut().expect("a statement comes first");
            step.data.push_str(data);
            step.data.push('\n');
        } else if !line.is_empty() && !line.starts_with('#') {
            let step = steps.last_mut().expect("a statement comes first");
            step.expected.push(line.to_owned());
        }
    }
    steps
}

/// Runs a script, and returns all differences from the expected responses.
pub fn run<G: Ground>(path: &Path, ground: &mut G) -> Vec<String> {
    let script = std::fs::read_to_string(path).unwrap();
    let mut sessions = BTreeMap::new();
    let steps = steps(&script);
    assert!(steps.iter().any(|step| !step.expected.is_empty()), "{} is empty", path.display());
    let mut differences = Vec::new();
    for Step { line, speaker, sql, data, expected } in steps {
        let number = sessions.len();
        let session = sessions.entry(speaker).or_insert_with(|| ground.session(number));
        let actual = answers(ground, session, &sql, &data);
        let is_same = expected.len() == actual.len()
            && expected.iter().zip(&actual).all(|(expected, actual)| agrees(expected, actual));
        if !is_same {
            let [expected, actual] = [expected, actual].map(|lines| lines.join("\n    "));
            let place = format!("{}:{line}", path.display());
            differences.push(format!(
                "{place}: {sql}\n  expected\n    {expected}\n  and got\n    {actual}"
            ));
        }
    }
    // A session may wait for others when it is dropped.
    ground.wait(async { drop(sessions) });
    differences
}

/// Returns all responses that a client receives for a statement.
pub fn answers<G: Ground>(ground: &G, session: &mut Session, sql: &str, data: &str) -> Vec<String> {
    let mut responses = ground.wait(session.simple_query(sql));
    let mut actual = Vec::new();
    while let Some(last) = responses.last().cloned() {
        for response in &responses {
            actual.extend(show(session, response));
        }
        match last {
            Response::CopyIn(_) => actual.extend(copy_in(ground, session, data)),
            Response::CopyOut(_) => actual.extend(copy_out(session)),
            Response::Stream { columns } => {
                let response = match session.all_rows() {
                    Ok((rows, tag)) => Response::Rows { columns, rows, tag },
                    Err(error) => Response::Error(error),
                };
                actual.extend(show(session, &response));
            }
            _ => break,
        }
        responses = ground.wait(session.continue_query());
    }
    actual
}
