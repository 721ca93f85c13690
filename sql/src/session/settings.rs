//! The values of a session's settings: `SET`, `SHOW`, and the parameters of the startup message.

use std::sync::Arc;
use std::time::Duration;

use pangea_core::guarantee::{Isolation, Isolations};

use super::authorization::Authorization;
use crate::error::{SqlError, code};
use crate::notice::Severity;
use crate::settings::isolation::{name_of, named, not_offered};
use crate::settings::units::parse_ms;
use crate::settings::{self, Kind, Setting, Values, checked, find, is_custom, known, shown};
use crate::types::zone::Zone;

/// The maximum number of settings in a session, and the maximum bytes of the name and the value of
/// a custom one.
const VALUES_MAX: usize = 1_000;
const CUSTOM_NAME_MAX: usize = 200;
const CUSTOM_VALUE_MAX: usize = 64 << 10;

/// The setting that shows the level of the transaction, and that for the levels of later ones.
pub(super) const ISOLATION: &str = "transaction_isolation";
pub(super) const DEFAULT_ISOLATION: &str = "default_transaction_isolation";

/// The values of a session's settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    values: Arc<Values>,
    /// The values that RESET restores, including those of the startup message.
    defaults: Arc<Values>,
    zone: Zone,
    /// The isolation levels that can be chosen.
    isolations: Isolations,
    /// The level of the open transaction, or of the next one.
    isolation: Isolation,
    authorization: Authorization,
    /// First parts of names that the session may not make up.
    reserved_prefixes: Arc<[&'static str]>,
}

/// Rejects a name with a reserved prefix, as PostgreSQL does for extensions.
fn check_is_ones_own(name: &str, reserved_prefixes: &[&str]) -> Result<(), SqlError> {
    let prefix = name.split('.').next().unwrap_or_default();
    if !reserved_prefixes.contains(&prefix) {
        return Ok(());
    }
    let message = format!("invalid configuration parameter name \"{name}\"");
    let hint = "Options of nodes and protocols are set in node.toml. For strict reads in this \
                session, SET reads = strict.";
    let detail = format!("\"{prefix}\" is a reserved prefix.");
    Err(SqlError::new(code::INVALID_NAME, message).with_detail(detail).with_hint(hint))
}

/// The values of a session's settings at one moment, from which the changes to report are computed.
#[derive(Clone, Debug, Default)]
pub struct Reported(Arc<Values>);

impl Reported {
    /// Returns the names and values that differ from those in `before`.
    pub fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'static str, &'a str)> {
        // This runs after each statement, and hardly any statement changes a setting.
        let is_same = Arc::ptr_eq(&self.0, &before.0);
        let all = settings::all().filter(move |setting| setting.is_reported && !is_same);
        let changed = all.filter(|setting| self.0.get(setting.name) != before.0.get(setting.name));
        changed.map(|setting| (setting.name, self.0[setting.name].as_str()))
    }
}

impl Settings {
    /// Makes the default settings for a user.
    pub(super) fn new(
        authorization: Authorization,
        reserved_prefixes: Arc<[&'static str]>,
        isolations: Isolations,
    ) -> Self {
        let default = |it: &Setting| (it.name.to_owned(), it.default.to_owned());
        let mut defaults: Values = settings::all().map(default).collect();
        let isolation = isolations.default_level();
        for name in [ISOLATION, DEFAULT_ISOLATION] {
            defaults.insert(name.to_owned(), name_of(isolation).to_owned());
        }
        for (name, value) in authorization.shown() {
            defaults.insert(name.to_owned(), value.to_owned());
        }
        let defaults = Arc::new(defaults);
        let (values, zone) = (defaults.clone(), Zone::default());
        Self { values, defaults, zone, isolations, isolation, authorization, reserved_prefixes }
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
                let message = format!("a session can have at most {VALUES_MAX} parameters");
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
        if setting.name == DEFAULT_ISOLATION {
            self.granted(named(&value))?;
        }
        let values = Arc::make_mut(&mut self.values);
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
        self.show_isolation();
        self.zone = Zone::named(&self.values["TimeZone"]).unwrap_or_default();
    }

    /// Returns the isolation level of the open transaction, or of the next one.
    pub(super) fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Returns the level at which a transaction runs that asks for `wanted`, or for the default
    /// level.
    ///
    /// # Errors
    /// 0A000 if all levels are weaker.
    pub(super) fn granted(&self, wanted: Option<Isolation>) -> Result<Isolation, SqlError> {
        let wanted = wanted.unwrap_or_else(|| self.default_isolation());
        let granted = self.isolations.granted(wanted);
        granted.ok_or_else(|| not_offered(wanted, self.isolations.strongest()))
    }

    fn default_isolation(&self) -> Isolation {
        named(&self.values[DEFAULT_ISOLATION]).unwrap_or(self.isolations.default_level())
    }

    /// Sets the level of the open transaction, or of the next one: one that was granted.
    pub(super) fn set_isolation(&mut self, level: Isolation) {
        self.isolation = level;
        self.show_isolation();
    }

    /// Sets the level of the next transaction to the session's default.
    pub(super) fn follow_default_isolation(&mut self) {
        let level = self.granted(None).unwrap_or(self.isolations.strongest());
        self.set_isolation(level);
    }

    fn show_isolation(&mut self) {
        let name = name_of(self.isolation);
        if self.values[ISOLATION] != name {
            Arc::make_mut(&mut self.values).insert(ISOLATION.to_owned(), name.to_owned());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of_me() -> Settings {
        let isolations = Isolations::new(Isolation::Serializable, &[]);
        Settings::new(Authorization::new("me", None), Arc::new(["taken"]), isolations)
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
