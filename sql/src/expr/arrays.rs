//! Functions over arrays. The binder has converted the values of a call to one type.

use std::sync::Arc;

use super::Comparison;
use super::functions::{integer, text};
use super::strings;
use crate::error::{SqlError, code};
use crate::types::array::{Array, check_dimensions, compare_items};
use crate::types::datum::Datum;
use crate::types::text::format;
use crate::types::zone::Zone;
use crate::types::{Element, PARTED_BYTES_MAX, SqlType, check_parted};

/// A function over arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrayFunction {
    /// `ARRAY[..]` of elements
    Make,
    /// `ARRAY[..]` of arrays
    Nest,
    /// `a[1][2]`
    At,
    /// `a[1:2][3:]`: two arguments for each dimension. Bit n of `given` is set if bound n is
    /// present; the argument of a missing bound is NULL.
    Slice {
        given: u16,
    },
    /// `x op ANY(a)`, `x op ALL(a)`
    Quantified {
        test: Test,
        is_all: bool,
    },
    Contains,
    IsContained,
    Overlaps,
    Length,
    Lower,
    Cardinality,
    Dimensions,
    DimensionsText,
    Append,
    Prepend,
    Concat,
    Remove,
    Replace,
    Position,
    Positions,
    Join(SqlType),
    Split,
    Trim,
    Fill,
}

/// The test that is applied to each element of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Compare(Comparison),
    Like { is_negated: bool, is_case_blind: bool },
}

use ArrayFunction as F;

fn array(datum: &Datum) -> &Array {
    match datum {
        Datum::Array(array) => array,
        other => panic!("{other:?} is not an array"),
    }
}

fn made(dims: Vec<usize>, items: Vec<Datum>) -> Result<Datum, SqlError> {
    Ok(Datum::Array(Arc::new(Array::new(dims, items)?)))
}

fn count(count: usize) -> Datum {
    Datum::Int(count as i64)
}

impl ArrayFunction {
    /// Whether the function handles NULL arguments itself.
    pub(super) fn takes_nulls(self) -> bool {
        !matches!(
            self,
            F::Contains
                | F::IsContained
                | F::Overlaps
                | F::Length
                | F::Lower
                | F::Cardinality
                | F::Dimensions
                | F::DimensionsText
                | F::Trim
                | F::At
        )
    }

    /// Calls the function.
    pub(super) fn call(self, args: &[Datum], zone: &Zone) -> Result<Datum, SqlError> {
        match self {
            F::Make => made(vec![args.len()], args.to_vec()),
            F::Nest => nest(args),
            F::At => {
                let place: Vec<i64> = args[1..].iter().map(integer).collect();
                Ok(array(&args[0]).at(&place).cloned().unwrap_or(Datum::Null))
            }
            F::Slice { given } => Ok(slice(args, given)),
            F::Quantified { test, is_all } => quantified(test, is_all, &args[0], &args[1]),
            F::Contains => Ok(Datum::Bool(contains(array(&args[0]), array(&args[1])))),
            F::IsContained => Ok(Datum::Bool(contains(array(&args[1]), array(&args[0])))),
            F::Overlaps => {
                let (a, b) = (array(&args[0]), array(&args[1]));
                Ok(Datum::Bool(b.items().iter().any(|item| holds(a, item))))
            }
            F::Cardinality => Ok(count(array(&args[0]).items().len())),
            F::Length | F::Lower | F::Dimensions | F::DimensionsText => Ok(self.shape(args)),
            F::Append | F::Prepend => add(self == F::Append, args),
            F::Concat => concat(&args[0], &args[1]),
            F::Remove | F::Replace => replace(args),
            F::Position | F::Positions => self.positions(args),
            F::Join(base) => Ok(join(base, args, zone)),
            F::Split => {
                if let Datum::Text(text) = &args[0] {
                    check_parted(text)?;
                }
                Ok(split(args))
            }
            F::Trim => trim(array(&args[0]), integer(&args[1])),
            F::Fill => fill(args),
        }
    }

    fn shape(self, args: &[Datum]) -> Datum {
        let dims = array(&args[0]).dims();
        let asked = || {
            let at = usize::try_from(integer(&args[1]).checked_sub(1)?).ok()?;
            dims.get(at).copied()
        };
        match self {
            F::Length => asked().map_or(Datum::Null, count),
            F::Lower => asked().map_or(Datum::Null, |_| Datum::Int(1)),
            _ if dims.is_empty() => Datum::Null,
            F::Dimensions => count(dims.len()),
            _ => Datum::Text(dims.iter().map(|len| format!("[1:{len}]")).collect()),
        }
    }

    fn positions(self, args: &[Datum]) -> Result<Datum, SqlError> {
        if args[0].is_null() {
            return Ok(Datum::Null);
        }
        let (within, wanted) = (array(&args[0]), &args[1]);
        if within.dims().len() > 1 {
            let message = "searching for elements in multidimensional arrays is not supported";
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message));
        }
        let first = match args.get(2) {
            Some(Datum::Null) => {
                let message = "initial position must not be null";
                return Err(SqlError::new(code::NULL_NOT_ALLOWED, message));
            }
            Some(first) => integer(first),
            None => 1,
        };
        let is_found = |(_, item): &(i64, &Datum)| compare_items(item, wanted).is_eq();
        let mut found =
            (1..).zip(within.items()).filter(is_found).map(|(at, _)| at).filter(|at| *at >= first);
        Ok(match self {
            F::Position => found.next().map_or(Datum::Null, Datum::Int),
            _ => Datum::array(found.map(Datum::Int).collect()),
        })
    }
}

/// Whether an array contains a value. NULL is never contained.
fn holds(array: &Array, item: &Datum) -> bool {
    !item.is_null()
        && array.items().iter().any(|other| !other.is_null() && other.compare(item).is_eq())
}

fn contains(all: &Array, some: &Array) -> bool {
    some.items().iter().all(|item| holds(all, item))
}

/// Combines arrays of the same shape into one with an additional dimension.
fn nest(args: &[Datum]) -> Result<Datum, SqlError> {
    let mismatch = || {
        let message =
            "multidimensional arrays must have array expressions with matching dimensions";
        SqlError::new(code::ARRAY_SUBSCRIPT, message)
    };
    let mut dims = None;
    let (mut items, mut has_empty) = (Vec::new(), false);
    for arg in args {
        // NULL counts as an empty array, which matches only empty arrays.
        let inner = match arg {
            Datum::Null => None,
            arg => Some(array(arg)).filter(|inner| !inner.items().is_empty()),
        };
        let Some(inner) = inner else {
            has_empty = true;
            continue;
        };
        if *dims.get_or_insert(inner.dims()) != inner.dims() {
            return Err(mismatch());
        }
        items.extend(inner.items().iter().cloned());
    }
    let Some(inner) = dims else { return Ok(Datum::array(vec![])) };
    if has_empty {
        return Err(mismatch());
    }
    check_dimensions(inner.len() + 1)?;
    made([&[args.len()], inner].concat(), items)
}

fn slice(args: &[Datum], given: u16) -> Datum {
    let is_given = |at: usize| given & 1 << at != 0;
    let is_null = |at: usize| args[at + 1].is_null() && is_given(at);
    let bounds = args.len() - 1;
    if args[0].is_null() || (0..bounds).any(is_null) {
        return Datum::Null;
    }
    let bound = |at: usize| is_given(at).then(|| integer(&args[at + 1]));
    let bounds: Vec<_> = (0..bounds).step_by(2).map(|at| (bound(at), bound(at + 1))).collect();
    Datum::Array(Arc::new(array(&args[0]).slice(&bounds)))
}

fn quantified(test: Test, is_all: bool, operand: &Datum, list: &Datum) -> Result<Datum, SqlError> {
    if list.is_null() {
        return Ok(Datum::Null);
    }
    let mut has_unknown = false;
    for item in array(list).items() {
        if item.is_null() || operand.is_null() {
            has_unknown = true;
            continue;
        }
        let is_met = match test {
            Test::Compare(op) => op.holds(operand.compare(item)),
            Test::Like { is_negated, is_case_blind } => {
                strings::like(text(operand), text(item), "\\", is_case_blind)? != is_negated
            }
        };
        if is_met != is_all {
            return Ok(Datum::Bool(is_met));
        }
    }
    Ok(if has_unknown { Datum::Null } else { Datum::Bool(is_all) })
}

fn add(is_append: bool, args: &[Datum]) -> Result<Datum, SqlError> {
    let (list, item) = if is_append { (&args[0], &args[1]) } else { (&args[1], &args[0]) };
    let before = match list {
        Datum::Null => &[][..],
        list if array(list).dims().len() > 1 => {
            let message = "argument must be empty or one-dimensional array";
            return Err(SqlError::new(code::DATA_EXCEPTION, message));
        }
        list => array(list).items(),
    };
    let one = std::slice::from_ref(item);
    let items = if is_append { [before, one].concat() } else { [one, before].concat() };
    made(vec![items.len()], items)
}

fn concat(left: &Datum, right: &Datum) -> Result<Datum, SqlError> {
    if left.is_null() || right.is_null() {
        return Ok(if left.is_null() { right.clone() } else { left.clone() });
    }
    let (a, b) = (array(left), array(right));
    if a.items().is_empty() || b.items().is_empty() {
        return Ok(if a.items().is_empty() { right.clone() } else { left.clone() });
    }
    let incompatible = |detail: String| {
        let message = "cannot concatenate incompatible arrays";
        SqlError::new(code::ARRAY_SUBSCRIPT, message).with_detail(detail)
    };
    let (x, y) = (a.dims(), b.dims());
    // An array with one dimension less is appended as an element of the other.
    let (inner_a, inner_b, length, subject) = match x.len() as i64 - y.len() as i64 {
        0 => (&x[1..], &y[1..], x[0] + y[0], "element "),
        1 => (&x[1..], y, x[0] + 1, ""),
        -1 => (x, &y[1..], y[0] + 1, ""),
        _ => {
            return Err(incompatible(format!(
                "Arrays of {} and {} dimensions are not compatible for concatenation.",
                x.len(),
                y.len()
            )));
        }
    };
    if inner_a != inner_b {
        return Err(incompatible(format!(
            "Arrays with differing {subject}dimensions are not compatible for concatenation."
        )));
    }
    made([&[length], inner_a].concat(), [a.items(), b.items()].concat())
}

/// `array_replace`; with two arguments, `array_remove`.
fn replace(args: &[Datum]) -> Result<Datum, SqlError> {
    if args[0].is_null() {
        return Ok(Datum::Null);
    }
    let (all, wanted) = (array(&args[0]), &args[1]);
    let is_wanted = |item: &Datum| compare_items(item, wanted).is_eq();
    if let Some(with) = args.get(2) {
        let items = all.items().iter();
        let items = items.map(|item| if is_wanted(item) { with } else { item }.clone());
        return made(all.dims().to_vec(), items.collect());
    }
    if all.dims().len() > 1 {
        let message = "removing elements from multidimensional arrays is not supported";
        return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message));
    }
    Ok(Datum::array(all.items().iter().filter(|item| !is_wanted(item)).cloned().collect()))
}

fn join(base: SqlType, args: &[Datum], zone: &Zone) -> Datum {
    if args[0].is_null() || args[1].is_null() {
        return Datum::Null;
    }
    let for_null = args.get(2).filter(|text| !text.is_null()).map(text);
    let words = array(&args[0]).items().iter().filter_map(|item| match item {
        Datum::Null => for_null.map(str::to_owned),
        item => Some(format(base, item, zone)),
    });
    Datum::Text(words.collect::<Vec<_>>().join(text(&args[1])))
}

fn split(args: &[Datum]) -> Datum {
    if args[0].is_null() {
        return Datum::Null;
    }
    let string = text(&args[0]);
    let for_null = args.get(2).filter(|text| !text.is_null()).map(text);
    let words: Vec<String> = match &args[1] {
        _ if string.is_empty() => vec![],
        Datum::Null => string.chars().map(String::from).collect(),
        separator if text(separator).is_empty() => vec![string.to_owned()],
        separator => string.split(text(separator)).map(str::to_owned).collect(),
    };
    let word = |word: String| {
        if for_null == Some(word.as_str()) { Datum::Null } else { Datum::Text(word) }
    };
    Datum::array(words.into_iter().map(word).collect())
}

fn trim(all: &Array, cut: i64) -> Result<Datum, SqlError> {
    let length = all.dims().first().map_or(0, |len| *len as i64);
    if !(0..=length).contains(&cut) {
        let message = format!("number of elements to trim must be between 0 and {length}");
        return Err(SqlError::new(code::ARRAY_SUBSCRIPT, message));
    }
    Ok(Datum::Array(Arc::new(all.slice(&[(None, Some(length - cut))]))))
}

fn fill(args: &[Datum]) -> Result<Datum, SqlError> {
    let null = |message| Err(SqlError::new(code::NULL_NOT_ALLOWED, message));
    if args[1].is_null() {
        return null("dimension array or low bound array cannot be null");
    }
    let lengths = array(&args[1]);
    if lengths.dims().len() > 1 {
        let message = "wrong number of array subscripts";
        return Err(SqlError::new(code::ARRAY_SUBSCRIPT, message)
            .with_detail("Dimension array must be one dimensional."));
    }
    if lengths.items().iter().any(Datum::is_null) {
        return null("dimension values cannot be null");
    }
    check_dimensions(lengths.items().len())?;
    let lengths = lengths.items().iter().map(integer).collect::<Vec<_>>();
    let too_large = || {
        let message = format!("array size exceeds the maximum allowed ({FILLED_MAX})");
        SqlError::new(code::LIMIT_EXCEEDED, message)
    };
    let mut total = 1usize;
    let mut dims = Vec::with_capacity(lengths.len());
    for length in &lengths {
        let length = usize::try_from(*length).map_err(|_| too_large())?;
        total = total.checked_mul(length).filter(|all| *all <= FILLED_MAX).ok_or_else(too_large)?;
        dims.push(length);
    }
    let total = if dims.is_empty() { 0 } else { total };
    if args[0].size().saturating_mul(total) > 2 * PARTED_BYTES_MAX {
        return Err(too_large());
    }
    made(dims, vec![args[0].clone(); total])
}

/// Maximum number of elements that `array_fill` creates. Limits the memory that a few bytes of SQL
/// can use.
const FILLED_MAX: usize = 1 << 20;

/// Applies a function to each element of an array.
pub(super) fn map(
    all: &Array,
    mut change: impl FnMut(Datum) -> Result<Datum, SqlError>,
) -> Result<Datum, SqlError> {
    let items = all.items().iter().map(|item| match item {
        Datum::Null => Ok(Datum::Null),
        item => change(item.clone()),
    });
    made(all.dims().to_vec(), items.collect::<Result<_, _>>()?)
}

/// Returns the array type with elements of a type.
///
/// # Errors
/// Fails if there is no such array type.
pub(super) fn array_of(base: SqlType) -> Result<SqlType, SqlError> {
    let known = base.array().filter(|_| Element::of(base).is_some() || base.element().is_some());
    known.ok_or_else(|| {
        let message = format!("could not find array type for data type {base}");
        SqlError::new(code::UNDEFINED_OBJECT, message)
    })
}
