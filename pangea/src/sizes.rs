//! How large the data of a workload is, as command lines have it.

use pangea_core::workload::{self, tpcc::Scale};

use crate::failure::Failure;

/// Uniform.
const ZIPF_DEFAULT: f64 = 0.0;
/// A hundred megabytes.
const ROWS_DEFAULT: u64 = 100_000;
/// More than a few, so that clients are not in each other's way at once.
const WAREHOUSES_DEFAULT: u32 = 8;

/// What a benchmark or a prediction has the same options for.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Sizes {
    /// YCSB: the exponent of Zipf's law, 0 for uniform
    #[arg(long, value_name = "S")]
    #[arg(help = format!("YCSB: the exponent of Zipf's law [default: {ZIPF_DEFAULT}, uniform]"))]
    pub zipf: Option<f64>,
    /// YCSB: rows of 1 KB
    #[arg(long, value_name = "N")]
    #[arg(help = format!("YCSB: rows of 1 KB [default: {ROWS_DEFAULT}]"))]
    pub rows: Option<u64>,
    /// TPC-C: warehouses
    #[arg(long, value_name = "N")]
    #[arg(help = format!("TPC-C: warehouses [default: {WAREHOUSES_DEFAULT}]"))]
    pub warehouses: Option<u32>,
    /// TPC-C: warehouses of a hundredth of the size
    #[arg(long)]
    pub tiny: bool,
}

/// Each of these options with what begins the names of the workloads that it is of.
const OF_WORKLOADS: [(&str, &str); 4] =
    [("zipf", "ycsb"), ("rows", "ycsb"), ("warehouses", "tpcc"), ("tiny", "tpcc")];

impl Sizes {
    /// Refuses options that say nothing of the workload.
    ///
    /// # Errors
    /// With the names of both.
    pub fn check(self, workload: &str) -> Result<(), Failure> {
        match self.given().find(|(_, family)| !workload.starts_with(family)) {
            None => Ok(()),
            Some((option, family)) => Err(Failure::Usage(format!(
                "--{option} says nothing of --workload {workload}: it is of {family} alone"
            ))),
        }
    }

    /// The options that are given, each with what begins the names of its workloads.
    pub fn given(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let Self { zipf, rows, warehouses, tiny } = self;
        let is_given = [zipf.is_some(), rows.is_some(), warehouses.is_some(), tiny];
        let all = OF_WORKLOADS.into_iter().zip(is_given);
        all.filter_map(|(option, is_given)| is_given.then_some(option))
    }

    /// The workload's settings, for what is drawn from `seed`.
    pub fn settings(self, seed: u64) -> workload::Settings {
        let (zipf, rows, warehouses) = self.given_or_default();
        let tiny = self.tiny;
        let scale = if tiny { Scale::TINY } else { Scale::FULL };
        workload::Settings { seed, rows, zipf, warehouses, scale, ..workload::Settings::default() }
    }

    /// Zipf's exponent, rows and warehouses.
    pub fn given_or_default(self) -> (f64, u64, u32) {
        (
            self.zipf.unwrap_or(ZIPF_DEFAULT),
            self.rows.unwrap_or(ROWS_DEFAULT),
            self.warehouses.unwrap_or(WAREHOUSES_DEFAULT),
        )
    }

    /// The options that matter to a workload, as a command line has them.
    pub fn in_words(self, workload: &str) -> String {
        let (zipf, rows, warehouses) = self.given_or_default();
        match workload.split('-').next() {
            Some("ycsb") => format!("--rows {rows} --zipf {zipf}"),
            Some("tpcc") => format!("--warehouses {warehouses}"),
            _ => String::new(),
        }
    }
}
