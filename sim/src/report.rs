//! The result of a run, in numbers and as text.

use std::collections::BTreeMap;
use std::fmt;

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;

use crate::check::Violation;
use crate::faults::Rule;
use crate::history::{End, History};
use crate::record::Recorded;
use crate::settings::Settings;

/// The width of a list, excluding its heading.
const LIST_COLUMNS: usize = 86;

/// Event counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were ordered and committed.
    pub committed: u64,
    /// Operations that read a snapshot.
    pub reads: u64,
    /// Operations that aborted.
    pub aborted: u64,
    /// Operations that never began because their node was down.
    pub refused: u64,
    /// Operations whose node stopped before it answered.
    pub ambiguous: u64,
    /// Times that a client stopped waiting for an answer and continued.
    pub gave_up_waiting: u64,
    /// Protocol steps.
    pub steps: u64,
    /// The most transactions that one step handled.
    pub step_txns_max: u64,
    /// Messages sent.
    pub messages: u64,
    /// Messages that did not arrive.
    pub messages_lost: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Log records written.
    pub records: u64,
    /// Log records lost in crashes.
    pub records_lost: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Stops of nodes.
    pub crashes: u64,
    /// Nodes that were replaced because their disk was lost.
    pub replaced: u64,
    /// Upgrades for which the nodes had to run the earlier program once more.
    pub upgrades_undone: u64,
    /// Nodes that have stopped in order.
    pub stops_in_order: u64,
    /// Connections lost.
    pub connections_lost: u64,
    /// Comparisons of two replicas at the same version.
    pub digests_compared: u64,
    /// Operations that were acknowledged and then discarded by a failover, as the protocol's mode
    /// allows.
    pub given_up: u64,
    /// Open snapshots of sessions that were lost because their node rolled back.
    pub pins_lost: u64,
    /// Histories for which the checker could not decide whether they are correct.
    pub undecided: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// How requests to move slots have ended, and snapshots over shards that were read meanwhile.
    pub moves: BTreeMap<&'static str, u64>,
    /// Aborts by SQLSTATE.
    pub aborts: BTreeMap<String, u64>,
    /// The most bytes of batches observed at each node.
    pub batch_bytes_max: BTreeMap<u16, u64>,
    /// The protocol's coverage marks.
    pub marks: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub(crate) fn count_operations(&mut self, history: &History) {
        for operation in &history.operations {
            match &operation.end {
                End::Committed { .. } => self.committed += 1,
                End::Read { .. } => self.reads += 1,
                End::Aborted(abort) => {
                    self.aborted += 1;
                    *self.aborts.entry(abort.code.to_string()).or_default() += 1;
                }
                End::Refused => self.refused += 1,
                End::Ambiguous => self.ambiguous += 1,
                End::Open => {}
            }
        }
    }

    /// The number of times that a mark was hit.
    pub fn mark(&self, name: &str) -> u64 {
        self.marks.get(name).copied().unwrap_or(0)
    }

    /// Returns a mark that shows that a replica received an invalid message, if one was hit.
    pub fn nonsense(&self) -> Option<&'static str> {
        let is_nonsense =
            |name: &&str| name.contains("malformed") || name.starts_with("agreement.refused");
        self.marks.keys().copied().find(is_nonsense)
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.reads += other.reads;
        self.aborted += other.aborted;
        self.refused += other.refused;
        self.ambiguous += other.ambiguous;
        self.gave_up_waiting += other.gave_up_waiting;
        self.steps += other.steps;
        self.step_txns_max = self.step_txns_max.max(other.step_txns_max);
        self.messages += other.messages;
        self.messages_lost += other.messages_lost;
        self.bytes += other.bytes;
        self.records += other.records;
        self.records_lost += other.records_lost;
        self.checkpoints += other.checkpoints;
        self.crashes += other.crashes;
        self.replaced += other.replaced;
        self.upgrades_undone += other.upgrades_undone;
        self.stops_in_order += other.stops_in_order;
        self.connections_lost += other.connections_lost;
        self.digests_compared += other.digests_compared;
        self.given_up += other.given_up;
        self.pins_lost += other.pins_lost;
        self.undecided += other.undecided;
        let add = |(name, count): (_, &u64), to: &mut BTreeMap<_, u64>| {
            *to.entry(name).or_default() += count;
        };
        other.faults.iter().for_each(|(name, count)| add((*name, count), &mut self.faults));
        other.marks.iter().for_each(|(name, count)| add((*name, count), &mut self.marks));
        for (node, most) in &other.batch_bytes_max {
            let all = self.batch_bytes_max.entry(*node).or_default();
            *all = (*all).max(*most);
        }
        for (code, count) in &other.aborts {
            *self.aborts.entry(code.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, reads, aborted, refused, ambiguous, gave_up_waiting, .. } = self;
        write!(f, "  operations  {committed} committed, {reads} snapshot reads, ")?;
        write!(f, "{aborted} aborted, {ambiguous} ambiguous, {refused} refused, ")?;
        writeln!(f, "{gave_up_waiting} slow")?;
        writeln!(f, "  aborts      {}", joined(&self.aborts))?;
        let Self { crashes, replaced, connections_lost, records_lost, messages_lost, .. } = self;
        writeln!(f, "  faults      {}", joined(&self.faults))?;
        write!(
            f,
            "              {crashes} crashes, {replaced} disks, {connections_lost} connections, "
        )?;
        writeln!(f, "{records_lost} records and {messages_lost} messages lost")?;
        let Self { steps, messages, bytes, records, checkpoints, digests_compared, .. } = self;
        write!(f, "  work        {steps} steps, {messages} messages ({bytes} bytes), ")?;
        write!(f, "{records} records, {checkpoints} checkpoints, ")?;
        writeln!(f, "{digests_compared} replica comparisons")?;
        writeln!(f, "  longest     {} transactions in one step", self.step_txns_max)?;
        if self.given_up > 0 || self.pins_lost > 0 {
            let Self { given_up, pins_lost, .. } = self;
            writeln!(f, "  given up    {given_up} operations, {pins_lost} open snapshots")?;
        }
        if self.undecided > 0 {
            writeln!(
                f,
                "  undecided   {} histories are neither proven right nor wrong",
                self.undecided
            )?;
        }
        write!(f, "  marks       {}", wrapped(&joined(&self.marks)))
    }
}

fn joined<K: fmt::Display>(counts: &BTreeMap<K, u64>) -> String {
    let each: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}

/// Formats a protocol's options as in its table of a configuration file.
fn in_words(options: &impl serde::Serialize) -> String {
    let text = toml::to_string(options).expect("options can be written as TOML");
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.replace('"', "")).collect::<Vec<_>>().join(", ")
}

/// Wraps a list to the width of a terminal; lines after the first are indented.
pub(crate) fn wrapped(list: &str) -> String {
    let mut lines = vec![String::new()];
    for item in list.split_inclusive(", ") {
        let last = lines.last_mut().expect("the list starts with a line");
        if !last.is_empty() && last.len() + item.trim_end().len() > LIST_COLUMNS {
            lines.push(item.to_owned());
        } else {
            last.push_str(item);
        }
    }
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    lines.join("\n              ")
}

/// The report of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The protocol's name.
    pub protocol: &'static str,
    /// The settings of the run.
    pub settings: Settings,
    /// The protocol's options as `name = value`, separated by commas.
    pub options: String,
    /// The faults, drawn or given.
    pub rules: Vec<Rule>,
    /// The length of the run in virtual time.
    pub virtual_time: Span,
    /// The number of events in the trace.
    pub events: u64,
    /// The trace's digest.
    pub digest: u64,
    /// Event counts of a run.
    pub counts: Counts,
    /// The operations of clients and their results.
    pub history: History,
    /// The history in the recorded form, if the workload has one and all results can be decoded.
    /// Includes the final state if the run reached its end.
    pub recorded: Option<Recorded>,
    /// The violation, if the run failed.
    pub violation: Option<Violation>,
    /// The trace's lines, if they were kept.
    pub lines: Vec<String>,
}

impl Report {
    /// A report of a run that has not happened.
    pub(crate) fn outline<P: Protocol>(settings: &Settings, options: &P::Options) -> Self {
        Self {
            protocol: P::NAME,
            settings: settings.clone(),
            options: in_words(options),
            rules: Vec::new(),
            virtual_time: Span::ZERO,
            events: 0,
            digest: 0,
            counts: Counts::default(),
            history: History::default(),
            recorded: None,
            violation: None,
            lines: Vec::new(),
        }
    }

    /// Returns the command that repeats this run.
    pub fn replay_command(&self) -> String {
        self.settings.replay_command(self.protocol)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, options, virtual_time, events, digest, .. } = self;
        writeln!(f, "{}", self.replay_command())?;
        if settings.is_drawn {
            let all = Settings { is_drawn: false, ..settings.clone() };
            writeln!(f, "  drawn       {all}")?;
        }
        writeln!(f, "  options     {}", wrapped(options))?;
        writeln!(f, "  trace       {digest:016x}: {events} events in {virtual_time}")?;
        writeln!(f, "{}", self.counts)?;
        match &self.violation {
            None => write!(f, "  verdict     all checks passed"),
            Some(violation) => {
                writeln!(f, "  verdict     FAILED: {violation}")?;
                write!(f, "  replay      {}", self.replay_command())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize)]
    struct Options {
        epoch_ms: u64,
        solver: &'static str,
        is_fast: bool,
    }

    #[test]
    fn options_are_names_and_values_in_short_lines() {
        let options = Options { epoch_ms: 20, solver: "exact", is_fast: true };
        let words = in_words(&options);
        assert_eq!(words, "epoch_ms = 20, solver = exact, is_fast = true");
        assert_eq!(wrapped(&words), words);
        let long = wrapped(&vec![words; 4].join(", "));
        assert_eq!(long.lines().count(), 3, "{long}");
        for line in long.lines() {
            assert!(line.trim_start().len() <= LIST_COLUMNS && !line.ends_with(' '), "{long}");
        }
    }
}
