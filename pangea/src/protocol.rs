//! What the command line asks of a protocol by its name.

use std::sync::{Arc, OnceLock};

use pangea_core::guarantee::{Guarantee, Isolation, Isolations, TortureSetting};
use pangea_core::protocol::{Protocol, Words};
use pangea_core::txn::{Procedure, Registry};
use pangea_core::workload;
use pangea_node::config::{Config, with_meant_key};
use pangea_sim::Simulator;
use pangea_sql::native::Native;

use crate::failure::Failure;

pub use pangea_protocols::{NAMES, WithProtocol};

/// Runs a task with the protocol called `name`.
///
/// # Errors
/// When no protocol has the name.
pub fn with_protocol<W: WithProtocol>(name: &str, task: W) -> Result<W::Output, Failure> {
    pangea_protocols::with_protocol(name, task).map_err(|error| Failure::Usage(error.to_string()))
}

/// The first parts of setting names that a session may not make up: `SET minerva.epoch_ms` would
/// set nothing, because settings of protocols are in the configuration of a node.
pub fn reserved_prefixes() -> Vec<&'static str> {
    NAMES.iter().copied().chain(["pangea"]).collect()
}

/// The procedures of a program that is `pangea` with more procedures.
static ADDED: OnceLock<Vec<Arc<dyn Procedure>>> = OnceLock::new();

/// Adds procedures to those that nodes of this process know.
///
/// # Panics
/// If called twice.
pub fn add_procedures(procedures: Vec<Arc<dyn Procedure>>) {
    assert!(ADDED.set(procedures).is_ok(), "procedures are added once");
}

/// Returns every procedure that a node knows: those of SQL, those of the workloads, and those that
/// the program has added.
pub fn procedures() -> Vec<Arc<dyn Procedure>> {
    let mut procedures = workload::procedures();
    procedures.extend(pangea_sql::procedures());
    procedures.extend(ADDED.get().into_iter().flatten().cloned());
    procedures
}

/// Returns the workloads' procedures as SQL calls them: `CALL pangea.tpcc_payment($1)`.
pub fn programs() -> Vec<Arc<Native>> {
    workload::procedures().into_iter().map(Native::program).collect()
}

/// Returns all procedures, by name.
pub fn registry() -> Arc<Registry> {
    Arc::new(Registry::new(procedures()))
}

/// Checks that the protocol of a configuration accepts its settings, and that they are valid for
/// the cluster.
pub struct CheckOptions<'a>(pub &'a Config);

impl WithProtocol for CheckOptions<'_> {
    type Output = Result<(), String>;

    fn run<P: Protocol>(self) -> Self::Output {
        self.0.checked_options::<P>().map(drop).map_err(|error| error.message)
    }
}

/// The minimum number of nodes of a protocol.
pub struct NodesMin;

impl WithProtocol for NodesMin {
    type Output = usize;

    fn run<P: Protocol>(self) -> usize {
        P::NODES_MIN
    }
}

/// Whether a protocol can partition tables among the nodes of a region.
pub struct SupportsPartitions;

impl WithProtocol for SupportsPartitions {
    type Output = bool;

    fn run<P: Protocol>(self) -> bool {
        P::PARTITIONED
    }
}

/// Whether a region may lack replicas of some shards with a protocol.
pub struct SupportsPartial;

impl WithProtocol for SupportsPartial {
    type Output = bool;

    fn run<P: Protocol>(self) -> bool {
        P::PARTIAL
    }
}

/// Whether shards of a protocol can have learners.
pub struct SupportsLearners;

impl WithProtocol for SupportsLearners {
    type Output = bool;

    fn run<P: Protocol>(self) -> bool {
        P::LEARNERS
    }
}

/// Whether nodes of a protocol can have caches.
pub struct SupportsCaches;

impl WithProtocol for SupportsCaches {
    type Output = bool;

    fn run<P: Protocol>(self) -> bool {
        P::CACHES
    }
}

/// Returns the names of the protocols that can partition tables, for texts.
pub fn partitioned_names() -> String {
    names_of(|name| with_protocol(name, SupportsPartitions).unwrap_or(false))
}

/// Returns the names of the protocols with which a region may have a non-voting replica alone, for
/// texts.
pub fn partial_names() -> String {
    names_of(|name| with_protocol(name, SupportsPartial).unwrap_or(false))
}

/// Returns the names of the protocols with which a region may lack some shards, for texts.
pub fn placed_names() -> String {
    let is_partitioned = |name: &str| with_protocol(name, SupportsPartitions).unwrap_or(false);
    let is_partial = |name: &str| with_protocol(name, SupportsPartial).unwrap_or(false);
    names_of(|name| is_partitioned(name) && is_partial(name))
}

/// Returns the names of the protocols with which shards may have learners, for texts.
pub fn learner_names() -> String {
    names_of(|name| with_protocol(name, SupportsLearners).unwrap_or(false))
}

fn names_of(is_one: impl Fn(&str) -> bool) -> String {
    NAMES.iter().copied().filter(|name| is_one(name)).collect::<Vec<_>>().join(" or ")
}

/// What an operator should know of the settings in a configuration of one node.
pub struct WarningsOf<'a>(pub &'a Config);

impl WithProtocol for WarningsOf<'_> {
    type Output = Result<Vec<String>, String>;

    fn run<P: Protocol>(self) -> Self::Output {
        let options = self.0.checked_options::<P>().map_err(|error| error.message)?;
        Ok(P::warnings(&options, &self.0.topology(), self.0.node))
    }
}

/// Returns the words of the protocol called `name`, or those of most protocols.
pub fn words_of(name: &str) -> Words {
    struct WordsOf;
    impl WithProtocol for WordsOf {
        type Output = Words;
        fn run<P: Protocol>(self) -> Words {
            P::WORDS
        }
    }
    with_protocol(name, WordsOf).unwrap_or_default()
}

/// The settings with which a short simulation reaches rare states: see
/// [`Protocol::scaled_down_options`].
pub struct ScaledDown;

impl WithProtocol for ScaledDown {
    type Output = toml::Table;

    fn run<P: Protocol>(self) -> toml::Table {
        toml::Table::try_from(P::scaled_down_options()).expect("settings are a TOML table")
    }
}

/// The settings that `pangea torture` changes.
pub struct TortureSettings;

impl WithProtocol for TortureSettings {
    type Output = &'static [TortureSetting];

    fn run<P: Protocol>(self) -> &'static [TortureSetting] {
        P::TORTURE_SETTINGS
    }
}

/// The guarantee of a protocol with these settings.
pub struct GuaranteeOf<'a>(pub &'a toml::Table);

impl WithProtocol for GuaranteeOf<'_> {
    type Output = Result<Guarantee, Failure>;

    fn run<P: Protocol>(self) -> Self::Output {
        Ok(P::guarantee(&parse_options::<P>(self.0)?))
    }
}

/// The isolation levels that a protocol offers with these settings.
pub struct OfferedLevels<'a>(pub &'a toml::Table);

impl WithProtocol for OfferedLevels<'_> {
    type Output = Result<Isolations, Failure>;

    fn run<P: Protocol>(self) -> Self::Output {
        Ok(P::isolations(&parse_options::<P>(self.0)?))
    }
}

/// Makes a level the default of a protocol that has these settings, by its setting `isolation`.
/// Returns the settings, and the level that transactions get.
pub struct AtLevel<'a>(pub &'a toml::Table, pub Isolation);

impl WithProtocol for AtLevel<'_> {
    type Output = Result<(toml::Table, Isolation), Failure>;

    fn run<P: Protocol>(self) -> Self::Output {
        let Self(options, wanted) = self;
        let default_level = |options: &toml::Table| -> Result<Isolation, Failure> {
            Ok(P::isolations(&parse_options::<P>(options)?).default_level())
        };
        let offered = P::isolations(&parse_options::<P>(options)?);
        let granted = offered.granted(wanted).ok_or_else(|| {
            let name = P::NAME;
            Failure::Usage(format!("{name} does not offer {wanted} with these settings"))
        })?;
        let mut options = options.clone();
        if default_level(&options)? != granted {
            let level = toml::Value::try_from(granted).expect("levels can be written as TOML");
            options.insert("isolation".to_owned(), level);
            assert_eq!(default_level(&options)?, granted, "the setting determines the default");
        }
        Ok((options, granted))
    }
}

/// Whether a protocol may lose acknowledged transactions with these settings.
pub struct MayLoseCommits<'a>(pub &'a toml::Table);

impl WithProtocol for MayLoseCommits<'_> {
    type Output = Result<bool, Failure>;

    fn run<P: Protocol>(self) -> Self::Output {
        Ok(P::may_lose_commits(&parse_options::<P>(self.0)?))
    }
}

/// Whether a protocol may lose acknowledged transactions with these settings that no log names.
pub struct MayLoseUnnamed<'a>(pub &'a toml::Table);

impl WithProtocol for MayLoseUnnamed<'_> {
    type Output = Result<bool, Failure>;

    fn run<P: Protocol>(self) -> Self::Output {
        Ok(P::may_lose_unnamed(&parse_options::<P>(self.0)?))
    }
}

/// Reads the value of a setting: a number, a truth value or a quoted string as in TOML, or else an
/// unquoted word.
pub fn parse_value(text: &str) -> toml::Value {
    let parsed = toml::from_str::<toml::Table>(&format!("value = {text}"));
    let parsed = parsed.ok().and_then(|mut table| table.remove("value"));
    parsed.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// A setting of a protocol as given to `--set`: `minerva.solver=greedy`.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The protocol of the setting.
    protocol: String,
    /// The key of the setting.
    key: String,
    /// The value of the setting.
    value: toml::Value,
}

impl std::str::FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not of the form minerva.solver=greedy");
        let (path, value) = text.split_once('=').ok_or_else(wrong)?;
        let nameless = || {
            format!(
                "{text:?} names no protocol: write PROTOCOL.{text}, as in minerva.solver=greedy"
            )
        };
        let (protocol, key) = path.trim().split_once('.').ok_or_else(nameless)?;
        if protocol.is_empty() || key.is_empty() || key.contains('.') {
            return Err(wrong());
        }
        let value = parse_value(value.trim());
        Ok(Self { protocol: protocol.to_owned(), key: key.to_owned(), value })
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { protocol, key, value } = self;
        match value {
            toml::Value::String(word) => write!(f, "{protocol}.{key}={word}"),
            value => write!(f, "{protocol}.{key}={value}"),
        }
    }
}

/// Returns the settings of `protocol`, as the table with its name in a configuration.
///
/// # Errors
/// If a setting belongs to another protocol.
pub fn options_table(protocol: &str, settings: &[Setting]) -> Result<toml::Table, Failure> {
    let mut table = toml::Table::new();
    for setting in settings {
        if setting.protocol != protocol {
            return Err(Failure::Usage(format!(
                "--set {setting}: the protocol is {protocol}, not {}",
                setting.protocol
            )));
        }
        table.insert(setting.key.clone(), setting.value.clone());
    }
    Ok(table)
}

/// Returns the simulator of the protocol called `name`.
///
/// # Errors
/// When no protocol has the name.
pub fn simulator_of(name: &str) -> Result<Arc<dyn Simulator>, Failure> {
    let simulator = pangea_sim::simulator(name);
    simulator.map(Into::into).map_err(|error| Failure::Usage(error.to_string()))
}

/// Checks that the protocol called `name` accepts a table of settings.
///
/// # Errors
/// If the protocol does not have a setting, or a value is invalid.
pub fn check_options(name: &str, table: &toml::Table) -> Result<(), Failure> {
    let wrong = |wrong: WrongOption| Failure::Usage(format!("--set: {wrong}"));
    with_protocol(name, CheckTable(table))?.map_err(wrong)
}

/// Parses a protocol's settings from a table.
///
/// # Errors
/// If the protocol does not have a setting, or a value is invalid.
pub fn parse_options<P: Protocol>(table: &toml::Table) -> Result<P::Options, Failure> {
    let wrong = |wrong: WrongOption| Failure::Usage(format!("--set: {wrong}"));
    read_options::<P>(table).map_err(wrong)
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongOption {
    /// The key of the setting.
    pub key: String,
    why: String,
}

impl std::fmt::Display for WrongOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

fn read_options<P: Protocol>(table: &toml::Table) -> Result<P::Options, WrongOption> {
    let text = toml::to_string(table).expect("it was read from TOML");
    toml::from_str(&text).map_err(|error| {
        // The parser reports the position, not the key.
        let place = error.span().map_or(0, |span| span.start);
        let line = text[..place].rfind('\n').map_or(0, |end| end + 1);
        let line = text[line..].lines().next().unwrap_or_default();
        let key = line.split('=').next().unwrap_or_default().trim().to_owned();
        let message = with_meant_key(error.message().trim());
        WrongOption { key, why: format!("{message} in `{line}`") }
    })
}

/// Checks that a protocol accepts a table of settings.
pub struct CheckTable<'a>(pub &'a toml::Table);

impl WithProtocol for CheckTable<'_> {
    type Output = Result<(), WrongOption>;

    fn run<P: Protocol>(self) -> Self::Output {
        read_options::<P>(self.0).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_numbers_truth_values_or_words() {
        let values: Vec<toml::Value> = ["epoch_ms=20", "ack_everyone=false", "solver=greedy"]
            .iter()
            .map(|text| format!("minerva.{text}").parse::<Setting>().unwrap().value)
            .collect();
        assert_eq!(values[0], toml::Value::Integer(20));
        assert_eq!(values[1], toml::Value::Boolean(false));
        assert_eq!(values[2], toml::Value::String("greedy".to_owned()));
        for wrong in ["solver=greedy", "minerva.solver", "minerva.=1", ".a=1", "a.b.c=1"] {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_setting_of_another_protocol_and_an_unknown_protocol_are_refused() {
        let setting: Setting = "calvin.epoch_ms=1".parse().unwrap();
        let error = options_table("minerva", &[setting]).unwrap_err();
        assert!(error.to_string().contains("calvin"), "{error}");
        struct Nothing;
        impl WithProtocol for Nothing {
            type Output = &'static str;
            fn run<P: Protocol>(self) -> &'static str {
                P::NAME
            }
        }
        assert_eq!(with_protocol("minerva", Nothing), Ok("minerva"));
        assert!(matches!(with_protocol("raft", Nothing), Err(Failure::Usage(_))));
    }

    #[test]
    fn every_name_has_its_protocol() {
        struct Name;
        impl WithProtocol for Name {
            type Output = &'static str;
            fn run<P: Protocol>(self) -> &'static str {
                P::NAME
            }
        }
        for name in NAMES {
            assert_eq!(with_protocol(name, Name), Ok(*name));
        }
    }
}
