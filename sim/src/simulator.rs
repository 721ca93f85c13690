//! The simulator of a protocol that a program learns by name. A protocol's settings are a table
//! here, so that programs above this crate are not compiled once for each protocol.

use std::marker::PhantomData;

use pangea_core::protocol::Protocol;
use pangea_protocols::{UnknownProtocol, WithProtocol, with_protocol};
use toml::Table;

use crate::predict::{self, Costs, Loaded, Prediction};
use crate::{Extent, Report, Settings, Shrunk, Summary, SwarmAborted, Watch, shrink};

/// Returns the settings of a seed's run and those of the protocol.
pub type Plan<'a> = dyn Fn(u64) -> (Settings, Table) + Sync + 'a;

/// The simulator of one protocol. Tables of settings must have been parsed by the protocol before:
/// an invalid one is a panic.
pub trait Simulator: Send + Sync {
    /// [`crate::run`].
    ///
    /// # Errors
    /// If the settings are invalid or need a missing feature.
    fn run(&self, settings: &Settings, options: &Table) -> Result<Report, String>;

    /// [`crate::run_swarm`].
    ///
    /// # Errors
    /// If a plan is invalid or the range is empty.
    fn run_swarm(
        &self,
        extent: Extent,
        plan: &Plan<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Summary, Box<SwarmAborted>>;

    /// All settings of the protocol: the given ones, and the defaults of the others.
    fn complete(&self, given: &Table) -> Table;

    /// [`crate::drawn_beside`].
    fn drawn_beside(&self, seed: u64, given: &Table) -> (Settings, Table);

    /// [`fn@crate::shrink`].
    fn shrink(
        &self,
        failed: Report,
        options: &Table,
        runs_max: u64,
        watch: &mut shrink::Watch<'_>,
    ) -> Shrunk;

    /// [`predict::predict`].
    ///
    /// # Errors
    /// If the cluster never becomes usable, a node stops, or the settings are not supported.
    fn predict(
        &self,
        settings: &predict::Settings,
        options: &Table,
        costs: &Costs,
        loaded: &Loaded,
    ) -> Result<Prediction, String>;
}

/// Returns the simulator of a protocol.
///
/// # Errors
/// When no protocol has the name.
pub fn simulator(name: &str) -> Result<Box<dyn Simulator>, UnknownProtocol> {
    with_protocol(name, ByName)
}

struct ByName;

impl WithProtocol for ByName {
    type Output = Box<dyn Simulator>;

    fn run<P: Protocol>(self) -> Self::Output {
        Box::new(Of::<P>(PhantomData))
    }
}

struct Of<P>(PhantomData<fn() -> P>);

fn parsed<P: Protocol>(options: &Table) -> P::Options {
    options.clone().try_into().expect("the options were parsed before")
}

fn written<P: Protocol>(options: &P::Options) -> Table {
    Table::try_from(options).expect("options can be written as TOML")
}

impl<P: Protocol> Simulator for Of<P> {
    fn run(&self, settings: &Settings, options: &Table) -> Result<Report, String> {
        crate::run::<P>(settings, &parsed::<P>(options))
    }

    fn run_swarm(
        &self,
        extent: Extent,
        plan: &Plan<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Summary, Box<SwarmAborted>> {
        let plan = |seed| {
            let (settings, options) = plan(seed);
            (settings, parsed::<P>(&options))
        };
        crate::run_swarm::<P>(extent, &plan, watch)
    }

    fn complete(&self, given: &Table) -> Table {
        written::<P>(&parsed::<P>(given))
    }

    fn drawn_beside(&self, seed: u64, given: &Table) -> (Settings, Table) {
        let (settings, options) = crate::drawn_beside::<P>(seed, given);
        (settings, written::<P>(&options))
    }

    fn shrink(
        &self,
        failed: Report,
        options: &Table,
        runs_max: u64,
        watch: &mut shrink::Watch<'_>,
    ) -> Shrunk {
        crate::shrink::<P>(failed, &parsed::<P>(options), runs_max, watch)
    }

    fn predict(
        &self,
        settings: &predict::Settings,
        options: &Table,
        costs: &Costs,
        loaded: &Loaded,
    ) -> Result<Prediction, String> {
        predict::predict::<P>(settings, &parsed::<P>(options), costs, loaded)
    }
}
