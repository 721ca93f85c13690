//! The tables that the demo shows.

use std::time::Duration;

use comfy_table::Table;
use pangea_node::client::Client;

use crate::cluster::{Cluster, Plan};
use crate::table::numbers;

/// How long a node may take to say how it is.
const STATUS_DEADLINE: Duration = Duration::from_secs(1);

/// The shortest of the latest measured round trips in ms, `[from][to]`.
pub async fn measure(clients: &[Client]) -> Vec<Vec<Option<f64>>> {
    let mut measured = Vec::new();
    for client in clients {
        let mut row = vec![None; clients.len()];
        let links = tokio::time::timeout(STATUS_DEADLINE, client.links()).await;
        if let Ok(Ok(links)) = links {
            for link in links.iter().filter(|link| link.is_up) {
                let ms = link.round_trip.map(|it| it.min.us as f64 / 1_000.0);
                row[link.peer.index()] = ms;
            }
        }
        measured.push(row);
    }
    measured
}

/// The emulated round trips beside the measured ones.
pub fn round_trips(plan: &Plan, measured: &[Vec<Option<f64>>]) -> Table {
    let header: Vec<&str> =
        std::iter::once("").chain(plan.regions.iter().map(String::as_str)).collect();
    let mut table = numbers(&header);
    for (from, a) in plan.regions.iter().enumerate() {
        let cell = |(to, b): (usize, &String)| match (from == to, measured[from][to]) {
            (true, _) => "-".to_owned(),
            (false, Some(ms)) => format!("{:.0} / {ms:.1}", plan.round_trip_ms(a, b)),
            (false, None) => format!("{:.0} / ?", plan.round_trip_ms(a, b)),
        };
        let cells = plan.regions.iter().enumerate().map(cell);
        table.add_row(std::iter::once(a.clone()).chain(cells));
    }
    table
}

/// How every node is.
pub async fn status(cluster: &mut Cluster, clients: &[Client]) -> Table {
    const COLUMNS: [&str; 8] =
        ["region", "process", "version", "coordinator", "members", "committed", "aborted", "cut"];
    let mut table = numbers(&COLUMNS);
    for (index, client) in clients.iter().enumerate() {
        let mut cells = vec!["?".to_owned(); COLUMNS.len()];
        cells[0] = cluster.members[index].region().to_owned();
        let pid = cluster.members[index].pid();
        cells[1] = pid.map_or_else(|| "down".to_owned(), |pid| pid.to_string());
        let region = |node: &pangea_core::ids::NodeId| cluster.plan.regions[node.index()].clone();
        let status = tokio::time::timeout(STATUS_DEADLINE, client.status()).await;
        if let Ok(Ok(status)) = status {
            cells[2] = status.version.0.to_string();
            cells[3] = status.coordinator.as_ref().map_or_else(|| "-".to_owned(), region);
            cells[4] = status.members.iter().map(region).collect::<Vec<_>>().join(" ");
            for (cell, counter) in [(5, "txns_committed"), (6, "txns_aborted")] {
                let count = status.counters.get(counter);
                cells[cell] = count.map_or_else(|| "-".to_owned(), u64::to_string);
            }
        }
        let links = tokio::time::timeout(STATUS_DEADLINE, client.links()).await;
        if let Ok(Ok(links)) = links {
            let cut: Vec<String> =
                links.iter().filter(|link| link.is_cut).map(|link| region(&link.peer)).collect();
            cells[7] = cut.join(" ");
        }
        table.add_row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_both_and_where_nothing_was_measured() {
        let regions = ["us-east".to_owned(), "eu-west".to_owned()];
        let plan = Plan::of_named_regions("minerva", &regions).unwrap();
        let text = round_trips(&plan, &[vec![None, Some(68.25)], vec![None, None]]).to_string();
        assert!(text.contains("68 / 68.2") && text.contains("68 / ?"), "{text}");
    }
}
