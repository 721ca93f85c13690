//! Where servers and clients are: on loopback, or in the regions of a lab.
//!
//! ```text
//!   region-1                        region-2                region-3
//!   a server, its clients           a server, its clients   a server, its clients
//!   loading, looking, checking
//! ```
//!
//! In a lab a region's clients are tasks of a runtime whose threads are in the region's network
//! namespace, since a socket is of the namespace of the thread that makes it. What is common to all
//! (servers are started, tables loaded and checked, nodes asked for what they count) is done from
//! the first region, by a thread that lives as long as the servers.
//!
//! The distance is there from the beginning, though loading takes longer with it: a connection of
//! TCP that was made without it has a window for a short way, and takes long to widen it.

use std::time::Duration;

use pangea_lab::{Lab, LabError, Region, WideArea};
use tokio::runtime::{Handle, Runtime};

use super::Arguments;
use crate::cluster::{Plan, Spot};
use crate::failure::Failure;
use crate::signals::Signals;

/// A faster network than any, so that a slip of the unit is noticed.
const MBIT_MAX: f64 = 1_000_000.0;

/// Options of the lab.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Options {
    /// Make a lab (docs/LAB.md): each region's server and clients are in a network namespace, and
    /// packets between them take --rtt and --jitter, for Pangea and for peers. Linux, as root
    #[arg(long)]
    pub lab: bool,
    /// Mbit/s from each region of a lab to each other [default: as fast as the machine is]
    #[arg(long, value_name = "MBIT", requires = "lab")]
    pub bandwidth: Option<f64>,
}

/// Where it is.
pub struct Ground {
    /// Of each region's clients, in a lab.
    runtimes: Vec<Runtime>,
    regions: Vec<Region>,
    wide_area: Option<WideArea>,
}

/// What a lab counted so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabUsage {
    /// Bytes that regions sent to each other, as they are on the wire, of clients and servers.
    pub bytes: u64,
    /// Packets of these.
    pub packets: u64,
    /// Processor time of the router, in microseconds.
    pub router_cpu_us: f64,
    /// Packets that a region dropped before they reached a link, since the router was too slow.
    pub overruns: u64,
    /// By how much later than they should packets arrived, since the lab was made: the median, the
    /// 99th percentile and the most, in microseconds.
    pub late_us: [f64; 3],
}

impl LabUsage {
    /// What was added since `before`. How late packets were is of the whole time.
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

/// What went wrong in a lab, as commands say it.
fn failure(error: LabError) -> Failure {
    match error {
        LabError::Usage(message) => Failure::Usage(message),
        LabError::Missing(message) | LabError::Failed(message) => Failure::Failed(message),
    }
}

/// Whether there can be such a lab, on this machine.
///
/// # Errors
/// Why there can't, and what to do.
pub fn check(arguments: &Arguments, plan: &Plan) -> Result<(), Failure> {
    if !arguments.ground.lab {
        return Ok(());
    }
    options(arguments, plan)?.check().map_err(failure)?;
    pangea_lab::check().map_err(|error| match failure(error) {
        Failure::Failed(message) => Failure::Usage(format!("--lab: {message}")),
        other => other,
    })
}

/// The lab that a cluster or a peer would be in.
fn options(arguments: &Arguments, plan: &Plan) -> Result<pangea_lab::Options, Failure> {
    let of_ms = |ms: f64| Duration::try_from_secs_f64(ms / 1e3);
    let bits = arguments.ground.bandwidth.map(|mbit| {
        // Also refuses what is no number.
        let is_one = (0.001..=MBIT_MAX).contains(&mbit);
        let wrong = format!("--bandwidth {mbit}: must be from 0.001 to {MBIT_MAX} Mbit/s");
        is_one.then_some((mbit * 1e6) as u64).ok_or(Failure::Usage(wrong))
    });
    let jitter = of_ms(plan.jitter_ms).map_err(|_| {
        Failure::Usage(format!("--jitter {}: must be milliseconds", plan.jitter_ms))
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

/// Does some work on the ground that is asked for: a lab is made before and is gone afterwards,
/// whatever came of the work, with everything that runs in it. The work is told what ends it early.
///
/// # Errors
/// The work's, and why there is no lab.
pub fn on<R: Send>(
    arguments: &Arguments,
    plan: &Plan,
    work: impl FnOnce(&Ground, &mut Signals) -> Result<R, Failure> + Send,
) -> Result<R, Failure> {
    // Before there is anything that would have to be removed; it listens until the end.
    let listening = crate::runtime(1)?;
    let mut signals = {
        let _within = listening.enter();
        Signals::new()?
    };
    if !arguments.ground.lab {
        return work(&Ground::loopback(), &mut signals);
    }
    let lab = Lab::up(&options(arguments, plan)?).map_err(failure)?;
    let done = Ground::of(&lab).and_then(|ground| {
        let first = &lab.regions()[0];
        let done = first.enter(|| work(&ground, &mut signals));
        done.map_err(failure).and_then(|done| done)
    });
    let gone = lab.down().map_err(failure);
    done.and_then(|done| gone.map(|()| done))
}

impl Ground {
    /// Loopback.
    pub fn loopback() -> Self {
        Self { runtimes: Vec::new(), regions: Vec::new(), wide_area: None }
    }

    fn of(lab: &Lab) -> Result<Self, Failure> {
        let runtime = |region: &Region| region.enter(|| crate::runtime(1)).map_err(failure)?;
        let runtimes = lab.regions().iter().map(runtime).collect::<Result<_, _>>()?;
        let regions = lab.regions().to_vec();
        Ok(Self { runtimes, regions, wide_area: Some(lab.wide_area().clone()) })
    }

    /// Whether it is a lab.
    pub fn is_lab(&self) -> bool {
        self.wide_area.is_some()
    }

    /// A runtime for the clients of each of so many regions. On loopback it is that of the caller.
    ///
    /// # Panics
    /// On loopback, without a runtime.
    pub fn runtimes(&self, regions: usize) -> Vec<Handle> {
        match self.is_lab() {
            true => self.runtimes.iter().map(|runtime| runtime.handle().clone()).collect(),
            false => vec![Handle::current(); regions],
        }
    }

    /// Where a cluster's nodes are to run: nowhere in particular on loopback.
    pub fn spots(&self) -> Vec<Spot> {
        let spot =
            |region: &Region| Spot { address: region.address(), front: region.front().to_vec() };
        self.regions.iter().map(spot).collect()
    }

    /// Where the servers of a peer are to run.
    pub fn places(&self, names: &[String]) -> Vec<pangea_peers::Place> {
        let place = |region: &Region| {
            let place = pangea_peers::Place::new(region.name(), region.address());
            place.entered_by(region.front())
        };
        match self.is_lab() {
            true => self.regions.iter().map(place).collect(),
            false => pangea_peers::Place::loopback(names),
        }
    }

    /// Cuts two regions of a lab off from each other, clients too.
    ///
    /// # Errors
    /// When the lab has ended.
    pub fn cut(&self, a: &str, b: &str) -> Result<(), Failure> {
        self.wide_area.as_ref().map_or(Ok(()), |area| area.cut(a, b)).map_err(failure)
    }

    /// Heals everything that was cut.
    ///
    /// # Errors
    /// When the lab has ended.
    pub fn heal(&self) -> Result<(), Failure> {
        self.wide_area.as_ref().map_or(Ok(()), WideArea::heal_all).map_err(failure)
    }

    /// What the lab counted so far, where there is one.
    ///
    /// # Errors
    /// When it has ended.
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
