//! Sweeps: a plan of benchmark runs, the runs, and a report of what came of them.
//!
//! ```text
//!   plan.toml --parse--> Plan --expand--> points --check--> Checked      nothing has started yet
//!                          |                                    |
//!                          |              run (round by round)  v
//!                          |                  Bench <---- runs/NNN.json  each as it comes
//!                          v                                    |
//!                       figures <--------- spreads <------------'
//!                          |
//!                          `--> report.html, figures/*.svg, figures/*.png
//! ```
//!
//! This crate knows no database: what runs a point is a [`Bench`], which `pangea bench sweep` is
//! with processes and a test with made-up numbers. It knows names of options only from
//! [`Bench::choices`], and asks [`Bench::check`] about values, so that a plan is refused by the
//! same code as a command line.
//!
//! **What holds.** Nothing starts before all of a plan was looked at. A run that failed its check
//! has no throughput in any figure and is in the report with its reason. Repeats of a point are
//! runs of their own, each on a new cluster; figures show their median, and the least and the most
//! of them. What is predicted, and what a paper states, says so beside each of its lines.
//!
//! - [`plan`]: the file; [`points`]: its combinations; [`check`]: what is refused;
//! - [`tune`]: values of which the best is run again;
//! - [`mod@run`]: order, progress, going on after an interruption; [`results`]: files and medians;
//! - [`series`]: what of the results is in a figure; [`chart`]: drawing it; [`report`]: the page.

pub mod bench;
pub mod chart;
pub mod check;
pub mod measure;
pub mod options;
pub mod plan;
pub mod points;
mod relative;
pub mod report;
pub mod results;
pub mod run;
pub mod series;
pub mod tune;
pub mod wrong;

pub use bench::{Bench, Facts, Needs, Stop};
pub use check::Checked;
pub use options::{Choice, Engine, Value};
pub use plan::Plan;
pub use points::{Point, fingerprint};
pub use run::{Finished, Settings, SweepError, outline, run};
pub use wrong::Wrong;
