//! The environment of a benchmark: loopback, or the regions of a lab.
//!
//! ```text
//!   region-1                        region-2                region-3
//!   a server, its clients           a server, its clients   a server, its clients
//!   loading, polling, checking
//! ```
//!
//! In a lab, the clients of a region are tasks of a runtime with threads in the region's network
//! namespace. The reason is that a socket belongs to the namespace of the thread that creates it.
//! The common work (starting servers, loading and checking tables, reading the nodes' counters) is
//! done in the first region, by a thread that lives as long as the servers.
//!
//! The distance is emulated from the beginning, although it makes loading slower. A TCP connection
//! that was established without it would have a window for a short round trip, and would need long
//! to grow it.

use std::time::Duration;

use pangea_lab::{Lab, LabError, Region, WideArea};
use tokio::runtime::{Handle, Runtime};

use super::Arguments;
use crate::cluster::{Placement, Plan};
use crate::failure::Failure;
use crate::signals::Signals;

/// Faster than any network, so that a wrong unit is detected.
const MBIT_MAX: f64 = 1_000_000.0;

/// Options of the lab.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Options {
    /// Run in a lab (docs/LAB.md): the server and the clients of each region run in a network
    /// namespace, and packets between namespaces are delayed by --rtt and --jitter, for Pangea and
    /// for other systems. Requires Linux and root
    #[arg(long)]
    pub lab: bool,
    /// Bandwidth from each region of a lab to each other region, in Mbit/s [default: unlimited]
    #[arg(long, value_name = "MBIT", requires = "lab")]
    pub bandwidth: Option<f64>,
}

/// The environment of a benchmark.
pub struct BenchEnvironment {
    /// The runtimes of the regions' clients, in a lab.
    runtimes: Vec<Runtime>,
    regions: Vec<Region>,
    wide_area: Option<WideArea>,
}

/// Counters of a lab.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabUsage {
    /// Bytes on the wire between regions, of clients and servers.
    pub bytes: u64,
    /// The packets with these bytes.
    pub packets: u64,
    /// CPU time of the router, in microseconds.
    pub router_cpu_us: f64,
    /// Packets that a region dropped before they reached a link, because the router was too slow.
    pub overruns: u64,
    /// The excess delay of packets since the lab was created: median, 99th percentile and maximum,
    /// in microseconds.
    pub late_us: [f64; 3],
}

impl LabUsage {
    /// Returns the difference to `before`. The excess delay still covers the whole lifetime.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            packets: self.packets.saturating_sub(before.packets),
            router_cpu_us: self.router_cpu_us - before.router_cpu_us,
            overruns: self.overruns.saturating_sub(before.overruns),
            late_us: self.late_us,
        }
    }
}

/// Converts an error of a lab into the error of a command.
fn failure(error: LabError) -> Failure {
    match error {
        LabError::Usage(message) => Failure::Usage(message),
        LabError::Missing(message) | LabError::Failed(message) => Failure::Failed(message),
    }
}

/// Checks that this machine can run the requested lab.
///
/// # Errors
/// The reason why it cannot, and the remedy.
pub fn check(arguments: &Arguments, plan: &Plan) -> Result<(), Failure> {
    if !arguments.environment.lab {
        return Ok(());
    }
    options(arguments, plan)?.check().map_err(failure)?;
    pangea_lab::check().map_err(|error| match failure(error) {
        Failure::Failed(message) => Failure::Usage(format!("--lab: {message}")),
        other => other,
    })
}

/// Returns the options of the lab that a cluster or baseline would run in.
fn options(arguments: &Arguments, plan: &Plan) -> Result<pangea_lab::Options, Failure> {
    let of_ms = |ms: f64| Duration::try_from_secs_f64(ms / 1e3);
    let bits = arguments.environment.bandwidth.map(|mbit| {
        // This also rejects NaN.
        let is_one = (0.001..=MBIT_MAX).contains(&mbit);
        let wrong = format!("--bandwidth {mbit}: must be from 0.001 to {MBIT_MAX} Mbit/s");
        is_one.then_some((mbit * 1e6) as u64).ok_or(Failure::Usage(wrong))
    });
    let jitter = of_ms(plan.jitter_ms).map_err(|_| {
        Failure::Usage(format!("--jitter {}: must be a number of milliseconds", plan.jitter_ms))
    })?;
    let round_trip = |a: &str, b: &str| {
        of_ms(plan.round_trip_ms(a, b)).expect("round trips of a plan are checked")
    };
    Ok(pangea_lab::Options {
        jitter,
        bits_per_sec: bits.transpose()?,
        seed: arguments.seed,
        ..pangea_lab::Options::new(plan.regions.iter().cloned(), round_trip)
    })
}

/// Runs some work in the requested environment. A lab is created before the work and removed
/// afterwards, with all processes in it, whether or not the work succeeded. The work receives the
/// signals that interrupt it.
///
/// # Errors
/// The error of the work, or the reason why the lab could not be created.
pub fn on<R: Send>(
    arguments: &Arguments,
    plan: &Plan,
    work: impl FnOnce(&BenchEnvironment, &mut Signals) -> Result<R, Failure> + Send,
) -> Result<R, Failure> {
    // Signal handlers are installed before anything exists that needs removal, and stay until the
    // end.
    let listening = crate::runtime(1)?;
    let mut signals = {
        let _within = listening.enter();
        Signals::new()?
    };
    if !arguments.environment.lab {
        return work(&BenchEnvironment::loopback(), &mut signals);
    }
    let lab = Lab::up(&options(arguments, plan)?).map_err(failure)?;
    let done = BenchEnvironment::of(&lab).and_then(|environment| {
        let first = &lab.regions()[0];
        let done = first.enter(|| work(&environment, &mut signals));
        done.map_err(failure).and_then(|done| done)
    });
    let gone = lab.down().map_err(failure);
    done.and_then(|done| gone.map(|()| done))
}

impl BenchEnvironment {
    /// Returns the loopback environment.
    pub fn loopback() -> Self {
        Self { runtimes: Vec::new(), regions: Vec::new(), wide_area: None }
    }

    fn of(lab: &Lab) -> Result<Self, Failure> {
        let runtime = |region: &Region| region.enter(|| crate::runtime(1)).map_err(failure)?;
        let runtimes = lab.regions().iter().map(runtime).collect::<Result<_, _>>()?;
        let regions = lab.regions().to_vec();
        Ok(Self { runtimes, regions, wide_area: Some(lab.wide_area().clone()) })
    }

    /// Returns whether the environment is a lab.
    pub fn is_lab(&self) -> bool {
        self.wide_area.is_some()
    }

    /// Returns a runtime for the clients of each region. On loopback, that is the caller's runtime.
    ///
    /// # Panics
    /// On loopback, if called outside of a runtime.
    pub fn runtimes(&self, regions: usize) -> Vec<Handle> {
        match self.is_lab() {
            true => self.runtimes.iter().map(|runtime| runtime.handle().clone()).collect(),
            false => vec![Handle::current(); regions],
        }
    }

    /// Returns the placement of a cluster's nodes; empty on loopback.
    pub fn placements(&self) -> Vec<Placement> {
        let placement = |region: &Region| Placement {
            address: region.address(),
            command_prefix: region.front().to_vec(),
        };
        self.regions.iter().map(placement).collect()
    }

    /// Returns the placement of a baseline's servers.
    pub fn places(&self, names: &[String]) -> Vec<pangea_baselines::Placement> {
        let place = |region: &Region| {
            let place = pangea_baselines::Placement::new(region.name(), region.address());
            place.entered_by(region.front())
        };
        match self.is_lab() {
            true => self.regions.iter().map(place).collect(),
            false => pangea_baselines::Placement::loopback(names),
        }
    }

    /// Blocks all traffic between two regions of a lab, including that of clients.
    ///
    /// # Errors
    /// If the lab has ended.
    pub fn cut(&self, a: &str, b: &str) -> Result<(), Failure> {
        self.wide_area.as_ref().map_or(Ok(()), |area| area.cut(a, b)).map_err(failure)
    }

    /// Unblocks all traffic.
    ///
    /// # Errors
    /// If the lab has ended.
    pub fn heal(&self) -> Result<(), Failure> {
        self.wide_area.as_ref().map_or(Ok(()), WideArea::heal_all).map_err(failure)
    }

    /// Returns the lab's counters, if there is a lab.
    ///
    /// # Errors
    /// If the lab has ended.
    pub fn usage(&self) -> Result<Option<LabUsage>, Failure> {
        let Some(wide_area) = &self.wide_area else { return Ok(None) };
        let status = wide_area.status().map_err(failure)?;
        let late = |name: &str| status.late_us.get(name).copied().unwrap_or(0.0);
        let mut usage = LabUsage {
            router_cpu_us: status.cpu_us,
            late_us: ["p50", "p99", "max"].map(late),
            ..LabUsage::default()
        };
        for link in &status.links {
            usage.bytes += link.counts.sent.bytes;
            usage.packets += link.counts.sent.packets;
        }
        for region in &self.regions {
            usage.overruns += region.overruns().map_err(failure)?;
        }
        Ok(Some(usage))
    }
}
