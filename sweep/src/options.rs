//! The options of a run, and the available options.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The engine that produces a run's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Processes on this machine, measured: `pangea bench`.
    Real,
    /// The simulator, with measured costs: `pangea sim --predict`.
    Predicted,
}

impl Engine {
    /// Both engines.
    pub const ALL: [Self; 2] = [Self::Real, Self::Predicted];

    /// Returns the name in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Predicted => "predicted",
        }
    }

    /// Returns the engine with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }

    /// Returns the corresponding command, for messages.
    pub const fn command(self) -> &'static str {
        match self {
            Self::Real => "pangea bench",
            Self::Predicted => "pangea sim --predict",
        }
    }
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A flag, present or not.
    Flag(bool),
    /// A number.
    Number(f64),
    /// One word or several.
    Text(String),
}

impl Value {
    /// Returns the number, if the value is a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Flag(_) | Self::Text(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(is_there) => write!(f, "{is_there}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// An available option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its long name, without the dashes.
    pub name: String,
    /// Whether it is a flag, without a value.
    pub is_flag: bool,
    /// The engine that accepts it.
    pub engine: Engine,
}

/// Returns whether a name is that of a protocol's setting, as in `minerva.solver`.
pub fn is_setting(name: &str) -> bool {
    name.split_once('.').is_some_and(|(protocol, key)| !protocol.is_empty() && !key.is_empty())
}

/// Splits an option for only one engine, as in `predicted.costs`, into the engine and the option.
pub fn scoped(name: &str) -> Option<(Engine, &str)> {
    let (engine, name) = name.split_once('.')?;
    Some((Engine::named(engine)?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_a_command_line_has_them() {
        assert_eq!(Value::Number(200.0).to_string(), "200");
        assert_eq!(Value::Number(0.9).to_string(), "0.9");
        assert_eq!(Value::Text("tpcc".to_owned()).to_string(), "tpcc");
        assert_eq!(Value::Flag(true).to_string(), "true");
    }

    #[test]
    fn settings_have_a_protocol_and_a_key() {
        assert_eq!(scoped("predicted.costs"), Some((Engine::Predicted, "costs")));
        assert_eq!(scoped("real.minerva.solver"), Some((Engine::Real, "minerva.solver")));
        assert_eq!(scoped("minerva.solver"), None);
        assert!(is_setting("minerva.solver"));
        for not in ["rtt", ".solver", "minerva."] {
            assert!(!is_setting(not), "{not}");
        }
    }
}
