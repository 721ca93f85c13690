//! The options for the size of a workload's data.

use pangea_core::workload::{self, tpcc::Scale};

use crate::failure::Failure;

/// A hundred megabytes of YCSB.
const ROWS_DEFAULT: u64 = 100_000;

/// With fewer items, a district would have fewer than ten orders.
const ITEMS_MIN: i64 = 400;

/// The options that benchmarks and predictions share.
#[derive(clap::Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Size of the workload")]
pub struct Sizes {
    /// YCSB: rows of 1 KB. Microbenchmarks: counters of a shard
    #[arg(long, value_name = "N")]
    #[arg(help = format!("YCSB: rows of 1 KB; microbenchmarks: counters of a shard [default: \
                          {ROWS_DEFAULT}]"))]
    pub rows: Option<u64>,
    /// YCSB, mako-micro and tiga-micro: exponent of Zipf's law [default: 0, uniform]
    #[arg(long, value_name = "S")]
    pub zipf: Option<f64>,
    /// TPC-C: warehouses [default: 8]
    #[arg(long, value_name = "N")]
    pub warehouses: Option<u32>,
    /// TPC-C: reduce warehouses to a hundredth of the size
    #[arg(long)]
    pub tiny: bool,
    /// TPC-C: items, each of which every warehouse stocks; customers and orders are in proportion
    /// [default: 100000]
    #[arg(long, value_name = "N", conflicts_with = "tiny")]
    #[arg(value_parser = clap::value_parser!(u32).range(ITEMS_MIN..=1_000_000))]
    pub items: Option<u32>,
    /// TPC-C: choose remote warehouses in the client's own region, so that regions never conflict
    #[arg(long)]
    pub own_region: bool,
    /// Microbenchmarks: shards; each region's clients have their home in one. tpcc-neworder: shards
    /// over which warehouses are distributed; remote warehouses are on another shard [default: 3]
    #[arg(long, value_name = "N")]
    pub shards: Option<u32>,
    /// calvin-micro: hot counters of a shard (the contention index is 1 divided by this);
    /// smallbank: hot customers [default: 100]
    #[arg(long, value_name = "N")]
    pub hot: Option<u32>,
    /// calvin-micro: percentage of transactions that span two shards; mako-micro: percentage of
    /// operations that leave the home shard [default: 5]
    #[arg(long, value_name = "PERCENT")]
    pub remote: Option<u32>,
    /// calvin-micro: bytes stored with each counter, so that not all fit in memory; nine of ten
    /// counters are then cold [default: 0]
    #[arg(long, value_name = "BYTES")]
    pub payload: Option<u32>,
    /// calvin-micro with --payload: percentage of transactions with one cold counter, which no
    /// other transaction uses [default: 0]
    #[arg(long, value_name = "PERCENT", requires = "payload")]
    pub cold: Option<u32>,
    /// smallbank: customers [default: 18000]
    #[arg(long, value_name = "N")]
    pub customers: Option<u32>,
    /// YCSB and TPC-C: percentage of long transactions [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub long: Option<u32>,
    /// YCSB and TPC-C: size of a long transaction: this many times ten operations, or this many new
    /// orders [default: 50]
    #[arg(long, value_name = "N", requires = "long")]
    pub long_times: Option<u32>,
}

/// One of these options.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The name of the option.
    pub option: &'static str,
    /// The value of the option. For a flag, this is 0 or 1.
    pub value: f64,
    is_given: bool,
    /// The workloads that the option applies to, or the prefixes of their names.
    of: &'static [&'static str],
}

impl Size {
    fn concerns(self, workload: &str) -> bool {
        let begins = |family: &&str| {
            workload.strip_prefix(*family).is_some_and(|it| it.is_empty() || it.starts_with('-'))
        };
        self.of.iter().any(begins)
    }
}

impl Sizes {
    /// Rejects options that do not apply to the workload.
    ///
    /// # Errors
    /// The names of the option and the workload.
    pub fn check(self, workload: &str) -> Result<(), Failure> {
        let is_idle = |size: &Size| size.is_given && !size.concerns(workload);
        match self.all().into_iter().find(is_idle) {
            None => Ok(()),
            Some(Size { option, of, .. }) => Err(Failure::Usage(format!(
                "--{option} does not apply to --workload {workload}, only to {}",
                of.join(", ")
            ))),
        }
    }

    /// Returns the first option that is given.
    pub fn given(self) -> Option<&'static str> {
        self.all().into_iter().find(|size| size.is_given).map(|size| size.option)
    }

    /// Returns the workload's settings, with this seed.
    pub fn settings(self, seed: u64) -> workload::Settings {
        let default = workload::Settings::default();
        workload::Settings {
            seed,
            rows: self.rows.unwrap_or(ROWS_DEFAULT),
            zipf: self.zipf.unwrap_or(default.zipf),
            warehouses: self.warehouses.unwrap_or(default.warehouses),
            scale: match self.items {
                Some(items) => Scale::of_items(items),
                None if self.tiny => Scale::TINY,
                None => Scale::FULL,
            },
            own_region: self.own_region,
            shards: self.shards.unwrap_or(default.shards),
            hot: self.hot.unwrap_or(default.hot),
            remote: self.remote.unwrap_or(default.remote),
            payload: self.payload.unwrap_or(default.payload),
            cold: self.cold.unwrap_or(default.cold),
            customers: self.customers.unwrap_or(default.customers),
            long: self.long.unwrap_or(default.long),
            long_times: self.long_times.unwrap_or(default.long_times),
            ..default
        }
    }

    fn all(self) -> [Size; 14] {
        let settings = self.settings(0);
        let size = |option, is_given, value, of| Size { option, is_given, value, of };
        let flag = |is_set| f64::from(u8::from(is_set));
        let spanning = &["calvin-micro", "mako-micro"][..];
        let sharded = &["calvin-micro", "mako-micro", "tiga-micro", "tpcc-neworder"][..];
        let skewed = &["ycsb", "mako-micro", "tiga-micro"][..];
        let may_be_long = &["ycsb", "tpcc"][..];
        let (long, times) = (settings.long.into(), settings.long_times.into());
        let of_rows = &["ycsb", "calvin-micro", "mako-micro", "tiga-micro"][..];
        [
            size("rows", self.rows.is_some(), settings.rows as f64, of_rows),
            size("zipf", self.zipf.is_some(), settings.zipf, skewed),
            size("warehouses", self.warehouses.is_some(), settings.warehouses.into(), &["tpcc"]),
            size("tiny", self.tiny, flag(self.tiny), &["tpcc"]),
            size("items", self.items.is_some(), settings.scale.items.into(), &["tpcc"]),
            size("own-region", self.own_region, flag(self.own_region), &["tpcc"]),
            size("shards", self.shards.is_some(), settings.shards.into(), sharded),
            size("hot", self.hot.is_some(), settings.hot.into(), &["calvin-micro", "smallbank"]),
            size("remote", self.remote.is_some(), settings.remote.into(), spanning),
            size("payload", self.payload.is_some(), settings.payload.into(), &spanning[..1]),
            size("cold", self.cold.is_some(), settings.cold.into(), &spanning[..1]),
            size("customers", self.customers.is_some(), settings.customers.into(), &["smallbank"]),
            size("long", self.long.is_some(), long, may_be_long),
            size("long-times", self.long_times.is_some(), times, may_be_long),
        ]
    }

    /// Returns all options that apply to a workload, whether given or not.
    pub fn concerning(self, workload: &str) -> impl Iterator<Item = Size> {
        self.all().into_iter().filter(move |size| size.concerns(workload))
    }

    /// Returns the options that apply to a workload, as on a command line.
    pub fn in_words(self, workload: &str) -> String {
        let words =
            self.concerning(workload).filter_map(|Size { option, value, .. }| match option {
                "long" | "long-times" if self.long.is_none() => None,
                "items" if self.items.is_none() => None,
                "payload" | "cold" if self.payload.is_none() => None,
                "tiny" | "own-region" => (value != 0.0).then(|| format!("--{option}")),
                _ => Some(format!("--{option} {value}")),
            });
        words.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sizes: Sizes,
    }

    fn sizes(line: &str) -> Sizes {
        Line::try_parse_from(format!("x {line}").split_whitespace()).unwrap().sizes
    }

    #[test]
    fn options_of_other_workloads_are_refused_by_name() {
        assert!(sizes("--rows 5 --zipf 1").check("ycsb-a").is_ok());
        assert!(sizes("--tiny --warehouses 2").check("tpcc").is_ok());
        assert!(sizes("--tiny --own-region").check("tpcc-nopay").is_ok());
        assert!(sizes("--hot 5 --customers 9").check("smallbank").is_ok());
        assert!(sizes("--hot 5 --shards 9 --remote 1").check("calvin-micro").is_ok());
        let cases = [
            ("--zipf 1", "tpcc", "only to ycsb, mako-micro, tiga-micro"),
            ("--remote 1", "tiga-micro", "only to calvin-micro, mako-micro"),
            ("--customers 7", "bank", "only to smallbank"),
        ];
        for (line, workload, words) in cases {
            let error = sizes(line).check(workload).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn what_concerns_a_workload_is_said_as_it_would_be_asked_for() {
        assert_eq!(sizes("--zipf 0.9").in_words("ycsb-a"), "--rows 100000 --zipf 0.9");
        assert_eq!(sizes("").in_words("tpcc"), "--warehouses 8");
        assert_eq!(sizes("--tiny").in_words("tpcc-nopay"), "--warehouses 8 --tiny");
        assert_eq!(sizes("--items 2000").in_words("tpcc"), "--warehouses 8 --items 2000");
        assert_eq!(sizes("").in_words("tpcc-neworder"), "--warehouses 8 --shards 3");
        assert_eq!(sizes("--own-region").in_words("tpcc"), "--warehouses 8 --own-region");
        let words = "--rows 100000 --shards 3 --hot 20 --remote 5";
        assert_eq!(sizes("--hot 20").in_words("calvin-micro"), words);
        let words = format!("{words} --payload 1000 --cold 0");
        assert_eq!(sizes("--hot 20 --payload 1000").in_words("calvin-micro"), words);
    }
}
