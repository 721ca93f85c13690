//! The isolation levels that clients ask for.

use std::fmt;
use std::str::FromStr;

use pangea_core::guarantee::{Isolation, Isolations};
use pangea_core::workload::Workload;

use crate::rng::SimRng;

/// The name of all levels together.
const MIXED: &str = "mixed";

/// One level or several. If there are several, each transaction draws its own.
///
/// ```
/// use pangea_core::guarantee::Isolation;
/// use pangea_sim::Levels;
///
/// let levels: Levels = "snapshot-isolation,read-committed".parse()?;
/// assert!(levels.all().eq([Isolation::ReadCommitted, Isolation::Snapshot]));
/// assert_eq!(levels.to_string(), "read-committed,snapshot-isolation");
/// assert_eq!("snapshot".parse(), Ok(Levels::from(Isolation::Snapshot)));
/// assert_eq!("mixed".parse(), Ok(Levels::MIXED));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Whether each level of [`Isolation::ALL`] is one of them.
    are_chosen: [bool; 4],
}

impl Levels {
    /// All levels.
    pub const MIXED: Self = Self { are_chosen: [true; 4] };

    /// The levels, the weakest first.
    pub fn all(self) -> impl Iterator<Item = Isolation> + Clone {
        let all = Isolation::ALL.into_iter().zip(self.are_chosen);
        all.filter_map(|(level, is_chosen)| is_chosen.then_some(level))
    }

    /// The strongest of them.
    pub fn strongest(self) -> Isolation {
        self.all().last().expect("there is at least one level")
    }

    /// Draws one of them. One level needs no draw.
    pub fn draw(self, dice: &mut SimRng) -> Isolation {
        let mut all = self.all();
        let count = all.clone().count();
        let at = if count == 1 { 0 } else { dice.index(count) };
        all.nth(at).expect("the index is below their number")
    }

    /// What a protocol grants if clients ask for these levels. It may be unable to grant some of
    /// them, but not all.
    pub fn granted(self, offered: Isolations) -> Option<Self> {
        let granted = self.all().filter_map(|level| offered.granted(level));
        Self::of(granted)
    }

    /// The same levels, but those at which the conditions of a workload do not hold are replaced by
    /// the weakest at which they do.
    #[must_use]
    pub fn for_workload(self, workload: &Workload) -> Self {
        let enough = self.all().map(|level| level.max(workload.weakest_level()));
        Self::of(enough).expect("there is at least one level")
    }

    /// These levels, if there are any.
    pub fn of(levels: impl Iterator<Item = Isolation>) -> Option<Self> {
        let mut are_chosen = [false; 4];
        levels.for_each(|level| {
            let all = Isolation::ALL.into_iter().zip(&mut are_chosen);
            all.for_each(|(it, is_chosen)| *is_chosen |= it == level);
        });
        are_chosen.contains(&true).then_some(Self { are_chosen })
    }
}

impl From<Isolation> for Levels {
    fn from(level: Isolation) -> Self {
        Self { are_chosen: Isolation::ALL.map(|it| it == level) }
    }
}

impl FromStr for Levels {
    type Err = String;

    fn from_str(names: &str) -> Result<Self, String> {
        if names == MIXED {
            return Ok(Self::MIXED);
        }
        let levels: Vec<Isolation> = names.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self::of(levels.into_iter()).expect("a text has at least one part"))
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::MIXED {
            return f.write_str(MIXED);
        }
        let names: Vec<&str> = self.all().map(Isolation::name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Isolation::{ReadCommitted, RepeatableRead, Serializable, Snapshot};

    #[test]
    fn every_combination_is_found_by_its_name() {
        for bits in 1..16u8 {
            let are_chosen = [0, 1, 2, 3].map(|at| bits >> at & 1 == 1);
            let levels = Levels { are_chosen };
            assert_eq!(levels.to_string().parse(), Ok(levels));
        }
        assert!("".parse::<Levels>().unwrap_err().contains("unknown isolation level"));
        assert!("mixed,serializable".parse::<Levels>().is_err());
    }

    #[test]
    fn each_level_is_drawn_and_one_alone_without_a_draw() {
        let dice = &mut SimRng::fork(1, "levels", 0);
        let levels = Levels::of([ReadCommitted, Snapshot].into_iter()).unwrap();
        let drawn = (0..50).map(|_| levels.draw(dice));
        assert_eq!(Levels::of(drawn), Some(levels));
        let mut other = SimRng::fork(1, "levels", 0);
        let again: Vec<Isolation> = (0..50).map(|_| levels.draw(&mut other)).collect();
        assert_eq!(again.len(), 50);
        assert_eq!(Levels::from(Snapshot).draw(dice), Snapshot);
        assert_eq!(dice.index(1_000), other.index(1_000));
    }

    #[test]
    fn a_level_that_is_not_granted_is_left_out_unless_it_is_the_only_one() {
        let weak = Isolations::new(ReadCommitted, &[Snapshot]);
        let granted = Levels::of([ReadCommitted, Snapshot].into_iter());
        assert_eq!(Levels::MIXED.granted(weak), granted);
        assert_eq!(Levels::from(Serializable).granted(weak), None);
        assert_eq!(Levels::from(RepeatableRead).granted(weak), Some(Snapshot.into()));
        let one = Isolations::new(Serializable, &[]);
        assert_eq!(Levels::MIXED.granted(one), Some(Serializable.into()));
    }
}
