//! What a sweep needs of whoever can run a point.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::options::Choice;
use crate::points::Point;

/// What runs points. `pangea` starts processes; tests make numbers up.
pub trait Bench {
    /// Every option that there is.
    fn choices(&self) -> Vec<Choice>;

    /// Whether a point can be run, and what it takes.
    ///
    /// # Errors
    /// Why not, in words that name the option with its dashes.
    fn check(&self, point: &Point) -> Result<Needs, String>;

    /// Runs a point, which writes its results to `json`.
    ///
    /// # Errors
    /// [`Stop`].
    fn run(&mut self, point: &Point, json: &Path) -> Result<(), Stop>;

    /// The command that a point is, as somebody would type it.
    fn command(&self, point: &Point) -> String;
}

/// What a run takes, about.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Needs {
    /// Memory of all processes together, in megabytes.
    pub memory_mb: f64,
    /// How long it takes.
    pub secs: f64,
    /// What tells the files that it reads from others of the same names: a hash, or 0.
    pub inputs: u64,
}

/// Why a run has no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was tried and failed, its check perhaps: the sweep goes on without it.
    Failed(String),
    /// Somebody ended it, and the sweep with it.
    Interrupted,
}

/// Where and by what everything was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Processor and cores.
    pub machine: String,
    /// Memory that is free for runs, in megabytes.
    pub memory_mb: f64,
    /// The version of the program.
    pub version: String,
    /// The commit that it was built from, where that is known.
    pub commit: String,
    /// What tells this build from any other.
    pub build: String,
    /// The command line.
    pub command: String,
}
