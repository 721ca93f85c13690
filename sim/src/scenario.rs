//! A run as a file: the workload, the cluster and the faults.
//!
//! Every setting is optional and defaults to [`Settings::default`]. Faults are either listed as
//! [`rules`](crate::faults::Rule) or drawn from kinds.
//!
//! ```toml
//! workload = "bank"
//! nodes = 3
//! ms = 6000
//! one_way_ms = [[0, 10, 80], [10, 0, 75], [80, 75, 0]]
//!
//! [[rules]]
//! at_ms = 2000
//! lasts_ms = 1000
//! fault.crash = { node = "coordinator" }
//!
//! [minerva]
//! solver = "greedy"
//! ```

use std::str::FromStr;

use pangea_core::time::Span;
use pangea_core::topology::Replicas;
use pangea_core::workload;
use serde::{Deserialize, Serialize};

use crate::clock::ClockBounds;
use crate::faults::{FaultKind, Rule};
use crate::settings::{NODES_MAX, Settings};

/// The longest one-way delay that a file may set.
const ONE_WAY_MS_MAX: u64 = 10_000;

/// The content of a scenario file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenario {
    given: Given,
    /// The source text, for line numbers in error messages.
    text: String,
    /// The tables of the protocols' own settings, by protocol.
    pub protocols: toml::Table,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    workload: Option<String>,
    nodes: Option<usize>,
    partitions: Option<u16>,
    replicas_in: Option<String>,
    non_voting: Option<usize>,
    learners: Option<bool>,
    caches: Option<usize>,
    clients: Option<usize>,
    ms: Option<u64>,
    lists: Option<u32>,
    accounts: Option<u32>,
    memory_bytes: Option<usize>,
    faults: Option<Vec<String>>,
    faults_max: Option<u64>,
    one_way_ms: Option<Distances>,
    clock_offset_us: Option<u64>,
    clock_drift_ppm: Option<u64>,
    isolation: Option<String>,
    real_time: Option<String>,
    rules: Option<Vec<Rule>>,
}

/// Delays between regions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Distances {
    /// The maximum in ms; each seed draws the delays.
    Most(u64),
    /// Delays in ms, `[from][to]`.
    All(Vec<Vec<u64>>),
}

impl Scenario {
    /// Returns the text of a scenario file with these settings and the protocol's options in a
    /// table of its name. It contains everything but the seed.
    pub fn text(settings: &Settings, protocol: &str, options: &toml::Table) -> String {
        let ms = |span: Span| span.us / 1_000;
        let one_way_ms = match &settings.one_way {
            Some(matrix) => Distances::All(matrix.clone()),
            None => Distances::Most(ms(settings.one_way_max)),
        };
        let given = Given {
            workload: Some(settings.workload.clone()),
            nodes: Some(settings.nodes),
            partitions: Some(settings.shards).filter(|shards| *shards > 1),
            replicas_in: settings.replicas.as_ref().map(|it| it.text(&settings.topology().regions)),
            non_voting: Some(settings.non_voting).filter(|count| *count > 0),
            learners: Some(settings.learners).filter(|learners| *learners),
            caches: Some(settings.caches).filter(|caches| *caches > 0),
            clients: Some(settings.clients_per_node),
            ms: Some(ms(settings.duration)),
            lists: Some(settings.lists),
            accounts: Some(settings.accounts),
            memory_bytes: settings.memory_bytes,
            faults: Some(settings.faults.iter().map(|kind| kind.name().to_owned()).collect()),
            faults_max: Some(settings.faults_max),
            one_way_ms: Some(one_way_ms),
            clock_offset_us: Some(settings.clocks.offset_max.us),
            clock_drift_ppm: Some(settings.clocks.drift_ppm_max),
            isolation: Some(settings.isolation.to_string()),
            real_time: Some(settings.real_time.name().to_owned()),
            rules: settings.rules.clone(),
        };
        let given = toml::to_string(&given).expect("settings and rules can be written as TOML");
        let own = toml::Table::from_iter([(protocol.to_owned(), options.clone().into())]);
        let own = toml::to_string(&own).expect("options can be written as TOML");
        format!("{given}\n{own}")
    }

    /// Parses a file's text, which may contain a table for each of `protocols`.
    ///
    /// # Errors
    /// The line that is wrong and the expected value, or the numbers that are inconsistent.
    pub fn read(text: &str, protocols: &[&str]) -> Result<Self, String> {
        let mut table: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
        let tables: toml::Table =
            protocols.iter().filter_map(|&name| table.remove_entry(name)).collect();
        // Parses the text itself, so that errors name its lines, but without the protocols' tables.
        let own = blank_tables(text, protocols);
        let given: Given = toml::from_str(&own).map_err(|error| error.to_string())?;
        let scenario = Self { given, text: text.to_owned(), protocols: tables };
        scenario.apply(Settings::default()).map(|_| scenario)
    }

    /// Returns the line of a protocol's setting, counted from 1.
    pub fn line_of_option(&self, protocol: &str, key: &str) -> Option<usize> {
        let mut table = String::new();
        self.text.lines().enumerate().find_map(|(at, line)| {
            if let Some(header) = line.trim_start().strip_prefix('[') {
                table = header.split(']').next().unwrap_or_default().trim().to_owned();
            }
            let is_it = table == protocol && is_of_key(line, key);
            is_it.then_some(at + 1)
        })
    }

    /// Returns an error message with the line of the key that it is about.
    fn wrong(&self, key: &str, why: impl std::fmt::Display) -> String {
        let lines = self.text.lines().enumerate();
        let mut own = lines.take_while(|(_, line)| !line.trim_start().starts_with('['));
        at_line(own.find(|(_, line)| is_of_key(line, key)), why)
    }

    /// Returns an error message about a rule, with the line where the rule begins.
    fn wrong_rule(&self, index: usize, why: impl std::fmt::Display) -> String {
        let is_rule = |line: &str| {
            line.split('#').next().is_some_and(|it| it.split_whitespace().eq(["[[rules]]"]))
        };
        let mut rules = self.text.lines().enumerate().filter(|(_, line)| is_rule(line));
        let why = format!("rule {} of [[rules]]: {why}", index + 1);
        at_line(rules.nth(index), why)
    }

    /// Returns `settings` with the file's settings applied.
    ///
    /// # Errors
    /// The numbers that are inconsistent.
    pub fn apply(&self, settings: Settings) -> Result<Settings, String> {
        let Given { workload, clients, ms, lists, accounts, .. } = self.given.clone();
        let Given { faults, faults_max, one_way_ms, isolation, real_time, rules, .. } =
            self.given.clone();
        let settings = self.placed(settings)?;
        let (node_count, regions) = (settings.node_count(), settings.regions());
        if let Some(name) = workload.as_ref().filter(|name| !workload::NAMES.contains(&&***name)) {
            let names = workload::NAMES.join(", ");
            let why = format!("workload = {name:?}: unknown workload; known: {names}");
            return Err(self.wrong("workload", why));
        }
        let duration = ms.map_or(settings.duration, Span::from_ms);
        if clients == Some(0) {
            return Err(self.wrong("clients", "clients = 0: must be at least 1"));
        }
        for (index, rule) in rules.iter().flatten().enumerate() {
            let caches = settings.nodes * self.given.caches.unwrap_or(settings.caches);
            let checked = rule.fault.check(node_count + caches).and(check_time(rule, duration));
            checked.map_err(|why| self.wrong_rule(index, why))?;
        }
        let kinds = |names: Vec<String>| {
            names.iter().map(|name| name.parse()).collect::<Result<Vec<FaultKind>, String>>()
        };
        let (one_way_max, one_way) = match one_way_ms {
            None => (settings.one_way_max, settings.one_way),
            Some(Distances::Most(ms)) => (Span::from_ms(ms), None),
            Some(Distances::All(matrix)) => {
                check_matrix(&matrix, regions).map_err(|why| self.wrong("one_way_ms", why))?;
                (settings.one_way_max, Some(matrix))
            }
        };
        let ClockBounds { offset_max, drift_ppm_max } = settings.clocks;
        Ok(Settings {
            caches: self.given.caches.unwrap_or(settings.caches),
            workload: workload.unwrap_or(settings.workload),
            clients_per_node: clients.unwrap_or(settings.clients_per_node),
            lists: lists.unwrap_or(settings.lists),
            accounts: accounts.unwrap_or(settings.accounts),
            memory_bytes: self.given.memory_bytes.or(settings.memory_bytes),
            duration,
            faults: match faults.map(kinds).transpose() {
                Ok(faults) => faults.unwrap_or(settings.faults),
                Err(why) => return Err(self.wrong("faults", why)),
            },
            faults_max: faults_max.unwrap_or(settings.faults_max),
            rules: rules.or(settings.rules),
            one_way_max,
            one_way,
            clocks: ClockBounds {
                offset_max: self.given.clock_offset_us.map_or(offset_max, Span::from_us),
                drift_ppm_max: self.given.clock_drift_ppm.unwrap_or(drift_ppm_max),
            },
            isolation: self.parsed("isolation", isolation, settings.isolation)?,
            real_time: self.parsed("real_time", real_time, settings.real_time)?,
            ..settings
        })
    }

    /// Applies the nodes of the file.
    fn placed(&self, settings: Settings) -> Result<Settings, String> {
        let nodes = self.given.nodes.unwrap_or(settings.nodes);
        if !(1..=NODES_MAX).contains(&nodes) {
            let why = format!("nodes = {nodes}: must be from 1 to {NODES_MAX}");
            return Err(self.wrong("nodes", why));
        }
        let shards = self.given.partitions.unwrap_or(settings.shards);
        if !(1..=8).contains(&shards) {
            let why = format!("partitions = {shards}: must be from 1 to 8");
            return Err(self.wrong("partitions", why));
        }
        let replicas = match &self.given.replicas_in {
            Some(text) => Some(self.replicas(text, nodes, shards)?),
            None => settings.replicas.clone(),
        };
        let non_voting = self.given.non_voting.unwrap_or(settings.non_voting);
        if non_voting > NODES_MAX - nodes {
            let why = format!("non_voting = {non_voting}: at most {NODES_MAX} regions");
            return Err(self.wrong("non_voting", why));
        }
        let learners = self.given.learners.unwrap_or(settings.learners);
        Ok(Settings { nodes, shards, replicas, non_voting, learners, ..settings })
    }

    fn replicas(&self, text: &str, nodes: usize, shards: u16) -> Result<Replicas, String> {
        let regions = Settings { nodes, ..Settings::default() }.topology().regions;
        let replicas = Replicas::parse(text, &regions);
        let replicas = replicas.and_then(|replicas| match replicas.shards() {
            found if found == usize::from(shards) => Ok(replicas),
            found => {
                Err(format!("replicas_in: replicas of {found} shards, and partitions = {shards}"))
            }
        });
        replicas.map_err(|why| self.wrong("replicas_in", why))
    }

    /// Returns the given value, or else the default.
    fn parsed<T: FromStr<Err = String>>(
        &self,
        key: &str,
        given: Option<String>,
        default: T,
    ) -> Result<T, String> {
        given.map_or(Ok(default), |name| name.parse().map_err(|why| self.wrong(key, why)))
    }
}

/// Rejects a fault that begins after all faults have ended, because it would never happen.
fn check_time(rule: &Rule, duration: Span) -> Result<(), String> {
    let (at_ms, ms) = (rule.at_ms, duration.us / 1_000);
    match at_ms <= ms {
        true => Ok(()),
        false => Err(format!("at_ms = {at_ms}: faults must begin within ms = {ms}")),
    }
}

/// Returns an error message, with its line if known.
fn at_line(line: Option<(usize, &str)>, why: impl std::fmt::Display) -> String {
    line.map_or_else(|| why.to_string(), |(at, _)| format!("line {}: {why}", at + 1))
}

/// Whether a line assigns a value to a key.
fn is_of_key(line: &str, key: &str) -> bool {
    let rest = line.trim_start().strip_prefix(key);
    rest.is_some_and(|rest| rest.trim_start().starts_with('='))
}

fn check_matrix(matrix: &[Vec<u64>], nodes: usize) -> Result<(), String> {
    let is_square = matrix.len() == nodes && matrix.iter().all(|row| row.len() == nodes);
    if !is_square {
        return Err(format!(
            "one_way_ms: for {nodes} nodes, {nodes} rows of {nodes} numbers are needed"
        ));
    }
    for (from, row) in matrix.iter().enumerate() {
        for (to, &ms) in row.iter().enumerate() {
            let is_possible = if from == to { ms == 0 } else { (1..=ONE_WAY_MS_MAX).contains(&ms) };
            if !is_possible {
                return Err(format!(
                    "one_way_ms: {ms} from node {from} to node {to}: must be 0 from a node to \
                     itself, and from 1 to {ONE_WAY_MS_MAX} between nodes"
                ));
            }
        }
    }
    Ok(())
}

/// Returns the text with the lines of some tables emptied, so that other lines keep their numbers.
fn blank_tables(text: &str, tables: &[&str]) -> String {
    let mut is_blank = false;
    let mut blanked = String::new();
    for line in text.lines() {
        let header = line.trim_start().strip_prefix('[');
        if let Some(header) = header {
            let name = header.trim_start_matches('[').split([']', '.']).next().unwrap_or_default();
            is_blank = tables.contains(&name.trim());
        }
        if !is_blank {
            blanked.push_str(line);
        }
        blanked.push('\n');
    }
    blanked
}

#[cfg(test)]
mod tests {
    use pangea_core::protocol::Mark;

    use super::*;
    use crate::faults::Dice;

    const PROTOCOLS: [&str; 1] = ["minerva"];

    fn read(text: &str) -> Result<Settings, String> {
        Scenario::read(text, &PROTOCOLS)?.apply(Settings::default())
    }

    #[test]
    fn what_is_given_counts_and_the_rest_is_as_usual() {
        let text = "nodes = 5\nclients = 2\nfaults = [\"crash\", \"flap\"]\nreal_time = \"none\"\n\
                    [[rules]]\nat_ms = 1\nlasts_ms = 2\nfault.full-stop = {}\n\
                    [minerva]\nsolver = \"greedy\"\n";
        let scenario = Scenario::read(text, &PROTOCOLS).unwrap();
        let settings = scenario.apply(Settings::default()).unwrap();
        assert_eq!((settings.nodes, settings.clients_per_node), (5, 2));
        assert_eq!(settings.faults, [FaultKind::Crash, FaultKind::Flap]);
        assert_eq!(settings.rules.map(|rules| rules.len()), Some(1));
        assert_eq!(settings.duration, Settings::default().duration);
        let solver = scenario.protocols["minerva"].get("solver").and_then(toml::Value::as_str);
        assert_eq!(solver, Some("greedy"));
        assert_eq!(scenario.line_of_option("minerva", "solver"), Some(10));
        assert_eq!(scenario.line_of_option("minerva", "nodes"), None);
        assert_eq!(read(""), Ok(Settings::default()));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for seed in 0..50 {
            let drawn = Settings::drawn(seed);
            let dice = &mut Dice::of(seed);
            let (kinds, nodes) = (&drawn.faults, drawn.nodes);
            let marks = [Mark::new("minerva.mark", "often")];
            let rules = crate::faults::draw(dice, kinds, 20, nodes, drawn.duration, &marks);
            let settings = Settings { is_drawn: false, seed: 0, rules: Some(rules), ..drawn };
            let options = toml::Table::from_iter([("epoch_ms".to_owned(), 20.into())]);
            let text = Scenario::text(&settings, "minerva", &options);
            let scenario = Scenario::read(&text, &PROTOCOLS).unwrap();
            assert_eq!(scenario.apply(Settings::default()).unwrap(), settings, "{text}");
            assert_eq!(scenario.protocols["minerva"].as_table(), Some(&options));
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, wrong) in [
            ("nodes = 3\n\nwork = 1", "line 3"),
            ("[minerva]\nsolver = \"exact\"\n[calvin]\nx = 1", "line 3"),
            ("nodes = 3\nnodes = 4", "line 2"),
            ("nodes = \"three\"", "expected usize"),
            ("nodes = 33", "line 1: nodes = 33: must be from 1 to 32"),
            ("ms = 9\nworkload = \"tpch\"", "line 2: workload = \"tpch\": unknown workload"),
            ("\nfaults = [\"earthquake\"]", "line 2: "),
            ("\n\nreal_time = \"yes\"", "line 3: "),
            ("clients = 0", "line 1: clients = 0: must be at least 1"),
            ("one_way_ms = [[0, 1], [1, 0]]", "line 1: one_way_ms: for 3 nodes, 3 rows"),
            ("nodes = 2\none_way_ms = [[0, 0], [1, 0]]", "line 2: one_way_ms: 0 from node 0"),
            ("[[rules]]\nat_ms = 1\nfault.full-stop = {}", "lasts_ms"),
            (
                "[[rules]]\nat_ms = 1\nlasts_ms = 1\nfault.crash = { node = 3 }",
                "line 1: rule 1 of [[rules]]: node 3 does not exist",
            ),
            (
                "ms = 500\n[[rules]]\nat_ms = 500\nlasts_ms = 1\nfault.full-stop = {}\n\
                 [[rules]]\nat_ms = 501\nlasts_ms = 1\nfault.full-stop = {}",
                "line 6: rule 2 of [[rules]]: at_ms = 501: faults must begin within ms = 500",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
