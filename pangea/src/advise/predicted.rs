//! The candidates and their simulated performance.

use std::collections::BTreeMap;
use std::sync::Arc;

use indicatif::ProgressBar;
use pangea_core::guarantee::Guarantee;
use pangea_core::partition::Partitions;
use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_core::txn::Registry;
use pangea_core::workload;
use pangea_sim::predict::{self, ArrivalModel, Cores, Costs, Loaded, Prediction};

use super::advice::{Loss, Performance, Region, Row};
use super::files::Places;
use super::{Question, bar};
use crate::failure::Failure;
use crate::protocol::{
    Setting, WithProtocol, check_options, options_table, parse_options, simulator_of,
};
use crate::sim::unless_interrupted;

/// The time at which a region is lost, from the start of the measured time.
const LOSS_AT: Span = Span::from_ms(1_000);
/// The time for which the other regions are observed after the loss: this minimum, or this number
/// of the longest round trips, if that is longer.
const AFTER_LOSS_MS_MIN: u64 = 5_000;
const AFTER_LOSS_ROUND_TRIPS: u64 = 20;

/// A protocol with a choice of settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub protocol: &'static str,
    /// The settings that are not the default.
    pub settings: Vec<Setting>,
    /// The purpose of these settings.
    pub what: &'static str,
    pub guarantee: Guarantee,
    /// Whether acknowledged transactions may be lost with a region.
    pub may_lose: bool,
}

impl Candidate {
    /// Returns the name of the candidate, for humans.
    pub fn name(&self) -> String {
        let set = self.settings.iter().map(|setting| format!(" {setting}"));
        format!("{}{}", self.protocol, set.collect::<String>())
    }
}

/// All candidates of a protocol: its defaults and each of its variants.
pub struct Candidates;

impl WithProtocol for Candidates {
    type Output = Result<Vec<Candidate>, Failure>;

    fn run<P: Protocol>(self) -> Self::Output {
        let candidate = |settings: Vec<Setting>, what| -> Result<Candidate, Failure> {
            let options = parse_options::<P>(&options_table(P::NAME, &settings)?)?;
            let (guarantee, may_lose) = (P::guarantee(&options), P::may_lose_commits(&options));
            Ok(Candidate { protocol: P::NAME, settings, what, guarantee, may_lose })
        };
        let mut all = vec![candidate(Vec::new(), "the defaults")?];
        for variant in P::VARIANTS {
            let word = format!("{}.{}={}", P::NAME, variant.key, variant.value);
            let setting = word.parse::<Setting>().expect("a variant is a setting");
            all.push(candidate(vec![setting], variant.what)?);
        }
        Ok(all)
    }
}

/// The context of predictions.
pub struct Predictions<'a> {
    question: &'a Question<'a>,
    costs: &'a BTreeMap<&'static str, Arc<Costs>>,
    /// The requested load, on the cores of the regions' nodes.
    settings: predict::Settings,
}

/// Simulates candidates of one protocol, with and without the loss of a region.
struct Both {
    protocol: &'static str,
    candidates: Vec<Candidate>,
    settings: predict::Settings,
    costs: Arc<Costs>,
    bar: ProgressBar,
}

/// The predictions for one candidate.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The prediction without faults.
    pub whole: Prediction,
    /// The prediction with the loss of a region.
    pub lossy: Prediction,
}

impl<'a> Predictions<'a> {
    /// Creates the predictions for the question's workload and regions.
    ///
    /// # Errors
    /// If the workload does not exist.
    pub fn new(
        question: &'a Question<'a>,
        costs: &'a BTreeMap<&'static str, Arc<Costs>>,
    ) -> Result<Self, Failure> {
        let (clients, rate) = question.load();
        let bench = question.bench(&question.candidates[0], clients, rate, &[])?;
        let places = &question.places;
        let settings = predict::Settings {
            seed: question.arguments.seed,
            regions: places.regions.clone(),
            partitions: Partitions::default(),
            one_way: one_way(places),
            bandwidth_bits: places.bandwidth_mbit.map(|mbit| mbit * 1_000_000),
            clients: clients as usize,
            pace: pace(rate),
            loss: None,
            warmup: Span::from_ms(question.arguments.warmup * 1_000),
            duration: Span::from_ms(question.arguments.secs * 1_000),
            cores: Cores::Each(places.cores.into()),
            workload: bench.workload()?,
            registry: Arc::new(Registry::new(workload::procedures())),
        };
        Ok(Self { question, costs, settings })
    }

    /// Returns a row for each candidate.
    ///
    /// # Errors
    /// If a simulated cluster never becomes usable or one of its nodes stops, or on an interrupt.
    pub fn rows(&self) -> Result<Vec<Row>, Failure> {
        let candidates = &self.question.candidates;
        let bar = bar(2 * candidates.len(), "simulate");
        let mut rows = Vec::with_capacity(candidates.len());
        for name in self.question.protocols() {
            let of_it = candidates.iter().filter(|it| it.protocol == name).cloned().collect();
            let predicted = self.run(name, of_it, self.settings.clone(), &bar)?;
            let of_it = candidates.iter().filter(|it| it.protocol == name);
            rows.extend(of_it.zip(predicted).map(|(candidate, it)| row(candidate, &it)));
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    /// Predicts the performance of a candidate on this machine, under a smaller load.
    ///
    /// # Errors
    /// Those of [`Self::rows`].
    pub fn here(
        &self,
        candidate: &Candidate,
        clients: u32,
        rate: Option<f64>,
    ) -> Result<Predicted, Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let settings = predict::Settings {
            clients: clients as usize,
            pace: pace(rate),
            cores: Cores::Shared(cores),
            // The emulated links of a real run have no limit of bandwidth.
            bandwidth_bits: None,
            ..self.settings.clone()
        };
        let bar = bar(2, "simulate");
        let name = candidate.protocol;
        let predicted = self.run(name, vec![candidate.clone()], settings, &bar)?.pop();
        bar.finish_and_clear();
        Ok(predicted.expect("one candidate has one prediction"))
    }

    fn run(
        &self,
        name: &'static str,
        candidates: Vec<Candidate>,
        settings: predict::Settings,
        bar: &ProgressBar,
    ) -> Result<Vec<Predicted>, Failure> {
        let costs = self.costs[name].clone();
        let both = Both { protocol: name, candidates, settings, costs, bar: bar.clone() };
        let done = unless_interrupted(move || both.run())?;
        let done = done.ok_or_else(|| {
            Failure::Interrupted("interrupted before the prediction was complete".to_owned())
        })?;
        done.map_err(Failure::Failed)
    }
}

impl Both {
    fn run(self) -> Result<Vec<Predicted>, String> {
        let Self { protocol, candidates, settings, costs, bar } = self;
        let simulator = simulator_of(protocol).map_err(|failure| failure.to_string())?;
        let loaded = Loaded::new(&settings.workload, &settings.registry)?;
        let after_ms =
            (longest(&settings).us / 1_000 * AFTER_LOSS_ROUND_TRIPS).max(AFTER_LOSS_MS_MIN);
        let lossy = predict::Settings {
            loss: Some(predict::Loss { region: None, at: LOSS_AT }),
            duration: Span::from_us(LOSS_AT.us + after_ms * 1_000),
            ..settings.clone()
        };
        let mut all = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let options = options_table(protocol, &candidate.settings).and_then(|table| {
                check_options(protocol, &table)?;
                Ok(table)
            });
            let options = options.map_err(|failure| failure.to_string())?;
            bar.set_message(candidate.what);
            if bar.is_hidden() {
                let (done, all) = (bar.position() / 2 + 1, bar.length().unwrap_or_default() / 2);
                crate::warn(&format!("simulating {done} of {all}: {}", candidate.name()));
            }
            let whole = simulator.predict(&settings, &options, &costs, &loaded)?;
            bar.inc(1);
            let lossy = simulator.predict(&lossy, &options, &costs, &loaded)?;
            bar.inc(1);
            all.push(Predicted { whole, lossy });
        }
        Ok(all)
    }
}

fn pace(rate: Option<f64>) -> ArrivalModel {
    rate.map_or(ArrivalModel::Closed, |per_sec| ArrivalModel::Open { per_sec })
}

fn one_way(places: &Places) -> Vec<Vec<Span>> {
    let between =
        |a: &String, b: &String| Span::from_us((places.round_trip_ms(a, b) * 500.0) as u64);
    let row = |a: &String| -> Vec<Span> { places.regions.iter().map(|b| between(a, b)).collect() };
    places.regions.iter().map(row).collect()
}

/// Returns the longest round trip.
fn longest(settings: &predict::Settings) -> Span {
    let all = settings.one_way.iter().flatten().map(|one_way| 2 * one_way.us);
    Span::from_us(all.max().unwrap_or(0))
}

fn row(candidate: &Candidate, predicted: &Predicted) -> Row {
    Row {
        protocol: candidate.protocol.to_owned(),
        set: candidate.settings.iter().map(ToString::to_string).collect(),
        what: candidate.what.to_owned(),
        guarantee: candidate.guarantee,
        may_lose: candidate.may_lose,
        is_measured: false,
        performance: performance(&predicted.whole),
        coordinator: predicted.whole.coordinator.clone(),
        loss: loss(&predicted.lossy),
        check: None,
        failed: None,
    }
}

/// Returns the performance numbers of a prediction.
pub fn performance(of: &Prediction) -> Performance {
    let region = |region: &predict::Region| Region {
        name: region.name.clone(),
        p50_ms: region.latency_ms.p50,
        p99_ms: region.latency_ms.p99,
    };
    Performance {
        throughput_per_sec: of.throughput_per_sec,
        regions: of.regions.iter().map(region).collect(),
        aborted: of.aborted_share(),
        wan_bytes_per_txn: of.wan_bytes_per_txn,
    }
}

/// Returns the effect of the simulated loss of a region.
pub fn loss(of: &Prediction) -> Option<Loss> {
    let survived = of.survived.as_ref()?;
    let others = of.regions.iter().filter(|region| region.name != survived.region);
    Some(Loss {
        region: survived.region.clone(),
        pauses_ms: others.map(|region| (region.name.clone(), region.pause_ms)).collect(),
        lost_txns: survived.lost_txns,
        wrong: survived.wrong.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::NAMES;
    use crate::protocol::with_protocol;

    #[test]
    fn every_protocol_has_its_defaults_and_variants_that_it_understands() {
        for name in NAMES {
            let all = with_protocol(name, Candidates).unwrap().unwrap();
            assert!(all[0].settings.is_empty(), "the defaults come first");
            for (at, candidate) in all.iter().enumerate() {
                assert_eq!(candidate.protocol, *name);
                assert!(all[..at].iter().all(|other| other.settings != candidate.settings));
            }
        }
        let all = with_protocol("minerva", Candidates).unwrap().unwrap();
        let strict = all.iter().find(|it| it.guarantee == Guarantee::StrictSerializable);
        assert_eq!(strict.unwrap().settings[0].to_string(), "minerva.reads=strict");
    }
}
