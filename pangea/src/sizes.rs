//! How large the data of a workload is, as command lines have it.

use pangea_core::workload::{self, tpcc::Scale};

/// What a benchmark or a prediction has the same options for.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Sizes {
    /// YCSB: the exponent of Zipf's law, 0 for uniform
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub zipf: f64,
    /// YCSB: rows of 1 KB
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub rows: u64,
    /// TPC-C: warehouses
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub warehouses: u32,
    /// TPC-C: warehouses of a hundredth of the size
    #[arg(long)]
    pub tiny: bool,
}

impl Sizes {
    /// The workload's settings, for what is drawn from `seed`.
    pub fn settings(self, seed: u64) -> workload::Settings {
        let Self { zipf, rows, warehouses, tiny } = self;
        let scale = if tiny { Scale::TINY } else { Scale::FULL };
        workload::Settings { seed, rows, zipf, warehouses, scale, ..workload::Settings::default() }
    }

    /// The options that matter to a workload, as a command line has them.
    pub fn in_words(self, workload: &str) -> String {
        let Self { zipf, rows, warehouses, .. } = self;
        match workload.split('-').next() {
            Some("ycsb") => format!("--rows {rows} --zipf {zipf}"),
            Some("tpcc") => format!("--warehouses {warehouses}"),
            _ => String::new(),
        }
    }
}
