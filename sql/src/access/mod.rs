//! Access paths: how the rows of a table are found, by one key, a few ranges of keys, or a full
//! scan.
//!
//! Conditions on the parts of a key narrow the search: equalities (or lists of values) on its first
//! parts, and a range on the next part. Among the primary key and the indexes, the key that is
//! narrowed most is chosen. The whole condition is checked again for each row found, so that
//! narrowing never affects the result.

pub(crate) mod path;
pub(crate) mod text;

use std::sync::Arc;

use pangea_core::key::encode::{KeyEncoder, Nulls, Order};
use pangea_core::key::{Direction, Key, KeyRange};

use crate::catalog::Table;
use crate::error::SqlError;
use crate::expr::arrays::{ArrayFunction, Test};
use crate::expr::functions::Function;
use crate::expr::{Binary, Comparison, Env, Expr, Unary};
use crate::keys;
use crate::rows::Columns;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::text::fits;
use crate::vocabulary::column::SortKey;
use path::{Part, Path, Paths};

/// The maximum number of ranges that lists of values become. A list that would exceed it does not
/// narrow the search.
const RANGES_MAX: usize = 1_024;

/// The maximum number of places at run time, when the values of arrays are known.
const PLACES_MAX: usize = 65_536;

/// The values that a part of a key may have.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// A list of values.
    List(Vec<Expr>),
    /// The elements of an array.
    OfArray(Expr),
}

impl Values {
    /// Returns the number of values; 1 for an array, whose length is not known yet.
    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::OfArray(_) => 1,
        }
    }

    /// Whether there is exactly one value, so that rows are not sorted by this part.
    fn is_one(&self) -> bool {
        matches!(self, Self::List(list) if list.len() == 1)
    }

    fn eval(&self, env: &Env) -> Result<Vec<Datum>, SqlError> {
        match self {
            Self::List(list) => list.iter().map(|value| value.eval(&[], env)).collect(),
            Self::OfArray(array) => Ok(match array.eval(&[], env)? {
                Datum::Array(array) => array.items().to_vec(),
                _ => Vec::new(),
            }),
        }
    }
}

/// The part of a table that a statement reads, and the order in which it does.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub table: Arc<Table>,
    /// The key that the search uses.
    pub path: Arc<Path>,
    /// The values that the first parts of the key may have, part by part.
    pub equal: Vec<Values>,
    /// The lower bound of the next part, and whether it is inclusive.
    pub lower: Option<(Expr, bool)>,
    /// The upper bound of the next part, and whether it is inclusive.
    pub upper: Option<(Expr, bool)>,
    pub direction: Direction,
    /// The columns that are read from the rows.
    pub wanted: Columns,
}

/// A place to search.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Point(Key),
    Range(KeyRange),
}

impl Place {
    /// Returns the key if the place is a single one.
    pub(crate) fn as_point(&self) -> Option<&Key> {
        match self {
            Self::Point(key) => Some(key),
            Self::Range(_) => None,
        }
    }
}

impl Access {
    /// Returns the best access path for a condition.
    pub(crate) fn new(paths: &Paths, filter: Option<&Expr>) -> Self {
        let conditions = filter.map(Expr::conjuncts).unwrap_or_default();
        let mut best = Self::by(paths, paths.primary(), &conditions);
        for path in paths.indexes().iter().filter(|path| may_be_read(path, &conditions)) {
            let access = Self::by(paths, path, &conditions);
            if access.merit() > best.merit() {
                best = access;
            }
        }
        best
    }

    /// Returns a scan of all rows in a requested sort order, if an index has that order. It pays
    /// off if only a few rows are read.
    pub(crate) fn in_order(paths: &Paths, output: &[Expr], sort: &[SortKey]) -> Option<Self> {
        let readable = paths.indexes().iter().filter(|path| may_be_read(path, &[]));
        readable.map(|path| Self::by(paths, path, &[])).find_map(|mut access| {
            // A partial index may not contain all rows.
            access.sorts_by(output, sort).then_some(access)
        })
    }

    /// Returns the access by one path, narrowed by the conditions.
    fn by(paths: &Paths, path: &Arc<Path>, conditions: &[&Expr]) -> Self {
        let mut access = Self {
            table: paths.table.clone(),
            path: path.clone(),
            equal: Vec::new(),
            lower: None,
            upper: None,
            direction: Direction::Forward,
            wanted: Columns::All,
        };
        let mut ranges = 1;
        for part in &path.parts {
            let values = conditions.iter().find_map(|condition| equal_values(condition, part));
            let values = values.filter(|values| ranges * values.len() <= RANGES_MAX);
            let Some(values) = values else {
                access.bound(conditions, part);
                break;
            };
            ranges *= values.len();
            access.equal.push(values);
        }
        access
    }

    fn bound(&mut self, conditions: &[&Expr], part: &Part) {
        for (op, value) in conditions.iter().filter_map(|condition| compared(condition, part)) {
            match op {
                Comparison::Greater => self.lower.get_or_insert((value, false)),
                Comparison::GreaterOrEqual => self.lower.get_or_insert((value, true)),
                Comparison::Less => self.upper.get_or_insert((value, false)),
                Comparison::LessOrEqual => self.upper.get_or_insert((value, true)),
                Comparison::Equal | Comparison::NotEqual => continue,
            };
        }
    }

    /// Ranks how much of the table it excludes. The first of equals is chosen, which is the primary
    /// key.
    fn merit(&self) -> (bool, usize, u8, bool) {
        let bounds = u8::from(self.lower.is_some()) + u8::from(self.upper.is_some());
        let index = self.path.index.as_ref();
        let is_partial = index.is_some_and(|index| index.predicate.is_some());
        (self.is_point(), self.equal.len(), bounds, is_partial)
    }

    /// Whether it finds at most one row for each combination of values.
    fn is_point(&self) -> bool {
        self.path.is_unique() && self.equal.len() == self.path.parts.len()
    }

    /// Whether the condition is that the primary key has one value, of a type for which equal
    /// values have one key.
    pub(crate) fn is_one_key(&self, filter: Option<&Expr>) -> bool {
        let is_exact = |part: &Part| {
            part.base.is_integer()
                || matches!(part.base, SqlType::Text | SqlType::Varchar | SqlType::Uuid)
        };
        let is_primary = self.path.index.is_none() && self.path.parts.iter().all(is_exact);
        let is_one = self.is_point() && self.equal.iter().all(Values::is_one);
        is_primary && is_one && self.split(filter).1.is_empty()
    }

    /// Whether no condition narrows it.
    fn is_everything(&self) -> bool {
        self.equal.is_empty() && self.lower.is_none() && self.upper.is_none()
    }

    /// Whether it scans the whole table in primary key order.
    pub(crate) fn is_whole_table(&self) -> bool {
        self.path.index.is_none() && self.is_everything()
    }

    /// Splits the conditions into those that narrow the search, and those that remain to be checked
    /// for each row.
    pub(crate) fn split<'e>(&self, filter: Option<&'e Expr>) -> (Vec<&'e Expr>, Vec<&'e Expr>) {
        let all = filter.map(Expr::conjuncts).unwrap_or_default();
        let mut narrowing: Vec<&'e Expr> = Vec::new();
        for part in &self.path.parts[..self.equal.len()] {
            narrowing.extend(all.iter().find(|it| equal_values(it, part).is_some()));
        }
        if let Some(part) = self.path.parts.get(self.equal.len()) {
            use Comparison::{Greater, GreaterOrEqual, Less, LessOrEqual};
            for ops in [[Greater, GreaterOrEqual], [Less, LessOrEqual]] {
                let is_bound =
                    |it: &&&Expr| compared(it, part).is_some_and(|(op, _)| ops.contains(&op));
                narrowing.extend(all.iter().find(is_bound));
            }
        }
        let index = self.path.index.as_ref();
        let predicate = index.and_then(|index| index.predicate.as_ref());
        // The predicate of a partial index holds for all its rows.
        let implied = predicate.map(Expr::conjuncts).unwrap_or_default();
        let is_left = |it: &&Expr| {
            !narrowing.iter().any(|other| std::ptr::eq(*other, *it)) && !implied.contains(it)
        };
        let rest = all.iter().copied().filter(is_left).collect();
        (narrowing, rest)
    }

    /// Whether it leads to few rows of a table.
    pub(crate) fn is_selective(&self) -> bool {
        !self.equal.is_empty()
    }

    /// Estimates how many of the table's rows it returns, after the filter if there is one.
    pub(crate) fn estimate(&self, rows: usize, is_filtered: bool) -> usize {
        let values: usize = self.equal.iter().map(Values::len).product();
        if self.is_point() {
            return values.min(rows);
        }
        // Each known column leaves a tenth of the rows, and each bound a third.
        let bounds = usize::from(self.lower.is_some()) + usize::from(self.upper.is_some());
        let shares = 10_usize.saturating_pow(self.equal.len() as u32) * 3_usize.pow(bounds as u32);
        let left = (rows / shares).saturating_mul(values).min(rows);
        let is_by_key = !self.is_everything();
        (if is_filtered && !is_by_key { left / 4 } else { left }).max(1)
    }

    /// Whether rows are returned in this sort order, in one direction, which is then chosen.
    pub(crate) fn sorts_by(&mut self, output: &[Expr], sort: &[SortKey]) -> bool {
        let parts = &self.path.parts;
        let mut at = 0;
        let mut is_reverse = None;
        for key in sort {
            let expr = &output[key.column];
            // A part with a single value does not affect the order.
            while at < parts.len()
                && parts[at].expr != *expr
                && self.equal.get(at).is_some_and(Values::is_one)
            {
                at += 1;
            }
            if at == parts.len() && self.path.index.is_none() {
                // The key is unique, so that further sort keys cannot change the order.
                break;
            }
            let Some(part) = parts.get(at).filter(|part| part.expr == *expr) else { return false };
            let turned = key.is_descending != (part.order == Order::Descending);
            let is_nulls_first = part.nulls.map(|nulls| (nulls == Nulls::First) != turned);
            let has_nulls_there = is_nulls_first.is_none_or(|first| first == key.is_nulls_first);
            if *is_reverse.get_or_insert(turned) != turned || !has_nulls_there {
                return false;
            }
            at += 1;
        }
        if parts.is_empty() {
            return false;
        }
        if is_reverse == Some(true) {
            self.direction = Direction::Reverse;
        }
        true
    }

    /// Whether the access is a full scan, which an index in sort order might replace.
    pub(crate) fn could_be_in_order(&self) -> bool {
        self.path.index.is_none() && self.is_everything()
    }

    /// Returns the places to search, in the order of the scan.
    pub(crate) fn places(&self, env: &Env) -> Result<Vec<Place>, SqlError> {
        let places = self.plain_places(env)?.into_iter();
        Ok(places.map(|place| self.path.stored(place)).collect())
    }

    /// Returns the places before the prefixes of PARTITION BY RANGE are added.
    fn plain_places(&self, env: &Env) -> Result<Vec<Place>, SqlError> {
        let mut prefixes = vec![Vec::new()];
        for (at, (part, values)) in self.path.parts.iter().zip(&self.equal).enumerate() {
            let values = values.eval(env)?;
            if prefixes.len().saturating_mul(values.len()) > PLACES_MAX {
                // Too many: search all keys with the prefixes so far.
                return Ok(self.whole(prefixes, at));
            }
            let mut encoded = Vec::with_capacity(values.len());
            for datum in values {
                if is_storable(part.base, &datum) {
                    let mut key = KeyEncoder::new();
                    part.append(&datum, &mut key)?;
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
        let is_point = self.is_point();
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

    /// Returns the ranges of all keys with these prefixes of this number of parts.
    fn whole(&self, prefixes: Vec<Vec<u8>>, parts: usize) -> Vec<Place> {
        assert!(parts < self.path.parts.len(), "a part follows");
        let places = prefixes.iter().map(|prefix| Place::Range(all_with(prefix)));
        match self.direction {
            Direction::Forward => places.collect(),
            Direction::Reverse => places.rev().collect(),
        }
    }

    /// Returns the range of keys with a prefix and the bounds; `None` if it is empty.
    fn range(&self, prefix: &[u8], env: &Env) -> Result<Option<KeyRange>, SqlError> {
        let Some(part) = self.path.parts.get(self.equal.len()) else {
            return Ok(Some(all_with(prefix)));
        };
        if self.lower.is_none() && self.upper.is_none() {
            return Ok(Some(all_with(prefix)));
        }
        // No value is less or greater than NULL.
        let mut key = KeyEncoder::after(prefix);
        part.append_marker(&mut key);
        let prefix = key.as_bytes().to_vec();
        let mut range = all_with(&prefix);
        for (bound, is_lower) in [(&self.lower, true), (&self.upper, false)] {
            let Some((value, is_included)) = bound else { continue };
            let is_start = is_lower != (part.order == Order::Descending);
            let key = match bound_key(&prefix, part, &value.eval(&[], env)?)? {
                BoundKey::Null => return Ok(None),
                BoundKey::BelowAll if is_lower => continue,
                BoundKey::AboveAll if !is_lower => continue,
                BoundKey::BelowAll | BoundKey::AboveAll => return Ok(None),
                BoundKey::At(key) => key,
            };
            let after = || KeyRange::prefix(&key).end;
            match (is_start, *is_included) {
                (true, true) => range.start = key,
                (true, false) => match after() {
                    Some(after) => range.start = after,
                    None => return Ok(None),
                },
                (false, true) => range.end = after(),
                (false, false) => range.end = Some(key),
            }
        }
        Ok((!range.is_empty()).then_some(range))
    }
}

/// Whether an index contains all rows for which the conditions hold.
fn may_be_read(path: &Path, conditions: &[&Expr]) -> bool {
    let index = path.index.as_ref().expect("an index");
    let needed = index.predicate.as_ref().map(Expr::conjuncts).unwrap_or_default();
    index.is_ready && needed.iter().all(|condition| conditions.contains(condition))
}

fn all_with(prefix: &[u8]) -> KeyRange {
    if prefix.is_empty() { KeyRange::all() } else { KeyRange::prefix(prefix) }
}

/// The position of a bound among the keys.
enum BoundKey {
    /// No value is less or greater than NULL.
    Null,
    BelowAll,
    AboveAll,
    At(Vec<u8>),
}

fn bound_key(prefix: &[u8], part: &Part, datum: &Datum) -> Result<BoundKey, SqlError> {
    Ok(match datum {
        Datum::Null => BoundKey::Null,
        Datum::Int(value) if !fits(part.base, *value) && *value < 0 => BoundKey::BelowAll,
        Datum::Int(value) if !fits(part.base, *value) => BoundKey::AboveAll,
        datum => {
            let mut key = KeyEncoder::after(prefix);
            keys::append(part.base, part.order, datum, &mut key)?;
            BoundKey::At(key.as_bytes().to_vec())
        }
    })
}

/// Whether a column can store a value.
fn is_storable(base: SqlType, datum: &Datum) -> bool {
    match datum {
        Datum::Null => false,
        Datum::Int(value) => fits(base, *value),
        _ => true,
    }
}

/// Whether an expression is a part of a key, possibly under casts that preserve its key.
fn is_part(expr: &Expr, part: &Part) -> bool {
    if *expr == part.expr {
        return true;
    }
    match expr {
        Expr::Unary(Unary::TrimBlanks, inner) => is_part(inner, part),
        Expr::Unary(Unary::Cast { from, to, .. }, inner) => {
            let keeps_key = from.is_integer() && to.base.is_integer()
                || *from == SqlType::Varchar && to.base == SqlType::Text;
            keeps_key && is_part(inner, part)
        }
        _ => false,
    }
}

/// Returns the comparison of a part of a key with a value that does not depend on the row.
fn compared(condition: &Expr, part: &Part) -> Option<(Comparison, Expr)> {
    let Expr::Binary(Binary::Compare(op, _), left, right) = condition else { return None };
    if is_part(left, part) && right.is_constant() {
        return Some((*op, (**right).clone()));
    }
    (is_part(right, part) && left.is_constant()).then(|| (op.mirrored(), (**left).clone()))
}

/// Returns the values that a condition allows for a part of a key.
fn equal_values(condition: &Expr, part: &Part) -> Option<Values> {
    const ANY: Function = Function::Array(ArrayFunction::Quantified {
        test: Test::Compare(Comparison::Equal),
        is_all: false,
    });
    let list = match condition {
        condition if *condition == part.expr => vec![Expr::Const(Datum::Bool(true))],
        Expr::In { operand, list, is_negated: false } => {
            let is_found = is_part(operand, part) && list.iter().all(Expr::is_constant);
            is_found.then(|| list.clone())?
        }
        Expr::Call(ANY, args) => {
            let is_found = is_part(&args[0], part) && args[1].is_constant();
            return is_found.then(|| Values::OfArray(args[1].clone()));
        }
        _ => match compared(condition, part)? {
            (Comparison::Equal, value) => vec![value],
            _ => return None,
        },
    };
    Some(Values::List(list))
}
