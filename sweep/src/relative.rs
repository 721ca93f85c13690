//! The values of a figure relative to an option's number, or to another run as a slowdown.

use crate::plan::Figure;
use crate::points::Point;
use crate::results::{Results, Spread};

/// The context of a figure's values.
#[derive(Clone, Copy)]
pub struct Relative<'a> {
    /// The figure.
    pub figure: &'a Figure,
    /// All points of the plan, including those that it does not show.
    pub points: &'a [Point],
    /// The results of the points.
    pub results: &'a Results,
    /// The build of the program.
    pub build: &'a str,
}

impl Relative<'_> {
    /// Returns the value of a point.
    pub fn value(&self, point: &Point, y: &str) -> Option<Spread> {
        let value = self.of_each(point, y)?;
        if self.figure.slowdown_from.is_empty() {
            return Some(value);
        }
        Some(value.slowdown_from(self.reference(point, y)?))
    }

    /// Returns the value of the run that a point is compared with, if that was run.
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

    /// Returns the label of the y axis, for a measure with this label.
    pub fn label(&self, measure: String) -> String {
        let Figure { per, slowdown_from, .. } = self.figure;
        match (per, slowdown_from.is_empty()) {
            (_, false) => "slowdown factor".to_owned(),
            (Some(per), true) => format!("{measure}, divided by {per}"),
            (None, true) => measure,
        }
    }
}

impl Figure {
    /// Returns whether other points are compared with this point.
    pub fn is_reference(&self, point: &Point) -> bool {
        let mut all = self.slowdown_from.iter();
        !self.slowdown_from.is_empty()
            && all.all(|(name, value)| point.coordinate(name).as_ref() == Some(value))
    }

    /// Returns the reference of a point. It differs from the point in no other property that
    /// distinguishes runs, so there is at most one.
    fn reference_of<'a>(&self, point: &Point, points: &'a [Point]) -> Option<&'a Point> {
        let is_same = |other: &Point| {
            let by_others = |name: &&String| self.slowdown_from.iter().all(|(it, _)| it != *name);
            let mut labels = other.labels.keys().filter(by_others);
            labels.all(|name| other.labels.get(name) == point.labels.get(name))
        };
        let same = |other: &&Point| other.engine == point.engine && is_same(other);
        points.iter().filter(|other| self.is_reference(other)).find(same)
    }

    /// Rejects a point whose relative value is undefined.
    ///
    /// # Errors
    /// The reason.
    pub fn check_relative(&self, point: &Point, points: &[Point]) -> Result<(), String> {
        if let Some(per) = &self.per {
            let count = point.coordinate(per).and_then(|value| value.number());
            if count.is_none_or(|count| count <= 0.0) {
                return Err(format!("\"{point}\" has no number {per} to divide by"));
            }
        }
        if !self.slowdown_from.is_empty() && self.reference_of(point, points).is_none() {
            return Err(format!("there is no run to compare \"{point}\" with"));
        }
        Ok(())
    }
}
