//! Functions that read and change the session's settings.

use super::Env;
use super::functions::Function;
use super::signatures::{Signature, of};
use crate::error::{SqlError, code};
use crate::settings::shown;
use crate::types::SqlType::{Bool, Text};
use crate::types::datum::Datum;

/// A function over settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingFunction {
    /// `current_setting`
    Show,
    /// `set_config`
    Set,
}

use SettingFunction as F;

pub(super) const SIGNATURES: &[Signature] = &[
    of("current_setting", &[Text], Text, Function::Setting(F::Show)),
    of("current_setting", &[Text, Bool], Text, Function::Setting(F::Show)),
    of("set_config", &[Text, Text, Bool], Text, Function::Setting(F::Set)),
];

/// Evaluates a function. The session applies `set_config` after the statement ends.
pub(super) fn call(
    function: SettingFunction,
    args: &[Datum],
    env: &Env,
) -> Result<Datum, SqlError> {
    let Some(settings) = &env.settings else {
        // This error makes the session run the statement itself, instead of all replicas.
        return Err(SqlError::new(code::NOT_REPEATABLE, "a setting of the session"));
    };
    match (function, args) {
        (F::Show, [Datum::Text(name), rest @ ..]) => {
            // Values set by this statement take precedence.
            let asked = env.set_settings.borrow();
            let own = asked.iter().rev().find(|(set, ..)| set.eq_ignore_ascii_case(name));
            if let Some((_, value, _)) = own {
                return Ok(Datum::Text(value.clone()));
            }
            match shown(settings, name) {
                Ok(value) => Ok(Datum::Text(value.to_owned())),
                Err(_) if rest == [Datum::Bool(true)] => Ok(Datum::Null),
                Err(error) => Err(error),
            }
        }
        (F::Set, [Datum::Text(name), value, is_local]) => {
            let value = if let Datum::Text(value) = value { value.clone() } else { String::new() };
            let is_local = *is_local == Datum::Bool(true);
            env.set_settings.borrow_mut().push((name.clone(), value.clone(), is_local));
            Ok(Datum::Text(value))
        }
        _ => Err(SqlError::new(code::NULL_NOT_ALLOWED, "SET requires parameter name")),
    }
}
