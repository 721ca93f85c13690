//! Options of a run, and which there are.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What makes a run's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Processes on this machine, measured: `pangea bench`.
    Real,
    /// The simulator, with measured costs: `pangea sim --predict`.
    Predicted,
}

impl Engine {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Real, Self::Predicted];

    /// As plans have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Predicted => "predicted",
        }
    }

    /// The engine of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }

    /// The command that it is, for what is said of it.
    pub const fn command(self) -> &'static str {
        match self {
            Self::Real => "pangea bench",
            Self::Predicted => "pangea sim --predict",
        }
    }
}

/// What an option is set to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// There or not.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A word, or several.
    Text(String),
}

impl Value {
    /// The number, where it is one.
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

/// An option that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its long name, without the dashes.
    pub name: String,
    /// Whether it stands alone, without a value.
    pub is_flag: bool,
    /// Who takes it.
    pub engine: Engine,
}

/// Whether a name is that of a protocol's setting, as in `minerva.solver`.
pub fn is_setting(name: &str) -> bool {
    name.split_once('.').is_some_and(|(protocol, key)| !protocol.is_empty() && !key.is_empty())
}

/// The engine that an option is for alone, as in `predicted.costs`, and the option.
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
