//! Historical reads: `AS OF SYSTEM TIME`.

use std::sync::Arc;

use pangea_core::store::Pin;

use super::data::{check_params, read_only_violation};
use super::local::LocalContext;
use super::sequences::CachedValues;
use super::{Response, Session, now};
use crate::error::{Failure, SqlError, code};
use crate::history::NoSnapshot;
use crate::plan::Planned;
use crate::remote_rows::Snapshot;
use crate::syntax::Parsed;
use crate::syntax::as_of::AsOf;
use crate::types::datetime::MICROS_PER_DAY;
use crate::types::datum::Datum;
use crate::types::interval::Interval;
use crate::types::zone::Zone;
use crate::types::{SqlType, text};

/// Returns the requested time in microseconds since 2000-01-01.
fn moment(as_of: &AsOf, now: i64, zone: &Zone) -> Result<i64, SqlError> {
    let value = as_of.text.trim();
    let absolute = match as_of.is_interval {
        true => None,
        false => text::parse(SqlType::Timestamptz, value, zone).ok(),
    };
    if let Some(Datum::Timestamp(at)) = absolute {
        return Ok(at);
    }
    let Ok(Datum::Interval(interval)) = text::parse(SqlType::Interval, value, zone) else {
        let message = format!("AS OF SYSTEM TIME: \"{value}\" is neither a time nor an interval");
        return Err(SqlError::new(code::INVALID_PARAMETER, message)
            .with_hint("For example '-10s', or '2026-01-31 12:00:00+00'."));
    };
    let Interval { months, days, micros } = interval;
    let days = i64::from(months) * 30 + i64::from(days);
    let span = days.saturating_mul(MICROS_PER_DAY).saturating_add(micros);
    Ok(now.saturating_add(if as_of.is_negative { span.saturating_neg() } else { span }))
}

impl Session {
    /// Pins the snapshot of a time.
    pub(super) fn pin_as_of(&self, as_of: &AsOf) -> Result<Pin, SqlError> {
        let now = now();
        let at = moment(as_of, now, self.settings.zone())?;
        let shown = |at: i64| {
            text::format(SqlType::Timestamptz, &Datum::Timestamp(at), self.settings.zone())
        };
        let too_old = |oldest: Option<i64>| {
            let message = format!("snapshot too old: this node has no version as of {}", shown(at));
            let error = SqlError::new(code::SNAPSHOT_TOO_OLD, message);
            match oldest {
                Some(oldest) => error
                    .with_detail(format!("The history of this node begins at {}.", shown(oldest)))
                    .with_hint(
                        "Its length is set by history_s, history_versions and history_deletions \
                         in node.toml.",
                    ),
                None => error.with_hint("This node keeps no history: set history_s in node.toml."),
            }
        };
        let history = self.engine.history().ok_or_else(|| too_old(None))?;
        history.at(self.engine.store(), at, now).map_err(|error| match error {
            NoSnapshot::TooOld(oldest) => too_old(oldest),
            NoSnapshot::InFuture => {
                let message = format!("AS OF SYSTEM TIME: {} is in the future", shown(at));
                SqlError::new(code::INVALID_PARAMETER, message)
                    .with_hint("An interval must be negative, because it is relative to now.")
            }
        })
    }

    /// Plans a query at a time in the past, and returns the context to run it in.
    pub(super) fn plan_as_of(
        &mut self,
        (parsed, as_of): (&Parsed, &AsOf),
        types: &[Option<SqlType>],
    ) -> Result<(Planned, LocalContext), SqlError> {
        if self.transaction.as_ref().is_some_and(|open| !open.is_implicit) {
            let message = "a query with AS OF SYSTEM TIME cannot run inside a transaction block";
            return Err(SqlError::new(code::ACTIVE_TRANSACTION, message)
                .with_hint("Use BEGIN AS OF SYSTEM TIME for the whole transaction."));
        }
        let mut cx = LocalContext::snapshot(self.pin_as_of(as_of)?);
        let parse = || Ok::<_, Failure>(parsed.clone());
        let planned =
            self.shared.plans.plan(&parsed.text, types, &self.path_setting(), parse, &mut cx)?;
        if planned.is_write() || !planned.sequences.is_empty() {
            return Err(read_only_violation(&planned));
        }
        // The privileges are the present ones.
        let mut present = LocalContext::snapshot(self.engine.store().pin());
        self.check_privileges(&planned, &mut present)?;
        Ok((Planned { required: Vec::new(), ..(*planned).clone() }, cx))
    }

    /// Runs a query at a time in the past.
    pub(super) async fn run_as_of(
        &mut self,
        (parsed, as_of): (&Parsed, &AsOf),
        param_types: &[SqlType],
        params: &[Datum],
    ) -> Result<Response, SqlError> {
        let types: Vec<_> = param_types.iter().copied().map(Some).collect();
        let (planned, mut cx) = self.plan_as_of((parsed, as_of), &types)?;
        check_params(&planned, params)?;
        cx.set_remote(self.remote_rows(cx.at()).await?);
        self.gather_facts(&planned).await;
        self.run_read(&Arc::new(planned), cx, params, (Vec::new(), &CachedValues::default()))
    }

    /// Gives the transaction the snapshot of a time in the past, unless it already has a snapshot.
    pub(super) async fn begin_as_of(&mut self, as_of: &AsOf) -> Result<(), SqlError> {
        let pin = self.pin_as_of(as_of)?;
        let remote = self.remote_rows(pin.version()).await?;
        let Some(open) = &mut self.transaction else { return Ok(()) };
        if open.cx.is_some() {
            let message = "AS OF SYSTEM TIME must be set before any query";
            return Err(SqlError::new(code::ACTIVE_TRANSACTION, message));
        }
        open.is_read_only = true;
        open.cx = Some(LocalContext::snapshot(Snapshot { pin, remote }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_counts_from_now() {
        let as_of = |text: &str, is_interval, is_negative| {
            let as_of = AsOf { text: text.to_owned(), is_interval, is_negative };
            moment(&as_of, 1_000_000_000, &Zone::default()).map_err(|error| error.code)
        };
        assert_eq!(as_of("-10s", false, false), Ok(990_000_000));
        assert_eq!(as_of("-1 min", true, false), Ok(940_000_000));
        assert_eq!(as_of("1 min", true, true), Ok(940_000_000));
        assert_eq!(as_of("-1 day", false, false), Ok(1_000_000_000 - MICROS_PER_DAY));
        assert_eq!(as_of("2000-01-01 00:00:01+00", false, false), Ok(1_000_000));
        assert_eq!(as_of("2000-01-01 01:00:01+01", false, false), Ok(1_000_000));
        assert_eq!(as_of("+10s", false, false), Ok(1_010_000_000));
        for text in ["", "yesterdayish", "10 parsecs"] {
            assert_eq!(as_of(text, false, false), Err(code::INVALID_PARAMETER), "{text}");
        }
        assert_eq!(as_of("2000-01-01", true, false), Err(code::INVALID_PARAMETER));
    }
}
