//! How the rows of a table are found: one key, a few ranges of keys, or all of them.
//!
//! Conditions on the columns of the primary key narrow the search: equalities (or lists of values)
//! on its first columns, and a range on the one that follows. The whole condition is checked again
//! on each row found, so that narrowing never decides what is in the result.

use std::sync::Arc;

use pangea_core::key::encode::KeyEncoder;
use pangea_core::key::{Direction, Key, KeyRange};

use super::SortKey;
use crate::catalog::Table;
use crate::error::SqlError;
use crate::expr::{Binary, Comparison, Env, Expr, Unary};
use crate::keys;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::text::fits;

/// The most ranges that lists of values become: beyond them the table is scanned.
const RANGES_MAX: usize = 1_024;

/// Which part of a table to look at, and in which order.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub table: Arc<Table>,
    /// The values that the first columns of the primary key may have, column by column.
    pub equal: Vec<Vec<Expr>>,
    /// The least value of the next column, and whether it is included.
    pub lower: Option<(Expr, bool)>,
    /// The greatest value of the next column, and whether it is included.
    pub upper: Option<(Expr, bool)>,
    pub direction: Direction,
}

/// Where to look.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Point(Key),
    Range(KeyRange),
}

impl Access {
    /// The way to the rows that a condition leaves.
    pub(crate) fn new(table: Arc<Table>, filter: Option<&Expr>) -> Self {
        let mut conditions = Vec::new();
        if let Some(filter) = filter {
            conjuncts(filter, &mut conditions);
        }
        let mut access = Self {
            table,
            equal: Vec::new(),
            lower: None,
            upper: None,
            direction: Direction::Forward,
        };
        let mut ranges = 1;
        for &column in &access.table.primary_key.clone() {
            let values = conditions.iter().find_map(|condition| equal_values(condition, column));
            let values = values.filter(|values| ranges * values.len() <= RANGES_MAX);
            let Some(values) = values else {
                access.bound(&conditions, column);
                break;
            };
            ranges *= values.len();
            access.equal.push(values);
        }
        access
    }

    fn bound(&mut self, conditions: &[&Expr], column: usize) {
        for (op, value) in conditions.iter().filter_map(|condition| compared(condition, column)) {
            match op {
                Comparison::Greater => self.lower.get_or_insert((value, false)),
                Comparison::GreaterOrEqual => self.lower.get_or_insert((value, true)),
                Comparison::Less => self.upper.get_or_insert((value, false)),
                Comparison::LessOrEqual => self.upper.get_or_insert((value, true)),
                Comparison::Equal | Comparison::NotEqual => continue,
            };
        }
    }

    /// Whether rows come in the order of these columns of the table, in one direction, which is
    /// then taken.
    pub(crate) fn sorts_by(&mut self, output: &[Expr], sort: &[SortKey]) -> bool {
        let primary_key = &self.table.primary_key;
        let mut at = 0;
        for key in sort {
            let Expr::Column(column) = &output[key.column] else { return false };
            // A column with one value takes no part in the order.
            while at < primary_key.len()
                && primary_key[at] != *column
                && self.equal.get(at).is_some_and(|values| values.len() == 1)
            {
                at += 1;
            }
            if at == primary_key.len() {
                // The key is unique: what follows it can't change the order.
                break;
            }
            if primary_key[at] != *column || key.is_descending != sort[0].is_descending {
                return false;
            }
            at += 1;
        }
        if primary_key.is_empty() {
            return false;
        }
        if sort.first().is_some_and(|first| first.is_descending) {
            self.direction = Direction::Reverse;
        }
        true
    }

    /// The places to look at, in the order of the scan.
    pub(crate) fn places(&self, env: &Env) -> Result<Vec<Place>, SqlError> {
        let primary_key = &self.table.primary_key;
        let base = |at: usize| self.table.columns[primary_key[at]].ty.base;
        let mut prefixes = vec![Vec::new()];
        for (at, values) in self.equal.iter().enumerate() {
            let mut encoded = Vec::with_capacity(values.len());
            for value in values {
                let datum = value.eval(&[], env)?;
                if is_storable(base(at), &datum) {
                    let mut key = KeyEncoder::new();
                    keys::append(base(at), &datum, &mut key)?;
                    encoded.push(key.as_bytes().to_vec());
                }
            }
            encoded.sort_unstable();
            encoded.dedup();
            prefixes = prefixes
                .iter()
                .flat_map(|prefix: &Vec<u8>| {
                    encoded.iter().map(move |value| [&prefix[..], &value[..]].concat())
                })
                .collect();
        }
        let is_point = !primary_key.is_empty() && self.equal.len() == primary_key.len();
        let mut places = Vec::with_capacity(prefixes.len());
        for prefix in prefixes {
            if is_point {
                places.push(Place::Point(Key::from(&prefix[..])));
            } else if let Some(range) = self.range(&prefix, env)? {
                places.push(Place::Range(range));
            }
        }
        if self.direction == Direction::Reverse {
            places.reverse();
        }
        Ok(places)
    }

    /// The range of keys with a prefix and the bounds; nothing when no key can be in it.
    fn range(&self, prefix: &[u8], env: &Env) -> Result<Option<KeyRange>, SqlError> {
        let mut range = KeyRange::prefix(prefix);
        if prefix.is_empty() {
            range = KeyRange::all();
        }
        let Some(&column) = self.table.primary_key.get(self.equal.len()) else {
            return Ok(Some(range));
        };
        let base = self.table.columns[column].ty.base;
        if let Some((value, is_included)) = &self.lower {
            match bound_key(prefix, base, &value.eval(&[], env)?)? {
                BoundKey::Null | BoundKey::AboveAll => return Ok(None),
                BoundKey::BelowAll => {}
                BoundKey::At(key) if *is_included => range.start = key,
                BoundKey::At(key) => match KeyRange::prefix(&key).end {
                    Some(after) => range.start = after,
                    None => return Ok(None),
                },
            }
        }
        if let Some((value, is_included)) = &self.upper {
            match bound_key(prefix, base, &value.eval(&[], env)?)? {
                BoundKey::Null | BoundKey::BelowAll => return Ok(None),
                BoundKey::AboveAll => {}
                BoundKey::At(key) if *is_included => range.end = KeyRange::prefix(&key).end,
                BoundKey::At(key) => range.end = Some(key),
            }
        }
        Ok((!range.is_empty()).then_some(range))
    }
}

/// Where a bound lies among the keys.
enum BoundKey {
    /// Nothing is less or greater than NULL.
    Null,
    BelowAll,
    AboveAll,
    At(Vec<u8>),
}

fn bound_key(prefix: &[u8], base: SqlType, datum: &Datum) -> Result<BoundKey, SqlError> {
    Ok(match datum {
        Datum::Null => BoundKey::Null,
        Datum::Int(value) if !fits(base, *value) && *value < 0 => BoundKey::BelowAll,
        Datum::Int(value) if !fits(base, *value) => BoundKey::AboveAll,
        datum => {
            let mut key = KeyEncoder::after(prefix);
            keys::append(base, datum, &mut key)?;
            BoundKey::At(key.as_bytes().to_vec())
        }
    })
}

/// Whether a column can hold a value.
fn is_storable(base: SqlType, datum: &Datum) -> bool {
    match datum {
        Datum::Null => false,
        Datum::Int(value) => fits(base, *value),
        _ => true,
    }
}

/// The conditions that must all hold.
fn conjuncts<'a>(filter: &'a Expr, out: &mut Vec<&'a Expr>) {
    match filter {
        Expr::Binary(Binary::And, left, right) => {
            conjuncts(left, out);
            conjuncts(right, out);
        }
        condition => out.push(condition),
    }
}

/// Whether an expression is a column, seen through casts that keep its key.
fn is_column(expr: &Expr, column: usize) -> bool {
    match expr {
        Expr::Column(at) => *at == column,
        Expr::Unary(Unary::TrimBlanks, inner) => is_column(inner, column),
        Expr::Unary(Unary::Cast { from, to, .. }, inner) => {
            let keeps_key = from.is_integer() && to.base.is_integer()
                || *from == SqlType::Varchar && to.base == SqlType::Text;
            keeps_key && is_column(inner, column)
        }
        _ => false,
    }
}

/// The comparison of a column with a value that does not depend on the row.
fn compared(condition: &Expr, column: usize) -> Option<(Comparison, Expr)> {
    let Expr::Binary(Binary::Compare(op), left, right) = condition else { return None };
    if is_column(left, column) && right.is_constant() {
        return Some((*op, (**right).clone()));
    }
    (is_column(right, column) && left.is_constant()).then(|| (op.mirrored(), (**left).clone()))
}

/// The values that a condition leaves a column.
fn equal_values(condition: &Expr, column: usize) -> Option<Vec<Expr>> {
    match condition {
        Expr::Column(at) if *at == column => Some(vec![Expr::Const(Datum::Bool(true))]),
        Expr::In { operand, list, is_negated: false } => {
            let is_found = is_column(operand, column) && list.iter().all(Expr::is_constant);
            is_found.then(|| list.clone())
        }
        _ => match compared(condition, column)? {
            (Comparison::Equal, value) => Some(vec![value]),
            _ => None,
        },
    }
}
