//! Sweeps: a plan of benchmark runs, the runs, and a report of their results.
//!
//! ```text
//!   plan.toml --parse--> Plan --expand--> points --check--> Checked      no run has started yet
//!                          |                                    |
//!                          |              run (round by round)  v
//!                          |                  Bench ----> runs/NNN.json  one for each run
//!                          v                                    |
//!                       figures <--------- spreads <------------'
//!                          |
//!                          `--> report.html, figures/*.svg, figures/*.png
//! ```
//!
//! This crate knows no database. A [`Bench`] runs the points: in `pangea bench sweep` it starts
//! processes, and in tests it generates numbers. This crate knows the names of options only from
//! [`Bench::choices`], and [`Bench::check`] validates their values. Therefore the same code
//! validates plans and command lines.
//!
//! **Invariants.** No run starts before the whole plan has been checked. A run that failed its
//! check has no throughput in any figure, and the report lists it with the reason. Repeats of a
//! point are separate runs, each on a new cluster; figures show the median, the minimum and the
//! maximum of the repeats. Predicted values and values stated by a paper are labelled at each of
//! their lines.
//!
//! - [`plan`]: the file; [`points`]: its combinations; [`check`]: the checks;
//! - [`tune`]: values of which only the best is repeated;
//! - [`mod@run`]: order, progress, resuming after an interruption; [`results`]: files and medians;
//! - [`series`]: the selection of results for a figure; [`chart`]: drawing it; [`report`]: the
//!   page.

pub mod bench;
pub mod chart;
pub mod check;
pub mod measure;
pub mod options;
pub mod plan;
pub mod plan_error;
pub mod points;
mod relative;
pub mod report;
pub mod results;
pub mod run;
pub mod series;
pub mod tune;

pub use bench::{Bench, Facts, Needs, Stop};
pub use check::Checked;
pub use options::{Choice, Engine, Value};
pub use plan::Plan;
pub use plan_error::PlanError;
pub use points::{Point, fingerprint};
pub use run::{Finished, Settings, SweepError, outline, run};
