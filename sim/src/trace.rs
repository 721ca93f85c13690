//! The trace of a run: all events in order, one line per event, and a digest of all events.
//!
//! The digest is computed from each event's numbers, not from its line, so it is the same whether
//! or not lines are produced. Two runs of one seed have the same digest.
//!
//! ```text
//! us          node what            numbers       in words
//!     1204551 n1   message         a31f.. 88     from n0: Append { .. }
//! ```

use pangea_core::time::Timestamp;
use xxhash_rust::xxh3::Xxh3;

/// The destination of trace lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lines {
    /// No lines are produced.
    #[default]
    Off,
    /// Each line is printed when its event happens.
    Print,
    /// All lines are kept for the report.
    Keep,
}

/// The trace of a run.
pub struct Trace {
    digest: Xxh3,
    events: u64,
    lines: Lines,
    kept: Vec<String>,
}

impl Trace {
    /// Creates an empty trace.
    pub fn new(lines: Lines) -> Self {
        Self { digest: Xxh3::new(), events: 0, lines, kept: Vec::new() }
    }

    /// Records that event `what` happened at a place, with two numbers that identify it. `words` is
    /// called only if lines are produced.
    pub fn event(
        &mut self,
        at: Timestamp,
        place: impl Place,
        what: &'static str,
        numbers: [u64; 2],
        words: impl FnOnce() -> String,
    ) {
        let mut bytes = [0; 40];
        let fields = [at.us, place.number(), what.len() as u64, numbers[0], numbers[1]];
        for (slot, field) in bytes.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        self.digest.update(&bytes);
        self.digest.update(what.as_bytes());
        self.events += 1;
        let line = || {
            let [a, b] = numbers;
            let place = place.name();
            format!("{:>12} {place:<5} {what:<14} {a:>16x} {b:>8x}  {}", at.us, words())
        };
        match self.lines {
            Lines::Off => {}
            Lines::Print => println!("{}", line()),
            Lines::Keep => self.kept.push(line()),
        }
    }

    /// The number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The digest of all events so far.
    pub fn digest(&self) -> u64 {
        self.digest.digest()
    }

    /// Returns the lines that were kept.
    pub fn into_lines(self) -> Vec<String> {
        self.kept
    }
}

/// The place of an event.
pub trait Place {
    /// A number that is unique to this place.
    fn number(&self) -> u64;
    /// The place's name in trace lines.
    fn name(&self) -> String;
}

impl Place for pangea_core::ids::NodeId {
    fn number(&self) -> u64 {
        u64::from(self.0)
    }
    fn name(&self) -> String {
        self.to_string()
    }
}

/// A client.
#[derive(Clone, Copy, Debug)]
pub struct AtClient(pub usize);

impl Place for AtClient {
    fn number(&self) -> u64 {
        1 << 32 | self.0 as u64
    }
    fn name(&self) -> String {
        format!("c{}", self.0)
    }
}

/// The world outside of nodes and clients.
#[derive(Clone, Copy, Debug)]
pub struct Outside;

impl Place for Outside {
    fn number(&self) -> u64 {
        1 << 33
    }
    fn name(&self) -> String {
        "-".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::NodeId;

    #[test]
    fn the_digest_depends_on_every_field_and_not_on_the_lines() {
        let digest = |lines, at, node, what, number| {
            let mut trace = Trace::new(lines);
            let at = Timestamp::from_us(at);
            trace.event(at, NodeId(node), what, [number, 0], String::new);
            trace.digest()
        };
        let base = digest(Lines::Off, 1, 2, "step", 3);
        assert_eq!(base, digest(Lines::Keep, 1, 2, "step", 3));
        for other in [(9, 2, "step", 3), (1, 9, "step", 3), (1, 2, "stop", 3), (1, 2, "step", 9)] {
            assert_ne!(base, digest(Lines::Off, other.0, other.1, other.2, other.3));
        }
    }
}
