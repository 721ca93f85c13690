//! `pangea demo`: a cluster over several regions on this machine, to play with.
//!
//! - [`command`]: what can be typed beside SQL;
//! - [`prompt`]: what is done about it;
//! - [`views`]: the tables that are shown;
//! - [`traffic`]: the light load of `--load`.

mod command;
mod prompt;
mod traffic;
mod views;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pangea_node::client::Client;

use crate::cluster::{Cluster, Place, Plan};
use crate::failure::Failure;
use crate::regions;
use crate::signals::Signals;
use prompt::Prompt;
use traffic::{Kind, Traffic};

/// A demo's log grows slowly, and its files should be made quickly.
const LOG_SEGMENT_BYTES: u64 = 4 << 20;
/// How long to wait for the first measured round trips before the table shows what there is.
const MEASURED_DEADLINE: Duration = Duration::from_millis(1_500);
/// How often to look for them.
const MEASURED_POLL: Duration = Duration::from_millis(10);

/// Run a cluster over several regions on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea demo
  pangea demo --regions us-east,eu-central,au-southeast --load ycsb-a
  pangea demo --data-dir ./demo < /dev/null      until SIGINT (Ctrl-C) or SIGTERM

Each region is a real node process; what they send to each other is delayed as if they were where
their names say. At the prompt: SQL, and \\help for killing nodes and cutting links.")]
pub struct Arguments {
    /// The regions, a node in each
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', default_value = regions::DEFAULT)]
    #[arg(help = format!("The regions, a node in each, of: {}", regions::NAMES.join(", ")))]
    regions: Vec<String>,
    /// The commit protocol
    #[arg(long, value_name = "NAME", default_value = crate::protocol::NAMES[0])]
    protocol: String,
    /// Keep the data here, and use what is there [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Run a light load beside
    #[arg(long, value_name = "WORKLOAD", value_enum)]
    load: Option<Kind>,
}

/// Runs the demo.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let plan = Plan::of_named_regions(&arguments.protocol, &arguments.regions)?;
    let plan = Plan { log_segment_bytes: LOG_SEGMENT_BYTES, ..plan };
    plan.check()?;
    let runtime = crate::runtime(1)?;
    let result = runtime.block_on(play(arguments, plan));
    // The reader of the terminal may still wait for a line.
    runtime.shutdown_background();
    result
}

async fn play(arguments: &Arguments, plan: Plan) -> Result<(), Failure> {
    let began = Instant::now();
    let mut signals = Signals::new()?;
    let place = match &arguments.data_dir {
        Some(path) => Place::Kept(path.clone()),
        None => Place::Temporary { within: None, keep: false },
    };
    let mut cluster = tokio::select! {
        cluster = Cluster::start(plan, place) => cluster?,
        () = signals.received() => return Ok(()),
    };
    let played = tokio::select! {
        played = show(arguments, &mut cluster, began) => played,
        () = signals.received() => Ok(()),
    };
    played.and(cluster.stop().await)
}

/// Shows the cluster and lets people play with it until they have enough.
async fn show(arguments: &Arguments, cluster: &mut Cluster, began: Instant) -> Result<(), Failure> {
    let clients = cluster.clients().await?;
    cluster.usable(&clients).await?;
    let measured = measured_round_trips(&clients).await;
    let seconds = began.elapsed().as_secs_f64();
    let (protocol, count) = (&cluster.plan.protocol, cluster.plan.regions.len());
    say(&format!("{protocol} over {count} regions, ready in {seconds:.1} s\n"))?;
    say("Round trips in ms, emulated / measured:")?;
    say(&views::round_trips(&cluster.plan, &measured).to_string())?;
    say("")?;
    for member in &cluster.members {
        say(&format!("{:<14} {}", member.region(), member.sql_url()))?;
    }
    say("")?;
    let traffic = match arguments.load {
        Some(kind) => Some(Traffic::start(kind, cluster, &clients).await?),
        None => None,
    };
    if std::io::stdin().is_terminal() {
        Prompt::new(cluster, clients, traffic).run().await
    } else {
        loop {
            match &traffic {
                Some(traffic) => say(&traffic.rates().await)?,
                None => std::future::pending().await,
            }
        }
    }
}

fn say(line: &str) -> Result<(), Failure> {
    let said = writeln!(std::io::stdout(), "{line}").and_then(|()| std::io::stdout().flush());
    said.map_err(|error| Failure::failed("can't write to stdout", error))
}

/// The shortest measured round trips in ms, `[from][to]`, once each is there or none comes any
/// more.
async fn measured_round_trips(clients: &[Client]) -> Vec<Vec<Option<f64>>> {
    let began = Instant::now();
    loop {
        let measured = views::measure(clients).await;
        let is_there = |from: usize, to: usize| from == to || measured[from][to].is_some();
        let all = 0..clients.len();
        let is_complete = all.clone().all(|from| all.clone().all(|to| is_there(from, to)));
        if is_complete || began.elapsed() > MEASURED_DEADLINE {
            return measured;
        }
        tokio::time::sleep(MEASURED_POLL).await;
    }
}
