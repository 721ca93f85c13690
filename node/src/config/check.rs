//! Validation of a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use pangea_core::ids::{NodeId, ShardId};
use pangea_core::partition::SHARDS_MAX;
use pangea_sql::RESULTS_BYTES_DEFAULT;
use toml::Spanned;

use super::{
    Config, ConfigError, File, FileNode, FileRoundTrip, HISTORY_DEFAULT, Insecure,
    LOG_SEGMENT_BYTES_DEFAULT, NodeConfig, RoundTripConfig, Source,
};
use crate::log::Durability;
use crate::pgwire::Authentication;
use crate::pool::WORKERS_MAX;
use crate::transport::ONE_WAY_MAX;

/// The minimum length; a shorter segment would consist mostly of headers, and rotate too often.
const LOG_SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The maximum length; a longer segment takes too long to preallocate, and to read as a whole at a
/// start.
const LOG_SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// The time that PostgreSQL clients have to authenticate; the default is PostgreSQL's.
const AUTHENTICATION_TIMEOUT_S_DEFAULT: u64 = 60;
const AUTHENTICATION_TIMEOUT_S_MAX: u64 = 600;
/// One day, because all retained versions are in memory.
const HISTORY_S_MAX: u64 = 86_400;
/// A larger value would not be a limit.
const HISTORY_VERSIONS_MAX: u64 = 1 << 40;
/// A larger value would not be a limit.
const RESULTS_MB_MAX: u64 = 1 << 20;
/// A larger value would not be a limit.
const MEMORY_MB_MAX: u64 = 1 << 24;
/// A slower store would be unusable.
const COLD_LATENCY_MS_MAX: u64 = 10_000;
/// The maximum cluster size that the protocols are designed for.
const NODES_MAX: usize = 1_024;

/// Checks a file and creates a configuration from it.
pub(super) fn check(
    source: &Source,
    file: File,
    options: toml::Table,
) -> Result<Config, ConfigError> {
    check_names(source, &file)?;
    let regions: Vec<String> = file.regions.iter().map(|region| region.get_ref().clone()).collect();
    let nodes = check_nodes(source, &file)?;
    let node = *file.node.get_ref();
    if node.index() >= nodes.len() {
        let message = format!("node = {}: no such id in [[nodes]]", node.0);
        return Err(source.error(Some(file.node.span()), message));
    }
    let workers = checked(source, file.workers, 0, 0..=WORKERS_MAX, "workers")?;
    let segment_bytes = LOG_SEGMENT_BYTES_MIN..=LOG_SEGMENT_BYTES_MAX;
    let default = LOG_SEGMENT_BYTES_DEFAULT;
    let log_segment_bytes =
        checked(source, file.log_segment_bytes, default, segment_bytes, "log_segment_bytes")?;
    let default = HISTORY_DEFAULT.time.as_secs();
    let history_s = checked(source, file.history_s, default, 0..=HISTORY_S_MAX, "history_s")?;
    let bounds = 0..=HISTORY_VERSIONS_MAX;
    let (default, key) = (HISTORY_DEFAULT.versions_max, "history_versions");
    let history_versions = checked(source, file.history_versions, default, bounds.clone(), key)?;
    let (default, key) = (HISTORY_DEFAULT.deletions_max, "history_deletions");
    let history_deletions = checked(source, file.history_deletions, default, bounds, key)?;
    let round_trips = check_round_trips(source, &regions, &file.round_trips)?;
    let (timeout, bounds) = (AUTHENTICATION_TIMEOUT_S_DEFAULT, 1..=AUTHENTICATION_TIMEOUT_S_MAX);
    let (limit, key) = (file.authentication_timeout_s, "authentication_timeout_s");
    let authentication_timeout_s = checked(source, limit, timeout, bounds, key)?;
    let memory_mb = checked_memory(source, file.memory_mb, file.durability)?;
    let cold_latency_ms = checked_latency(source, file.cold_latency_ms, memory_mb)?;
    check_tls(source, file.tls_certificate.as_ref(), file.tls_key.as_ref())?;
    let config = Config {
        cluster: file.cluster.into_inner(),
        protocol: file.protocol.into_inner(),
        node,
        data_dir: file.data_dir.into_inner(),
        durability: file.durability,
        workers,
        log_segment_bytes,
        history_s,
        history_versions,
        history_deletions,
        memory_mb,
        cold_latency_ms,
        results_mb: checked_results(source, file.results_mb)?,
        insecure: file.insecure,
        authentication: file.authentication.map(Spanned::into_inner).unwrap_or_default(),
        authentication_timeout_s,
        tls_certificate: file.tls_certificate.map(Spanned::into_inner),
        tls_key: file.tls_key.map(Spanned::into_inner),
        regions,
        nodes,
        partitions: file.partitions.as_ref().map(|partitions| partitions.get_ref().clone()),
        round_trips,
        wan: file.wan.as_ref().map(|wan| *wan.get_ref()),
        is_replaced: false,
        options,
        source: None,
    };
    config.divided().map_err(|message| {
        let span = file.partitions.map(|partitions| partitions.span());
        source.error(span, format!("[partitions]: {message}"))
    })?;
    if let Some(wan) = file.wan {
        check_wan(&config).map_err(|message| source.error(Some(wan.span()), message))?;
    }
    Ok(config)
}

fn checked_memory(
    source: &Source,
    value: Option<Spanned<u64>>,
    durability: Durability,
) -> Result<Option<u64>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    if durability == Durability::Memory {
        let message = "memory_mb: can't be set with durability = \"memory\", because rows can't \
                       be moved to disk";
        return Err(source.error(Some(value.span()), message.to_owned()));
    }
    checked(source, Some(value), 0, 1..=MEMORY_MB_MAX, "memory_mb").map(Some)
}

fn checked_latency(
    source: &Source,
    value: Option<Spanned<u64>>,
    memory_mb: Option<u64>,
) -> Result<u64, ConfigError> {
    let Some(value) = value else { return Ok(0) };
    if *value.get_ref() > 0 && memory_mb.is_none() {
        let message = "cold_latency_ms: needs `memory_mb`, without which all rows are in memory";
        return Err(source.error(Some(value.span()), message));
    }
    checked(source, Some(value), 0, 0..=COLD_LATENCY_MS_MAX, "cold_latency_ms")
}

fn checked_results(source: &Source, value: Option<Spanned<u64>>) -> Result<u64, ConfigError> {
    let default = (RESULTS_BYTES_DEFAULT >> 20) as u64;
    checked(source, value, default, 1..=RESULTS_MB_MAX, "results_mb")
}

/// A number within its bounds, or its default.
fn checked<T: Copy + PartialOrd + std::fmt::Display>(
    source: &Source,
    value: Option<Spanned<T>>,
    default: T,
    bounds: std::ops::RangeInclusive<T>,
    key: &str,
) -> Result<T, ConfigError> {
    let Some(value) = value else { return Ok(default) };
    if bounds.contains(value.get_ref()) {
        return Ok(*value.get_ref());
    }
    let (found, least, most) = (value.get_ref(), bounds.start(), bounds.end());
    let message = format!("{key} = {found}: must be from {least} to {most}");
    Err(source.error(Some(value.span()), message))
}

fn check_names(source: &Source, file: &File) -> Result<(), ConfigError> {
    for (key, value) in [("cluster", &file.cluster), ("protocol", &file.protocol)] {
        if value.get_ref().is_empty() {
            return Err(source.error(Some(value.span()), format!("{key} must not be empty")));
        }
    }
    if file.data_dir.get_ref().as_os_str().is_empty() {
        return Err(source.error(Some(file.data_dir.span()), "data_dir must not be empty"));
    }
    let mut seen = BTreeSet::new();
    for region in &file.regions {
        let name = region.get_ref();
        if name.is_empty() || !seen.insert(name) {
            let message = format!("region {name:?} is listed twice");
            return Err(source.error(Some(region.span()), message));
        }
    }
    Ok(())
}

/// The nodes, by id.
fn check_nodes(source: &Source, file: &File) -> Result<Vec<NodeConfig>, ConfigError> {
    let count = file.nodes.len();
    if count == 0 || count > NODES_MAX {
        let message = format!("found {count} [[nodes]]; there must be from 1 to {NODES_MAX}");
        return Err(source.error(None, message));
    }
    let mut by_id: BTreeMap<NodeId, NodeConfig> = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for FileNode { id, region, shard, peer, sql } in &file.nodes {
        let error = |span, message| Err(source.error(Some(span), message));
        let number = id.get_ref().0;
        if usize::from(number) >= count {
            let last = count - 1;
            return error(id.span(), format!("id = {number}: the ids must be 0 to {last}"));
        }
        let name = region.get_ref();
        if !file.regions.iter().any(|known| known.get_ref() == name) {
            let message = format!("region = {name:?}: no such region in `regions`");
            return error(region.span(), message);
        }
        for (key, address) in [("peer", peer), ("sql", sql)] {
            check_address(source, file, key, address)?;
            if let Some((other, other_key)) = addresses.insert(*address.get_ref(), (number, key)) {
                let address_text = address.get_ref();
                let message = format!(
                    "{key} = \"{address_text}\": already used by node {other} as its {other_key}"
                );
                return error(address.span(), message);
            }
        }
        let (id_value, region) = (*id.get_ref(), name.clone());
        let (peer, sql) = (*peer.get_ref(), *sql.get_ref());
        let shard = checked_shard(source, shard.as_ref())?;
        let node = NodeConfig { id: id_value, region, shard, peer, sql };
        if by_id.insert(id_value, node).is_some() {
            return error(id.span(), format!("id = {number}: already used by another node"));
        }
    }
    // The ids are distinct and below the number of nodes, so none is missing.
    let nodes: Vec<NodeConfig> = by_id.into_values().collect();
    check_shards(&nodes).map_err(|message| source.error(None, message))?;
    Ok(nodes)
}

fn check_address(
    source: &Source,
    file: &File,
    key: &str,
    address: &Spanned<SocketAddr>,
) -> Result<(), ConfigError> {
    let value = address.get_ref();
    if value.port() == 0 {
        let message = format!(
            "{key} = \"{value}\": port 0 is not allowed, because other hosts can't connect to it"
        );
        return Err(source.error(Some(address.span()), message));
    }
    if value.ip().is_loopback() || file.insecure == Insecure::Everything {
        return Ok(());
    }
    let message = match key {
        "peer" if file.insecure == Insecure::Peers => return Ok(()),
        "peer" => format!(
            "{key} = \"{value}\" is not a loopback address, and connections between nodes are \
             neither encrypted nor authenticated yet: set `insecure = true` if the network can be \
             trusted, or `insecure = \"peers\"` to still require encryption and passwords from \
             PostgreSQL clients"
        ),
        _ => {
            let authentication = file.authentication.as_ref().map(Spanned::get_ref);
            let mut missing = Vec::new();
            if file.tls_certificate.is_none() {
                missing.push("`tls_certificate` and `tls_key`");
            }
            if authentication != Some(&Authentication::ScramSha256) {
                missing.push("`authentication = \"scram-sha-256\"`");
            }
            if missing.is_empty() {
                return Ok(());
            }
            format!(
                "{key} = \"{value}\" is not a loopback address: set {}, or `insecure = true` if \
                 all hosts that can connect are trusted",
                missing.join(" and ")
            )
        }
    };
    Err(source.error(Some(address.span()), message))
}

fn checked_shard(
    source: &Source,
    shard: Option<&Spanned<ShardId>>,
) -> Result<ShardId, ConfigError> {
    let Some(shard) = shard else { return Ok(ShardId(0)) };
    let number = shard.get_ref().0;
    if number < SHARDS_MAX {
        return Ok(*shard.get_ref());
    }
    let message = format!("shard = {number}: must be from 0 to {}", SHARDS_MAX - 1);
    Err(source.error(Some(shard.span()), message))
}

/// If tables are partitioned, each region must have one node for each shard.
fn check_shards(nodes: &[NodeConfig]) -> Result<(), String> {
    let shards = nodes.iter().map(|node| node.shard.0 + 1).max().unwrap_or(1);
    if shards == 1 {
        return Ok(());
    }
    let regions: BTreeSet<&String> = nodes.iter().map(|node| &node.region).collect();
    for region in regions {
        for shard in 0..shards {
            let is_it = |node: &&NodeConfig| node.region == *region && node.shard.0 == shard;
            let ids: Vec<_> = nodes.iter().filter(is_it).map(|node| node.id.0).collect();
            match ids[..] {
                [_] => {}
                [] => {
                    return Err(format!(
                        "[[nodes]]: region {region:?} has no node with shard = {shard}; each \
                         region needs one node for each of the {shards} shards"
                    ));
                }
                [first, second, ..] => {
                    return Err(format!(
                        "[[nodes]]: nodes {first} and {second} of region {region:?} both have \
                         shard = {shard}; each region needs exactly one node for each shard"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// A certificate and its key must be set together.
fn check_tls(
    source: &Source,
    certificate: Option<&Spanned<PathBuf>>,
    key: Option<&Spanned<PathBuf>>,
) -> Result<(), ConfigError> {
    let (there, missing) = match (certificate, key) {
        (Some(certificate), None) => (certificate, "tls_key"),
        (None, Some(key)) => (key, "tls_certificate"),
        _ => return Ok(()),
    };
    let message =
        format!("`{missing}` is missing: tls_certificate and tls_key must be set together");
    Err(source.error(Some(there.span()), message))
}

fn check_round_trips(
    source: &Source,
    regions: &[String],
    round_trips: &[FileRoundTrip],
) -> Result<Vec<RoundTripConfig>, ConfigError> {
    let mut seen = BTreeSet::new();
    let mut checked = Vec::new();
    for FileRoundTrip { between, ms } in round_trips {
        let [a, b] = between.get_ref();
        let error = |message| Err(source.error(Some(between.span()), message));
        if let Some(unknown) = [a, b].into_iter().find(|name| !regions.contains(name)) {
            return error(format!("between: no region {unknown:?} in `regions`"));
        }
        if a == b {
            return error(format!(
                "between: {a:?} is given twice; a round trip is between two regions"
            ));
        }
        if !seen.insert((a.min(b), a.max(b))) {
            return error(format!("between: the round trip of {a:?} and {b:?} is already set"));
        }
        let ms_max = 2.0 * ONE_WAY_MAX.us as f64 / 1_000.0;
        // This also rejects NaN.
        if !(0.0..=ms_max).contains(ms.get_ref()) {
            let message = format!("ms = {}: must be from 0 to {ms_max}", ms.get_ref());
            return Err(source.error(Some(ms.span()), message));
        }
        checked.push(RoundTripConfig { between: between.get_ref().clone(), ms: *ms.get_ref() });
    }
    Ok(checked)
}

/// Checks that the emulation has all the settings that it needs.
fn check_wan(config: &Config) -> Result<(), String> {
    for (i, a) in config.regions.iter().enumerate() {
        for b in &config.regions[i + 1..] {
            let is_it = |it: &RoundTripConfig| it.between.contains(a) && it.between.contains(b);
            if !config.round_trips.iter().any(is_it) {
                return Err(format!("[wan]: [[round_trips]] has no entry for {a:?} and {b:?}"));
            }
        }
    }
    let wan = config.wan.unwrap_or_default();
    if !(0.0..=ONE_WAY_MAX.us as f64).contains(&wan.jitter_ms) {
        return Err(format!("[wan]: jitter_ms = {}: must be 0 or more", wan.jitter_ms));
    }
    if wan.bandwidth_mbit.is_some_and(|mbit| !(0.0..=1e9).contains(&mbit)) {
        return Err("[wan]: bandwidth_mbit must be from 0 to 1000000000".to_owned());
    }
    let check = config.emulated_wan().map(|wan| wan.check(config.regions.len()));
    check.unwrap_or(Ok(())).map_err(|message| format!("[wan]: {message}"))
}
