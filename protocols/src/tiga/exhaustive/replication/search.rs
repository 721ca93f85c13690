//! The search: each state of a leader with all states of its followers, and each set of replicas
//! that a new leader may ask.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::cases::Case;
use super::check::{Facts, Outcome, Said, Verdicts, check, rebuilt, report, run_by};
use super::run::{Item, Leader, Model, Replica};
use crate::tiga::quorum::Sizes;
use crate::tiga::rebuild::Report;

/// The result of a search.
#[derive(Default)]
pub struct Summary {
    /// The situations that were checked: facts, and a log that was rebuilt.
    pub checked: usize,
    pub found: Option<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} situations", self.checked)?;
        self.found.iter().try_for_each(|found| write!(f, ", found: {found}"))
    }
}

/// Followers that have said the same, and may report differently.
struct Voice {
    said: Said,
    reports: Vec<Report>,
}

/// Checks every situation, or stops at the first violation.
pub fn search(case: &Case) -> Summary {
    let model = Model::new(case);
    let mut leaders: BTreeMap<Vec<Item>, Vec<Leader>> = BTreeMap::new();
    for leader in model.leaders() {
        leaders.entry(leader.items.clone()).or_default().push(leader);
    }
    let mut search = Search { model: &model, verdicts: Verdicts::default(), checked: 0 };
    let mut each = leaders.iter();
    let found = each.find_map(|(items, leaders)| search.of_log(items, leaders).err());
    Summary { checked: search.checked, found }
}

struct Search<'a> {
    model: &'a Model,
    verdicts: Verdicts,
    checked: usize,
}

/// The rebuilt logs for each group of voices that are asked.
type Outcomes = BTreeMap<Vec<usize>, BTreeSet<Outcome>>;

impl Search<'_> {
    /// All leaders with one log.
    fn of_log(&mut self, items: &[Item], leaders: &[Leader]) -> Result<(), String> {
        let voices = voices(self.model, items);
        let groups = groups(voices.len(), self.model.case.replicas - 1);
        let mut without_leader = Outcomes::new();
        for leader in leaders {
            for durable in 0..=items.len() {
                let own = Said::by_leader(&leader.replica, items, durable);
                let of_leader = report(self.model, &leader.replica, items, durable);
                let mut with_leader = Outcomes::new();
                for group in &groups {
                    let others: Vec<&Said> = group.iter().map(|at| &voices[*at].said).collect();
                    let facts = self.verdicts.facts(self.model, items, &own, &others);
                    if facts.is_empty() {
                        continue;
                    }
                    let known = [&mut without_leader, &mut with_leader];
                    let situation = (leader, group.as_slice(), &facts);
                    for (known, asked) in known.into_iter().zip([None, Some(&of_leader)]) {
                        self.of_group(situation, asked, &voices, known).map_err(|what| {
                            format!("{what}: {leader:?}, durable {durable}, {others:?}")
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// All sets of f + 1 replicas, those with the leader or those without it.
    fn of_group(
        &mut self,
        (leader, group, facts): (&Leader, &[usize], &Facts),
        own: Option<&Report>,
        voices: &[Voice],
        known: &mut Outcomes,
    ) -> Result<(), &'static str> {
        let simple = Sizes::of(self.model.case.replicas).simple();
        let run = run_by(self.model, &leader.replica);
        for asked in subsets(group, simple - usize::from(own.is_some())) {
            let all = known
                .entry(asked)
                .or_insert_with_key(|asked| outcomes(self.model, own, asked, voices));
            for outcome in all.iter() {
                self.checked += 1;
                check(self.model, (&leader.items[..], run), facts, outcome)?;
            }
        }
        Ok(())
    }
}

/// The states of followers with a part of a log, by what they have said.
fn voices(model: &Model, items: &[Item]) -> Vec<Voice> {
    let mut voices: BTreeMap<Said, Vec<Report>> = BTreeMap::new();
    for follower in model.followers(items) {
        let reports = voices.entry(Said::by_follower(&follower)).or_default();
        let report = report(model, &follower, items, follower.has);
        if !reports.contains(&report) {
            reports.push(report);
        }
    }
    voices.into_iter().map(|(said, reports)| Voice { said, reports }).collect()
}

/// The logs that may be rebuilt from the reports of some voices, and of the former leader.
fn outcomes(
    model: &Model,
    own: Option<&Report>,
    asked: &[usize],
    voices: &[Voice],
) -> BTreeSet<Outcome> {
    let mut sets: Vec<Vec<&Report>> = vec![own.into_iter().collect()];
    for voice in asked {
        let longer = sets.iter().flat_map(|set| {
            voices[*voice].reports.iter().map(move |report| [&set[..], &[report]].concat())
        });
        sets = longer.collect();
    }
    sets.into_iter().map(|set| Outcome::of(model, &rebuilt(model, &set))).collect()
}

/// All groups of a size, in ascending order, with repetitions.
fn groups(voices: usize, size: usize) -> Vec<Vec<usize>> {
    let mut groups = vec![Vec::new()];
    for _ in 0..size {
        let longer = groups.iter().flat_map(|group: &Vec<usize>| {
            let first = group.last().copied().unwrap_or_default();
            (first..voices).map(move |voice| [&group[..], &[voice]].concat())
        });
        groups = longer.collect();
    }
    groups
}

/// The different parts of a group that have a size.
fn subsets(group: &[usize], size: usize) -> BTreeSet<Vec<usize>> {
    let sets = (0..1_u32 << group.len()).filter(|set| set.count_ones() as usize == size);
    let members = |set: u32| {
        let members = (0..group.len()).filter(move |at| set & 1 << at != 0);
        members.map(|at| group[at]).collect()
    };
    sets.map(members).collect()
}

/// Checks situations that are drawn, most of them with followers that agree with the leader.
pub fn sample(case: &Case, draws: usize, seed: u64) -> Summary {
    let model = Model::new(case);
    let leaders: Vec<Leader> = model.leaders().into_iter().collect();
    let mut followers: BTreeMap<&[Item], Vec<Replica>> = BTreeMap::new();
    let (mut rng, mut verdicts) = (fastrand::Rng::with_seed(seed), Verdicts::default());
    let (mut summary, sizes) = (Summary::default(), Sizes::of(case.replicas));
    for _ in 0..draws {
        let leader = &leaders[rng.usize(..leaders.len())];
        let durable = rng.usize(..=leader.items.len());
        let all = followers
            .entry(&leader.items[..])
            .or_insert_with_key(|items| model.followers(items).into_iter().collect());
        let group = drawn_followers(&mut rng, leader, all, case.replicas - 1);
        let said: Vec<Said> = group.iter().map(|it| Said::by_follower(it)).collect();
        let others: Vec<&Said> = said.iter().collect();
        let own = Said::by_leader(&leader.replica, &leader.items, durable);
        let facts = verdicts.facts(&model, &leader.items, &own, &others);
        if facts.is_empty() {
            continue;
        }
        let of_followers = group.iter().map(|it| report(&model, it, &leader.items, it.has));
        let of_leader = report(&model, &leader.replica, &leader.items, durable);
        let mut reports: Vec<Report> = of_followers.chain([of_leader]).collect();
        rng.shuffle(&mut reports);
        let asked: Vec<&Report> = reports[..sizes.simple()].iter().collect();
        summary.checked += 1;
        let outcome = Outcome::of(&model, &rebuilt(&model, &asked));
        let situation = (&leader.items[..], run_by(&model, &leader.replica));
        if let Err(what) = check(&model, situation, &facts, &outcome) {
            summary.found = Some(format!("{what}: {leader:?}, durable {durable}, {others:?}"));
            return summary;
        }
    }
    summary
}

/// Draws followers, most of which are in one state that agrees with the leader.
fn drawn_followers<'a>(
    rng: &mut fastrand::Rng,
    leader: &Leader,
    all: &'a [Replica],
    count: usize,
) -> Vec<&'a Replica> {
    let agreement = |follower: &&Replica| {
        let pairs = follower.replies.iter().zip(&leader.replica.replies);
        pairs.filter(|(own, other)| own.is_some() && own == other).count()
    };
    let tries: Vec<&Replica> = (0..6).map(|_| &all[rng.usize(..all.len())]).collect();
    let usual = tries.into_iter().max_by_key(agreement).expect("there are tries");
    let drawn = (0..count).map(|_| match rng.u8(..3) {
        0 => &all[rng.usize(..all.len())],
        _ => usual,
    });
    drawn.collect()
}
