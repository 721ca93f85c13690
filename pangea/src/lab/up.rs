//! The process that runs a lab.

use pangea_lab::{Lab, LabError, Options, WideArea};

use super::{Up, failure, of_ms, views};
use crate::cluster::Regions;
use crate::failure::Failure;
use crate::regions;
use crate::say;
use crate::signals::Signals;

/// The default round trip between regions without names.
const RTT_MS_DEFAULT: f64 = 50.0;

/// Faster than any network, so that a wrong unit is detected.
const MBIT_MAX: f64 = 1_000_000.0;

/// The upper limit of a link's queue, in KB: more would never leave the link.
const QUEUE_KB_MAX: u64 = 1 << 30;

/// Creates a lab and runs it until a signal arrives.
pub fn run(up: &Up) -> Result<(), Failure> {
    let options = options(up)?;
    options.check().map_err(failure)?;
    pangea_lab::check().map_err(failure)?;
    let logged = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .without_time();
    logged.init();
    let runtime = crate::runtime(1)?;
    runtime.block_on(async {
        // Signal handlers are installed before anything exists that needs removal.
        let mut signals = Signals::new()?;
        let lab = Lab::up(&options).map_err(failure)?;
        say(&views::start(&lab.status().map_err(failure)?))?;
        let ended = until_it_ends(lab.wide_area().clone());
        let ended = tokio::select! {
            ended = ended => ended,
            () = signals.received() => Ok(()),
        };
        let removed = lab.down();
        ended.and(removed).map_err(failure)?;
        say("\nthe lab has ended, and everything in it is removed")
    })
}

/// Waits for a lab to end on its own, for example because a region's device was removed.
async fn until_it_ends(wide_area: WideArea) -> Result<(), LabError> {
    let wait = move || wide_area.wait_until_it_ends();
    let ended = tokio::task::spawn_blocking(wait).await;
    ended.unwrap_or_else(|panic| Err(LabError::Failed(panic.to_string())))
}

fn options(up: &Up) -> Result<Options, Failure> {
    let names = match &up.regions {
        Regions::Count(count) => (1..=*count).map(|number| format!("region-{number}")).collect(),
        Regions::Named(names) => names.clone(),
    };
    let rtt_ms = match &up.regions {
        Regions::Count(_) => Some(up.rtt.unwrap_or(RTT_MS_DEFAULT)),
        Regions::Named(_) => up.rtt,
    };
    // All names are checked first, so that every pair has a distance.
    let rtt = rtt_ms.map(|ms| of_ms("--rtt", ms)).transpose()?;
    let unknown = names.iter().find(|name| !regions::NAMES.contains(&name.as_str()));
    if let (None, Some(unknown)) = (rtt, unknown) {
        return Err(Failure::Usage(format!(
            "the distance to region {unknown:?} is not known: add --rtt, or choose from {}",
            regions::NAMES.join(", ")
        )));
    }
    let round_trip = |a: &str, b: &str| match rtt {
        _ if a == b => std::time::Duration::ZERO,
        Some(rtt) => rtt,
        None => {
            let ms = regions::round_trip_ms(a, b).expect("both are known");
            std::time::Duration::from_secs_f64(ms / 1_000.0)
        }
    };
    let bits_per_sec = up.bandwidth.map(bits_per_sec).transpose()?;
    if let Some(kb) = up.queue.filter(|kb| *kb > QUEUE_KB_MAX) {
        return Err(Failure::Usage(format!("--queue {kb}: must be at most {QUEUE_KB_MAX} KB")));
    }
    Ok(Options {
        jitter: of_ms("--jitter", up.jitter)?,
        bits_per_sec,
        queue_bytes: up.queue.map(|kb| kb * 1_000),
        loss: up.loss / 100.0,
        may_overtake: up.reorder,
        mtu: up.mtu,
        offload: !up.no_offload,
        seed: up.seed,
        ..Options::new(names, round_trip)
    })
}

fn bits_per_sec(mbit: f64) -> Result<u64, Failure> {
    // This also rejects NaN.
    if !(0.001..=MBIT_MAX).contains(&mbit) {
        let message = format!("--bandwidth {mbit}: must be from 0.001 to {MBIT_MAX} Mbit/s");
        return Err(Failure::Usage(message));
    }
    Ok((mbit * 1e6) as u64)
}
