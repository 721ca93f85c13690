//! Deterministic simulation: whole clusters of the real protocol and store code in virtual time.
//!
//! [`run`] builds one cluster from a seed: nodes with real stores, a network with latency, jitter
//! and two lanes, disks that lose unsynced data, inaccurate clocks, clients, and faults. It runs a
//! workload, heals the cluster, waits until everything has ended, and checks the results that
//! clients observed. The same seed gives the same trace, byte for byte. [`run_seeds`] does this for
//! many seeds.
//!
//! | module | contents |
//! |---|---|
//! | [`world`] | the event loop, nodes, network, faults, clients |
//! | [`disk`], [`clock`], [`rng`] | the simulated disk, clock and random generators |
//! | [`faults`] | the faults of a run |
//! | [`history`], [`check`] | the observations of clients, and whether they can be correct |
//! | [`record`] | observations of clients of any database, in files |
//! | [`trace`], [`report`] | the output of a run |
//! | [`settings`], [`scenario`] | all settings of a run, and files with them |
//! | [`predict`] | throughput and latency on given machines, from measured costs |
//! | [`swarm`], [`shrink`](mod@shrink) | many runs, and the smallest that fails |
//! | [`simulator`](mod@simulator) | all of this for a protocol by its name |

pub mod check;
pub mod clock;
pub mod disk;
pub mod faults;
pub mod history;
pub mod levels;
pub mod master_terms;
mod panic_capture;
pub mod predict;
pub mod record;
pub mod report;
pub mod rng;
pub mod scenario;
pub mod settings;
pub mod shrink;
pub mod simulator;
pub mod swarm;
pub mod trace;
pub mod world;

use pangea_core::protocol::Protocol;

pub use faults::FaultKind;
pub use levels::Levels;
pub use report::Report;
pub use scenario::Scenario;
pub use settings::{RealTime, Settings, SlotMove};
pub use shrink::{Shrunk, shrink};
pub use simulator::{Simulator, simulator};
pub use swarm::{
    Extent, Plan, Summary, SwarmAborted, Watch, drawn, drawn_beside, run_seeds, run_swarm,
};
pub use world::World;

/// Runs one seed to its end and checks it.
///
/// # Errors
/// If the settings are invalid or need a missing feature.
pub fn run<P: Protocol>(settings: &Settings, options: &P::Options) -> Result<Report, String> {
    #[cfg(feature = "planted")]
    let _planted = pangea_core::planted::Planted::new(settings.planted);
    #[cfg(not(feature = "planted"))]
    if let Some(bug) = settings.planted {
        return Err(format!(
            "can't plant {bug}: the program was built without the feature \"planted\""
        ));
    }
    let world = World::<P>::new(settings, options)?;
    // `World` catches panics in protocol steps itself. This catches the simulator's own assertions,
    // so that a swarm still reports the seed.
    let mut outline = Report::outline::<P>(settings, options);
    match panic_capture::panics(std::panic::AssertUnwindSafe(|| world.run())) {
        Ok(report) => Ok(report),
        Err(panic) => {
            outline.violation = Some(check::Violation::new("simulator", "panic", panic));
            Ok(outline)
        }
    }
}
