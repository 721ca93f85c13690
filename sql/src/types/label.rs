//! A value of an enum: one of its labels.
//!
//! ```text
//!   in a row, in a key    the place alone: bytes that sort as the labels do
//!   within a statement    the place, and the text that the statement's plan knows of it
//!   from a client         the text alone, until the plan has looked it up
//! ```
//!
//! A place is given once and never changes: a label that gets another text, or new neighbours,
//! leaves rows and indexes as they are. Between any two places there is room for one more, however
//! often ([`Place::between`]): a place is a fraction, whose digits are its bytes. Zero is none of
//! them, and one stands for what a shorter fraction has there, so that it is never the last.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// What stands where a fraction has no more digits.
const LOWEST: u16 = 1;
/// One more than the highest digit.
const END: u16 = 256;

/// Where a label stands among those of its enum.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place(Box<[u8]>);

impl Place {
    /// A place as it was written.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Its bytes, which sort as places do.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A place behind one and before another; none is before or behind all.
    ///
    /// # Panics
    /// When they are not in order.
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
                // At the end most labels are added: there they leave as much room as there is.
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
    /// A label that is wholly known.
    pub fn new(place: Place, text: &str) -> Self {
        Self { place: Some(place), text: Some(text.into()) }
    }

    /// A text that is yet to be looked up.
    pub fn of_text(text: &str) -> Self {
        Self { place: None, text: Some(text.into()) }
    }

    /// A value of a row or a key.
    pub fn of_place(place: Place) -> Self {
        Self { place: Some(place), text: None }
    }

    /// What was decoded of one; nothing where both are missing.
    pub(crate) fn of_parts(place: Option<Place>, text: Option<&str>) -> Option<Self> {
        let is_one = place.is_some() || text.is_some();
        is_one.then(|| Self { place, text: text.map(Into::into) })
    }

    /// Where it stands, once that was looked up.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// What it says, once that was looked up.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Its place.
    ///
    /// # Panics
    /// When it was not looked up: the binder sees to it.
    pub(crate) fn known_place(&self) -> &Place {
        self.place.as_ref().unwrap_or_else(|| panic!("{self:?} has no place"))
    }

    /// What a client is shown.
    pub(crate) fn shown(&self) -> &str {
        self.text.as_deref().unwrap_or("?")
    }

    /// The order of two labels of one enum.
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
