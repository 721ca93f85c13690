//! The tables that the demo shows.

use std::time::Duration;

use comfy_table::Table;
use pangea_core::ids::NodeId;
use pangea_core::protocol::{Status, WaitsFor};
use pangea_node::client::Client;

use crate::cluster::{Member, Plan};
use crate::protocol::words_of;
use crate::table::{aligned, numbers};

/// The time limit for a node to report its status.
const STATUS_DEADLINE: Duration = Duration::from_secs(1);

/// Returns the shortest of the latest measured round trips in ms, `[from][to]`.
pub async fn measure(clients: &[Client]) -> Vec<Vec<Option<f64>>> {
    let mut measured = Vec::new();
    for client in clients {
        let mut row = vec![None; clients.len()];
        let links = tokio::time::timeout(STATUS_DEADLINE, client.links()).await;
        if let Ok(Ok(links)) = links {
            for link in links.iter().filter(|link| link.is_up) {
                let ms = link.round_trip.map(|it| it.min.us as f64 / 1_000.0);
                // Caches are in the regions of their nodes.
                row.get_mut(link.peer.index()).into_iter().for_each(|place| *place = ms);
            }
        }
        measured.push(row);
    }
    measured
}

/// Returns a table of the emulated and the measured round trips.
pub fn round_trips(plan: &Plan, measured: &[Vec<Option<f64>>]) -> Table {
    let places = plan.places();
    let header: Vec<&str> = std::iter::once("").chain(places.iter().map(String::as_str)).collect();
    let mut table = numbers(&header);
    for (from, place) in places.iter().enumerate() {
        let cell = |to: usize| {
            let [a, b] = [from, to].map(|node| &plan.regions[plan.region_of(node)]);
            match (from == to, measured[from][to]) {
                (true, _) => "-".to_owned(),
                (false, Some(ms)) => format!("{:.0} / {ms:.1}", plan.round_trip_ms(a, b)),
                (false, None) => format!("{:.0} / ?", plan.round_trip_ms(a, b)),
            }
        };
        let cells = (0..places.len()).map(cell);
        table.add_row(std::iter::once(place.clone()).chain(cells));
    }
    table
}

/// The state of a node or cache, as far as it is known.
#[derive(Default)]
pub struct NodeView {
    pid: Option<u32>,
    status: Option<Status>,
    /// The nodes that it is connected to.
    connected: Vec<NodeId>,
    /// The nodes that it is cut off from: it sends them no messages.
    cut: Vec<NodeId>,
}

/// Queries the state of every node and cache.
pub async fn look(
    processes: impl Iterator<Item = &mut Member>,
    clients: &[Client],
) -> Vec<NodeView> {
    let mut nodes = Vec::new();
    for (member, client) in processes.zip(clients) {
        let status = tokio::time::timeout(STATUS_DEADLINE, client.status()).await;
        let links = tokio::time::timeout(STATUS_DEADLINE, client.links()).await;
        let links = links.ok().and_then(Result::ok).unwrap_or_default();
        let cut = links.iter().filter(|link| link.is_cut).map(|link| link.peer).collect();
        let connected = links.iter().filter(|link| link.is_up).map(|link| link.peer).collect();
        let (pid, status) = (member.pid(), status.ok().and_then(Result::ok));
        nodes.push(NodeView { pid, status, connected, cut });
    }
    nodes
}

/// Returns a table of the state of every node. It fits 80 columns with the names of most regions.
/// The members, if not all nodes are members, and the cut links are listed below it. A second table
/// has the caches, if there are any.
pub fn status(plan: &Plan, nodes: &[NodeView]) -> String {
    let words = words_of(&plan.protocol);
    let columns =
        ["region", "process", "version", words.coordinator, "members", "commits", "aborts"];
    let places: Vec<String> = (0..nodes.len()).map(|node| plan.name_of(node)).collect();
    let region = |node: &NodeId| places[node.index()].as_str();
    let (nodes, caches) = nodes.split_at(plan.places().len());
    let mut table = numbers(&columns);
    let mut below = String::new();
    for ((name, node), shard) in places.iter().zip(nodes).zip(plan.shards_of_nodes()) {
        let mut cells = vec!["?".to_owned(); columns.len()];
        name.clone_into(&mut cells[0]);
        cells[1] = process(node);
        if let Some(status) = &node.status {
            cells[2] = status.version.0.to_string();
            cells[3] = status.coordinator.as_ref().map_or("-", region).to_owned();
            let (count, all) = (status.members.len(), plan.voters_of(shard));
            cells[4] = if count == all { "all".to_owned() } else { format!("{count} of {all}") };
            if count < all {
                let members: Vec<&str> = status.members.iter().map(region).collect();
                below += &format!("\nthe members at {name} are {}", members.join(", "));
            }
            if let Some(WaitsFor { node: late, what, epochs }) = status.waits_for.first() {
                let (is_own, plural) = (region(late) == name, if *epochs == 1 { "" } else { "s" });
                let how = match is_own || node.connected.contains(late) {
                    true => format!("{epochs} {}{plural} behind with {what}", words.epoch),
                    false => "it is not connected".to_owned(),
                };
                below += &format!("\n{name} waits for {}: {how}", region(late));
            }
            for node in &status.differing {
                below += &format!("\n{name} and {} differ: see the log of either", region(node));
            }
            for (cell, counter) in [(5, "txns_committed"), (6, "txns_aborted")] {
                let count = status.counters.get(counter);
                cells[cell] = count.map_or_else(|| "-".to_owned(), u64::to_string);
            }
        }
        table.add_row(cells);
        if !node.cut.is_empty() {
            let others: Vec<&str> = node.cut.iter().map(region).collect();
            below += &format!("\n{name} is cut off from {}", others.join(", "));
        }
    }
    if caches.is_empty() {
        format!("{table}{below}")
    } else {
        format!("{table}{below}\n\n{}", status_of_caches(&places, nodes.len(), caches))
    }
}

fn process(node: &NodeView) -> String {
    node.pid.map_or_else(|| "down".to_owned(), |pid| pid.to_string())
}

/// Returns a table of the state of every cache: what it keeps of its node's batches, and whether it
/// is connected to that node. Below it are the links that are cut.
fn status_of_caches(places: &[String], node_count: usize, caches: &[NodeView]) -> String {
    let columns = ["cache", "process", "batches kept", "bytes", "its node"];
    let mut table = aligned(columns.into_iter().zip([false, true, true, true, false]));
    let mut below = String::new();
    for (number, cache) in (node_count..).zip(caches) {
        let home = NodeId((number % node_count) as u16);
        let count = |name| match cache.status.as_ref().and_then(|it| it.counters.get(name)) {
            Some(count) => count.to_string(),
            None => "?".to_owned(),
        };
        let link = match (cache.pid, cache.connected.contains(&home)) {
            (None, _) => "?",
            (Some(_), true) => "connected",
            (Some(_), false) => "not connected",
        };
        let name = &places[number];
        let (batches, bytes) = (count("batches_kept"), count("batch_bytes_held"));
        table.add_row([name.clone(), process(cache), batches, bytes, link.to_owned()]);
        if !cache.cut.is_empty() {
            let others: Vec<&str> = cache.cut.iter().map(|it| &*places[it.index()]).collect();
            below += &format!("\n{name} is cut off from {}", others.join(", "));
        }
    }
    format!("{table}{below}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::ids::SnapshotVersion;

    #[test]
    fn the_table_shows_both_and_where_nothing_was_measured() {
        let regions = ["us-east".to_owned(), "eu-west".to_owned()];
        let plan = Plan::of_named_regions("minerva", &regions).unwrap();
        let text = round_trips(&plan, &[vec![None, Some(68.25)], vec![None, None]]).to_string();
        assert!(text.contains("68 / 68.2") && text.contains("68 / ?"), "{text}");
    }

    #[test]
    fn the_status_of_the_default_regions_fits_a_terminal_and_names_what_is_not_as_it_should_be() {
        let regions: Vec<String> = crate::regions::DEFAULT.split(',').map(str::to_owned).collect();
        let plan = Plan::of_named_regions("minerva", &regions).unwrap();
        let late = |node| WaitsFor {
            node: NodeId(node),
            what: "acknowledgements".to_owned(),
            epochs: 1_000,
        };
        let of = |members: &[u16], cut: &[u16]| NodeView {
            pid: Some(4_194_304),
            status: Some(Status {
                version: SnapshotVersion(1_000_000),
                coordinator: Some(NodeId(2)),
                members: members.iter().copied().map(NodeId).collect(),
                waits_for: cut.first().map(|&node| late(node)).into_iter().collect(),
                counters: [("txns_committed".to_owned(), 1_234_567)].into(),
                ..Status::default()
            }),
            connected: members.iter().copied().map(NodeId).collect(),
            cut: cut.iter().copied().map(NodeId).collect(),
        };
        let healthy = [of(&[0, 1, 2], &[]), of(&[0, 1, 2], &[]), of(&[0, 1, 2], &[])];
        let ill = [of(&[0, 2], &[1]), NodeView::default(), of(&[0, 2], &[0, 1])];
        for (nodes, words) in [
            (healthy, &[" all ", "1234567"][..]),
            (
                ill,
                &[
                    "down",
                    "the members at us-east are us-east, ap",
                    "ap-northeast is cut off from us-east, eu-west",
                    "us-east is cut off from eu",
                    "us-east waits for eu-west: it is not connected",
                    "ap-northeast waits for us-east: 1000 epochs behind with acknowledgements",
                ],
            ),
        ] {
            let text = status(&plan, &nodes);
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    /// Story: the leaders of Tiga were called coordinators, which are other nodes in its paper.
    #[test]
    fn the_status_has_the_words_of_the_protocol() {
        let plan = Plan::of_named_regions("tiga", &["us-east".to_owned()]).unwrap();
        let late = WaitsFor { node: NodeId(0), what: "the log".to_owned(), epochs: 2 };
        let node = NodeView {
            status: Some(Status { waits_for: vec![late], ..Status::default() }),
            ..NodeView::default()
        };
        let text = status(&plan, &[node]);
        assert!(text.contains(" leader ") && !text.contains("coordinator"), "{text}");
        assert!(text.contains("us-east waits for us-east: 2 cells behind with the log"), "{text}");
    }

    #[test]
    fn caches_have_a_table_that_says_what_they_keep_and_whether_their_nodes_are_connected() {
        let regions: Vec<String> = crate::regions::DEFAULT.split(',').map(str::to_owned).collect();
        let plan = Plan::of_named_regions("geogauss", &regions).unwrap();
        let plan = Plan { caches: 1, ..plan };
        let cache = |home: Option<u16>, cut: &[u16]| NodeView {
            pid: Some(4_194_304),
            status: Some(Status {
                counters: [("batches_kept".to_owned(), 17), ("batch_bytes_held".to_owned(), 9_000)]
                    .into(),
                ..Status::default()
            }),
            connected: home.into_iter().map(NodeId).collect(),
            cut: cut.iter().copied().map(NodeId).collect(),
        };
        let mut nodes: Vec<NodeView> = (0..3).map(|_| NodeView::default()).collect();
        nodes.extend([cache(Some(0), &[]), cache(Some(0), &[1, 5]), NodeView::default()]);
        let text = status(&plan, &nodes);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("us-east.cache"), "us-east.cache 4194304 17 9000 connected");
        assert_eq!(row("eu-west.cache"), "eu-west.cache 4194304 17 9000 not connected");
        assert_eq!(row("ap-northeast.cache"), "ap-northeast.cache down ? ? ?");
        let cut = "\neu-west.cache is cut off from eu-west, ap-northeast.cache";
        assert!(text.ends_with(cut), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
