//! What everything costs: the file that `pangea calibrate` writes and a prediction reads.
//!
//! For each kind of thing that a node does there is a line: a fixed part, and a part for each
//! transaction, kilobyte or effect, whichever it grows with. All are CPU time on one core of the
//! machine that was measured; the time of an fsync is time on the wall, of equal shares of all.

use std::collections::BTreeMap;

use pangea_core::work::Work;
use serde::{Deserialize, Serialize};

/// The version of the file's format.
pub const VERSION: u32 = 2;

/// Kinds that every protocol has beside its messages, and what each grows with.
const KINDS: [(&str, Unit); 15] = [
    ("turn", Unit::Txn),
    ("submit", Unit::Txn),
    ("timer", Unit::Nothing),
    ("durable", Unit::Nothing),
    ("resume", Unit::Nothing),
    ("rare", Unit::Nothing),
    ("effects", Unit::Effect),
    ("effect_send", Unit::Byte),
    ("log_write", Unit::Byte),
    ("send", Unit::Byte),
    ("receive", Unit::Byte),
    ("client_request", Unit::Txn),
    ("client_answer", Unit::Txn),
    ("load_call", Unit::Txn),
    ("background", Unit::Txn),
];

/// What the cost of a kind grows with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It is the same each time.
    Nothing,
    /// Transactions.
    Txn,
    /// Effects that are carried out.
    Effect,
    /// Bytes; in the file, kilobytes.
    Byte,
}

impl Unit {
    fn key(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Txn => "per_txn_us",
            Self::Effect => "per_effect_us",
            Self::Byte => "per_kb_us",
        }
    }
}

/// What a kind grows with; nothing where no protocol has such a kind.
pub fn unit_of(kind: &str) -> Option<Unit> {
    let work = Work::ALL.into_iter().find(|work| work.name() == kind).map(|work| match work {
        Work::Encode | Work::Decode => Unit::Byte,
        Work::Execute
        | Work::Probe
        | Work::Validate
        | Work::Stale
        | Work::Graph
        | Work::Solve
        | Work::Apply
        | Work::Slice
        | Work::Lock
        | Work::Order
        | Work::Serve
        | Work::Settle => Unit::Txn,
    });
    let step = KINDS.into_iter().find(|(name, _)| *name == kind).map(|(_, unit)| unit);
    let message = kind.starts_with("message").then_some(Unit::Byte);
    work.or(step).or(message)
}

/// Every kind that a protocol with these kinds of messages needs.
pub fn kinds(messages: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    let steps = KINDS.into_iter().map(|(name, _)| name);
    steps.chain(Work::ALL.into_iter().map(Work::name)).chain(messages.iter().copied())
}

/// The cost of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// Of each, in nanoseconds.
    pub fixed_ns: f64,
    /// For each unit of its size, in nanoseconds.
    pub per_unit_ns: f64,
    /// How many it was measured on.
    pub samples: u64,
    /// Their mean size.
    pub mean_size: f64,
    /// The share of the scatter that the line explains.
    pub r2: f64,
}

impl Line {
    /// What `count` of these cost that are `size` large together, in nanoseconds.
    pub fn cost_ns(&self, count: f64, size: f64) -> f64 {
        self.fixed_ns * count + self.per_unit_ns * size
    }
}

/// Where and how it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The day, as in 2026-11-22.
    pub date: String,
    /// The commit of the repository that the program is in.
    pub commit: String,
    /// The processor and how many cores of it.
    pub machine: String,
    /// What clients did.
    pub workload: String,
    /// The command's options.
    pub options: String,
    /// The commit protocol.
    pub protocol: String,
    /// Committed transactions a second while it was measured.
    pub txns_per_sec: f64,
    /// CPU time of all nodes and the load for each of them.
    pub cpu_us_per_txn: f64,
    /// How much of the nodes' CPU time is in some line.
    pub explained_percent: f64,
}

/// Everything in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// Where and how it was measured.
    pub calibration: Calibration,
    /// How long an fsync takes in microseconds: the means of equal shares of all that were
    /// measured, from the shortest to the longest.
    pub fsync_us: Vec<f64>,
    /// Bytes on the wire for each byte of a large message.
    pub wire_bytes_per_byte: f64,
    /// By kind.
    pub lines: BTreeMap<String, Line>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    calibration: Calibration,
    disk: Disk,
    network: Network,
    lines: BTreeMap<String, FileLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Disk {
    fsync_us: Vec<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    wire_bytes_per_byte: f64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLine {
    fixed_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_txn_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_effect_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_kb_us: Option<f64>,
    samples: u64,
    mean_size: f64,
    r2: f64,
}

impl FileLine {
    fn of(kind: &str, line: &Line) -> Self {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        let per = |unit, times: f64| {
            (unit_of(kind) == Some(unit)).then(|| rounded(line.per_unit_ns / 1e3 * times))
        };
        Self {
            fixed_us: rounded(line.fixed_ns / 1e3),
            per_txn_us: per(Unit::Txn, 1.0),
            per_effect_us: per(Unit::Effect, 1.0),
            per_kb_us: per(Unit::Byte, 1e3),
            samples: line.samples,
            mean_size: rounded(line.mean_size),
            r2: rounded(line.r2),
        }
    }

    fn read(&self, kind: &str) -> Result<Line, String> {
        let unit = unit_of(kind).ok_or("there is no such kind of step or work")?;
        let given = [
            (Unit::Txn, self.per_txn_us, 1e3),
            (Unit::Effect, self.per_effect_us, 1e3),
            (Unit::Byte, self.per_kb_us, 1.0),
        ];
        let mut per_unit_ns = None;
        for (found, value, times) in given {
            match value {
                Some(_) if found != unit => {
                    let (found, right) = (found.key(), unit.key());
                    return Err(format!("it has {found}, and grows with {right}"));
                }
                Some(value) => per_unit_ns = Some(not_negative(found.key(), value)? * times),
                None => {}
            }
        }
        let fixed_ns = not_negative("fixed_us", self.fixed_us)? * 1e3;
        let per_unit_ns = match (per_unit_ns, unit) {
            (None, Unit::Nothing) => 0.0,
            (None, unit) => return Err(format!("it lacks {}", unit.key())),
            (Some(value), _) => value,
        };
        if fixed_ns + per_unit_ns <= 0.0 {
            return Err("it costs nothing: one of its numbers must be above 0".to_owned());
        }
        let Self { samples, mean_size, r2, .. } = *self;
        Ok(Line { fixed_ns, per_unit_ns, samples, mean_size, r2 })
    }
}

fn not_negative(key: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(format!("{key} = {value}: must be a number that is not negative"))
    }
}

/// What stands above the file's tables.
const HEAD: &str = "\
# What a node spends its time on, measured by `pangea calibrate` and read by `pangea sim --predict`.
# Each line: CPU time on one core, `fixed_us` each time and so much more for each transaction,
# effect or kilobyte; `r2` is the share of the scatter that the line explains. Times of an fsync
# are on the wall, each the mean of an equal share of all, from the shortest to the longest.
";

impl Costs {
    /// The file.
    pub fn to_toml(&self) -> String {
        let file = File {
            version: VERSION,
            calibration: self.calibration.clone(),
            disk: Disk { fsync_us: self.fsync_us.clone() },
            network: Network { wire_bytes_per_byte: self.wire_bytes_per_byte },
            lines: self.lines.iter().map(|(k, line)| (k.clone(), FileLine::of(k, line))).collect(),
        };
        let text = toml::to_string(&file).expect("numbers and names");
        format!("{HEAD}\n{text}")
    }

    /// Reads a file, for a protocol with these kinds of messages.
    ///
    /// # Errors
    /// When it can't be used: which line or key, and what was expected.
    pub fn parse(text: &str, messages: &'static [&'static str]) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| in_words(&error))?;
        match table.get("version").and_then(toml::Value::as_integer) {
            Some(version) if version == i64::from(VERSION) => {}
            found => {
                let found = found.map_or("none".to_owned(), |found| found.to_string());
                return Err(format!("version: expected {VERSION}, found {found}"));
            }
        }
        let file: File = toml::from_str(text).map_err(|error| in_words(&error))?;
        let at = |name: &str| {
            let found = text.lines().position(|line| line.trim_start().starts_with(name));
            found.map_or_else(|| name.to_owned(), |at| format!("line {}: {name}", at + 1))
        };
        let mut lines = BTreeMap::new();
        for (kind, line) in &file.lines {
            let wrong = |error: String| format!("{}: {error}", at(&format!("[lines.{kind}]")));
            lines.insert(kind.clone(), line.read(kind).map_err(wrong)?);
        }
        for part in Work::OPTIONAL {
            // In a file that does not tell it apart it is in another line.
            lines.entry(part.name().to_owned()).or_default();
        }
        if let Some(missing) = kinds(messages).find(|kind| !lines.contains_key(*kind)) {
            return Err(format!("[lines.{missing}] is missing"));
        }
        let Disk { fsync_us } = file.disk;
        let is_sound = fsync_us.iter().all(|us| us.is_finite() && *us > 0.0);
        if fsync_us.is_empty() || !is_sound || !fsync_us.is_sorted() {
            let at = at("fsync_us");
            return Err(format!("{at}: must be one or more ascending numbers above 0"));
        }
        let Network { wire_bytes_per_byte } = file.network;
        if !(wire_bytes_per_byte.is_finite() && wire_bytes_per_byte > 0.0) {
            return Err(format!("{}: must be a number above 0", at("wire_bytes_per_byte")));
        }
        Ok(Self { calibration: file.calibration, fsync_us, wire_bytes_per_byte, lines })
    }

    /// All costs of CPU times so much.
    #[must_use]
    pub fn times(mut self, factor: f64) -> Self {
        for line in self.lines.values_mut() {
            line.fixed_ns *= factor;
            line.per_unit_ns *= factor;
        }
        self
    }

    /// The cost of a kind. Those of the protocol are there.
    pub fn line(&self, kind: &str) -> &Line {
        self.lines.get(kind).unwrap_or_else(|| panic!("{kind} was checked to be there"))
    }

    /// How long an fsync takes that is longer than this share of all, in nanoseconds.
    pub fn fsync_ns(&self, share: f64) -> u64 {
        let place = (share * self.fsync_us.len() as f64) as usize;
        (self.fsync_us[place.min(self.fsync_us.len() - 1)] * 1e3) as u64
    }
}

fn in_words(error: &toml::de::Error) -> String {
    error
        .to_string()
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}
