//! A node's configuration file, `node.toml`. Every key is described in `docs/CONFIG.md`.
//!
//! The whole file is checked when it is read, and each error names its line, so a node that starts
//! has a valid configuration. The protocol's settings are a table under the protocol's name, and
//! only the protocol can parse them ([`Config::protocol_options`]).

mod check;
mod tuning;
pub(crate) mod wording;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pangea_core::ids::{NodeId, RegionId, ShardId, TableId};
use pangea_core::partition::{Partitions, Rule};
use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_core::topology::{NodePlace, Topology};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, ValueDeserializer};

use crate::clock::ClockConfig;
use crate::log::Durability;
use crate::pgwire::{Authentication, Security, Tls};
use crate::transport::Wan;
use tuning::File;
pub use tuning::{HISTORY_DEFAULT, Tuning};
use wording::in_plain_words;
pub use wording::with_meant_key;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// The cluster's name.
    pub cluster: String,
    /// The commit protocol's name.
    pub protocol: String,
    /// The id of this node.
    pub node: NodeId,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The condition under which a record counts as durable.
    pub durability: Durability,
    /// The keys with a number.
    #[serde(flatten)]
    pub tuning: Tuning,
    /// The addresses off loopback that are allowed without encryption and authentication.
    pub insecure: Insecure,
    /// The authentication method of PostgreSQL clients.
    pub authentication: Authentication,
    /// The time limit for authentication, in seconds.
    pub authentication_timeout_s: u64,
    /// The certificate chain presented to PostgreSQL clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,
    /// The certificate's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// The regions' names; a region's id is its index here.
    pub regions: Vec<String>,
    /// The nodes, by id.
    pub nodes: Vec<NodeConfig>,
    /// How tables are partitioned, if there are several shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<PartitionsConfig>,
    /// The distances between the regions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub round_trips: Vec<RoundTripConfig>,
    /// The quality of the node's clock.
    #[serde(skip_serializing_if = "is_default")]
    pub clock: ClockConfig,
    /// The emulation of the distances, if enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wan: Option<WanConfig>,
    /// Whether the node replaces one of the same id that lost its data. This is not a key of the
    /// file, because it applies to one start only.
    #[serde(skip)]
    pub is_replaced: bool,
    /// The protocol's own settings, unparsed.
    #[serde(skip)]
    pub options: toml::Table,
    /// The source text, for messages about the protocol's settings.
    #[serde(skip)]
    source: Option<Source>,
}

/// The connections off loopback that need neither encryption nor authentication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Insecure {
    /// No connections.
    #[default]
    Nothing,
    /// Connections of nodes and native clients, but not of PostgreSQL clients.
    Peers,
    /// All connections.
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
    /// The node's id.
    pub id: NodeId,
    /// The name of its region.
    pub region: String,
    /// The shard that it stores a copy of.
    #[serde(default, skip_serializing_if = "is_first")]
    pub shard: ShardId,
    /// The node whose last batches it keeps, if it is a cache. It then has no tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_of: Option<NodeId>,
    /// Whether it counts in quorums and may lead. One that does not is among the last nodes.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub votes: bool,
    /// The address for other nodes and native clients.
    pub peer: SocketAddr,
    /// The address for PostgreSQL clients.
    pub sql: SocketAddr,
}

fn yes() -> bool {
    true
}

fn is_yes(votes: &bool) -> bool {
    *votes
}

fn is_default(clock: &ClockConfig) -> bool {
    *clock == ClockConfig::default()
}

fn is_first(shard: &ShardId) -> bool {
    *shard == ShardId(0)
}

/// How tables are partitioned over the shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartitionsConfig {
    /// The rule for tables without a rule of their own. By default: a hash of the whole key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Rule>,
    /// Rules by table number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, Rule>,
}

/// The partitions that nodes configured with `partitions` have. The tables of sessions are on every
/// node, because every session reads them and few write them.
pub fn with_system_tables(partitions: Partitions) -> Partitions {
    let everywhere = |all: Partitions, table| all.with(table, Rule::Everywhere);
    pangea_sql::SYSTEM_TABLES.into_iter().fold(partitions, everywhere)
}

impl PartitionsConfig {
    /// The configuration that describes `partitions`.
    pub fn of(partitions: &Partitions) -> Self {
        let table = |(table, rule): (&TableId, &Rule)| (table.0.to_string(), rule.clone());
        Self {
            default: Some(partitions.default_rule().clone()),
            tables: partitions.tables().iter().map(table).collect(),
        }
    }

    /// The partitions for this number of shards.
    ///
    /// # Errors
    /// A description of the invalid rule.
    fn partitions(&self, shards: u16) -> Result<Partitions, String> {
        let default = self.default.clone().unwrap_or(Rule::OF_WHOLE_KEY);
        default.check(shards).map_err(|error| format!("default: {error}"))?;
        let mut partitions = with_system_tables(Partitions::new(shards, default));
        for (name, rule) in &self.tables {
            let number = name.parse().map_err(|_| format!("tables: {name:?} is not a number"))?;
            rule.check(shards).map_err(|error| format!("tables.{name}: {error}"))?;
            if pangea_sql::SYSTEM_TABLES.contains(&TableId(number)) && *rule != Rule::Everywhere {
                return Err(format!("tables.{name}: the tables of sessions must be on every node"));
            }
            partitions = partitions.with(TableId(number), rule.clone());
        }
        Ok(partitions)
    }
}

/// The distance between two regions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundTripConfig {
    /// The two regions' names.
    pub between: [String; 2],
    /// The round-trip time in milliseconds.
    pub ms: f64,
}

/// The emulation of a WAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WanConfig {
    /// The maximum additional delay of a frame, in milliseconds.
    pub jitter_ms: f64,
    /// The bandwidth from one node to another in Mbit/s, or `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_mbit: Option<f64>,
}

/// The default length of a log segment.
pub const LOG_SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;

/// A text, and its name in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    name: Arc<str>,
    text: Arc<str>,
}

/// An error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// The line, counted from 1, if the error is at a line.
    pub line: Option<usize>,
    /// The description of the error.
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    id: Spanned<NodeId>,
    region: Spanned<String>,
    #[serde(default)]
    shard: Option<Spanned<ShardId>>,
    #[serde(default)]
    cache_of: Option<Spanned<NodeId>>,
    #[serde(default)]
    votes: Option<Spanned<bool>>,
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

    /// Converts a parser's error and adds its line, because the message does not always name the
    /// key.
    fn parse_error(&self, error: &toml::de::Error) -> ConfigError {
        self.described(error, in_plain_words(&error.message().trim().replace('\n', ", ")))
    }

    /// Converts a parser's error about the top level of the file, which may also have a table with
    /// the protocol's name.
    fn field_error(&self, error: &toml::de::Error, protocol: &str) -> ConfigError {
        const LAST: &str = "`wan`";
        let message = in_plain_words(&error.message().trim().replace('\n', ", "));
        let is_of_top = message.starts_with("unknown field");
        let known = if is_of_top { format!("{LAST}, `{protocol}`") } else { LAST.to_owned() };
        self.described(error, message.replacen(LAST, &known, 1))
    }

    fn described(&self, error: &toml::de::Error, message: String) -> ConfigError {
        let mut message = with_meant_key(&message);
        if message.contains("invalid socket address") {
            message.push_str("; expected an IP address and a port, such as 127.0.0.1:5432");
        }
        let mut wrong = self.error(error.span(), message);
        if error.span().is_some_and(|span| self.text[span].contains('\n')) {
            // A whole table lacks a key, so there is no single line to quote.
            return wrong;
        }
        let text = wrong.line.and_then(|line| self.text.lines().nth(line - 1)).map(str::trim);
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            wrong.message = format!("{} in `{text}`", wrong.message);
        }
        wrong
    }
}

impl Config {
    /// Reads a file. A relative `data_dir` is relative to the file's directory.
    ///
    /// # Errors
    /// When the file can't be read or is invalid.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_of(path, None)
    }

    /// Reads a file like [`Config::read`]. If `protocols` is given, the file's protocol must be
    /// among them.
    ///
    /// # Errors
    /// When the file can't be read or is invalid, or its protocol is not among those given.
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

    /// Parses a text. Errors refer to it as `name`.
    ///
    /// # Errors
    /// When the text is invalid.
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
            return Err(source.error(None, "missing field `protocol`: the name of the protocol"));
        };
        if let Some(names) = protocols.filter(|names| !names.contains(&protocol.as_str())) {
            // Checked before the settings, which belong to an unknown protocol.
            let message = pangea_protocols::not_among(&protocol, names);
            return Err(source.error(Some(span), message));
        }
        let options = table.get_mut().remove(protocol.as_str());
        if let Some(name) =
            protocols.into_iter().flatten().find(|it| table.get_ref().contains_key(**it))
        {
            let span = table.get_ref().get(*name).map(toml::Spanned::span);
            let message = format!(
                "[{name}] does not apply to `protocol = \"{protocol}\"`, which is configured in \
                 [{protocol}]"
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

    /// The text that the configuration was read from, or would be written as.
    fn source(&self) -> Source {
        self.source.clone().unwrap_or_else(|| {
            let (name, text) = ("configuration".into(), self.to_toml().into());
            Source { name, text }
        })
    }

    /// Parses the protocol's settings. Unset settings have the protocol's defaults.
    ///
    /// # Errors
    /// When a setting is unknown to the protocol or has an invalid value.
    pub fn protocol_options<O: DeserializeOwned + Default>(&self) -> Result<O, ConfigError> {
        let source = self.source();
        let parse_error = |error: toml::de::Error| source.parse_error(&error);
        let mut table = DeTable::parse(&source.text).map_err(parse_error)?;
        match table.get_mut().remove(self.protocol.as_str()) {
            None => Ok(O::default()),
            Some(options) => O::deserialize(ValueDeserializer::from(options)).map_err(parse_error),
        }
    }

    /// Parses the settings of the protocol `P`, and checks that this cluster can have them.
    ///
    /// # Errors
    /// Those of [`Config::protocol_options`], and when the cluster can't have a setting.
    pub fn checked_options<P: Protocol>(&self) -> Result<P::Options, ConfigError> {
        let options = self.protocol_options()?;
        let checked = P::check_options(&options, &self.topology());
        checked.map_err(|message| {
            let source = self.source();
            source.error(self.place_of_setting(&source.text, &message), message)
        })?;
        Ok(options)
    }

    /// The place of the setting that a message begins with, or of the table if the setting is not
    /// in it.
    fn place_of_setting(&self, text: &str, message: &str) -> Option<Range<usize>> {
        let key = message.split(|next: char| next != '_' && !next.is_alphanumeric()).next()?;
        let table = DeTable::parse(text).ok()?;
        let options = table.get_ref().get(self.protocol.as_str())?;
        let of_key = options.get_ref().as_table().and_then(|options| options.get(key));
        Some(of_key.map_or_else(|| options.span(), Spanned::span))
    }

    /// The configuration as a file's text.
    pub fn to_toml(&self) -> String {
        let mut text = toml::to_string(self).expect("a configuration can be written as TOML");
        if !self.options.is_empty() {
            let options = toml::Value::Table(self.options.clone());
            let table = toml::Table::from_iter([(self.protocol.clone(), options)]);
            text.push('\n');
            text.push_str(&toml::to_string(&table).expect("the value was parsed from TOML"));
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
            RegionId(found.expect("regions were checked") as u16)
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
            nodes: self.nodes.iter().filter(|node| node.cache_of.is_none()).map(place).collect(),
            caches: self.nodes.iter().filter_map(|node| node.cache_of).collect(),
            non_voting: self.nodes.iter().filter(|node| !node.votes).count() as u16,
            one_way,
            partitions: self.divided().expect("partitions were checked"),
        }
    }

    /// The partitioning of the tables.
    fn divided(&self) -> Result<Partitions, String> {
        match self.nodes.iter().map(|node| node.shard.0 + 1).max() {
            None | Some(1) if self.partitions.is_some() => {
                let why = "all nodes have shard 0, so tables are not partitioned: give the nodes \
                           of each region `shard = 0`, `shard = 1` and so on, or remove \
                           [partitions]";
                Err(why.to_owned())
            }
            None | Some(1) => Ok(Partitions::default()),
            Some(shards) => self.partitions.clone().unwrap_or_default().partitions(shards),
        }
    }

    /// The security settings for PostgreSQL clients.
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
            results_bytes_max: usize::try_from(self.tuning.results_mb << 20).unwrap_or(usize::MAX),
        })
    }

    /// The WAN that the transport emulates, if any.
    pub fn emulated_wan(&self) -> Option<Wan> {
        self.wan.as_ref().map(|wan| Wan {
            one_way: self.topology().one_way,
            jitter: span_of_ms(wan.jitter_ms),
            bandwidth_bits: wan.bandwidth_mbit.map(|mbit| (mbit * 1e6) as u64),
        })
    }
}

/// Converts a time in milliseconds that has been checked.
fn span_of_ms(ms: f64) -> Span {
    Span::from_us((ms * 1_000.0).round() as u64)
}

#[cfg(test)]
mod tests;
