//! Validation of a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use pangea_core::ids::{NodeId, ShardId};
use pangea_core::partition::SHARDS_MAX;
use toml::Spanned;

use super::tuning::within;
use super::{
    Config, ConfigError, File, FileNode, FileRoundTrip, Insecure, NodeConfig, RoundTripConfig,
    Source,
};
use crate::clock::ClockConfig;
use crate::log::Durability;
use crate::pgwire::Authentication;
use crate::transport::ONE_WAY_MAX;

/// The time that PostgreSQL clients have to authenticate; the default is PostgreSQL's.
const AUTHENTICATION_TIMEOUT_S_DEFAULT: u64 = 60;
const AUTHENTICATION_TIMEOUT_S_MAX: u64 = 600;
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
    let round_trips = check_round_trips(source, &regions, &file.round_trips)?;
    let authentication_timeout_s = match &file.authentication_timeout_s {
        None => AUTHENTICATION_TIMEOUT_S_DEFAULT,
        Some(limit) => {
            let bounds = 1..=AUTHENTICATION_TIMEOUT_S_MAX;
            within(source, limit, bounds, "authentication_timeout_s")?
        }
    };
    check_memory(source, &file)?;
    let tuning = file.tuning(source)?;
    check_tls(source, file.tls_certificate.as_ref(), file.tls_key.as_ref())?;
    let clock = check_clock(source, file.clock.as_ref())?;
    let config = Config {
        cluster: file.cluster.into_inner(),
        protocol: file.protocol.into_inner(),
        node,
        data_dir: file.data_dir.into_inner(),
        durability: file.durability,
        tuning,
        insecure: file.insecure,
        authentication: file.authentication.map(Spanned::into_inner).unwrap_or_default(),
        authentication_timeout_s,
        tls_certificate: file.tls_certificate.map(Spanned::into_inner),
        tls_key: file.tls_key.map(Spanned::into_inner),
        regions,
        nodes,
        partitions: file.partitions.as_ref().map(|partitions| partitions.get_ref().clone()),
        round_trips,
        clock,
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

/// Checks that the keys about memory fit each other.
fn check_memory(source: &Source, file: &File) -> Result<(), ConfigError> {
    let error = |value: &Spanned<u64>, message| Err(source.error(Some(value.span()), message));
    match (&file.memory_mb, &file.cold_latency_ms) {
        (Some(memory_mb), _) if file.durability == Durability::Memory => {
            let message = "memory_mb: can't be set with durability = \"memory\", because rows \
                           can't be moved to disk";
            error(memory_mb, message)
        }
        (None, Some(latency)) if *latency.get_ref() > 0 => {
            let message =
                "cold_latency_ms: needs `memory_mb`, without which all rows are in memory";
            error(latency, message)
        }
        _ => Ok(()),
    }
}

/// Checks the numbers about the clock.
fn check_clock(
    source: &Source,
    clock: Option<&Spanned<ClockConfig>>,
) -> Result<ClockConfig, ConfigError> {
    let Some(clock) = clock else { return Ok(ClockConfig::default()) };
    let error = |message| source.error(Some(clock.span()), format!("[clock]: {message}"));
    clock.get_ref().check().map_err(error)?;
    Ok(*clock.get_ref())
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
    for FileNode { id, region, shard, cache_of, votes, peer, sql } in &file.nodes {
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
        let cache_of = checked_home(source, file, (number, &region), cache_of.as_ref())?;
        let votes = votes.as_ref().is_none_or(|votes| *votes.get_ref());
        let node = NodeConfig { id: id_value, region, shard, cache_of, votes, peer, sql };
        if by_id.insert(id_value, node).is_some() {
            return error(id.span(), format!("id = {number}: already used by another node"));
        }
    }
    // The ids are distinct and below the number of nodes, so none is missing.
    let nodes: Vec<NodeConfig> = by_id.into_values().collect();
    check_shards(&nodes).map_err(|message| source.error(None, message))?;
    check_votes(source, file)?;
    Ok(nodes)
}

/// The home of a node, if it is a cache: a node with tables, of its region, with a lower id.
fn checked_home(
    source: &Source,
    file: &File,
    (id, region): (u16, &str),
    cache_of: Option<&Spanned<NodeId>>,
) -> Result<Option<NodeId>, ConfigError> {
    let is_cache = |node: &FileNode| node.cache_of.is_some();
    let Some(cache_of) = cache_of else {
        let before = file.nodes.iter().find(|it| is_cache(it) && it.id.get_ref().0 < id);
        return match before {
            None => Ok(None),
            Some(cache) => {
                let message = format!(
                    "id = {}: caches come after all other nodes, and node {id} is not a cache",
                    cache.id.get_ref().0
                );
                Err(source.error(Some(cache.id.span()), message))
            }
        };
    };
    let home = *cache_of.get_ref();
    let found = file.nodes.iter().find(|node| *node.id.get_ref() == home);
    let why = match found {
        None => "no such node".to_owned(),
        Some(node) if is_cache(node) => "that node is a cache itself".to_owned(),
        Some(node) if node.region.get_ref() != region => {
            format!(
                "that node is in region {:?}, and a cache is in that of its node",
                node.region.get_ref()
            )
        }
        Some(_) => return Ok(Some(home)),
    };
    Err(source.error(Some(cache_of.span()), format!("cache_of = {}: {why}", home.0)))
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

/// If tables are partitioned, each shard must have a node, and at most one in a region, besides a
/// learner. Whether a region may lack some shards depends on the protocol.
fn check_shards(nodes: &[NodeConfig]) -> Result<(), String> {
    let tables = || nodes.iter().filter(|node| node.cache_of.is_none());
    let shards = tables().map(|node| node.shard.0 + 1).max().unwrap_or(1);
    if shards == 1 {
        return Ok(());
    }
    for shard in 0..shards {
        let mut regions = BTreeMap::new();
        for node in tables().filter(|node| node.shard.0 == shard) {
            let (region, id) = (&node.region, node.id.0);
            if let Some(first) = regions.insert((region, node.votes), id) {
                let most = match node.votes {
                    true => "one node for each shard, and a learner with `votes = false`",
                    false => "one node without a vote for each shard",
                };
                return Err(format!(
                    "[[nodes]]: nodes {first} and {id} of region {region:?} both have shard = \
                     {shard}; a region has at most {most}"
                ));
            }
        }
        if regions.is_empty() {
            return Err(format!(
                "[[nodes]]: no node has shard = {shard}, although one has shard = {}",
                shards - 1
            ));
        }
    }
    Ok(())
}

/// Nodes without a vote have the last ids, and no cluster has both them and caches. Quorums and the
/// ballots of agreement number those that vote from 0 on, and a directory remembers which they are.
fn check_votes(source: &Source, file: &File) -> Result<(), ConfigError> {
    let id = |node: &FileNode| node.id.get_ref().0;
    let votes = |node: &FileNode| node.votes.as_ref().is_none_or(|votes| *votes.get_ref());
    let silent = file.nodes.iter().filter(|node| !votes(node));
    let Some(first) = silent.min_by_key(|node| id(node)) else { return Ok(()) };
    let span = first.votes.as_ref().map(Spanned::span);
    let error = |message| Err(source.error(span.clone(), format!("votes = false: {message}")));
    let number = id(first);
    if let Some(cache) = file.nodes.iter().find(|node| node.cache_of.is_some()) {
        let cache = id(cache);
        return error(format!(
            "node {number} has no vote, and node {cache} is a cache; no cluster has both"
        ));
    }
    let voters = file.nodes.iter().filter(|node| votes(node));
    match voters.map(id).max() {
        None => error("no node has a vote, so nothing could commit".to_owned()),
        Some(last) if last > number => error(format!(
            "node {number} has no vote, and node {last} has one: nodes without a vote have the \
             last ids. Give the id {number} to a node that votes"
        )),
        Some(_) => Ok(()),
    }
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
