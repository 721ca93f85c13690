//! Tuning: the best value of an option, such as the number of clients, differs between points, and
//! trying values takes more runs than the figures need. Therefore every value is run once, and only
//! the best is repeated as often as the plan specifies.
//!
//! The run by which a value was chosen is not used in figures: it was the luckiest of several, and
//! more so with more values. A point without rivals was not chosen in this way, and all of its runs
//! count.

use std::collections::{BTreeMap, BTreeSet};

use crate::options::Engine;
use crate::plan::Plan;
use crate::points::Point;
use crate::results::Results;

/// Groups the points that differ only in tuned options. Without tuning, each point is its own
/// group.
pub fn groups<'a>(plan: &Plan, points: &'a [Point]) -> Vec<Vec<&'a Point>> {
    let mut groups: Vec<Vec<&Point>> = Vec::new();
    let is_like = |a: &Point, b: &Point| {
        let rest = |point: &'_ Point| {
            let labels = point.labels.iter().filter(|(name, _)| !plan.tune.contains(name));
            labels.map(|(name, value)| (name.clone(), value.clone())).collect::<Vec<_>>()
        };
        a.engine == b.engine && rest(a) == rest(b)
    };
    for point in points {
        let group =
            groups.iter_mut().find(|group| !plan.tune.is_empty() && is_like(group[0], point));
        match group {
            Some(group) => group.push(point),
            None => groups.push(vec![point]),
        }
    }
    groups
}

/// Returns the keys of points that have rivals.
pub fn tuned(plan: &Plan, points: &[Point], build: &str) -> BTreeSet<String> {
    let rivals = groups(plan, points).into_iter().filter(|group| group.len() > 1).flatten();
    rivals.map(|point| point.key(build)).collect()
}

/// Returns the number of rounds: with tuning, one more than the number of repeats.
pub fn rounds(plan: &Plan) -> u32 {
    plan.repeats + u32::from(!plan.tune.is_empty())
}

/// Returns the number of times that the best of a group is run again after the first round.
/// Predictions are deterministic and are not repeated.
pub fn again(plan: &Plan, group: &[&Point]) -> u32 {
    if group.iter().all(|point| point.engine == Engine::Predicted) {
        return 0;
    }
    plan.repeats - u32::from(group.len() == 1)
}

/// Returns the points of a round: all points in the first, then the best of each group, up to its
/// number of repeats.
pub fn of_round<'a>(
    plan: &Plan,
    points: &'a [Point],
    results: &Results,
    build: &str,
    round: u32,
) -> Vec<&'a Point> {
    if round == 0 {
        return points.iter().collect();
    }
    let rate = |point: &Point| {
        let first = results.find(&point.key(build), 0)?;
        first.number("throughput_per_sec")
    };
    let best = |group: Vec<&'a Point>| match &group[..] {
        // It is run again although it may fail again.
        [alone] => Some(*alone),
        _ => {
            let rates = group.into_iter().filter_map(|point| Some((rate(point)?, point)));
            // The first of several equal ones.
            rates.reduce(|a, b| if b.0 > a.0 { b } else { a }).map(|(_, point)| point)
        }
    };
    let is_of_round = |group: &Vec<&Point>| round <= again(plan, group);
    groups(plan, points).into_iter().filter(is_of_round).filter_map(best).collect()
}

/// Returns the number of runs. If all runs of a group have failed, none is run again.
pub fn runs(plan: &Plan, points: &[Point], results: Option<&Results>, build: &str) -> usize {
    let keys: BTreeMap<String, &Point> =
        points.iter().map(|point| (point.key(build), point)).collect();
    if plan.tune.is_empty() {
        return keys.values().map(|point| 1 + again(plan, &[point]) as usize).sum();
    }
    let has_failed = |point: &&Point| {
        let entry = results.and_then(|results| results.find(&point.key(build), 0));
        entry.is_some_and(|entry| entry.failure.is_some())
    };
    let is_hopeless = |group: &Vec<&Point>| group.len() > 1 && group.iter().all(has_failed);
    let groups = groups(plan, points).into_iter().filter(|group| !is_hopeless(group));
    keys.len() + groups.map(|group| again(plan, &group) as usize).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::expand;

    #[test]
    fn what_differs_in_nothing_else_is_a_group() {
        let text = "title='T'\nrepeats=3\ntune='clients'\n[base]\nworkload='bank'\n\
                    [[series]]\nname='few'\nclients=[1, 2]\n\
                    [[series]]\nname='many'\nclients=[50, 60, 70]\n[sweep]\nrtt=[0, 9]\n";
        let plan = Plan::parse(text).unwrap();
        let points = expand(&plan).unwrap();
        let groups = groups(&plan, &points);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 3, 3]);
        assert_eq!(runs(&plan, &points, None, "b"), 10 + 4 * 3);
        assert_eq!((rounds(&plan), tuned(&plan, &points, "b").len()), (4, 10));
        // A point without rivals is run the same number of times.
        let alone = Plan::parse(&text.replace("clients=[1, 2]", "clients=1")).unwrap();
        let points_alone = expand(&alone).unwrap();
        assert_eq!(runs(&alone, &points_alone, None, "b"), 8 + 2 * 2 + 2 * 3);
        assert_eq!(tuned(&alone, &points_alone, "b").len(), 6);
        let plan = Plan::parse(&text.replace("tune='clients'", "")).unwrap();
        assert_eq!(runs(&plan, &points, None, "b"), 30);
        // A prediction is made once.
        let engines = text
            .replace("tune='clients'", "")
            .replace("rtt=[0, 9]", "rtt=[0, 9]\nengine=['real', 'predicted']");
        let both = Plan::parse(&engines).unwrap();
        assert_eq!(runs(&both, &expand(&both).unwrap(), None, "b"), 30 + 10);
        let error = Plan::parse(&text.replace("tune='clients'", "tune='client'")).unwrap_err();
        assert!(error.to_string().starts_with("line 3: there is no option"), "{error}");
    }
}
