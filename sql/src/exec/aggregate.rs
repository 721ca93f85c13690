//! Evaluation of aggregates over groups of rows.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;

use pangea_core::hash::HashSet;
use pangea_core::key::Key;

use super::query;
use crate::error::{SqlError, code};
use crate::expr::Env;
use crate::expr::arithmetic::{self, Arithmetic};
use crate::expr::query::Aggregate;
use crate::keys;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::json::{self, Json};
use crate::types::numeric::Numeric;
use crate::vocabulary::aggregate::AggregateKind;
use crate::vocabulary::column::SortKey;

/// The state of an aggregate for one group.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// Whether rows arrive in any order. Of equal values with different representations, the one
    /// with more digits is kept then.
    is_any_order: bool,
    /// Number of rows counted.
    count: i64,
    /// Sum or extreme so far.
    value: Datum,
    /// Sum of squares; for floats, sum of squared differences from the mean.
    squares: Datum,
    /// Arguments seen so far, for DISTINCT.
    seen: HashSet<Key>,
    /// Collected arguments, each followed by its ORDER BY values.
    collected: Vec<Vec<Datum>>,
}

impl State {
    pub(crate) fn new() -> Self {
        let (seen, collected) = (HashSet::default(), Vec::new());
        let (value, squares) = (Datum::Null, Datum::Null);
        Self { is_any_order: false, count: 0, value, squares, seen, collected }
    }

    /// Creates a state for rows that arrive in any order.
    pub(crate) fn of_any_order() -> Self {
        Self { is_any_order: true, ..Self::new() }
    }

    /// Whether the current value wins over an equal number.
    fn stays(&self, other: &Datum) -> bool {
        match (&self.value, other) {
            (Datum::Numeric(a), Datum::Numeric(b)) => self.is_any_order && a.scale() >= b.scale(),
            _ => false,
        }
    }

    /// Aggregates a row.
    pub(crate) fn add(
        &mut self,
        aggregate: &Aggregate,
        row: &[Datum],
        env: &Env,
    ) -> Result<(), SqlError> {
        if let Some(filter) = &aggregate.filter
            && !filter.is_true(row, env)?
        {
            return Ok(());
        }
        match &aggregate.args[..] {
            [] => {
                self.count += 1;
                Ok(())
            }
            [(expr, _)] if aggregate.is_plain() => {
                self.fold_one(aggregate, &*expr.value(row, env)?)
            }
            args => {
                let exprs = args.iter().chain(&aggregate.order);
                let values =
                    exprs.map(|(expr, _)| expr.eval(row, env)).collect::<Result<_, _>>()?;
                self.fold(aggregate, values)
            }
        }
    }

    /// Counts rows, for aggregates that need only their number.
    pub(crate) fn add_count(&mut self, rows: usize) {
        self.count += rows as i64;
    }

    /// Aggregates an argument of a plain aggregate ([`Aggregate::is_plain`]).
    pub(crate) fn fold_one(
        &mut self,
        aggregate: &Aggregate,
        datum: &Datum,
    ) -> Result<(), SqlError> {
        if datum.is_null() {
            return Ok(());
        }
        self.count += 1;
        let stays = self.stays(datum);
        match (aggregate.kind, &mut self.value, datum) {
            (AggregateKind::Count, ..) => {}
            (AggregateKind::Spread { .. }, ..) => return self.spread(datum.clone()),
            (_, value @ Datum::Null, datum) => *value = datum.clone(),
            (
                AggregateKind::Sum | AggregateKind::Avg,
                Datum::Numeric(sum),
                Datum::Numeric(more),
            ) => {
                *sum = sum.add(more);
            }
            (AggregateKind::Min, least, datum)
                if datum.compare(least) >= if stays { Equal } else { Greater } => {}
            (AggregateKind::Max, most, datum)
                if datum.compare(most) <= if stays { Equal } else { Less } => {}
            (kind, value, datum) => {
                let before = std::mem::replace(value, Datum::Null);
                self.value = combined(kind, aggregate.args[0].1, before, datum.clone())?;
            }
        }
        Ok(())
    }

    /// Merges the state of the same aggregate over other rows. Both must accept rows in any order.
    pub(crate) fn merge(&mut self, aggregate: &Aggregate, other: Self) -> Result<(), SqlError> {
        if aggregate.is_distinct {
            // DISTINCT values are only ever counted here.
            self.seen.extend(other.seen);
            self.count = self.seen.len() as i64;
            return Ok(());
        }
        let count = self.count + other.count;
        if let AggregateKind::Spread { .. } = aggregate.kind {
            self.squares = added(&self.squares, other.squares);
            self.value = added(&self.value, other.value);
        } else {
            // The other state's value is folded like a single value.
            self.fold_one(aggregate, &other.value)?;
        }
        self.count = count;
        Ok(())
    }

    /// Aggregates the arguments of a row, followed by its ORDER BY values.
    pub(crate) fn fold(
        &mut self,
        aggregate: &Aggregate,
        mut values: Vec<Datum>,
    ) -> Result<(), SqlError> {
        let Some(first) = values.first() else {
            self.count += 1;
            return Ok(());
        };
        let kind = aggregate.kind;
        if first.is_null() && !kind.takes_nulls() {
            return Ok(());
        }
        if aggregate.is_plain() {
            return self.fold_one(aggregate, first);
        }
        if aggregate.is_distinct {
            let types = aggregate.args.iter().map(|(_, base)| *base);
            if !self.seen.insert(keys::encode_nullable(types.zip(&values))?) {
                return Ok(());
            }
        }
        self.count += 1;
        if kind.is_collected() {
            self.collected.push(values);
            return Ok(());
        }
        let datum = values.swap_remove(0);
        if let AggregateKind::Spread { .. } = kind {
            return self.spread(datum);
        }
        let before = std::mem::replace(&mut self.value, Datum::Null);
        self.value = match kind {
            AggregateKind::Count => Datum::Null,
            _ if before.is_null() => datum,
            _ => combined(kind, aggregate.args[0].1, before, datum)?,
        };
        Ok(())
    }

    /// Adds a value to the sums of a variance. `count` already includes it.
    fn spread(&mut self, datum: Datum) -> Result<(), SqlError> {
        let before = std::mem::replace(&mut self.value, Datum::Null);
        let squares = std::mem::replace(&mut self.squares, Datum::Null);
        (self.value, self.squares) = match (datum, before, squares) {
            (Datum::Numeric(value), Datum::Numeric(sum), Datum::Numeric(squares)) => {
                let square = value.multiply(&value)?;
                (Datum::Numeric(sum.add(&value)), Datum::Numeric(squares.add(&square)))
            }
            (Datum::Numeric(value), ..) => {
                let square = value.multiply(&value)?;
                (Datum::Numeric(value), Datum::Numeric(square))
            }
            // The algorithm of Youngs and Cramer, as in PostgreSQL. A large mean does not cancel
            // digits.
            (Datum::Float(value), Datum::Float(sum), Datum::Float(squares)) => {
                let count = self.count as f64;
                let sum = sum + value;
                let away = value * count - sum;
                (Datum::Float(sum), Datum::Float(squares + away * away / (count * (count - 1.0))))
            }
            (Datum::Float(value), ..) => {
                let none = if value.is_finite() { 0.0 } else { f64::NAN };
                (Datum::Float(value), Datum::Float(none))
            }
            (other, ..) => panic!("{other:?} has no square"),
        };
        Ok(())
    }

    /// Approximate heap size, in bytes.
    pub(crate) fn size(&self) -> usize {
        let rows = self.collected.iter();
        let collected = rows.map(|row| 32 + row.iter().map(Datum::size).sum::<usize>());
        self.value.size() + self.seen.len() * 64 + collected.sum::<usize>()
    }

    /// Returns the result for the group.
    pub(crate) fn finish(self, aggregate: &Aggregate) -> Result<Datum, SqlError> {
        if aggregate.kind.is_collected() {
            return collected(aggregate, self.collected);
        }
        if let AggregateKind::Spread { is_sample, is_root } = aggregate.kind {
            return spread_of((is_sample, is_root), self.count, self.value, self.squares);
        }
        match (aggregate.kind, self.value) {
            (AggregateKind::Count, _) => Ok(Datum::Int(self.count)),
            (AggregateKind::Avg, Datum::Numeric(sum)) => {
                sum.divide(&Numeric::from(self.count)).map(Datum::Numeric)
            }
            (AggregateKind::Avg, Datum::Interval(sum)) => {
                sum.divide(self.count as f64).map(Datum::Interval)
            }
            (AggregateKind::Avg, Datum::Float(sum)) => Ok(Datum::Float(sum / self.count as f64)),
            (_, value) => Ok(value),
        }
    }
}

/// Adds two numbers; NULL is neutral.
fn added(a: &Datum, b: Datum) -> Datum {
    match (a, b) {
        (Datum::Numeric(a), Datum::Numeric(b)) => Datum::Numeric(a.add(&b)),
        (Datum::Null, b) => b,
        (a, _) => a.clone(),
    }
}

/// Combines the value so far with another one.
fn combined(
    kind: AggregateKind,
    base: SqlType,
    before: Datum,
    datum: Datum,
) -> Result<Datum, SqlError> {
    use AggregateKind as K;
    let is_true = |datum: &Datum| datum.truth() == Some(true);
    Ok(match kind {
        K::Sum | K::Avg => {
            // Sums of integers are bigint, whatever the width of the integers.
            let base = if base.is_integer() { SqlType::Int8 } else { base };
            arithmetic::apply(Arithmetic::Add, base, before, datum)?
        }
        K::BitAnd => arithmetic::apply(Arithmetic::BitAnd, base, before, datum)?,
        K::BitOr => arithmetic::apply(Arithmetic::BitOr, base, before, datum)?,
        K::BitXor => arithmetic::apply(Arithmetic::BitXor, base, before, datum)?,
        // Of equal values with different representations, PostgreSQL returns the last.
        K::Min if datum.compare(&before).is_le() => datum,
        K::Max if datum.compare(&before).is_ge() => datum,
        K::And => Datum::Bool(is_true(&before) && is_true(&datum)),
        K::Or => Datum::Bool(is_true(&before) || is_true(&datum)),
        _ => before,
    })
}

/// Returns the variance or its root from the sums of [`State::spread`].
fn spread_of(
    (is_sample, is_root): (bool, bool),
    count: i64,
    sum: Datum,
    squares: Datum,
) -> Result<Datum, SqlError> {
    let freedom = if is_sample { count - 1 } else { count };
    if freedom <= 0 {
        return Ok(Datum::Null);
    }
    match (sum, squares) {
        (Datum::Numeric(sum), Datum::Numeric(squares)) => {
            let [count, freedom] = [count, freedom].map(Numeric::from);
            let above = squares.multiply(&count)?.subtract(&sum.multiply(&sum)?);
            if above.signum() <= 0 {
                return Ok(Datum::Numeric(Numeric::from(0)));
            }
            let variance = above.divide(&count.multiply(&freedom)?)?;
            let root = || variance.root_at(variance.scale());
            Ok(Datum::Numeric(if is_root { root() } else { variance }))
        }
        (_, Datum::Float(squares)) => {
            let variance = squares / freedom as f64;
            Ok(Datum::Float(if is_root { variance.sqrt() } else { variance }))
        }
        (sum, _) => panic!("{sum:?} has no variance"),
    }
}

/// Returns the result of a collecting aggregate.
fn collected(aggregate: &Aggregate, mut rows: Vec<Vec<Datum>>) -> Result<Datum, SqlError> {
    if rows.is_empty() {
        return Ok(Datum::Null);
    }
    let width = aggregate.args.len();
    if !aggregate.sort.is_empty() {
        rows.sort_by(|a, b| query::compare(&a[width..], &b[width..], &aggregate.sort));
    } else if aggregate.is_distinct {
        let plain = |column| SortKey { column, is_descending: false, is_nulls_first: false };
        let sort: Vec<SortKey> = (0..width).map(plain).collect();
        rows.sort_by(|a, b| query::compare(a, b, &sort));
    }
    let first = |row: Vec<Datum>| row.into_iter().next().expect("an argument");
    match aggregate.kind {
        AggregateKind::Array => Ok(Datum::array(rows.into_iter().map(first).collect())),
        AggregateKind::Text => {
            let mut text = String::new();
            for (at, row) in rows.iter().enumerate() {
                if let (1.., Datum::Text(between)) = (at, &row[1]) {
                    text.push_str(between);
                }
                if let Datum::Text(part) = &row[0] {
                    text.push_str(part);
                }
            }
            Ok(Datum::Text(text))
        }
        AggregateKind::Json { is_binary: true } => {
            let tree = |row| match first(row) {
                Datum::Jsonb(json) => Arc::unwrap_or_clone(json),
                _ => Json::Null,
            };
            let items = rows.into_iter().map(tree).collect();
            Ok(Datum::Jsonb(Arc::new(Json::Array(items))))
        }
        AggregateKind::Json { is_binary: false } => {
            let items: Vec<String> = rows.iter().map(|row| json_text(&row[0])).collect();
            Ok(Datum::Text(format!("[{}]", items.join(", "))))
        }
        AggregateKind::Object { is_binary } => object(is_binary, &rows),
        other => unreachable!("{other:?} keeps no values"),
    }
}

fn json_text(datum: &Datum) -> String {
    match datum {
        Datum::Text(text) => text.clone(),
        _ => "null".to_owned(),
    }
}

fn object(is_binary: bool, rows: &[Vec<Datum>]) -> Result<Datum, SqlError> {
    let mut parts = Vec::with_capacity(rows.len());
    for row in rows {
        let Datum::Text(name) = &row[0] else {
            let message = "field name must not be null";
            return Err(SqlError::new(code::INVALID_PARAMETER, message));
        };
        let value = match &row[1] {
            Datum::Jsonb(json) => json.to_string(),
            other => json_text(other),
        };
        parts.push(format!("{} : {value}", Json::String(name.clone())));
    }
    let text = format!("{{ {} }}", parts.join(", "));
    if is_binary {
        json::parse(&text).map(|it| Datum::Jsonb(Arc::new(it)))
    } else {
        Ok(Datum::Text(text))
    }
}
