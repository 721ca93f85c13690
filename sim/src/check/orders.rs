//! Derives dependencies from versions, and searches for the unknown orders of versions.
//!
//! Within a segment the order of versions is known, which yields edges directly. Two kinds of
//! questions are open: the mutual order of an object's middle segments (`objects.rs`), and the
//! version that a read saw if it found no value. They are answered in three steps, and the search
//! ends with the first step that succeeds:
//!
//! 1. **By guess**: the order that the database reports, if it does, and some orders that
//!    contradict no edge. If the graph with all answers has no cycle that the model rules out, the
//!    history satisfies the model, whatever the source of the guess.
//! 2. **By necessity**: an answer that closes a cycle is wrong, so the other one is right. If all
//!    answers to a question close cycles, the history violates the model. Repeated until no further
//!    answer follows.
//! 3. **By trial**: one answer after the other, with necessity after each, within a limit. Above
//!    the limit the questions stay open, which is [`Answer::Open`].
//!
//! The second step is the pruning of polygraphs (Papadimitriou 1979, §3; Tan et al., "Cobra", 2020,
//! §3.2). All steps are sound: a violation is one in every order of the versions.

use std::collections::BTreeMap;

use pangea_core::guarantee::Isolation;

use super::certain::{Junctions, add_final, add_real_time, add_segments};
use super::facts::Facts;
use super::graph::{Edge, Graph, Kind};
use super::model::Model;
use super::objects::{INITIAL, Object, ObjectRead};
use super::order_search::{self, ReplayState};
use super::reach::Reach;
use super::search::Search;
use crate::record::Txn;

/// The number of following segments that each segment of an object is compared with, nearest in
/// time first. The order of the others follows.
const NEAR: usize = 8;
/// The total number of edges examined by trial, about a second's worth.
const TRIAL_MAX: usize = 20_000_000;
/// The maximum number of rounds of necessity after one answer.
const ROUNDS_MAX: usize = 200;

/// The result of searching for an order.
#[derive(Debug)]
pub enum Answer {
    /// There is an order without a cycle that the model rules out.
    Fine,
    /// No order is possible; the graph has a cycle.
    Broken {
        /// The graph.
        graph: Graph,
        /// Whether the graph has inferred edges.
        is_inferred: bool,
    },
    /// The search was abandoned.
    Open,
}

/// An open question: which of these sets of edges holds.
#[derive(Clone, Debug)]
enum Question {
    /// Which of two segments of an object comes first.
    Pair { object: usize, a: usize, b: usize },
    /// Which version a read saw.
    Read { object: usize, read: usize, options: Vec<u32> },
}

type Edges = Vec<(u32, Edge)>;
/// The segment whose end is read, the reader, and the kind of its edges to later writers.
type End = (usize, u32, Kind);

/// The certain dependencies and the open questions.
#[derive(Debug)]
pub struct Orders<'a> {
    objects: &'a [Object],
    txns: &'a [Txn],
    model: Model,
    junctions: Vec<Junctions>,
    /// The readers of segments' ends, as `(segment, reader, kind)`, by object.
    ends: Vec<Vec<End>>,
    /// The answered pairs of segments, `(earlier, later)`, by object.
    before: Vec<Vec<(usize, usize)>>,
    /// The answered versions, by object and read.
    saw: BTreeMap<(usize, usize), u32>,
    questions: Vec<Question>,
    /// The objects with open questions.
    in_question: Vec<usize>,
    spent: usize,
}

impl<'a> Orders<'a> {
    /// Returns the certain dependencies of a history, and its open questions.
    pub fn new(facts: &'a Facts<'_>, model: Model) -> (Self, Graph) {
        let txns = &facts.recorded.txns;
        let level = |txn: &Txn| txn.level.unwrap_or(Isolation::Serializable);
        let mut graph = match model {
            Model::Mixed => Graph::mixed(txns.iter().map(level).collect()),
            _ => Graph::new(txns.len()),
        };
        let mut orders = Self {
            objects: &facts.objects,
            txns,
            model,
            junctions: Vec::new(),
            ends: vec![Vec::new(); facts.objects.len()],
            before: vec![Vec::new(); facts.objects.len()],
            saw: BTreeMap::new(),
            questions: Vec::new(),
            in_question: Vec::new(),
            spent: 0,
        };
        for (at, object) in facts.objects.iter().enumerate() {
            let (junctions, questions) = (add_segments(object, &mut graph), orders.questions.len());
            orders.junctions.push(junctions);
            for (number, read) in object.reads.iter().enumerate() {
                if let Some(seen) = object.seen(read) {
                    for (from, edge) in orders.read_edges(at, read, seen) {
                        graph.add(from, edge);
                    }
                    orders.note_end(at, read, seen);
                } else {
                    let options = orders.options(object, read);
                    orders.questions.push(Question::Read { object: at, read: number, options });
                }
            }
            // Segments are in the order of their first writers' numbers, which approximates time.
            let middle: Vec<usize> = object.middle().collect();
            for (place, &a) in middle.iter().enumerate() {
                for &b in middle[place + 1..].iter().take(NEAR) {
                    orders.questions.push(Question::Pair { object: at, a, b });
                }
            }
            if orders.questions.len() > questions {
                orders.in_question.push(at);
            }
        }
        add_final(facts, &mut graph);
        if model.is_real_time() {
            add_real_time(facts, model, &mut graph);
        }
        (orders, graph)
    }

    /// Returns the next version in the segment that is not the reader's own.
    fn next_of_another(object: &Object, version: u32, reader: u32) -> Option<u32> {
        let (segment, place) = object.places[version as usize];
        let later = &object.segments[segment as usize][place as usize + 1..];
        later.iter().copied().find(|next| object.versions[*next as usize].writer != reader)
    }

    /// Returns the versions that a read may have seen. The final read of an object that was changed
    /// cannot have seen the initial version.
    fn options(&self, object: &Object, read: &ObjectRead) -> Vec<u32> {
        let mut all = object.candidates(read);
        all.retain(|version| *version != INITIAL || !self.is_final(read));
        all
    }

    fn is_final(&self, read: &ObjectRead) -> bool {
        self.txns[read.reader as usize].is_final
    }

    fn note_end(&mut self, at: usize, read: &ObjectRead, seen: u32) {
        let object = &self.objects[at];
        if object.segments.len() > 2 && Self::next_of_another(object, seen, read.reader).is_none() {
            let segment = object.places[seen as usize].0 as usize;
            self.ends[at].push((segment, read.reader, rw(read)));
        }
    }

    /// Returns the edges that follow if a read saw a version, apart from open questions.
    fn read_edges(&self, at: usize, read: &ObjectRead, seen: u32) -> Edges {
        let object = &self.objects[at];
        let edge = |to, kind, value| Edge { to, kind, key: Some(object.key), value };
        let mut edges = Edges::new();
        let version = object.versions[seen as usize];
        if seen != INITIAL {
            edges.push((version.writer, edge(read.reader, Kind::Wr, version.value)));
        }
        if self.is_final(read) && seen != INITIAL {
            // The value at the end was written last, under every model.
            let ends = (0..object.segments.len()).map(|segment| object.last_version(segment));
            let others = ends.filter(|other| *other != seen && *other != INITIAL);
            let writer = |other: u32| object.versions[other as usize].writer;
            let to = edge(version.writer, Kind::Ww, version.value);
            edges.extend(others.map(|other| (writer(other), to)));
        }
        let before = |next: u32| {
            let next = object.versions[next as usize];
            (read.reader, edge(next.writer, rw(read), next.value))
        };
        if let Some(next) = Self::next_of_another(object, seen, read.reader) {
            edges.push(before(next));
            return edges;
        }
        let segment = object.places[seen as usize].0 as usize;
        let after = self.before[at].iter().filter(|(a, _)| *a == segment);
        edges.extend(after.map(|(_, b)| before(object.segments[*b][0])));
        let Junctions { after_first, before_last } = self.junctions[at];
        let (junction, firsts) = if segment == 0 {
            (after_first, 1..object.segments.len())
        } else if object.last.is_some_and(|last| last != segment) {
            let last = object.last.expect("the segment was just found");
            (before_last, last..last + 1)
        } else {
            return edges;
        };
        let is_own = |segment| object.first_writer(segment) == read.reader;
        if firsts.clone().any(is_own) {
            // The junction would put the reader before itself.
            let others = firsts.filter(|segment| !is_own(*segment));
            edges.extend(others.map(|segment| before(object.segments[segment][0])));
        } else if let Some(junction) = junction {
            edges.push((read.reader, edge(junction, rw(read), None)));
        }
        edges
    }

    /// Returns the edges that follow if segment `a` of an object is before segment `b`.
    fn pair_edges(&self, at: usize, a: usize, b: usize) -> Edges {
        self.pair_edges_with(at, a, b, &self.ends[at])
    }

    fn pair_edges_with(&self, at: usize, a: usize, b: usize, ends: &[End]) -> Edges {
        let object = &self.objects[at];
        let first = object.versions[object.segments[b][0] as usize];
        let last = object.versions[object.last_version(a) as usize];
        let edge =
            |kind| Edge { to: first.writer, kind, key: Some(object.key), value: first.value };
        let readers = ends.iter().filter(|(segment, ..)| *segment == a);
        let readers = readers.map(|(_, reader, kind)| (*reader, edge(*kind)));
        std::iter::once((last.writer, edge(Kind::Ww))).chain(readers).collect()
    }

    /// Returns the answers to a question, each with its edges.
    fn answers(&self, question: &Question) -> Vec<Edges> {
        match question {
            Question::Pair { object, a, b } => {
                vec![self.pair_edges(*object, *a, *b), self.pair_edges(*object, *b, *a)]
            }
            Question::Read { object, read, options } => {
                let read = &self.objects[*object].reads[*read];
                options.iter().map(|seen| self.read_edges(*object, read, *seen)).collect()
            }
        }
    }

    /// Searches for an order of all versions.
    pub fn solve(mut self, mut graph: Graph) -> Answer {
        let Some(places) = Search::new(&graph, self.model.rule()).places() else {
            return Answer::Broken { graph, is_inferred: false };
        };
        if self.questions.is_empty() || self.is_fine_by_guesses(&graph, &places) {
            return Answer::Fine;
        }
        let mut open = std::mem::take(&mut self.questions);
        self.follow(&mut graph, &mut open)
    }

    /// Answers questions by necessity, and then by trial.
    fn follow(&mut self, graph: &mut Graph, open: &mut Vec<Question>) -> Answer {
        for _ in 0..ROUNDS_MAX {
            let Some(places) = Search::new(graph, self.model.rule()).places() else {
                return Answer::Broken { graph: std::mem::take(graph), is_inferred: true };
            };
            let count = open.len();
            let mut certain = Edges::new();
            let mut reach = Reach::new(graph, self.model.rule(), &places);
            let mut broken = None;
            open.retain_mut(|question| {
                let answers = self.answers(question);
                let possible: Vec<usize> = (0..answers.len())
                    .filter(|at| !answers[*at].iter().any(|(from, edge)| reach.closes(*from, edge)))
                    .collect();
                match possible[..] {
                    [] => broken = Some(answers[0].clone()),
                    [only] => {
                        certain.extend(answers[only].iter().copied());
                        self.settle(question, only);
                        return false;
                    }
                    _ => narrow(question, &possible),
                }
                true
            });
            self.spent += reach.steps();
            let is_broken = broken.is_some();
            for (from, edge) in broken.unwrap_or(certain) {
                graph.add(from, edge);
            }
            if is_broken {
                return Answer::Broken { graph: std::mem::take(graph), is_inferred: true };
            }
            if open.len() == count {
                return self.guess_or_try(graph, open, &places);
            }
        }
        Answer::Open
    }

    /// Records an answer that later questions build on.
    fn settle(&mut self, question: &Question, only: usize) {
        match question {
            Question::Pair { object, a, b } => {
                self.before[*object].push(if only == 0 { (*a, *b) } else { (*b, *a) });
            }
            Question::Read { object, read, options } => {
                self.saw.insert((*object, *read), options[only]);
                let read = self.objects[*object].reads[*read];
                self.note_end(*object, &read, options[only]);
            }
        }
    }

    fn guess_or_try(
        &mut self,
        graph: &mut Graph,
        open: &mut Vec<Question>,
        places: &[u32],
    ) -> Answer {
        if self.is_fine_by_guesses(graph, places) {
            return Answer::Fine;
        }
        let Some(question) = open.pop() else { return Answer::Open };
        let (mut broken, mut is_open) = (None, false);
        for (at, answer) in self.answers(&question).into_iter().enumerate() {
            self.spent += graph.vertices();
            if self.spent > TRIAL_MAX {
                return Answer::Open;
            }
            let (mut with, mut rest) = (graph.clone(), open.clone());
            answer.into_iter().for_each(|(from, edge)| with.add(from, edge));
            let known = (self.ends.clone(), self.before.clone(), self.saw.clone());
            self.settle(&question, at);
            let found = self.follow(&mut with, &mut rest);
            (self.ends, self.before, self.saw) = known;
            match found {
                Answer::Fine => return Answer::Fine,
                Answer::Broken { graph, .. } => drop(broken.get_or_insert(graph)),
                Answer::Open => is_open = true,
            }
        }
        match broken.filter(|_| !is_open) {
            Some(graph) => Answer::Broken { graph, is_inferred: true },
            None => Answer::Open,
        }
    }
}

/// Answers by guess: orders versions by their writers' positions, and lets each read that found no
/// value see the latest possible version.
impl Orders<'_> {
    fn is_fine_by_guesses(&self, graph: &Graph, places: &[u32]) -> bool {
        let search = Search::new(graph, self.model.rule());
        // In a real history, what ends later has mostly committed later. A reader saw at least what
        // it saw, so that it is put as late as possible.
        let ended = |txn: u32| self.txns[txn as usize].end.unwrap_or(i64::MAX);
        let began = |txn: u32| self.txns[txn as usize].begin;
        let is_fine = |places: Option<Vec<u32>>| {
            places.is_some_and(|places| self.is_fine_by_guess(graph, &places))
        };
        is_fine(self.places_as_told(graph))
            || self.is_fine_by_guess(graph, places)
            || is_fine(search.places_late(ended))
            || is_fine(search.places_late(began))
            || is_fine(search.places_late(|_| 0))
    }

    /// Returns the order that the database reports, if any.
    fn places_as_told(&self, graph: &Graph) -> Option<Vec<u32>> {
        let search = Search::new(graph, self.model.rule());
        if !search.is_plain() || self.txns.iter().all(|txn| txn.at.is_none()) {
            return None;
        }
        let mut replay = ReplayState::new();
        for &at in &self.in_question {
            let object = &self.objects[at];
            let ends = self.ends[at].iter().map(|(segment, reader, _)| (*segment as u32, *reader));
            let is_open = |(number, read): &(usize, &ObjectRead)| {
                object.seen(read).is_none() && !self.saw.contains_key(&(at, *number))
            };
            let open = object.reads.iter().enumerate().filter(is_open);
            replay.add(
                object,
                ends,
                open.map(|(_, read)| (read.reader, self.options(object, read))),
            );
        }
        order_search::places(&search, &mut replay, |vertex| self.txns.get(vertex as usize)?.at)
    }

    fn is_fine_by_guess(&self, graph: &Graph, places: &[u32]) -> bool {
        let search = Search::new(graph, self.model.rule());
        let place = |txn: u32| places[search.state(txn) as usize];
        let mut guessed = graph.clone();
        for &at in &self.in_question {
            let object = &self.objects[at];
            let mut order: Vec<usize> = object.middle().collect();
            order.sort_by_key(|segment| place(object.first_writer(*segment)));
            let mut ends = self.ends[at].clone();
            let all = std::iter::once(0).chain(order.iter().copied()).chain(object.last);
            let versions: Vec<u32> = all.flat_map(|s| object.segments[s].clone()).collect();
            for (number, read) in object.reads.iter().enumerate() {
                if object.seen(read).is_some() || self.saw.contains_key(&(at, number)) {
                    continue;
                }
                let candidates = self.options(object, read);
                let came_before = |version: &u32| {
                    let writer = object.versions[*version as usize].writer;
                    *version == INITIAL
                        || (writer != read.reader && place(writer) < place(read.reader))
                };
                let mut earlier = versions.iter().copied().filter(came_before);
                let seen = earlier.rfind(|version| candidates.contains(version));
                let seen = seen.or_else(|| candidates.first().copied());
                let seen = seen.expect("an open read has candidates");
                for (from, edge) in self.read_edges(at, read, seen) {
                    guessed.add(from, edge);
                }
                if Self::next_of_another(object, seen, read.reader).is_none() {
                    let segment = object.places[seen as usize].0 as usize;
                    ends.push((segment, read.reader, rw(read)));
                }
            }
            for pair in order.windows(2) {
                for (from, edge) in self.pair_edges_with(at, pair[0], pair[1], &ends) {
                    guessed.add(from, edge);
                }
            }
        }
        Search::new(&guessed, self.model.rule()).places().is_some()
    }
}

fn rw(read: &ObjectRead) -> Kind {
    if read.is_predicate { Kind::PredicateRw } else { Kind::Rw }
}

/// Keeps only the possible answers.
fn narrow(question: &mut Question, possible: &[usize]) {
    if let Question::Read { options, .. } = question {
        *options = possible.iter().map(|at| options[*at]).collect();
    }
}
