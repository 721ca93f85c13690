//! Costs of all activities: the file that `pangea calibrate` writes and a prediction reads.
//!
//! Each kind of activity of a node has a line: a fixed cost, and a cost for each transaction,
//! kilobyte or effect, whichever it grows with. All are CPU time on one core of the machine that
//! was measured. The duration of an fsync is wall-clock time, as means of equal shares of all.

use std::collections::BTreeMap;

use pangea_core::cpu_stage::CpuStage;
use serde::{Deserialize, Serialize};

/// The version of the file's format.
pub const VERSION: u32 = 2;

/// Kinds that every protocol has in addition to its messages, and their units.
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

/// The unit with which the cost of a kind grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// None: the cost is constant.
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

/// Returns the unit of a kind, or `None` if no protocol has this kind.
pub fn unit_of(kind: &str) -> Option<Unit> {
    let work = CpuStage::ALL.into_iter().find(|work| work.name() == kind).map(|work| match work {
        CpuStage::Encode | CpuStage::Decode => Unit::Byte,
        CpuStage::Execute
        | CpuStage::Probe
        | CpuStage::Validate
        | CpuStage::Stale
        | CpuStage::Graph
        | CpuStage::Solve
        | CpuStage::Apply
        | CpuStage::Slice
        | CpuStage::Lock
        | CpuStage::Order
        | CpuStage::Serve
        | CpuStage::Settle => Unit::Txn,
    });
    let step = KINDS.into_iter().find(|(name, _)| *name == kind).map(|(_, unit)| unit);
    let message = kind.starts_with("message").then_some(Unit::Byte);
    work.or(step).or(message)
}

/// Returns all kinds that a protocol with these kinds of messages needs.
pub fn kinds(messages: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    let steps = KINDS.into_iter().map(|(name, _)| name);
    steps.chain(CpuStage::ALL.into_iter().map(CpuStage::name)).chain(messages.iter().copied())
}

/// The cost of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// The fixed cost of each occurrence, in nanoseconds.
    pub fixed_ns: f64,
    /// The cost of each unit, in nanoseconds.
    pub per_unit_ns: f64,
    /// The number of occurrences measured.
    pub samples: u64,
    /// The mean size of an occurrence, in units.
    pub mean_size: f64,
    /// The coefficient of determination of the fit.
    pub r2: f64,
}

impl Line {
    /// Returns the cost of `count` occurrences with a total size of `size`, in nanoseconds.
    pub fn cost_ns(&self, count: f64, size: f64) -> f64 {
        self.fixed_ns * count + self.per_unit_ns * size
    }
}

/// The circumstances of the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The date, for example 2026-11-22.
    pub date: String,
    /// The commit of the repository from which the program was built.
    pub commit: String,
    /// The processor and its number of cores.
    pub machine: String,
    /// The workload.
    pub workload: String,
    /// The command's options.
    pub options: String,
    /// The commit protocol.
    pub protocol: String,
    /// Committed transactions per second during the measurement.
    pub txns_per_sec: f64,
    /// CPU time of all nodes and the load generator, per transaction.
    pub cpu_us_per_txn: f64,
    /// The share of the nodes' CPU time that the lines explain.
    pub explained_percent: f64,
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// The circumstances of the measurement.
    pub calibration: Calibration,
    /// The duration of an fsync in microseconds: the means of equal shares of all measured ones, in
    /// ascending order.
    pub fsync_us: Vec<f64>,
    /// Bytes on the wire per byte of a large message.
    pub wire_bytes_per_byte: f64,
    /// Lines by kind.
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
        let unit = unit_of(kind).ok_or("unknown kind of step or work")?;
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
                    return Err(format!(
                        "found {found}, but the cost of this kind depends on {right}"
                    ));
                }
                Some(value) => per_unit_ns = Some(not_negative(found.key(), value)? * times),
                None => {}
            }
        }
        let fixed_ns = not_negative("fixed_us", self.fixed_us)? * 1e3;
        let per_unit_ns = match (per_unit_ns, unit) {
            (None, Unit::Nothing) => 0.0,
            (None, unit) => return Err(format!("{} is missing", unit.key())),
            (Some(value), _) => value,
        };
        if fixed_ns + per_unit_ns <= 0.0 {
            return Err("the cost is zero: one of the numbers must be above 0".to_owned());
        }
        let Self { samples, mean_size, r2, .. } = *self;
        Ok(Line { fixed_ns, per_unit_ns, samples, mean_size, r2 })
    }
}

fn not_negative(key: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(format!("{key} = {value}: must be finite and not negative"))
    }
}

/// The header of the file.
const HEAD: &str = "\
# Where a node spends its time, measured by `pangea calibrate` and read by `pangea sim --predict`.
# Each line: CPU time on one core, `fixed_us` each time plus an amount for each transaction, effect
# or kilobyte; `r2` is the share of the variance that the line explains. Times of an fsync are
# wall-clock times, each the mean of an equal share of all, in ascending order.
";

impl Costs {
    /// Returns the text of the file.
    pub fn to_toml(&self) -> String {
        let file = File {
            version: VERSION,
            calibration: self.calibration.clone(),
            disk: Disk { fsync_us: self.fsync_us.clone() },
            network: Network { wire_bytes_per_byte: self.wire_bytes_per_byte },
            lines: self.lines.iter().map(|(k, line)| (k.clone(), FileLine::of(k, line))).collect(),
        };
        let text = toml::to_string(&file).expect("costs can be written as TOML");
        format!("{HEAD}\n{text}")
    }

    /// Parses a file, for a protocol with these kinds of messages.
    ///
    /// # Errors
    /// The line or key that is invalid, and the expected value.
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
        for part in CpuStage::OPTIONAL {
            // A file without this kind includes its cost in another line.
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

    /// Returns the costs with all CPU times multiplied by a factor.
    #[must_use]
    pub fn times(mut self, factor: f64) -> Self {
        for line in self.lines.values_mut() {
            line.fixed_ns *= factor;
            line.per_unit_ns *= factor;
        }
        self
    }

    /// Returns the cost of a kind. All kinds of the protocol exist.
    pub fn line(&self, kind: &str) -> &Line {
        self.lines.get(kind).unwrap_or_else(|| panic!("{kind} was checked before"))
    }

    /// Returns the duration of an fsync at a quantile, in nanoseconds.
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
