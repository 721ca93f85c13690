//! Grouping of rows.

use std::borrow::Cow;

use pangea_core::hash::HashMap;
use pangea_core::key::Key;
use pangea_core::key::encode::KeyEncoder;

use super::aggregate::State;
use crate::error::SqlError;
use crate::expr::Env;
use crate::keys;
use crate::plan::Grouping;
use crate::result_memory::{ResultReservation, size_of_row};
use crate::types::datum::Datum;

/// The groups so far.
pub(super) struct Groups<'a> {
    grouping: &'a Grouping,
    /// Whether rows arrive in any order.
    is_any_order: bool,
    places: HashMap<Key, usize>,
    groups: Vec<Group>,
    /// Size of the groups, in bytes.
    bytes: usize,
    reservation: ResultReservation,
    key: KeyEncoder,
}

/// The values of the grouping keys, and the state of each aggregate.
struct Group {
    keys: Vec<Datum>,
    states: Vec<State>,
}

impl<'a> Groups<'a> {
    /// Creates an empty set of groups.
    pub(super) fn new(grouping: &'a Grouping, is_any_order: bool, env: &Env) -> Self {
        let reservation = ResultReservation::of(env.results.as_ref());
        let (places, groups, key) = (HashMap::default(), Vec::new(), KeyEncoder::new());
        let mut new = Self { grouping, is_any_order, places, groups, bytes: 0, reservation, key };
        // Without GROUP BY there is one group, even for no rows.
        if grouping.keys.is_empty() {
            new.groups.push(new.group(Vec::new()));
        }
        new
    }

    fn group(&self, keys: Vec<Datum>) -> Group {
        let state = if self.is_any_order { State::of_any_order() } else { State::new() };
        Group { keys, states: vec![state; self.grouping.aggregates.len()] }
    }

    /// Adds a row to its group.
    pub(super) fn add(&mut self, row: &[Datum], env: &Env) -> Result<(), SqlError> {
        let place = self.place(row, env)?;
        for (state, aggregate) in
            self.groups[place].states.iter_mut().zip(&self.grouping.aggregates)
        {
            state.add(aggregate, row, env)?;
        }
        Ok(())
    }

    /// Counts rows, for aggregates that need only their number.
    pub(super) fn add_count(&mut self, rows: usize) {
        self.groups[0].states.iter_mut().for_each(|state| state.add_count(rows));
    }

    /// Returns the position of a row's group.
    fn place(&mut self, row: &[Datum], env: &Env) -> Result<usize, SqlError> {
        if self.grouping.keys.is_empty() {
            return Ok(0);
        }
        self.key.clear();
        for (key, base) in &self.grouping.keys {
            let value = key.value(row, env)?;
            keys::append_group(*base, &value, &mut self.key)?;
        }
        if let Some(place) = self.places.get(self.key.as_bytes()) {
            return Ok(*place);
        }
        let values = self.grouping.keys.iter().map(|(key, _)| key.value(row, env));
        let values = values.map(|value| value.map(Cow::into_owned)).collect::<Result<_, _>>()?;
        self.place_new(Key::from(self.key.as_bytes()), values)
    }

    fn place_new(&mut self, key: Key, values: Vec<Datum>) -> Result<usize, SqlError> {
        let place = self.groups.len();
        let size = key.len() + size_of_row(&values);
        self.bytes += size;
        super::check_size(place + 1, self.bytes)?;
        self.reservation.take(size)?;
        let group = self.group(values);
        self.groups.push(group);
        self.places.insert(key, place);
        Ok(place)
    }

    /// Merges the groups of other rows.
    pub(super) fn merge(&mut self, other: Self) -> Result<(), SqlError> {
        let mut theirs: Vec<Option<Group>> = other.groups.into_iter().map(Some).collect();
        if self.grouping.keys.is_empty() {
            return self.merge_group(0, theirs.pop().flatten());
        }
        for (key, at) in other.places {
            let group = theirs[at].take();
            let place = match self.places.get(&key) {
                Some(place) => *place,
                None => {
                    let keys = group.as_ref().map(|group| group.keys.clone());
                    self.place_new(key, keys.unwrap_or_default())?
                }
            };
            self.merge_group(place, group)?;
        }
        Ok(())
    }

    fn merge_group(&mut self, place: usize, other: Option<Group>) -> Result<(), SqlError> {
        let states = other.into_iter().flat_map(|group| group.states);
        let own = self.groups[place].states.iter_mut();
        for ((state, other), aggregate) in own.zip(states).zip(&self.grouping.aggregates) {
            state.merge(aggregate, other)?;
        }
        Ok(())
    }

    /// Returns the groups that satisfy HAVING, in key order, and their memory reservation. A
    /// group's columns are the keys, then the aggregates.
    pub(super) fn finish(
        self,
        env: &Env,
    ) -> Result<(Vec<Vec<Datum>>, ResultReservation), SqlError> {
        let Self { grouping, places, mut groups, reservation, .. } = self;
        let mut order: Vec<(Key, usize)> = places.into_iter().collect();
        order.sort_unstable();
        if grouping.keys.is_empty() {
            order.push((Key::from(&[][..]), 0));
        }
        let mut finished = Vec::with_capacity(order.len());
        for (_, at) in order {
            let Group { keys: mut group, states } =
                std::mem::replace(&mut groups[at], Group { keys: Vec::new(), states: Vec::new() });
            for (state, aggregate) in states.into_iter().zip(&grouping.aggregates) {
                group.push(state.finish(aggregate)?);
            }
            let is_left = grouping.having.as_ref().map(|having| having.is_true(&group, env));
            if is_left.unwrap_or(Ok(true))? {
                finished.push(group);
            }
        }
        Ok((finished, reservation))
    }
}
