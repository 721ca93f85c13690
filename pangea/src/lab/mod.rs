//! `pangea lab`: regions on this machine for any software, connected by an emulated WAN.
//!
//! The crate `pangea-lab` implements it; this module is the command line and its output.
//!
//! - [`up`]: the process that runs a lab;
//! - [`ask`]: requests to a lab in another process;
//! - [`views`]: the tables.

#[cfg(target_os = "linux")]
mod ask;
#[cfg(target_os = "linux")]
mod up;
#[cfg(target_os = "linux")]
mod views;

use std::ffi::OsString;

use crate::cluster::Regions;
use crate::failure::Failure;
use crate::regions;

/// Create regions on this machine in which any software can run, connected by an emulated WAN.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab up --regions us-east,eu-west,ap-northeast
  sudo pangea lab run eu-west -- iperf3 -s -1
  sudo pangea lab run us-east -- sh -c 'iperf3 -c $LAB_EU_WEST'
  sudo pangea lab cut us-east eu-west
  sudo pangea lab status

Each region is a Linux network namespace with its own address. Packets between regions are delayed
like those between the cloud regions of the same names. docs/LAB.md has more.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Up(Box<Up>),
    Run(Run),
    Cut(Cut),
    Heal(Heal),
    Isolate(Isolate),
    Rtt(Rtt),
    Status(Status),
    Clear(Clear),
}

/// Create a lab, which exists until this command ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab up
  sudo pangea lab up --regions us-east,eu-central --jitter 2 --bandwidth 100
  sudo pangea lab up --regions 5 --rtt 80 --loss 0.1

Ctrl-C and SIGTERM end the lab: all processes in its regions are ended, and everything is removed.
The remains of a killed lab are removed by the next lab, or by `pangea lab clear`.")]
struct Up {
    /// Number of regions, or their names; the names of cloud regions have the real distances
    #[arg(long, value_name = "N|A,B,C", default_value = regions::DEFAULT)]
    regions: Regions,
    /// Round trip between any two regions, in ms [default: 50, or the distance between the named
    /// regions]
    #[arg(long, value_name = "MS")]
    rtt: Option<f64>,
    /// Maximum additional random delay of each packet, each way, in ms; packets are not reordered
    /// by it
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter: f64,
    /// Bandwidth from each region to each other region, in Mbit/s [default: unlimited]
    #[arg(long, value_name = "MBIT")]
    bandwidth: Option<f64>,
    /// Queue of a busy link, in KB; packets above it are dropped [default: 100 ms of the bandwidth]
    #[arg(long, value_name = "KB", requires = "bandwidth")]
    queue: Option<u64>,
    /// Percentage of packets that are lost
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// Largest packet between two regions, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1_500)]
    mtu: u16,
    /// Let jitter reorder packets
    #[arg(long)]
    reorder: bool,
    /// Make the kernel deliver each packet separately: slower, but loss affects single packets
    #[arg(long)]
    no_offload: bool,
    /// Seed of jitter and loss
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Run a command in a region of a lab.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab run us-east -- bash
  sudo pangea lab run us-east -- sh -c 'ping -c 3 $LAB_EU_WEST'
  sudo pangea lab run eu-west -- sudo -u postgres psql

The command's environment has the name of its region in LAB_REGION, and the address of each region
in a variable like LAB_US_EAST. Files, users and everything else are those of the machine. The exit
code is that of the command.")]
struct Run {
    /// Name of the region
    #[arg(value_name = "REGION")]
    region: String,
    /// Command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    which: Which,
}

/// Cut the link between two regions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab cut us-east eu-west

Packets in flight are lost, and so is everything sent until the link is healed. No error is
reported: connections wait, as they do when a cable is cut.")]
struct Cut {
    /// One region
    a: String,
    /// The other region
    b: String,
    #[command(flatten)]
    which: Which,
}

/// Restore the link between two regions, or all links.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab heal us-east eu-west
  sudo pangea lab heal")]
struct Heal {
    /// One region [default: restore all links]
    #[arg(requires = "b")]
    a: Option<String>,
    /// The other region
    b: Option<String>,
    #[command(flatten)]
    which: Which,
}

/// Cut a region off from all others.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab isolate eu-west")]
struct Isolate {
    /// Name of the region
    region: String,
    #[command(flatten)]
    which: Which,
}

/// Change the round trip between two regions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab rtt us-east eu-west 200")]
struct Rtt {
    /// One region
    a: String,
    /// The other region
    b: String,
    /// Round trip in ms
    #[arg(value_name = "MS")]
    ms: f64,
    #[command(flatten)]
    which: Which,
}

/// Show the regions and links of a lab, and its packet counters.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab status
  sudo pangea lab status --json")]
struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// Remove the remains of killed labs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab clear

Running labs are not affected.")]
struct Clear {}

/// The lab to act on.
#[derive(Debug, clap::Args)]
struct Which {
    /// Name of the lab, required if several are running
    #[arg(long = "lab", value_name = "LAB")]
    lab: Option<String>,
}

/// Executes the command.
#[cfg(target_os = "linux")]
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Up(up) => up::run(up),
        Command::Run(run) => ask::run(run),
        Command::Cut(cut) => ask::cut(cut),
        Command::Heal(heal) => ask::heal(heal),
        Command::Isolate(isolate) => ask::isolate(isolate),
        Command::Rtt(rtt) => ask::rtt(rtt),
        Command::Status(status) => ask::status(status),
        Command::Clear(Clear {}) => ask::clear(),
    }
}

/// Reports that labs are not supported on this system.
#[cfg(not(target_os = "linux"))]
pub fn run(_: &Arguments) -> Result<(), Failure> {
    let what = "a lab needs network namespaces, which only Linux has: run it on Linux, or in a \
                virtual machine with Linux";
    Err(Failure::Usage(what.to_owned()))
}

/// Converts an error of a lab into the error of a command.
#[cfg(target_os = "linux")]
fn failure(error: pangea_lab::LabError) -> Failure {
    use pangea_lab::LabError;
    match error {
        LabError::Usage(message) => Failure::Usage(message),
        LabError::Missing(message) | LabError::Failed(message) => Failure::Failed(message),
    }
}

/// Returns a duration given in milliseconds.
#[cfg(target_os = "linux")]
fn of_ms(option: &str, ms: f64) -> Result<std::time::Duration, Failure> {
    let time = std::time::Duration::try_from_secs_f64(ms / 1_000.0);
    time.map_err(|_| Failure::Usage(format!("{option} {ms}: must be a number of milliseconds")))
}
