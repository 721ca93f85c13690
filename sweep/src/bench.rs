//! The interface between a sweep and the program that runs its points.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::options::Choice;
use crate::points::Point;

/// A runner of points. `pangea` starts processes; tests generate numbers.
pub trait Bench {
    /// Returns all available options.
    fn choices(&self) -> Vec<Choice>;

    /// Checks that a point can be run, and returns its estimated resources.
    ///
    /// # Errors
    /// The reason why it cannot, in a text that names the option with its dashes.
    fn check(&self, point: &Point) -> Result<Needs, String>;

    /// Runs a point, which writes its results to `json`.
    ///
    /// # Errors
    /// [`Stop`].
    fn run(&mut self, point: &Point, json: &Path) -> Result<(), Stop>;

    /// Returns the command line of a point, as a user would type it.
    fn command(&self, point: &Point) -> String;
}

/// The estimated resources of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Needs {
    /// Memory of all processes in total, in megabytes.
    pub memory_mb: f64,
    /// The duration.
    pub secs: f64,
    /// A hash of the contents of the files that it reads, or 0. It distinguishes different files
    /// with the same name.
    pub inputs: u64,
}

/// The reason why a run has no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It failed, possibly in its check: the sweep continues without it.
    Failed(String),
    /// A user interrupted it, and the sweep with it.
    Interrupted,
}

/// The machine and the program of the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Processor and cores.
    pub machine: String,
    /// The memory available for runs, in megabytes.
    pub memory_mb: f64,
    /// The version of the program.
    pub version: String,
    /// The commit that it was built from, if it is known.
    pub commit: String,
    /// A fingerprint of the build.
    pub build: String,
    /// The command line.
    pub command: String,
}
