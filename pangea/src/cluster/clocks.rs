//! Errors that are added to the clocks of a cluster's nodes, to see on one machine what worse
//! clocks cost.

use pangea_node::clock::{ClockConfig, Emulation};

/// The options that ask for worse clocks. Each node draws its own errors from the seed.
#[derive(clap::Args, Clone, Copy, Debug, Default, PartialEq)]
pub struct ClockErrors {
    /// Let each node's clock be wrong by up to this, in ms
    #[arg(long, value_name = "MS", default_value_t = 0)]
    clock_offset: u64,
    /// Let each node's clock be too quick or too slow by up to this, in microseconds a second
    #[arg(long, value_name = "PPM", default_value_t = 0)]
    clock_drift: u64,
    /// Let each node's clock have an error of up to this that comes and goes within a minute, in ms
    #[arg(long, value_name = "MS", default_value_t = 0)]
    clock_wander: u64,
}

impl ClockErrors {
    /// The table `[clock]` of the nodes, or `None` if their clocks are this machine's.
    pub fn config(self, seed: u64) -> Option<ClockConfig> {
        let Self { clock_offset: offset_ms, clock_drift: drift_ppm, clock_wander: wander_ms } =
            self;
        let emulation = Emulation { offset_ms, drift_ppm, wander_ms, seed };
        (self != Self::default())
            .then_some(ClockConfig { emulate: Some(emulation), ..ClockConfig::default() })
    }

    /// The options that differ from the defaults, as on the command line.
    pub fn named(self) -> Vec<String> {
        let Self { clock_offset, clock_drift, clock_wander } = self;
        let all = [
            ("offset", clock_offset, "ms"),
            ("drift", clock_drift, "ppm"),
            ("wander", clock_wander, "ms"),
        ];
        let given = all.into_iter().filter(|(_, value, _)| *value > 0);
        given.map(|(name, value, unit)| format!("{name} {value} {unit}")).collect()
    }
}
