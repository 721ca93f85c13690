//! A value of an enum: one of its labels.
//!
//! ```text
//!   in a row, in a key    only the place: bytes that sort as the labels do
//!   within a statement    the place, and the text that the statement's plan knows for it
//!   from a client         only the text, until the plan has looked it up
//! ```
//!
//! The place of a label never changes. If a label is renamed or gets new neighbours, rows and
//! indexes stay as they are. Between any two places there is always room for another
//! ([`Place::between`]): a place is a fraction whose digits are its bytes. The digit zero is not
//! used. The digit one stands for the missing digit of a shorter fraction, so it is never the last
//! digit.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// The digit of a fraction that has no more digits.
const LOWEST: u16 = 1;
/// One more than the highest digit.
const END: u16 = 256;

/// The position of a label among those of its enum.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place(Box<[u8]>);

impl Place {
    /// Returns a place from its bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns its bytes, which sort as places do.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns a place after `low` and before `high`. `None` is before or after all places.
    ///
    /// # Panics
    /// If they are not in order.
    pub fn between(low: Option<&Self>, high: Option<&Self>) -> Self {
        let low = low.map_or(&[][..], Self::as_bytes);
        let mut high = high.map(Self::as_bytes);
        assert!(high.is_none_or(|high| low < high), "{low:?} {high:?}");
        let is_last = high.is_none();
        let mut digits = Vec::with_capacity(low.len() + 1);
        for at in 0.. {
            let from = low.get(at).map_or(LOWEST, |digit| (*digit).into());
            let to = high.and_then(|high| high.get(at)).map_or(END, |digit| (*digit).into());
            if to > from + 1 {
                // Most labels are added at the end. There, this leaves as much room as possible.
                let digit = if is_last { from + 1 } else { from.midpoint(to) };
                digits.push(digit as u8);
                break;
            }
            digits.push(from as u8);
            if to > from {
                high = None;
            }
        }
        Self(digits.into())
    }
}

/// A value of an enum.
#[derive(Clone, Debug)]
pub struct Label {
    place: Option<Place>,
    text: Option<Box<str>>,
}

impl Label {
    /// Returns a label with its place and text.
    pub fn new(place: Place, text: &str) -> Self {
        Self { place: Some(place), text: Some(text.into()) }
    }

    /// Returns a label whose place has yet to be looked up.
    pub fn of_text(text: &str) -> Self {
        Self { place: None, text: Some(text.into()) }
    }

    /// Returns the label of a value in a row or a key.
    pub fn of_place(place: Place) -> Self {
        Self { place: Some(place), text: None }
    }

    /// Returns a label of decoded parts, or `None` if both are missing.
    pub(crate) fn of_parts(place: Option<Place>, text: Option<&str>) -> Option<Self> {
        let is_one = place.is_some() || text.is_some();
        is_one.then(|| Self { place, text: text.map(Into::into) })
    }

    /// Returns the place, or `None` if it has not been looked up yet.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// Returns the text, or `None` if it has not been looked up yet.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Returns the place.
    ///
    /// # Panics
    /// If it has not been looked up. The binder prevents this.
    pub(crate) fn known_place(&self) -> &Place {
        self.place.as_ref().unwrap_or_else(|| panic!("{self:?} has no place"))
    }

    /// Returns the text that a client receives.
    pub(crate) fn shown(&self) -> &str {
        self.text.as_deref().unwrap_or("?")
    }

    /// Compares two labels of one enum.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.known_place().cmp(other.known_place())
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        match (&self.place, &other.place) {
            (Some(a), Some(b)) => a == b,
            (a, b) => a == b && self.text == other.text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn labels_at_the_end_have_short_places() {
        let mut last: Option<Place> = None;
        for _ in 0..1_000 {
            let next = Place::between(last.as_ref(), None);
            assert!(last.is_none_or(|last| last < next));
            assert!(next.as_bytes().len() <= 4, "{next:?}");
            last = Some(next);
        }
    }

    proptest! {
        #[test]
        fn there_is_room_between_any_two_labels(at: Vec<prop::sample::Index>) {
            let mut places = vec![Place::between(None, None)];
            for at in at {
                let at = at.index(places.len() + 1);
                let low = at.checked_sub(1).map(|at| &places[at]);
                let new = Place::between(low, places.get(at));
                let last = *new.as_bytes().last().unwrap();
                prop_assert!(last > 1 && !new.as_bytes().contains(&0));
                places.insert(at, new);
            }
            prop_assert!(places.is_sorted());
        }
    }
}
