//! The demo's light load: a few clients in each region, with think time between their transactions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use pangea_core::workload::tpcc::Scale;
use pangea_core::workload::{Settings, Workload};
use pangea_node::client::Client;
use tokio::runtime::Handle;

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::load_generator::{self, ArrivalModel, Connection, Drive, Phase};

/// Clients of a region.
const CLIENTS_PER_REGION: u32 = 8;
/// The think time.
const PAUSE: Duration = Duration::from_millis(100);
/// The interval at which the rates are shown.
const PERIOD: Duration = Duration::from_secs(2);
/// Few enough rows that the load phase is not noticeable.
const ROWS: u64 = 10_000;
/// Small enough that a value fits on a screen.
const VALUE_LEN: u32 = 100;
/// Small warehouses, which load immediately.
const SCALE: Scale = Scale { items: 1_000, customers: 100, orders: 100 };

/// The kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Ten reads and updates of rows a transaction
    YcsbA,
    /// Wholesale order entry, with one warehouse in each region
    Tpcc,
}

/// A running load.
pub struct Traffic {
    drive: Drive,
    regions: Arc<[String]>,
}

impl Kind {
    /// Returns the workload of the clients; each of the regions has its own part of the data.
    ///
    /// # Errors
    /// If the workload does not exist.
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
    /// Creates the tables and starts the clients.
    ///
    /// # Errors
    /// If the tables cannot be created.
    pub async fn start(kind: Kind, cluster: &Cluster, clients: &[Client]) -> Result<Self, Failure> {
        let regions = u32::try_from(clients.len()).expect("as many regions as processes");
        let workload = kind.workload(regions)?;
        load_generator::load_tables(&workload, clients, |_, _| {}).await?;
        let settings = load_generator::Settings {
            clients: CLIENTS_PER_REGION * regions,
            homes: None,
            seed: fastrand::u64(..),
            pace: ArrivalModel::Closed { pause: PAUSE },
        };
        let native = |client: &Client| vec![Connection::Native(client.clone())];
        let connections: Vec<_> = clients.iter().map(native).collect();
        let runtimes = vec![Handle::current(); connections.len()];
        let drive = Drive::start(&workload, &connections, &runtimes, &settings);
        drive.enter(Phase::Measured);
        Ok(Self { drive, regions: cluster.plan.places().into() })
    }

    /// Waits for one period, and returns the throughput and latency of each region during it.
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
