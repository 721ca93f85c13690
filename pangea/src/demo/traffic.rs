//! The demo's light load: a few clients in each region who think between their transactions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use pangea_core::workload::tpcc::Scale;
use pangea_core::workload::{Settings, Workload};
use pangea_node::client::Client;
use tokio::runtime::Handle;

use crate::cluster::Cluster;
use crate::drive::{self, Connection, Drive, Pace, Phase};
use crate::failure::Failure;

/// Clients of a region.
const CLIENTS_PER_REGION: u32 = 8;
/// How long they think.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the rates are shown.
const PERIOD: Duration = Duration::from_secs(2);
/// Few enough rows that loading them is not noticed.
const ROWS: u64 = 10_000;
/// A value that still fits a screen.
const VALUE_LEN: u32 = 100;
/// Warehouses that load at once.
const SCALE: Scale = Scale { items: 1_000, customers: 100, orders: 100 };

/// Which load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Ten reads and updates of rows a transaction
    YcsbA,
    /// Wholesale order entry, a warehouse in each region
    Tpcc,
}

/// A load that runs.
pub struct Traffic {
    drive: Drive,
    regions: Arc<[String]>,
}

impl Kind {
    /// What its clients do, with a home for those of each of so many regions.
    ///
    /// # Errors
    /// When there is no such workload.
    pub fn workload(self, regions: u32) -> Result<Workload, Failure> {
        let settings = Settings {
            rows: ROWS,
            value_len: VALUE_LEN,
            warehouses: regions,
            scale: SCALE,
            ..Settings::default()
        };
        let name = match self {
            Self::YcsbA => "ycsb-a",
            Self::Tpcc => "tpcc",
        };
        let workload = Workload::named(name, &settings);
        workload.map_err(|error| Failure::Failed(error.to_string()))
    }
}

impl Traffic {
    /// Makes the tables and starts the clients.
    ///
    /// # Errors
    /// When the tables can't be made.
    pub async fn start(kind: Kind, cluster: &Cluster, clients: &[Client]) -> Result<Self, Failure> {
        let regions = u32::try_from(clients.len()).expect("as many regions as processes");
        let workload = kind.workload(regions)?;
        drive::load_tables(&workload, clients, |_, _| {}).await?;
        let settings = drive::Settings {
            clients: CLIENTS_PER_REGION * regions,
            seed: fastrand::u64(..),
            pace: Pace::Closed { pause: PAUSE },
        };
        let native = |client: &Client| vec![Connection::Native(client.clone())];
        let connections: Vec<_> = clients.iter().map(native).collect();
        let runtimes = vec![Handle::current(); connections.len()];
        let drive = Drive::start(&workload, &connections, &runtimes, &settings);
        drive.enter(Phase::Measured);
        Ok(Self { drive, regions: cluster.plan.places().into() })
    }

    /// Waits a while, and says how much was done in it where, and how long it took.
    pub async fn rates(&self) -> String {
        let began = Instant::now();
        drop(self.drive.take_stats());
        tokio::time::sleep(PERIOD).await;
        let (stats, seconds) = (self.drive.take_stats(), began.elapsed().as_secs_f64());
        let rate = |(index, region): (usize, &String)| {
            let samples = stats.of_region(index);
            let per_second = samples.count() as f64 / seconds;
            match samples.count() {
                0 => format!("{region} 0/s"),
                _ => format!("{region} {per_second:.0}/s {:.0} ms", samples.quantile_ms(0.5)),
            }
        };
        let rates: Vec<String> = self.regions.iter().enumerate().map(rate).collect();
        format!("load: {}", rates.join(" | "))
    }
}
