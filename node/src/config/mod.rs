//! A node's configuration file, `node.toml`. Every key is described in `docs/CONFIG.md`.
//!
//! All of it is checked when it is read, and what is wrong is named with its line, so that a node
//! that starts has a configuration that makes sense. The settings of the protocol are a table under
//! the protocol's name; what they are only the protocol knows ([`Config::protocol_options`]).

mod check;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pangea_core::ids::{NodeId, RegionId, ShardId, TableId};
use pangea_core::partition::{Partitions, Rule};
use pangea_core::time::Span;
use pangea_core::topology::{NodePlace, Topology};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, ValueDeserializer};

use crate::log::Durability;
use crate::pgwire::{Authentication, Security, Tls};
use crate::transport::Wan;
use pangea_sql::history::Retention;

/// How far back `AS OF SYSTEM TIME` reads where nothing else is said. The versions that are kept
/// for it take some 15 MB with rows of a hundred bytes; scans pass over deletions.
pub const HISTORY_DEFAULT: Retention =
    Retention { time: Duration::from_secs(300), versions_max: 100_000, deletions_max: 200 };

/// What a configuration file says, checked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// The cluster's name.
    pub cluster: String,
    /// The commit protocol's name.
    pub protocol: String,
    /// Which of the nodes this one is.
    pub node: NodeId,
    /// Where its state is.
    pub data_dir: PathBuf,
    /// When a record is durable.
    pub durability: Durability,
    /// How many threads run data-parallel work; 0 is one for each core.
    pub workers: usize,
    /// The length of a segment of the log.
    pub log_segment_bytes: u64,
    /// How far back `AS OF SYSTEM TIME` reads, in seconds; 0 is not at all.
    pub history_s: u64,
    /// And how many versions that are not the newest are kept for it at most.
    pub history_versions: u64,
    /// And how many deletions.
    pub history_deletions: u64,
    /// How many MiB of rows are kept in memory, but for what can't be put away; nothing is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// How long rows that are not in memory take at least, in milliseconds.
    pub cold_latency_ms: u64,
    /// How many MiB results take at most until clients have read them.
    pub results_mb: u64,
    /// Which addresses off loopback are allowed without encryption and authentication.
    pub insecure: Insecure,
    /// How PostgreSQL clients show who they are.
    pub authentication: Authentication,
    /// How long they may take to, in seconds.
    pub authentication_timeout_s: u64,
    /// The certificate that PostgreSQL clients are shown, with those that vouch for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,
    /// The certificate's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// The regions' names; a region's number is its place here.
    pub regions: Vec<String>,
    /// The nodes in the order of their ids.
    pub nodes: Vec<NodeConfig>,
    /// How tables are spread over the shards, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<PartitionsConfig>,
    /// How far apart the regions are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub round_trips: Vec<RoundTripConfig>,
    /// Whether and how the distances are emulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wan: Option<WanConfig>,
    /// Whether it takes the place of a node of its name whose data is lost. No key of the file: it
    /// is meant once, and a file stays.
    #[serde(skip)]
    pub is_replaced: bool,
    /// The protocol's own settings, as they were written.
    #[serde(skip)]
    pub options: toml::Table,
    /// For messages about the protocol's settings.
    #[serde(skip)]
    source: Option<Source>,
}

/// Which connections off loopback need neither encryption nor authentication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Insecure {
    /// None.
    #[default]
    Nothing,
    /// Those of nodes and native clients, not those of PostgreSQL clients.
    Peers,
    /// All.
    Everything,
}

impl Serialize for Insecure {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nothing => to.serialize_bool(false),
            Self::Peers => to.serialize_str("peers"),
            Self::Everything => to.serialize_bool(true),
        }
    }
}

impl<'de> Deserialize<'de> for Insecure {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Insecure;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"peers\"")
            }

            fn visit_bool<E>(self, is: bool) -> Result<Insecure, E> {
                Ok(if is { Insecure::Everything } else { Insecure::Nothing })
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Insecure, E> {
                let peers = (text == "peers").then_some(Insecure::Peers);
                peers.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Its number.
    pub id: NodeId,
    /// The name of its region.
    pub region: String,
    /// The shard that it holds a copy of.
    #[serde(default, skip_serializing_if = "is_first")]
    pub shard: ShardId,
    /// Where other nodes and native clients reach it.
    pub peer: SocketAddr,
    /// Where PostgreSQL clients reach it.
    pub sql: SocketAddr,
}

fn is_first(shard: &ShardId) -> bool {
    *shard == ShardId(0)
}

/// How tables are spread over the shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartitionsConfig {
    /// Those that have no rule of their own: by a hash of the whole key, unless it says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Rule>,
    /// Rules by the numbers of tables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, Rule>,
}

impl PartitionsConfig {
    /// What a file says of these.
    pub fn of(partitions: &Partitions) -> Self {
        let table = |(table, rule): (&TableId, &Rule)| (table.0.to_string(), rule.clone());
        Self {
            default: Some(partitions.default_rule().clone()),
            tables: partitions.tables().iter().map(table).collect(),
        }
    }

    /// The same for so many shards.
    ///
    /// # Errors
    /// What can't be, in words.
    fn partitions(&self, shards: u16) -> Result<Partitions, String> {
        let default = self.default.clone().unwrap_or(Rule::OF_WHOLE_KEY);
        default.check(shards).map_err(|error| format!("default: {error}"))?;
        let mut partitions = Partitions::new(shards, default);
        // Every session reads these, and few write them.
        for table in pangea_sql::SYSTEM_TABLES {
            partitions = partitions.with(table, Rule::Everywhere);
        }
        for (name, rule) in &self.tables {
            let number = name.parse().map_err(|_| format!("tables: {name:?} is no number"))?;
            rule.check(shards).map_err(|error| format!("tables.{name}: {error}"))?;
            if pangea_sql::SYSTEM_TABLES.contains(&TableId(number)) && *rule != Rule::Everywhere {
                return Err(format!("tables.{name}: the tables of sessions are on every node"));
            }
            partitions = partitions.with(TableId(number), rule.clone());
        }
        Ok(partitions)
    }
}

/// How far apart two regions are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundTripConfig {
    /// The two regions' names.
    pub between: [String; 2],
    /// The round trip in milliseconds.
    pub ms: f64,
}

/// The emulation of a wide area network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WanConfig {
    /// Each frame is late by up to this much more, in milliseconds.
    pub jitter_ms: f64,
    /// Megabits a second from one node to another, or no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_mbit: Option<f64>,
}

/// The length of a segment of the log, unless the file has another.
pub const LOG_SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;

/// A text, and the name under which messages speak of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    name: Arc<str>,
    text: Arc<str>,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// The line, counted from 1, where there is one.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// The file as it is written: what has a place in it keeps it, for messages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: Spanned<String>,
    protocol: Spanned<String>,
    node: Spanned<NodeId>,
    data_dir: Spanned<PathBuf>,
    #[serde(default)]
    durability: Durability,
    #[serde(default)]
    workers: Option<Spanned<usize>>,
    #[serde(default)]
    log_segment_bytes: Option<Spanned<u64>>,
    #[serde(default)]
    history_s: Option<Spanned<u64>>,
    #[serde(default)]
    history_versions: Option<Spanned<u64>>,
    #[serde(default)]
    history_deletions: Option<Spanned<u64>>,
    #[serde(default)]
    memory_mb: Option<Spanned<u64>>,
    #[serde(default)]
    cold_latency_ms: Option<Spanned<u64>>,
    #[serde(default)]
    results_mb: Option<Spanned<u64>>,
    #[serde(default)]
    insecure: Insecure,
    #[serde(default)]
    authentication: Option<Spanned<Authentication>>,
    #[serde(default)]
    authentication_timeout_s: Option<Spanned<u64>>,
    #[serde(default)]
    tls_certificate: Option<Spanned<PathBuf>>,
    #[serde(default)]
    tls_key: Option<Spanned<PathBuf>>,
    regions: Vec<Spanned<String>>,
    nodes: Vec<FileNode>,
    #[serde(default)]
    partitions: Option<Spanned<PartitionsConfig>>,
    #[serde(default)]
    round_trips: Vec<FileRoundTrip>,
    #[serde(default)]
    wan: Option<Spanned<WanConfig>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    id: Spanned<NodeId>,
    region: Spanned<String>,
    #[serde(default)]
    shard: Option<Spanned<ShardId>>,
    peer: Spanned<SocketAddr>,
    sql: Spanned<SocketAddr>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRoundTrip {
    between: Spanned<[String; 2]>,
    ms: Spanned<f64>,
}

impl Source {
    fn error(&self, span: Option<Range<usize>>, message: impl Into<String>) -> ConfigError {
        let line = span.and_then(|span| self.text.get(..span.start));
        let line = line.map(|before| before.matches('\n').count() + 1);
        ConfigError { file: self.name.to_string(), line, message: message.into() }
    }

    /// An error of the parser, with the line that it is about: it does not always name the key.
    fn parse_error(&self, error: &toml::de::Error) -> ConfigError {
        let mut message = error.message().trim().replace('\n', ", ");
        if message.contains("invalid socket address") {
            message.push_str("; expected an IP address and a port, as 127.0.0.1:5432");
        }
        let mut wrong = self.error(error.span(), message);
        if error.span().is_some_and(|span| self.text[span].contains('\n')) {
            // Something is missing in a whole table.
            return wrong;
        }
        let text = wrong.line.and_then(|line| self.text.lines().nth(line - 1)).map(str::trim);
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            wrong.message = format!("{} in `{text}`", wrong.message);
        }
        wrong
    }
}

impl Source {
    /// An error of the parser about the file itself, which also has a table of the protocol's name.
    fn field_error(&self, error: &toml::de::Error, protocol: &str) -> ConfigError {
        const LAST: &str = "`wan`";
        let mut wrong = self.parse_error(error);
        if wrong.message.starts_with("unknown field") {
            wrong.message = wrong.message.replacen(LAST, &format!("{LAST}, `{protocol}`"), 1);
        }
        wrong
    }
}

impl Config {
    /// How far back `AS OF SYSTEM TIME` reads.
    pub fn history(&self) -> Retention {
        let time = Duration::from_secs(self.history_s);
        let (versions_max, deletions_max) = (self.history_versions, self.history_deletions);
        Retention { time, versions_max, deletions_max }
    }

    /// Reads a file. A relative `data_dir` is relative to the file's directory.
    ///
    /// # Errors
    /// When the file can't be read, or something in it is wrong.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_of(path, None)
    }

    /// Reads a file as [`Config::read`] does, of one of these protocols where some are named.
    ///
    /// # Errors
    /// When the file can't be read, or something in it is wrong, or its protocol is another.
    pub fn read_of(path: &Path, protocols: Option<&[&str]>) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let message = format!("can't read the configuration: {error}");
            ConfigError { file: file.clone(), line: None, message }
        })?;
        let mut config = Self::parse_of(&file, &text, protocols)?;
        if let Some(dir) = path.parent() {
            config.data_dir = dir.join(&config.data_dir);
            for file in config.tls_certificate.iter_mut().chain(&mut config.tls_key) {
                *file = dir.join(&*file);
            }
        }
        Ok(config)
    }

    /// Reads a text. Errors speak of it as `name`.
    ///
    /// # Errors
    /// When something in it is wrong.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        Self::parse_of(name, text, None)
    }

    fn parse_of(name: &str, text: &str, protocols: Option<&[&str]>) -> Result<Self, ConfigError> {
        let source = Source { name: name.into(), text: text.into() };
        let parse_error = |error: toml::de::Error| source.parse_error(&error);
        let mut table = DeTable::parse(text).map_err(parse_error)?;
        let value = table.get_ref().get("protocol");
        let name = value.and_then(|value| Some((value.span(), value.get_ref().as_str()?)));
        let Some((span, protocol)) = name.map(|(span, name)| (span, name.to_owned())) else {
            return Err(source.error(None, "missing field `protocol`: the protocol's name"));
        };
        if let Some(names) = protocols.filter(|names| !names.contains(&protocol.as_str())) {
            // Before its settings, which would be those of another.
            let names = names.join(", ");
            let message = format!("there is no protocol {protocol:?}; there is {names}");
            return Err(source.error(Some(span), message));
        }
        let options = table.get_mut().remove(protocol.as_str());
        if let Some(name) =
            protocols.into_iter().flatten().find(|it| table.get_ref().contains_key(**it))
        {
            let span = table.get_ref().get(*name).map(toml::Spanned::span);
            let message = format!(
                "[{name}] has settings of another protocol than `protocol = \"{protocol}\"`, whose \
                 are in [{protocol}]"
            );
            return Err(source.error(span, message));
        }
        let file = File::deserialize(toml::Deserializer::from(table));
        let file = file.map_err(|error| source.field_error(&error, &protocol))?;
        let options = match options {
            None => toml::Table::new(),
            Some(options) => {
                toml::Table::deserialize(ValueDeserializer::from(options)).map_err(parse_error)?
            }
        };
        let config = check::check(&source, file, options)?;
        Ok(Self { source: Some(source), ..config })
    }

    /// The protocol's settings. What the file does not set is as the protocol has it.
    ///
    /// # Errors
    /// When a setting is unknown to the protocol or has a value that it can't have.
    pub fn protocol_options<O: DeserializeOwned + Default>(&self) -> Result<O, ConfigError> {
        let source = self.source.clone().unwrap_or_else(|| {
            let (name, text) = ("configuration".into(), self.to_toml().into());
            Source { name, text }
        });
        let parse_error = |error: toml::de::Error| source.parse_error(&error);
        let mut table = DeTable::parse(&source.text).map_err(parse_error)?;
        match table.get_mut().remove(self.protocol.as_str()) {
            None => Ok(O::default()),
            Some(options) => O::deserialize(ValueDeserializer::from(options)).map_err(parse_error),
        }
    }

    /// The configuration as a file's text.
    pub fn to_toml(&self) -> String {
        let mut text = toml::to_string(self).expect("a configuration has nothing that TOML lacks");
        if !self.options.is_empty() {
            let options = toml::Value::Table(self.options.clone());
            let table = toml::Table::from_iter([(self.protocol.clone(), options)]);
            text.push('\n');
            text.push_str(&toml::to_string(&table).expect("what came from TOML"));
        }
        text
    }

    /// This node.
    pub fn me(&self) -> &NodeConfig {
        &self.nodes[self.node.index()]
    }

    /// The cluster.
    pub fn topology(&self) -> Topology {
        let region_id = |name: &String| {
            let found = self.regions.iter().position(|region| region == name);
            RegionId(found.expect("regions are checked") as u16)
        };
        let place =
            |node: &NodeConfig| NodePlace { region: region_id(&node.region), shard: node.shard };
        let count = self.regions.len();
        let mut one_way = vec![vec![Span::ZERO; count]; count];
        for RoundTripConfig { between: [a, b], ms } in &self.round_trips {
            let (a, b) = (usize::from(region_id(a).0), usize::from(region_id(b).0));
            one_way[a][b] = span_of_ms(ms / 2.0);
            one_way[b][a] = one_way[a][b];
        }
        Topology {
            cluster: self.cluster.clone(),
            regions: self.regions.clone(),
            nodes: self.nodes.iter().map(place).collect(),
            one_way,
            partitions: self.divided().expect("partitions are checked"),
        }
    }

    /// Which shard has which rows.
    fn divided(&self) -> Result<Partitions, String> {
        match self.nodes.iter().map(|node| node.shard.0 + 1).max() {
            None | Some(1) if self.partitions.is_some() => {
                let why = "all nodes have shard 0, and so all rows: give the nodes of each region \
                           `shard = 0`, `shard = 1` and so on, or leave [partitions] out";
                Err(why.to_owned())
            }
            None | Some(1) => Ok(Partitions::default()),
            Some(shards) => self.partitions.clone().unwrap_or_default().partitions(shards),
        }
    }

    /// What the node asks of its PostgreSQL clients.
    ///
    /// # Errors
    /// When the certificate or its key can't be used.
    pub fn security(&self) -> Result<Security, String> {
        let tls = match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(Tls::read(certificate, key)?),
            _ => None,
        };
        Ok(Security {
            authentication: self.authentication,
            tls,
            allows_plaintext: self.insecure == Insecure::Everything,
            timeout: Duration::from_secs(self.authentication_timeout_s),
            results_bytes_max: usize::try_from(self.results_mb << 20).unwrap_or(usize::MAX),
        })
    }

    /// What the transport emulates, if it does.
    pub fn emulated_wan(&self) -> Option<Wan> {
        self.wan.as_ref().map(|wan| Wan {
            one_way: self.topology().one_way,
            jitter: span_of_ms(wan.jitter_ms),
            bandwidth_bits: wan.bandwidth_mbit.map(|mbit| (mbit * 1e6) as u64),
        })
    }
}

/// A time in milliseconds that has been checked to be sensible.
fn span_of_ms(ms: f64) -> Span {
    Span::from_us((ms * 1_000.0).round() as u64)
}

#[cfg(test)]
mod tests;
