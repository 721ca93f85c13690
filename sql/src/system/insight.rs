//! Information about the local node as tables: the schema `pangea`, and `pg_stat_activity`.

use std::time::Duration;

use pangea_core::ids::{NodeId, ShardId};
use pangea_core::topology::Topology;

use super::tables::{Rows, int, text};
use super::{Kind, SystemCatalog};
use crate::authorization::held;
use crate::catalog::role::Privileges;
use crate::catalog::{Index, QualifiedName, Table};
use crate::conflict::shown_key;
use crate::expr::Env;
use crate::insight::Facts;
use crate::insight::activity::{Activity, State};
use crate::insight::hot_keys::HotKey;
use crate::syntax::quoted_name;
use crate::types::datum::Datum;
use crate::vocabulary::system::DATABASE;

/// Displayed instead of another user's statement.
const HIDDEN: &str = "<insufficient privilege>";

fn count(value: u64) -> Datum {
    Datum::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

fn or_null<T>(value: Option<T>, datum: impl Fn(T) -> Datum) -> Datum {
    value.map_or(Datum::Null, datum)
}

fn ms(span: Duration) -> Datum {
    Datum::Float(span.as_secs_f64() * 1e3)
}

impl SystemCatalog {
    /// Returns the rows of a table about the local node. Returns no rows without information on a
    /// node.
    pub(super) fn of_node(&self, name: &str, rows: Rows, env: &Env) -> Rows {
        let Some(facts) = &env.facts else { return rows };
        match name {
            "cluster" => cluster(facts, rows),
            "regions" => regions(facts, rows),
            "replication" => replication(facts, rows),
            "counters" => counters(facts, rows),
            "sessions" => self.sessions(facts, rows, env),
            "statements" => self.statements(facts, rows, env),
            "hot_keys" => self.hot_keys(facts, rows, env),
            "pg_stat_activity" => self.pg_stat_activity(facts, rows, env),
            other => unreachable!("{other} is of no node"),
        }
    }

    /// Returns whether the user may see the data of other users.
    fn sees_all(&self, env: &Env) -> bool {
        let role = self.roles.values().find(|role| *role.name == *env.user);
        role.map_or(env.is_trusted && env.user == env.session_user, |role| role.is_superuser)
    }

    fn sessions(&self, facts: &Facts, mut rows: Rows, env: &Env) -> Rows {
        let sees_all = self.sees_all(env);
        for it in &facts.activities {
            let is_seen = sees_all || it.user == env.user;
            let seen = |datum: Datum| if is_seen { datum } else { Datum::Null };
            rows.add(&[
                ("pid", int(it.process)),
                ("user_name", text(&it.user)),
                ("database", text(&it.database)),
                ("application_name", text(application(it))),
                ("client_addr", seen(or_null(it.client, |it| text(&it.ip().to_string())))),
                ("client_port", seen(or_null(it.client, |it| int(it.port())))),
                ("state", seen(text(it.state.name()))),
                ("query", text(if is_seen { &it.query } else { HIDDEN })),
                ("started", seen(Datum::Timestamp(it.started))),
                ("transaction_started", seen(or_null(it.transaction_started, Datum::Timestamp))),
                ("query_started", seen(or_null(it.query_started, Datum::Timestamp))),
                ("state_changed", seen(Datum::Timestamp(it.state_changed))),
            ]);
        }
        rows
    }

    fn pg_stat_activity(&self, facts: &Facts, mut rows: Rows, env: &Env) -> Rows {
        let sees_all = self.sees_all(env);
        for it in &facts.activities {
            let is_seen = sees_all || it.user == env.user;
            let seen = |datum: Datum| if is_seen { datum } else { Datum::Null };
            // An idle session waits for its client. Waits within a statement are not shown.
            let waits = is_seen && it.state != State::Active;
            let wait = |what: &str| if waits { text(what) } else { Datum::Null };
            rows.add(&[
                ("datid", int(DATABASE)),
                ("datname", text(&it.database)),
                ("pid", int(it.process)),
                ("usesysid", int(self.role_oid(&it.user))),
                ("usename", text(&it.user)),
                ("application_name", text(application(it))),
                ("client_addr", seen(or_null(it.client, |it| text(&it.ip().to_string())))),
                ("client_port", seen(or_null(it.client, |it| int(it.port())))),
                ("backend_start", seen(Datum::Timestamp(it.started))),
                ("xact_start", seen(or_null(it.transaction_started, Datum::Timestamp))),
                ("query_start", seen(or_null(it.query_started, Datum::Timestamp))),
                ("state_change", seen(Datum::Timestamp(it.state_changed))),
                ("wait_event_type", wait("Client")),
                ("wait_event", wait("ClientRead")),
                ("state", seen(text(it.state.name()))),
                ("query", text(if is_seen { &it.query } else { HIDDEN })),
                ("backend_type", text("client backend")),
            ]);
        }
        rows
    }

    fn statements(&self, facts: &Facts, mut rows: Rows, env: &Env) -> Rows {
        let sees_all = self.sees_all(env);
        for it in &facts.statements {
            let is_seen = sees_all || it.user == env.user;
            rows.add(&[
                ("user_name", text(&it.user)),
                ("query", text(if is_seen { &it.query } else { HIDDEN })),
                ("calls", count(it.calls)),
                ("errors", count(it.errors)),
                ("rows", count(it.rows)),
                ("conflicts", count(it.conflicts)),
                ("reexecutions", count(it.reruns)),
                ("total_ms", Datum::Float(it.total_ms)),
                ("mean_ms", Datum::Float(it.mean_ms())),
                ("min_ms", Datum::Float(it.min_ms)),
                ("max_ms", Datum::Float(it.max_ms)),
                ("p50_ms", Datum::Float(it.quantile_ms(0.5))),
                ("p99_ms", Datum::Float(it.quantile_ms(0.99))),
            ]);
        }
        rows
    }

    fn hot_keys(&self, facts: &Facts, mut rows: Rows, env: &Env) -> Rows {
        for it in &facts.hot_keys {
            let found = self.stored_in(it);
            let table = found.map(|(table, _)| &table.name);
            let index = found.and_then(|(_, index)| index).map(|index| index.name.as_str());
            let may_see = self.sees_all(env) || table.is_some_and(|name| self.reads(name, env));
            let key = found.and_then(|(table, index)| key_text(it, table, index, env));
            rows.add(&[
                ("table_name", or_null(table, |name| text(&quoted_name(name)))),
                ("index_name", or_null(index, text)),
                ("key", or_null(key.filter(|_| may_see), Datum::Text)),
                ("conflicts", count(it.conflicts)),
                ("error", count(it.error)),
                ("last_seen", Datum::Timestamp(it.last)),
            ]);
        }
        rows
    }

    /// Returns whether the user may read a table.
    fn reads(&self, table: &QualifiedName, env: &Env) -> bool {
        let roles = std::iter::once(env.user.to_string()).collect();
        let access = self.access.get(table);
        let may = access.map(|access| held(access, &roles).within(Privileges::SELECT));
        may.is_some_and(|may| !may.is_empty())
    }

    /// Returns the table that contains a key, and the index if it is a key of an index.
    fn stored_in(&self, key: &HotKey) -> Option<(&Table, Option<&Index>)> {
        self.relations.values().find_map(|entry| match &entry.kind {
            Kind::Table(table) if table.id == key.table => Some((&**table, None)),
            Kind::Index(table, at) if table.indexes[*at].id == key.table => {
                Some((&**table, Some(&table.indexes[*at])))
            }
            _ => None,
        })
    }
}

/// Formats a key of a table as SQL values. Returns `None` if it has no values to show.
fn key_text(key: &HotKey, table: &Table, index: Option<&Index>, env: &Env) -> Option<String> {
    if index.is_some() || table.primary_key.is_empty() {
        return None;
    }
    let columns = table.primary_key.iter().map(|&at| &table.columns[at]);
    let types = columns.clone().map(|column| column.ty.base);
    let values = table.key_values(&key.key);
    let names = columns.map(|column| column.name.as_str());
    let shown = shown_key(names, types.zip(&values), &env.zone);
    Some(shown.trim_start_matches("Key ").to_owned())
}

fn application(activity: &Activity) -> &str {
    activity.values.get("application_name").map_or("", String::as_str)
}

fn cluster(facts: &Facts, mut rows: Rows) -> Rows {
    let (about, topology) = (&facts.about, &facts.topology);
    let status = facts.status.as_ref();
    let me = about.me;
    let waits_for = facts.cut_off.as_ref().or(facts.waits_for.as_ref());
    rows.add(&[
        ("name", text(&topology.cluster)),
        ("protocol", text(about.protocol)),
        ("durability", text(&about.durability)),
        ("nodes", int(topology.node_count() as i64)),
        ("regions", int(region_names(facts).len() as i64)),
        ("shards", int(topology.partitions.shards())),
        ("node", or_null(me, |me| int(i64::from(me.0)))),
        ("region", or_null(me, |me| text(topology.region_name(me)))),
        ("shard", or_null(me, |me| int(shard_of(facts, me).0))),
        ("version", or_null(status, |status| count(status.version.0))),
        ("coordinator", or_null(coordinator(facts), |node| int(i64::from(node.0)))),
        ("members", or_null(status, |status| int(status.members.len() as i64))),
        ("is_ready", Datum::Bool(status.is_some() && facts.cut_off.is_none())),
        ("waits_for", or_null(waits_for.map(String::as_str), text)),
        ("settings", text(&about.settings)),
        ("release", text(about.release)),
        ("code", text(&about.code)),
        ("procedures", text(&about.procedures.join(" "))),
        ("caches", int(topology.caches.len() as i64)),
    ]);
    rows
}

fn coordinator(facts: &Facts) -> Option<NodeId> {
    facts.status.as_ref().and_then(|status| status.coordinator)
}

/// Returns the regions that have nodes, in the order of the nodes.
fn region_names(facts: &Facts) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for node in facts.topology.node_ids() {
        let name = facts.topology.region_name(node);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn regions(facts: &Facts, mut rows: Rows) -> Rows {
    let topology = &facts.topology;
    for name in region_names(facts) {
        let nodes: Vec<NodeId> =
            topology.node_ids().filter(|node| topology.region_name(*node) == name).collect();
        let is_in = |node: Option<NodeId>| node.is_some_and(|node| nodes.contains(&node));
        let is_reachable = nodes.iter().any(|node| facts.about.connected.contains(node));
        let progress = facts.progress.iter().filter(|it| nodes.contains(&it.node));
        let behind = progress.clone().filter_map(|it| it.versions_behind).min();
        let late = progress.filter_map(|it| it.ms_behind).reduce(f64::min);
        let round_trip = facts.about.me.zip(nodes.first()).map(|(me, first)| {
            let both =
                topology.one_way_between(me, *first).us + topology.one_way_between(*first, me).us;
            ms(Duration::from_micros(both))
        });
        rows.add(&[
            ("name", text(name)),
            ("nodes", int(nodes.len() as i64)),
            ("is_local", Datum::Bool(is_in(facts.about.me))),
            ("is_reachable", Datum::Bool(is_reachable)),
            ("has_coordinator", Datum::Bool(is_in(coordinator(facts)))),
            ("round_trip_ms", round_trip.unwrap_or(Datum::Null)),
            ("versions_behind", or_null(behind, count)),
            ("ms_behind", or_null(late, Datum::Float)),
        ]);
    }
    rows
}

fn shard_of(facts: &Facts, node: NodeId) -> ShardId {
    facts.topology.nodes[node.index()].shard
}

/// Whether a node with tables votes, or is a learner.
fn role_of(topology: &Topology, node: NodeId) -> &'static str {
    match (topology.votes(node), topology.is_learner(node)) {
        (true, _) => "replica",
        (false, true) => "learner",
        (false, false) => "non-voting",
    }
}

fn replication(facts: &Facts, mut rows: Rows) -> Rows {
    let own = facts.about.me.map(|me| shard_of(facts, me));
    for it in &facts.progress {
        let shard = shard_of(facts, it.node);
        // The replicas of each shard have a separate configuration.
        let status = facts.status.as_ref().filter(|_| own == Some(shard));
        let is_member = status.map(|status| Datum::Bool(status.members.contains(&it.node)));
        rows.add(&[
            ("node", int(i64::from(it.node.0))),
            ("region", text(facts.topology.region_name(it.node))),
            ("shard", int(shard.0)),
            ("is_local", Datum::Bool(facts.about.me == Some(it.node))),
            ("is_connected", Datum::Bool(facts.about.connected.contains(&it.node))),
            ("is_member", is_member.unwrap_or(Datum::Null)),
            ("version", or_null(it.applied, |version| count(version.0))),
            ("durable_version", or_null(it.durable, |version| count(version.0))),
            ("versions_behind", or_null(it.versions_behind, count)),
            ("ms_behind", or_null(it.ms_behind, Datum::Float)),
            ("awaited", or_null(it.awaited.as_ref(), |awaited| text(&awaited.what))),
            ("versions_awaited", or_null(it.awaited.as_ref(), |awaited| count(awaited.epochs))),
            ("role", text(role_of(&facts.topology, it.node))),
        ]);
    }
    caches(facts, rows)
}

/// Adds the caches. They have no tables, and so no versions.
fn caches(facts: &Facts, mut rows: Rows) -> Rows {
    let topology = &facts.topology;
    for cache in topology.all_ids() {
        let Some(home) = topology.home_of(cache) else { continue };
        rows.add(&[
            ("node", int(i64::from(cache.0))),
            ("region", text(topology.region_name(home))),
            ("shard", int(shard_of(facts, home).0)),
            ("is_local", Datum::Bool(false)),
            ("is_connected", Datum::Bool(facts.about.connected.contains(&cache))),
            ("role", text("cache")),
            ("cache_of", int(i64::from(home.0))),
        ]);
    }
    rows
}

fn counters(facts: &Facts, mut rows: Rows) -> Rows {
    for (name, value) in facts.status.iter().flat_map(|status| &status.counters) {
        rows.add(&[("name", text(name)), ("value", count(*value))]);
    }
    rows
}
