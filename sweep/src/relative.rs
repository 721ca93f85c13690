//! Values as a figure has them: for each of something, and as how many times less than another run.

use crate::plan::Figure;
use crate::points::Point;
use crate::results::{Results, Spread};

/// What a figure's values are of.
#[derive(Clone, Copy)]
pub struct Relative<'a> {
    /// The figure.
    pub figure: &'a Figure,
    /// All points of the plan, those too that it does not show.
    pub points: &'a [Point],
    /// What they have.
    pub results: &'a Results,
    /// Of which build.
    pub build: &'a str,
}

impl Relative<'_> {
    /// What a point has.
    pub fn value(&self, point: &Point, y: &str) -> Option<Spread> {
        let value = self.of_each(point, y)?;
        if self.figure.slowdown_from.is_empty() {
            return Some(value);
        }
        Some(value.slowdown_from(self.reference(point, y)?))
    }

    /// What the run has that a point is compared with, if that was made.
    pub fn reference(&self, point: &Point, y: &str) -> Option<f64> {
        let reference = self.figure.reference_of(point, self.points)?;
        Some(self.of_each(reference, y)?.median)
    }

    fn of_each(&self, point: &Point, y: &str) -> Option<Spread> {
        let value = self.results.spread(&point.key(self.build), y)?;
        let per = self.figure.per.as_ref();
        let count = per.and_then(|name| point.coordinate(name)?.number());
        Some(count.map_or(value, |count| value.over(count)))
    }

    /// What stands at the y axis, of a measure that has this label.
    pub fn label(&self, measure: String) -> String {
        let Figure { per, slowdown_from, .. } = self.figure;
        match (per, slowdown_from.is_empty()) {
            (_, false) => "times less".to_owned(),
            (Some(per), true) => format!("{measure}, by {per}"),
            (None, true) => measure,
        }
    }
}

impl Figure {
    /// Whether others are compared with a point.
    pub fn is_reference(&self, point: &Point) -> bool {
        let mut all = self.slowdown_from.iter();
        !self.slowdown_from.is_empty()
            && all.all(|(name, value)| point.coordinate(name).as_ref() == Some(value))
    }

    /// What a point is compared with: differs from it in nothing else that tells runs
    /// apart, so that there is one at most.
    fn reference_of<'a>(&self, point: &Point, points: &'a [Point]) -> Option<&'a Point> {
        let is_same = |other: &Point| {
            let by_others = |name: &&String| self.slowdown_from.iter().all(|(it, _)| it != *name);
            let mut labels = other.labels.keys().filter(by_others);
            labels.all(|name| other.labels.get(name) == point.labels.get(name))
        };
        let same = |other: &&Point| other.engine == point.engine && is_same(other);
        points.iter().filter(|other| self.is_reference(other)).find(same)
    }

    /// Refuses a point that can't be put in relation.
    ///
    /// # Errors
    /// With the reason.
    pub fn check_relative(&self, point: &Point, points: &[Point]) -> Result<(), String> {
        if let Some(per) = &self.per {
            let count = point.coordinate(per).and_then(|value| value.number());
            if count.is_none_or(|count| count <= 0.0) {
                return Err(format!("\"{point}\" has no number {per} to divide by"));
            }
        }
        if !self.slowdown_from.is_empty() && self.reference_of(point, points).is_none() {
            return Err(format!("no run is there for \"{point}\" to be compared with"));
        }
        Ok(())
    }
}
