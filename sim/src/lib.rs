//! The world made of dice: whole clusters of the real protocol and store code in virtual time.
//!
//! [`run`] makes one cluster from a seed: nodes with real stores, a network with latency, jitter
//! and two lanes, disks that lose what was not synced, clocks that are wrong, clients, and faults.
//! It runs a workload through it, heals it, waits for everything to end, and checks what clients
//! saw. The same seed gives the same trace, byte for byte. [`run_seeds`] does so for many seeds.
//!
//! | where | what |
//! |---|---|
//! | [`world`] | the event loop, nodes, network, faults, clients |
//! | [`disk`], [`clock`], [`dice`] | parts of the world |
//! | [`faults`] | what goes wrong in it |
//! | [`history`], [`check`] | what clients saw, and whether it can be true |
//! | [`record`] | what clients of any database saw, in files |
//! | [`trace`], [`report`] | what is printed |
//! | [`settings`], [`scenario`] | everything that can be chosen, and files of it |
//! | [`predict`] | throughput and latency on given machines, from measured costs |
//! | [`swarm`], [`shrink`](mod@shrink) | many runs, and the smallest that fails |

mod capture;
pub mod check;
pub mod clock;
pub mod dice;
pub mod disk;
pub mod faults;
pub mod history;
pub mod predict;
pub mod record;
mod reigns;
pub mod report;
pub mod scenario;
pub mod settings;
pub mod shrink;
pub mod swarm;
pub mod trace;
pub mod world;

use pangea_core::protocol::Protocol;

pub use faults::FaultKind;
pub use report::Report;
pub use scenario::Scenario;
pub use settings::{RealTime, Settings};
pub use shrink::{Shrunk, shrink};
pub use swarm::{
    BrokenOff, Extent, Plan, Summary, Watch, drawn, drawn_beside, run_seeds, run_swarm,
};
pub use world::World;

/// Runs one seed to its end and checks it.
///
/// # Errors
/// When the settings ask for something that there is not.
pub fn run<P: Protocol>(settings: &Settings, options: &P::Options) -> Result<Report, String> {
    #[cfg(feature = "planted")]
    let _planted = pangea_core::planted::Planted::new(settings.planted);
    #[cfg(not(feature = "planted"))]
    if let Some(bug) = settings.planted {
        return Err(format!("can't plant {bug}: built without the feature \"planted\""));
    }
    let world = World::<P>::new(settings, options)?;
    // A panic in a step is caught there; this one is for the world's own asserts, so that a swarm
    // tells the seed.
    let mut outline = Report::outline::<P>(settings, options);
    match capture::panics(std::panic::AssertUnwindSafe(|| world.run())) {
        Ok(report) => Ok(report),
        Err(panic) => {
            outline.violation = Some(check::Violation::new("simulator", "panic", panic));
            Ok(outline)
        }
    }
}
