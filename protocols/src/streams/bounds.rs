//! Which numbers of a log have batches that count.

use std::collections::BTreeMap;

use pangea_core::codec::{DecodeError, Reader, Writer};

use super::{Bid, number};

/// The numbers of a log whose batches count. All do, unless its owner has ended the log at some
/// time: then later batches of the source do not count, and their numbers are not used again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The last batch that counts, if the log has ended.
    pub last: Option<Bid>,
    /// Ranges of numbers without batches: from the batch after the first number to the second.
    voids: BTreeMap<Bid, Bid>,
}

impl Bounds {
    /// The bounds of a log that has ended, for tests.
    #[cfg(test)]
    pub(crate) fn ended_at(last: Bid) -> Self {
        Self { last: Some(last), ..Self::default() }
    }

    /// Whether batches of this number count.
    pub(crate) fn counts(&self, bid: Bid) -> bool {
        let void = self.voids.range(..bid).next_back();
        self.last.is_none_or(|last| bid <= last) && void.is_none_or(|(_, upto)| bid > *upto)
    }

    /// The last number up to this one whose batch counts.
    pub(crate) fn last_upto(&self, bid: Bid) -> Bid {
        let bid = self.last.map_or(bid, |last| last.min(bid));
        let void = self.voids.range(..bid).next_back();
        void.filter(|(_, upto)| bid <= **upto).map_or(bid, |(after, _)| *after)
    }

    /// The end of the range without batches that begins after this batch, or in which it is.
    pub(super) fn void_after(&self, bid: Bid) -> Option<Bid> {
        let (_, upto) = self.voids.range(..=bid).next_back()?;
        (*upto > bid).then_some(*upto)
    }

    /// Continues a log that has ended, from the batch after `head` on.
    pub(crate) fn continue_after(&mut self, head: Bid) {
        let last = self.last.take().expect("the log has ended");
        self.voids.split_off(&last);
        if head > last {
            self.voids.insert(last, head);
        }
    }

    /// Appends them to `out`. [`Bounds::decode`] is the inverse.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(u8::from(self.last.is_some()));
        self.last.iter().for_each(|last| out.put_varint(last.0));
        out.put_varint(self.voids.len() as u64);
        for (after, upto) in &self.voids {
            out.put_varint(after.0);
            out.put_varint(upto.0 - after.0);
        }
    }

    /// Decodes the bytes that [`Bounds::encode`] wrote.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed.
    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const WHAT: &str = "bounds of a log";
        let last = match from.u8(WHAT)? {
            0 => None,
            1 => Some(Bid(number(from, WHAT)?)),
            _ => return Err(DecodeError::new(WHAT)),
        };
        let mut voids = BTreeMap::new();
        let mut end = None;
        for _ in 0..from.varint(WHAT)? {
            let after = Bid(number(from, WHAT)?);
            let upto = Bid(after.0 + number(from, WHAT)?);
            if upto == after || end.is_some_and(|end| after <= end) {
                return Err(DecodeError::new(WHAT));
            }
            end = Some(upto);
            voids.insert(after, upto);
        }
        Ok(Self { last, voids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_after_an_end_and_before_the_continuation_do_not_count() {
        let mut bounds = Bounds::ended_at(Bid(10));
        assert!(bounds.counts(Bid(10)) && !bounds.counts(Bid(11)));
        bounds.continue_after(Bid(15));
        let counted: Vec<u64> = (9..18).filter(|bid| bounds.counts(Bid(*bid))).collect();
        assert_eq!(counted, [9, 10, 16, 17]);
        let last: Vec<u64> = (9..18).map(|bid| bounds.last_upto(Bid(bid)).0).collect();
        assert_eq!(last, [9, 10, 10, 10, 10, 10, 10, 16, 17]);
        assert_eq!(Bounds::ended_at(Bid(10)).last_upto(Bid(11)), Bid(10));
        assert_eq!(
            [9, 10, 12, 15].map(|bid| bounds.void_after(Bid(bid)).map(|it| it.0)),
            [None, Some(15), Some(15), None]
        );
        // It is cut again, before the earlier end.
        bounds.last = Some(Bid(8));
        bounds.continue_after(Bid(20));
        assert_eq!(bounds.void_after(Bid(8)), Some(Bid(20)));
        assert!(!bounds.counts(Bid(16)) && bounds.counts(Bid(21)));
    }

    #[test]
    fn bounds_survive_their_encoding_and_malformed_ones_are_refused() {
        let mut bounds = Bounds::ended_at(Bid(10));
        bounds.continue_after(Bid(15));
        bounds.last = Some(Bid(300));
        let mut bytes = Vec::new();
        bounds.encode(&mut bytes);
        let reader = &mut Reader::new(&bytes);
        assert_eq!(Bounds::decode(reader).unwrap(), bounds);
        assert!(reader.is_empty());
        for malformed in [&[2][..], &[0, 1], &[0, 1, 5, 0], &[0, 2, 5, 3, 7, 2], &[1]] {
            assert!(Bounds::decode(&mut Reader::new(malformed)).is_err(), "{malformed:?}");
        }
    }
}
