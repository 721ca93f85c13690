//! Functions about the session: its settings.

use super::Env;
use super::functions::Function;
use super::signatures::{Signature, of};
use crate::error::{SqlError, code};
use crate::session::settings::shown;
use crate::types::SqlType::{Bool, Text};
use crate::types::datum::Datum;

/// What is done with a setting.
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

/// Calls a function. What it sets, the session does when the statement has ended.
pub(super) fn call(
    function: SettingFunction,
    args: &[Datum],
    env: &Env,
) -> Result<Datum, SqlError> {
    let Some(settings) = &env.settings else {
        // The session runs it then, and nobody else.
        return Err(SqlError::new(code::NOT_REPEATABLE, "a setting of the session"));
    };
    match (function, args) {
        (F::Show, [Datum::Text(name), rest @ ..]) => {
            // What the statement itself has set counts.
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
