//! `pangea lab`: regions on this machine for any software, with a wide area between them.
//!
//! What it does is in the crate `pangea-lab`; here is what can be typed and what is shown.
//!
//! - [`up`]: the process that a lab lives in;
//! - [`ask`]: what is asked of a lab that runs elsewhere;
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

/// Make regions on this machine that any software can run in, and a wide area between them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab up --regions us-east,eu-west,ap-northeast
  sudo pangea lab run eu-west -- iperf3 -s -1
  sudo pangea lab run us-east -- sh -c 'iperf3 -c $LAB_EU_WEST'
  sudo pangea lab cut us-east eu-west
  sudo pangea lab status

Each region is a network namespace of Linux with an address of its own; packets between two regions
are delayed as if they were where their names say. docs/LAB.md has more.")]
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

/// Make a lab, which is there until this ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab up
  sudo pangea lab up --regions us-east,eu-central --jitter 2 --bandwidth 100
  sudo pangea lab up --regions 5 --rtt 80 --loss 0.1

Ctrl-C and SIGTERM end it: everything that runs in its regions is ended, and nothing is left. What a
lab leaves that is killed is removed by the next, or by `pangea lab clear`.")]
struct Up {
    /// How many regions, or their names. Those of cloud regions have the distances of these
    #[arg(long, value_name = "N|A,B,C", default_value = regions::DEFAULT)]
    regions: Regions,
    /// Round trip between any two regions in ms [default: 50, or what is between named regions]
    #[arg(long, value_name = "MS")]
    rtt: Option<f64>,
    /// By how much a packet may be later, at random, each way; it overtakes no other by that
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter: f64,
    /// Mbit/s from each region to each other [default: as fast as the machine is]
    #[arg(long, value_name = "MBIT")]
    bandwidth: Option<f64>,
    /// KB that wait for a busy link; more is dropped [default: 100 ms of the bandwidth]
    #[arg(long, value_name = "KB", requires = "bandwidth")]
    queue: Option<u64>,
    /// Packets of a hundred that are lost
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// The largest packet between two regions, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1_500)]
    mtu: u16,
    /// Let jitter change the order of packets
    #[arg(long)]
    reorder: bool,
    /// Have the kernel hand over each packet by itself: slower, and loss hits single packets
    #[arg(long)]
    no_offload: bool,
    /// What jitter and loss are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Run a command in a region of a lab.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab run us-east -- bash
  sudo pangea lab run us-east -- sh -c 'ping -c 3 $LAB_EU_WEST'
  sudo pangea lab run eu-west -- sudo -u postgres psql

The command finds its region's name in LAB_REGION, and the address of each region under its name, as
in LAB_US_EAST. Files, users and all else are the machine's. The exit code is the command's.")]
struct Run {
    /// The region
    #[arg(value_name = "REGION")]
    region: String,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    which: Which,
}

/// Cut two regions off from each other.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab cut us-east eu-west

Packets that are on their way are lost, and so is all that is sent until the two are healed. Nobody
is told: connections wait, as they do when a cable is cut.")]
struct Cut {
    /// One region
    a: String,
    /// The other
    b: String,
    #[command(flatten)]
    which: Which,
}

/// Heal what was cut: between two regions, or everywhere.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab heal us-east eu-west
  sudo pangea lab heal")]
struct Heal {
    /// One region, where not all is to be healed
    #[arg(requires = "b")]
    a: Option<String>,
    /// The other
    b: Option<String>,
    #[command(flatten)]
    which: Which,
}

/// Cut a region off from all others.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab isolate eu-west")]
struct Isolate {
    /// The region
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
    /// The other
    b: String,
    /// The round trip in milliseconds
    #[arg(value_name = "MS")]
    ms: f64,
    #[command(flatten)]
    which: Which,
}

/// Show a lab's regions and links, and what became of their packets.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab status
  sudo pangea lab status --json")]
struct Status {
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// Remove what labs have left that were killed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo pangea lab clear

Labs that are running are left alone.")]
struct Clear {}

/// Which lab is meant.
#[derive(Debug, clap::Args)]
struct Which {
    /// The lab, where several are running
    #[arg(long = "lab", value_name = "LAB")]
    lab: Option<String>,
}

/// Does what was typed.
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

/// Says why it can't be.
#[cfg(not(target_os = "linux"))]
pub fn run(_: &Arguments) -> Result<(), Failure> {
    let what = "a lab is made of network namespaces, which Linux alone has: run it on Linux, or \
                in a virtual machine with it";
    Err(Failure::Usage(what.to_owned()))
}

/// What went wrong in a lab, as commands say it.
#[cfg(target_os = "linux")]
fn failure(error: pangea_lab::LabError) -> Failure {
    use pangea_lab::LabError;
    match error {
        LabError::Usage(message) => Failure::Usage(message),
        LabError::Missing(message) | LabError::Failed(message) => Failure::Failed(message),
    }
}

/// A time that was given in milliseconds.
#[cfg(target_os = "linux")]
fn of_ms(option: &str, ms: f64) -> Result<std::time::Duration, Failure> {
    let time = std::time::Duration::try_from_secs_f64(ms / 1_000.0);
    time.map_err(|_| Failure::Usage(format!("{option} {ms}: must be milliseconds")))
}
