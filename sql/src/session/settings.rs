//! Session settings: `SET`, `SHOW`, and the parameters of the startup message.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::authorization::Authorization;
use super::planning;
use super::units::{
    Block, blocks_of, checked_size, checked_time, out_of_range, parse_ms, shown_real,
};
use crate::error::{SqlError, code};
use crate::expr::functions::VERSION;
use crate::notice::Severity;
use crate::search_path;
use crate::types::zone::Zone;

/// The valid values of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Any text.
    Free,
    Bool,
    Number,
    /// One of these, in lower case.
    OneOf(&'static [&'static str]),
    /// An integer in a range.
    Whole(i32, i32),
    /// A number in a range.
    Real(f64, f64),
    /// A time in milliseconds, with or without a unit; 0 disables it.
    Time,
    /// An amount of memory, in blocks or with a unit; the range is in blocks.
    Size(Block, u64, u64),
    TimeZone,
    Encoding,
    DateStyle,
    /// A list of schemas.
    SearchPath,
    /// A read-only setting.
    Fixed,
}

pub(super) struct Setting {
    name: &'static str,
    default: &'static str,
    kind: Kind,
    /// Whether each change is reported to clients.
    is_reported: bool,
}

pub(super) const fn of(name: &'static str, default: &'static str, kind: Kind) -> Setting {
    Setting { name, default, kind, is_reported: false }
}

const fn reported(name: &'static str, default: &'static str, kind: Kind) -> Setting {
    Setting { name, default, kind, is_reported: true }
}

/// The maximum number of settings in a session, and the maximum bytes of the name and the value of
/// a custom one.
const VALUES_MAX: usize = 1_000;
const CUSTOM_NAME_MAX: usize = 200;
const CUSTOM_VALUE_MAX: usize = 64 << 10;

/// Isolation levels. All of them run at the strongest level.
const LEVELS: &[&str] = &["serializable", "repeatable read", "read committed", "read uncommitted"];

/// The levels of messages. A client receives messages of the level that it sets, and above.
const SEVERITIES: &[&str] = &[
    "debug5", "debug4", "debug3", "debug2", "debug1", "debug", "log", "info", "notice", "warning",
    "error",
];

/// The settings, sorted by name.
const SETTINGS: &[Setting] = &[
    reported("application_name", "", Kind::Free),
    of("block_size", "8192", Kind::Fixed),
    of("bytea_output", "hex", Kind::OneOf(&["hex"])),
    of("check_function_bodies", "on", Kind::Bool),
    reported("client_encoding", "UTF8", Kind::Encoding),
    of("client_min_messages", "notice", Kind::OneOf(SEVERITIES)),
    of("copy_atomic", "off", Kind::Bool),
    reported("DateStyle", "ISO, MDY", Kind::DateStyle),
    of("default_table_access_method", "heap", Kind::OneOf(&["heap"])),
    of("default_tablespace", "", Kind::OneOf(&[""])),
    of("default_transaction_deferrable", "off", Kind::Bool),
    of("default_transaction_isolation", "serializable", Kind::OneOf(LEVELS)),
    reported("default_transaction_read_only", "off", Kind::Bool),
    of("escape_string_warning", "on", Kind::Bool),
    of("extra_float_digits", "1", Kind::Number),
    of("idle_in_transaction_session_timeout", "0", Kind::Time),
    reported("in_hot_standby", "off", Kind::Fixed),
    reported("integer_datetimes", "on", Kind::Fixed),
    reported("IntervalStyle", "postgres", Kind::OneOf(&["postgres"])),
    reported("is_superuser", "off", Kind::Fixed),
    of("lc_collate", "C", Kind::Fixed),
    of("lc_ctype", "C.UTF-8", Kind::Fixed),
    of("lc_messages", "C", Kind::Free),
    of("lc_monetary", "C", Kind::Free),
    of("lc_numeric", "C", Kind::Free),
    of("lc_time", "C", Kind::Free),
    of("lock_timeout", "0", Kind::Time),
    of("max_identifier_length", "63", Kind::Fixed),
    of("max_index_keys", "32", Kind::Fixed),
    of("max_parallel_workers_per_gather", "8", Kind::Whole(0, 1_024)),
    of("min_parallel_table_scan_size", "8MB", Kind::Size(Block::Page, 0, 715_827_882)),
    // psql reads it before it hashes a password itself.
    of("password_encryption", "scram-sha-256", Kind::OneOf(&["scram-sha-256"])),
    of("reads", "snapshot", Kind::OneOf(&["snapshot", "strict"])),
    of("replay", "on", Kind::Bool),
    of("role", "none", Kind::Fixed),
    of("row_security", "on", Kind::Bool),
    of("search_path", search_path::DEFAULT, Kind::SearchPath),
    reported("server_encoding", "UTF8", Kind::Fixed),
    reported("server_version", "15.0", Kind::Fixed),
    of("server_version_num", "150000", Kind::Fixed),
    reported("session_authorization", "", Kind::Fixed),
    reported("standard_conforming_strings", "on", Kind::OneOf(&["on"])),
    of("statement_timeout", "0", Kind::Time),
    // All scans read in the same order.
    of("synchronize_seqscans", "off", Kind::OneOf(&["off", "on"])),
    of("synchronous_commit", "on", Kind::Free),
    reported("TimeZone", "UTC", Kind::TimeZone),
    of("transaction_isolation", "serializable", Kind::OneOf(LEVELS)),
    of("transaction_read_only", "off", Kind::Bool),
    of("version", VERSION, Kind::Fixed),
    of("xmloption", "content", Kind::OneOf(&["content"])),
];

/// Values by setting name.
pub(crate) type Values = BTreeMap<String, String>;

/// The values of a session's settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    values: Arc<Values>,
    /// The values that RESET restores, including those of the startup message.
    defaults: Arc<Values>,
    zone: Zone,
    authorization: Authorization,
    /// First parts of names that the session may not make up.
    reserved_prefixes: Arc<[&'static str]>,
}

/// Returns all built-in settings.
fn settings() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().chain(planning::SETTINGS)
}

fn find(name: &str) -> Option<&'static Setting> {
    settings().find(|setting| setting.name.eq_ignore_ascii_case(name))
}

fn known(name: &str) -> Result<&'static Setting, SqlError> {
    find(name).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> SqlError {
    let message = format!("unrecognized configuration parameter \"{name}\"");
    SqlError::new(code::UNDEFINED_OBJECT, message)
}

/// Whether a setting is custom: as in PostgreSQL, its name contains a dot.
fn is_custom(name: &str) -> bool {
    name.contains('.')
}

/// Rejects a name with a reserved prefix, as PostgreSQL does for extensions.
fn check_is_ones_own(name: &str, reserved_prefixes: &[&str]) -> Result<(), SqlError> {
    let prefix = name.split('.').next().unwrap_or_default();
    if !reserved_prefixes.contains(&prefix) {
        return Ok(());
    }
    let message = format!("invalid configuration parameter name \"{name}\"");
    let hint = "Settings of nodes and protocols stand in the file that `pangea start` reads; reads \
                = strict is a session's.";
    let detail = format!("\"{prefix}\" is a reserved prefix.");
    Err(SqlError::new(code::INVALID_NAME, message).with_detail(detail).with_hint(hint))
}

/// Returns the value of a setting.
///
/// # Errors
/// 42704 if it does not exist.
pub(crate) fn shown<'a>(values: &'a Values, name: &str) -> Result<&'a str, SqlError> {
    match is_custom(name) {
        true => values.get(&name.to_lowercase()).map(String::as_str).ok_or_else(|| unknown(name)),
        false => Ok(&values[known(name)?.name]),
    }
}

/// The values of a session's settings at one moment, from which the changes to report are computed.
#[derive(Clone, Debug, Default)]
pub struct Reported(Arc<Values>);

impl Reported {
    /// Returns the names and values that differ from those in `before`.
    pub fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'static str, &'a str)> {
        // This runs after each statement, and hardly any statement changes a setting.
        let is_same = Arc::ptr_eq(&self.0, &before.0);
        let all = settings().filter(move |setting| setting.is_reported && !is_same);
        let changed = all.filter(|setting| self.0.get(setting.name) != before.0.get(setting.name));
        changed.map(|setting| (setting.name, self.0[setting.name].as_str()))
    }
}

/// A setting as displayed in `pg_settings`.
#[derive(Debug)]
pub(crate) struct Described<'a> {
    pub name: &'static str,
    /// The value, in units of `unit` if the setting has a unit.
    pub value: Cow<'a, str>,
    pub default: Cow<'static, str>,
    pub unit: Option<&'static str>,
    pub kind: &'static str,
    pub choices: &'static [&'static str],
    pub is_fixed: bool,
}

/// Returns all built-in settings with their values.
pub(crate) fn described(values: &Values) -> impl Iterator<Item = Described<'_>> {
    settings().map(|setting| {
        let kind = match setting.kind {
            Kind::Bool => "bool",
            Kind::Number | Kind::Whole(..) | Kind::Time | Kind::Size(..) => "integer",
            Kind::Real(..) => "real",
            Kind::OneOf(["on"] | ["off"]) => "bool",
            Kind::OneOf(_) => "enum",
            Kind::Free
            | Kind::TimeZone
            | Kind::Encoding
            | Kind::DateStyle
            | Kind::SearchPath
            | Kind::Fixed => "string",
        };
        Described {
            name: setting.name,
            value: in_units(setting.kind, &values[setting.name]),
            default: in_units(setting.kind, setting.default),
            unit: match setting.kind {
                Kind::Time => Some("ms"),
                Kind::Size(block, ..) => Some(block.name()),
                _ => None,
            },
            kind,
            choices: if let Kind::OneOf(choices) = setting.kind { choices } else { &[] },
            is_fixed: setting.kind == Kind::Fixed,
        }
    })
}

/// Converts a value to a number of the setting's units.
fn in_units(kind: Kind, value: &str) -> Cow<'_, str> {
    let number = match kind {
        Kind::Size(block, ..) => blocks_of(value, block).map(|blocks| blocks.to_string()),
        Kind::Time => parse_ms(value).map(|ms| ms.to_string()),
        _ => None,
    };
    number.map_or(Cow::Borrowed(value), Cow::Owned)
}

impl Settings {
    /// Makes the default settings for a user.
    pub(super) fn new(
        authorization: Authorization,
        reserved_prefixes: Arc<[&'static str]>,
    ) -> Self {
        let default = |it: &Setting| (it.name.to_owned(), it.default.to_owned());
        let mut defaults: Values = settings().map(default).collect();
        for (name, value) in authorization.shown() {
            defaults.insert(name.to_owned(), value.to_owned());
        }
        let defaults = Arc::new(defaults);
        let (values, zone) = (defaults.clone(), Zone::default());
        Self { values, defaults, zone, authorization, reserved_prefixes }
    }

    /// Returns the user of the session.
    pub(super) fn authorization(&self) -> &Authorization {
        &self.authorization
    }

    /// Sets the user of the session.
    pub(super) fn set_authorization(&mut self, authorization: Authorization) {
        for (name, value) in authorization.shown() {
            Arc::make_mut(&mut self.values).insert(name.to_owned(), value.to_owned());
        }
        self.authorization = authorization;
    }

    /// Restores the user that logged in.
    pub(super) fn reset_authorization(&mut self) {
        self.set_authorization(self.authorization.first());
    }

    /// Sets a parameter of the startup message. Parameters that Pangea does not know are ignored,
    /// because a driver may send them without need. Unknown settings within `options` are errors,
    /// because a person wrote them.
    pub(crate) fn connect(&mut self, name: &str, value: &str) -> Result<(), SqlError> {
        if name == "options" {
            return self.connect_options(value);
        }
        if find(name).is_some() || is_custom(name) {
            self.set(name, value)?;
            self.defaults = self.values.clone();
        }
        Ok(())
    }

    /// Sets the settings of `-c name=value` and `--name=value`, which PGOPTIONS sends.
    fn connect_options(&mut self, options: &str) -> Result<(), SqlError> {
        let mut words = options.split_ascii_whitespace();
        while let Some(word) = words.next() {
            let assignment = match word.strip_prefix("-c") {
                Some("") => words.next(),
                Some(rest) => Some(rest),
                None => word.strip_prefix("--"),
            };
            let parts = assignment.and_then(|assignment| assignment.split_once('='));
            let Some((name, value)) = parts else {
                let message = format!("invalid command-line argument for server process: {word}");
                return Err(SqlError::new(code::SYNTAX, message));
            };
            let name = name.replace('-', "_");
            if !is_custom(&name) {
                known(&name)?;
            }
            self.connect(&name, value)?;
        }
        Ok(())
    }

    /// Returns the value of a setting.
    pub(crate) fn show(&self, name: &str) -> Result<&str, SqlError> {
        shown(&self.values, name)
    }

    /// Returns all values, for expressions that read them.
    pub(crate) fn values(&self) -> &Arc<Values> {
        &self.values
    }

    /// Returns the displayed name of a setting.
    pub(crate) fn shown_name(name: &str) -> &str {
        find(name).map_or(name, |setting| setting.name)
    }

    /// Returns the names and values of all settings.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the settings that are reported to clients.
    pub(crate) fn reported(&self) -> Reported {
        Reported(self.values.clone())
    }

    /// Sets a setting.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SqlError> {
        let values = Arc::make_mut(&mut self.values);
        if is_custom(name) {
            let name = name.to_lowercase();
            check_is_ones_own(&name, &self.reserved_prefixes)?;
            if name.len() > CUSTOM_NAME_MAX || value.len() > CUSTOM_VALUE_MAX {
                let message = "the name or the value of a parameter is too long";
                return Err(SqlError::new(code::LIMIT_EXCEEDED, message));
            }
            if values.len() >= VALUES_MAX && !values.contains_key(&name) {
                let message = format!("a session has at most {VALUES_MAX} parameters");
                return Err(SqlError::new(code::LIMIT_EXCEEDED, message));
            }
            values.insert(name, value.to_owned());
            return Ok(());
        }
        let setting = known(name)?;
        let value = checked(setting, value)?;
        if setting.kind == Kind::TimeZone {
            self.zone = Zone::named(&value)?;
        }
        values.insert(setting.name.to_owned(), value);
        Ok(())
    }

    /// Resets a setting to its value at the start of the session.
    pub(crate) fn reset(&mut self, name: &str) -> Result<(), SqlError> {
        match is_custom(name) {
            true => {
                let default = self.defaults.get(&name.to_lowercase()).cloned();
                // A setting that was never set remains unknown.
                let values = Arc::make_mut(&mut self.values);
                if let Some(value) = values.get_mut(&name.to_lowercase()) {
                    *value = default.unwrap_or_default();
                }
                Ok(())
            }
            false => {
                let value = self.defaults[known(name)?.name].clone();
                self.set(name, &value)
            }
        }
    }

    /// Resets all settings to their values at the start of the session.
    pub(crate) fn reset_all(&mut self) {
        self.values = self.defaults.clone();
        // As in PostgreSQL, RESET ALL does not change the user.
        self.set_authorization(self.authorization.clone());
        self.zone = Zone::named(&self.values["TimeZone"]).unwrap_or_default();
    }

    /// Returns the session's time zone.
    pub(crate) fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Returns the `search_path` as it was set.
    pub(super) fn search_path(&self) -> Arc<str> {
        Arc::from(self.values["search_path"].as_str())
    }

    /// Whether a setting is `on`.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| value == "on")
    }

    /// Whether the client wants to receive messages of a severity.
    pub(crate) fn wants(&self, severity: Severity) -> bool {
        let least = match self.values["client_min_messages"].as_str() {
            "notice" => Severity::Notice,
            "warning" => Severity::Warning,
            "error" => Severity::Info,
            "log" | "info" => Severity::Log,
            _ => Severity::Debug,
        };
        severity >= least
    }

    /// Returns a time; `None` if it is 0.
    pub(crate) fn time(&self, name: &str) -> Option<Duration> {
        let ms = parse_ms(&self.values[name]).expect("it was checked when it was set");
        (ms > 0.0).then(|| Duration::from_millis(ms as u64))
    }

    /// Whether reads are strict: they see all transactions acknowledged anywhere before them.
    pub(crate) fn is_strict(&self) -> bool {
        self.values["reads"] == "strict"
    }
}

fn checked(setting: &Setting, value: &str) -> Result<String, SqlError> {
    let name = setting.name;
    let lower = value.trim().to_ascii_lowercase();
    let invalid = || {
        let message = format!("invalid value for parameter \"{name}\": \"{value}\"");
        SqlError::new(code::INVALID_PARAMETER, message)
    };
    match setting.kind {
        Kind::Free => Ok(value.to_owned()),
        Kind::SearchPath if search_path::parsed(value).is_some() => Ok(value.to_owned()),
        Kind::SearchPath => Err(invalid().with_detail("List syntax is invalid.")),
        Kind::Bool => match lower.as_str() {
            "on" | "true" | "yes" | "1" | "t" => Ok("on".to_owned()),
            "off" | "false" | "no" | "0" | "f" => Ok("off".to_owned()),
            _ => {
                let message = format!("parameter \"{name}\" requires a Boolean value");
                Err(SqlError::new(code::INVALID_PARAMETER, message))
            }
        },
        Kind::Number => lower.parse::<i64>().map(|n| n.to_string()).map_err(|_| invalid()),
        Kind::Whole(least, most) => match lower.parse::<i32>() {
            Ok(count) if (least..=most).contains(&count) => Ok(count.to_string()),
            Ok(count) => Err(out_of_range(name, &count.to_string(), (least, most))),
            Err(_) => Err(invalid()),
        },
        Kind::Real(least, most) => match lower.parse::<f64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(shown_real(number)),
            Ok(number) if !number.is_nan() => {
                let range = (shown_real(least), shown_real(most));
                Err(out_of_range(name, &shown_real(number), range))
            }
            _ => Err(invalid()),
        },
        Kind::Time => checked_time(name, value.trim(), &invalid),
        Kind::Size(block, least, most) => {
            checked_size(name, value.trim(), (block, (least, most)), &invalid)
        }
        Kind::OneOf(values) if values.contains(&lower.as_str()) => Ok(lower),
        Kind::OneOf(values) => {
            let hint = format!("Available values: {}.", values.join(", "));
            Err(invalid().with_hint(hint))
        }
        Kind::TimeZone => Zone::named(value.trim()).map(|zone| zone.name().to_owned()),
        // As in PostgreSQL, punctuation is ignored: some drivers send quotes.
        Kind::Encoding => match lower.replace(|c: char| !c.is_ascii_alphanumeric(), "").as_str() {
            "utf8" | "unicode" => Ok("UTF8".to_owned()),
            _ => Err(invalid().with_hint("Pangea speaks UTF8 alone.")),
        },
        Kind::DateStyle => match lower.split(',').next().map(str::trim) {
            Some("iso") if !lower.contains("dmy") && !lower.contains("ymd") => {
                Ok("ISO, MDY".to_owned())
            }
            Some("mdy") => Ok("ISO, MDY".to_owned()),
            _ => Err(SqlError::unsupported(format!("DateStyle \"{value}\""))),
        },
        Kind::Fixed => {
            let message = format!("parameter \"{name}\" cannot be changed");
            Err(SqlError::new(code::FIXED_PARAMETER, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_me() -> Settings {
        Settings::new(Authorization::new("me", None), Arc::new(["taken"]))
    }

    #[test]
    fn an_amount_of_memory_is_shown_in_the_largest_unit_without_a_rest() {
        let mut settings = of_me();
        let name = "min_parallel_table_scan_size";
        for (text, shown) in
            [("0", "0"), ("1", "8kB"), ("256", "2MB"), ("64kB", "64kB"), ("1.5MB", "1536kB")]
        {
            settings.set(name, text).unwrap();
            assert_eq!(settings.show(name), Ok(shown), "{text}");
        }
        for wrong in ["-1", "1 mb", "x", "99999 TB"] {
            let error = settings.set(name, wrong).expect_err(wrong);
            assert_eq!(error.code, code::INVALID_PARAMETER, "{wrong}");
        }
    }

    #[test]
    fn settings_keep_what_they_understand_and_refuse_the_rest() {
        let mut settings = of_me();
        settings.set("READS", "Strict").unwrap();
        assert!(settings.is_strict());
        assert_eq!(settings.set("reads", "dirty").unwrap_err().code.as_str(), "22023");
        assert_eq!(settings.set("nosuch", "1").unwrap_err().code.as_str(), "42704");
        assert_eq!(settings.set("Taken.reads", "1").unwrap_err().code.as_str(), "42602");
        settings.set("takenless.reads", "1").unwrap();
        assert_eq!(settings.set("server_version", "1").unwrap_err().code.as_str(), "55P02");
        settings.set("timezone", "Europe/Berlin").unwrap();
        assert_eq!(settings.zone().name(), "Europe/Berlin");
        settings.reset_all();
        assert_eq!((settings.show("TIMEZONE"), settings.is_strict()), (Ok("UTC"), false));
        assert_eq!(settings.show("session_authorization"), Ok("me"));
    }

    #[test]
    fn a_time_has_a_unit_and_is_shown_in_the_longest_that_fits() {
        let mut settings = of_me();
        let cases = [
            ("0", "0", 0),
            ("1500", "1500ms", 1_500),
            (" 2 s ", "2s", 2_000),
            ("1.5min", "90s", 90_000),
            ("2h", "2h", 7_200_000),
            ("24h", "1d", 86_400_000),
            ("2500us", "2ms", 2),
            ("1e3", "1s", 1_000),
        ];
        for (text, shown, ms) in cases {
            settings.set("statement_timeout", text).unwrap();
            assert_eq!(settings.show("statement_timeout"), Ok(shown), "{text}");
            let time = settings.time("statement_timeout").unwrap_or_default();
            assert_eq!(time, Duration::from_millis(ms), "{text}");
        }
        for wrong in ["", "s", "-1", "1 week", "x", "nan", "1MS", "1e3s s", "2147483648", "é"] {
            let error = settings.set("statement_timeout", wrong).expect_err(wrong);
            assert_eq!(error.code, code::INVALID_PARAMETER, "{wrong}");
        }
    }

    #[test]
    fn what_a_client_sets_at_connect_is_its_default() {
        let mut settings = of_me();
        settings.connect("application_name", "psql").unwrap();
        settings.connect("some_driver_option", "1").unwrap();
        settings.set("application_name", "other").unwrap();
        settings.reset("application_name").unwrap();
        assert_eq!(settings.show("application_name"), Ok("psql"));
        assert!(settings.connect("client_encoding", "LATIN1").is_err());
        for name in ["'utf-8'", "UTF_8", "Unicode", "utf8"] {
            settings.connect("client_encoding", name).unwrap();
            settings.set("client_encoding", name).unwrap();
            assert_eq!(settings.show("client_encoding"), Ok("UTF8"), "{name}");
        }
        settings
            .connect("options", "-c reads=strict -cTimeZone=UTC --extra-float-digits=3")
            .unwrap();
        assert!(settings.is_strict());
        assert_eq!(settings.show("extra_float_digits"), Ok("3"));
        assert!(settings.connect("options", "-x").is_err());
        settings.connect("options", "-c my.setting=1").unwrap();
        for options in ["-c readz=strict", "-creadz=strict", "--readz=strict"] {
            let error = settings.connect("options", options).unwrap_err();
            assert_eq!(error.code, code::UNDEFINED_OBJECT, "{options}");
            assert_eq!(error.message, "unrecognized configuration parameter \"readz\"");
        }
    }
}
