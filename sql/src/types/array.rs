//! Arrays: values of one type in up to six dimensions. Every dimension is counted from 1.
//!
//! The order is PostgreSQL's. Arrays are compared by the first elements that differ, then by the
//! number of elements, then by the dimensions. NULL is greater than any value, and equals itself.

mod literal;

use std::cmp::Ordering;

use super::datum::Datum;
use super::zone::Zone;
use super::{Element, check_parted, text};
use crate::error::{SqlError, code};

/// Maximum number of dimensions of an array, as in PostgreSQL.
pub const DIMENSIONS_MAX: usize = 6;
/// Maximum number of elements of an array, as in PostgreSQL.
const ITEMS_MAX: usize = 134_217_727;

/// The elements of an array. The last dimension varies fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    dims: Vec<usize>,
    items: Vec<Datum>,
}

impl Array {
    /// Returns an array of one dimension, or of no dimension if it is empty.
    pub fn of(items: Vec<Datum>) -> Self {
        let dims = if items.is_empty() { vec![] } else { vec![items.len()] };
        Self { dims, items }
    }

    /// Returns an array of the given dimensions.
    ///
    /// # Errors
    /// If it has too many dimensions or elements.
    ///
    /// # Panics
    /// If the number of elements is not the product of the dimensions.
    pub fn new(dims: Vec<usize>, items: Vec<Datum>) -> Result<Self, SqlError> {
        check_dimensions(dims.len())?;
        if items.len() > ITEMS_MAX {
            let message = format!("array size exceeds the maximum allowed ({ITEMS_MAX})");
            return Err(SqlError::new(code::LIMIT_EXCEEDED, message));
        }
        if items.is_empty() {
            return Ok(Self::of(items));
        }
        assert_eq!(dims.iter().product::<usize>(), items.len(), "{dims:?}");
        Ok(Self { dims, items })
    }

    /// Returns the number of elements of each dimension. An empty array has no dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Returns the elements.
    pub fn items(&self) -> &[Datum] {
        &self.items
    }

    /// Compares two arrays of one type.
    pub fn compare(&self, other: &Self) -> Ordering {
        let pairs = self.items.iter().zip(&other.items);
        let by_items = pairs.map(|(a, b)| compare_items(a, b)).find(|order| order.is_ne());
        by_items
            .unwrap_or_else(|| self.items.len().cmp(&other.items.len()))
            .then_with(|| self.dims.len().cmp(&other.dims.len()))
            .then_with(|| self.dims.cmp(&other.dims))
    }

    /// Parses an array literal.
    ///
    /// # Errors
    /// If it is malformed, or an element is not of the type.
    pub fn parse(element: Element, text: &str, zone: &Zone) -> Result<Self, SqlError> {
        check_parted(text)?;
        let (dims, words) = literal::read(text)?;
        let parsed = words.into_iter().map(|word| match word {
            Some(word) => text::parse(element.base(), &word, zone),
            None => Ok(Datum::Null),
        });
        Self::new(dims, parsed.collect::<Result<_, _>>()?)
    }

    /// Formats the array for clients.
    pub fn format(&self, element: Element, zone: &Zone) -> String {
        let mut out = String::new();
        if self.items.is_empty() {
            return "{}".to_owned();
        }
        for (at, item) in self.items.iter().enumerate() {
            self.put_opening(at, &mut out);
            match item {
                Datum::Null => out.push_str("NULL"),
                item => literal::put_quoted(&text::format(element.base(), item, zone), &mut out),
            }
            self.put_closing(at, &mut out);
        }
        out
    }

    /// Appends the text before an element: a comma, and a brace for each dimension that begins
    /// there.
    fn put_opening(&self, at: usize, out: &mut String) {
        if at > 0 {
            out.push(',');
        }
        self.strides().filter(|stride| at.is_multiple_of(*stride)).for_each(|_| out.push('{'));
    }

    fn put_closing(&self, at: usize, out: &mut String) {
        self.strides()
            .filter(|stride| (at + 1).is_multiple_of(*stride))
            .for_each(|_| out.push('}'));
    }

    /// Returns the number of elements in one subarray of each level, beginning with the whole
    /// array.
    fn strides(&self) -> impl Iterator<Item = usize> {
        (0..self.dims.len()).map(|from| self.dims[from..].iter().product())
    }

    /// Returns the element at a position, counted from 1. Returns `None` if it does not exist.
    pub fn at(&self, place: &[i64]) -> Option<&Datum> {
        if place.len() != self.dims.len() {
            return None;
        }
        let mut offset = 0;
        for (&at, &len) in place.iter().zip(&self.dims) {
            let at = usize::try_from(at.checked_sub(1)?).ok().filter(|at| *at < len)?;
            offset = offset * len + at;
        }
        self.items.get(offset)
    }

    /// Returns the slice between bounds, one pair for each dimension. Dimensions without bounds are
    /// not reduced.
    #[must_use]
    pub fn slice(&self, bounds: &[(Option<i64>, Option<i64>)]) -> Self {
        if bounds.len() > self.dims.len() {
            return Self::of(vec![]);
        }
        let mut ranges = Vec::with_capacity(self.dims.len());
        for (at, &len) in self.dims.iter().enumerate() {
            let (low, high) = bounds.get(at).copied().unwrap_or_default();
            let low = low.unwrap_or(1).max(1);
            let high = high.unwrap_or(len as i64).min(len as i64);
            if low > high {
                return Self::of(vec![]);
            }
            ranges.push((low as usize - 1)..high as usize);
        }
        let mut items = Vec::new();
        for (offset, item) in self.items.iter().enumerate() {
            let mut rest = offset;
            let mut is_inside = true;
            for (range, &len) in ranges.iter().zip(&self.dims).rev() {
                is_inside &= range.contains(&(rest % len));
                rest /= len;
            }
            if is_inside {
                items.push(item.clone());
            }
        }
        Self { dims: ranges.iter().map(ExactSizeIterator::len).collect(), items }
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.items.iter().map(Datum::size).sum::<usize>()
    }
}

/// # Errors
/// If an array cannot have this number of dimensions.
pub fn check_dimensions(count: usize) -> Result<(), SqlError> {
    if count <= DIMENSIONS_MAX {
        return Ok(());
    }
    let message = format!(
        "number of array dimensions ({count}) exceeds the maximum allowed ({DIMENSIONS_MAX})"
    );
    Err(SqlError::new(code::LIMIT_EXCEEDED, message))
}

/// Compares two values, either of which may be NULL.
pub fn compare_items(a: &Datum, b: &Datum) -> Ordering {
    match (a.is_null(), b.is_null()) {
        (false, false) => a.compare(b),
        (a, b) => a.cmp(&b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SqlType;

    fn array(text: &str) -> Array {
        Array::parse(Element::of(SqlType::Int4).unwrap(), text, &Zone::default()).unwrap()
    }

    #[test]
    fn arrays_are_shown_as_they_are_read() {
        let element = Element::of(SqlType::Int4).unwrap();
        for text in ["{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "{{{1},{2}},{{3},{4}}}"] {
            assert_eq!(array(text).format(element, &Zone::default()), text);
        }
    }

    #[test]
    fn the_order_is_that_of_values_then_of_shapes() {
        let ascending = ["{}", "{1}", "{1,1}", "{{1,1}}", "{{1},{1}}", "{1,2}", "{1,NULL}", "{2}"];
        for pair in ascending.windows(2) {
            assert!(array(pair[0]).compare(&array(pair[1])).is_lt(), "{pair:?}");
        }
    }

    #[test]
    fn slices_keep_whole_what_they_do_not_name() {
        let all = array("{{1,2,3},{4,5,6}}");
        assert_eq!(all.slice(&[(Some(2), None)]), array("{{4,5,6}}"));
        assert_eq!(all.slice(&[(None, None), (Some(-5), Some(2))]), array("{{1,2},{4,5}}"));
        assert_eq!(all.slice(&[(Some(3), Some(9))]), array("{}"));
        assert_eq!(all.at(&[2, 3]), Some(&Datum::Int(6)));
        assert_eq!((all.at(&[2]), all.at(&[0, 1]), all.at(&[3, 1])), (None, None, None));
    }
}
