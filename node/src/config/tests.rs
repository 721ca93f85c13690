//! Tests of parsing and of error messages.

use super::*;
use crate::clock::Emulation;

const GOOD: &str = r#"cluster = "shop"
protocol = "toy"
node = 1
data_dir = "data"
durability = "os"
workers = 2
regions = ["eu-west", "us-east"]

[[nodes]]
id = 1
region = "us-east"
peer = "127.0.0.1:7001"
sql = "127.0.0.1:5433"

[[nodes]]
id = 0
region = "eu-west"
peer = "127.0.0.1:7000"
sql = "127.0.0.1:5432"

[[round_trips]]
between = ["eu-west", "us-east"]
ms = 80.5

[wan]
jitter_ms = 0.5
bandwidth_mbit = 100

[toy]
speed = 7
"#;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Options {
    speed: u8,
}

fn good() -> Config {
    Config::parse("node.toml", GOOD).unwrap()
}

#[test]
fn a_whole_configuration_is_read() {
    let config = good();
    assert_eq!((config.me().id, config.me().region.as_str()), (NodeId(1), "us-east"));
    assert_eq!(config.nodes[0].sql, "127.0.0.1:5432".parse().unwrap());
    assert_eq!((config.durability, config.tuning.workers), (Durability::Os, 2));
    assert_eq!(config.tuning.log_segment_bytes, LOG_SEGMENT_BYTES_DEFAULT);
    let topology = config.topology();
    assert_eq!(topology.round_trip_max(), Span::from_us(80_500));
    assert_eq!(topology.region_name(NodeId(0)), "eu-west");
    let wan = config.emulated_wan().unwrap();
    assert_eq!((wan.jitter, wan.bandwidth_bits), (Span::from_us(500), Some(100_000_000)));
    assert_eq!(config.protocol_options::<Options>(), Ok(Options { speed: 7 }));
}

#[test]
fn what_is_written_is_what_is_read() {
    let config = good();
    let again = Config::parse("again", &config.to_toml()).unwrap();
    assert_eq!(again.to_toml(), config.to_toml());
    assert_eq!(again.protocol_options::<Options>(), Ok(Options { speed: 7 }));
    assert_eq!(
        (again.topology(), again.emulated_wan()),
        (config.topology(), config.emulated_wan())
    );
}

#[test]
fn what_is_not_there_is_as_documented() {
    let text = "cluster = \"c\"\nprotocol = \"toy\"\nnode = 0\ndata_dir = \"/d\"\n\
                regions = [\"a\"]\n[[nodes]]\nid = 0\nregion = \"a\"\n\
                peer = \"127.0.0.1:1\"\nsql = \"[::1]:2\"\n";
    let config = Config::parse("node.toml", text).unwrap();
    assert_eq!((config.durability, config.tuning.workers), (Durability::Fsync, 0));
    assert_eq!(config.tuning.history(), HISTORY_DEFAULT);
    assert_eq!((config.tuning.history_s, config.tuning.history_versions), (300, 100_000));
    assert_eq!(config.emulated_wan(), None);
    assert_eq!(config.protocol_options::<Options>(), Ok(Options::default()));
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let cases = [
        ("workers = 2", "wrokers = 2", 6, "unknown field `wrokers`; did you mean `workers`?"),
        ("workers = 2", "workers = \"two\"", 6, "workers = \"two\""),
        ("workers = 2", "workers = 100000", 6, "workers = 100000: must be from 0 to"),
        ("workers = 2", "log_segment_bytes = 1", 6, "log_segment_bytes = 1: must be from"),
        ("durability = \"os\"", "durability = \"maybe\"", 5, "maybe"),
        ("durability = \"os\"", "durability = ", 5, "durability ="),
        ("cluster = \"shop\"", "cluster = \"\"", 1, "cluster must not be empty"),
        ("node = 1", "node = 2", 3, "node = 2: no such id"),
        ("data_dir = \"data\"", "data_dir = \"\"", 4, "data_dir must not be empty"),
        ("[\"eu-west\", \"us-east\"]\n\n", "[\"a\", \"a\"]\n\n", 7, "\"a\" is listed twice"),
        ("region = \"us-east\"", "region = \"mars\"", 11, "\"mars\": no such region"),
        ("region = \"us-east\"", "rack = \"x\"", 11, "unknown field `rack`"),
        ("id = 0", "id = 1", 16, "id = 1: already used by another node"),
        ("id = 0", "id = 5", 16, "the ids must be 0 to 1"),
        ("127.0.0.1:7000", "127.0.0.1:7001", 18, "already used by node 1"),
        ("127.0.0.1:7000", "127.0.0.1:5433", 18, "as its sql"),
        ("127.0.0.1:7000", "127.0.0.1:0", 18, "port 0"),
        ("127.0.0.1:7000", "localhost:7000", 18, "localhost:7000"),
        ("127.0.0.1:7000", "localhost:7000", 18, "expected an IP address"),
        ("127.0.0.1:7000", "10.0.0.1:7000", 18, "`insecure = true`"),
        ("127.0.0.1:5432", "10.0.0.1:5432", 19, "set `tls_certificate` and `tls_key` and"),
        ("workers = 2", "history_s = 100000", 6, "history_s = 100000: must be from 0 to 86400"),
        ("workers = 2", "cold_latency_ms = 5", 6, "cold_latency_ms: needs `memory_mb`"),
        ("workers = 2", "tls_key = \"a\"", 6, "`tls_certificate` is missing"),
        ("workers = 2", "tls_certificate = \"a\"", 6, "`tls_key` is missing"),
        ("workers = 2", "authentication = \"md5\"", 6, "unknown variant `md5`"),
        ("workers = 2", "authentication_timeout_s = 0", 6, "must be from 1 to 600"),
        ("workers = 2", "insecure = \"some\"", 6, "true, false or \"peers\""),
        ("ms = 80.5", "ms = -1", 23, "ms = -1: must be from 0"),
        ("ms = 80.5", "ms = nan", 23, "ms = NaN: must be from 0"),
        ("between = [\"eu-west\", ", "between = [\"moon\", ", 22, "no region \"moon\""),
        ("between = [\"eu-west\", ", "between = [\"us-east\", ", 22, "is given twice"),
        ("jitter_ms = 0.5", "jitter_ms = -3", 25, "jitter_ms = -3"),
        ("jitter_ms = 0.5", "jitter = 1", 26, "unknown field `jitter`; did you mean `jitter_ms`?"),
        ("bandwidth_mbit = 100", "bandwidth_mbit = 0.001", 25, "bandwidth"),
        ("[wan]", "[clock]\nerror_ms = 70000\n[wan]", 25, "error_ms = 70000: must be from 0 to"),
        ("[wan]", "[clock]\nwrong = 1\n[wan]", 26, "unknown field `wrong`"),
        ("[toy]", "[minerva]", 29, "unknown field `minerva`"),
        ("[toy]", "[too]", 29, "unknown field `too`; did you mean `toy`?"),
    ];
    for (good, bad, line, message) in cases {
        assert_eq!(GOOD.matches(good).count(), 1, "{good} occurs once in the text");
        let error = Config::parse("node.toml", &GOOD.replace(good, bad)).expect_err(bad);
        let text = error.to_string();
        assert!(text.starts_with(&format!("node.toml:{line}: ")), "{bad}: {text}");
        assert!(text.contains(message), "{bad}: {text}");
    }
}

#[test]
fn settings_of_another_protocol_are_told_whose_they_are() {
    let text = GOOD.replace("[toy]", "[minerva]");
    let known: &[&str] = &["toy", "minerva"];
    let error = Config::parse_of("node.toml", &text, Some(known)).expect_err("does not apply");
    let text = error.to_string();
    assert!(text.starts_with("node.toml:29: "), "{text}");
    assert!(text.contains("[minerva] does not apply to"), "{text}");
    assert!(Config::parse_of("node.toml", GOOD, Some(known)).is_ok());
    let error = Config::parse_of("node.toml", GOOD, Some(&["minerva"])).expect_err("unknown");
    assert!(error.to_string().contains("unknown protocol \"toy\"; known: minerva"), "{error}");
}

/// Two regions with two shards each.
const DIVIDED: &str = r#"cluster = "shop"
protocol = "toy"
node = 3
data_dir = "data"
regions = ["a", "b"]
nodes = [
  { id = 0, region = "a", shard = 0, peer = "127.0.0.1:1", sql = "127.0.0.1:11" },
  { id = 1, region = "a", shard = 1, peer = "127.0.0.1:2", sql = "127.0.0.1:12" },
  { id = 2, region = "b", peer = "127.0.0.1:3", sql = "127.0.0.1:13" },
  { id = 3, region = "b", shard = 1, peer = "127.0.0.1:4", sql = "127.0.0.1:14" },
]

[partitions]
default = { by = "hash", prefix_bytes = 4 }
tables.7 = { by = "everywhere" }
tables.9 = { by = "ranges", starts = ["00Ab"] }
tables.10 = { by = "number", bytes = 2, first = 1 }
"#;

#[test]
fn nodes_have_shards_and_tables_their_rules() {
    let config = Config::parse("node.toml", DIVIDED).unwrap();
    let topology = config.topology();
    assert_eq!(topology.node_at(RegionId(1), ShardId(1)), Some(NodeId(3)));
    assert_eq!(topology.place_name(NodeId(2)), "b.0");
    let expected = "2 shards, by hash of 4 bytes, t1 everywhere, t2 everywhere, t7 everywhere, \
                t9 by ranges from 00ab, t10 by number of 2 bytes from 1";
    assert_eq!(topology.partitions.to_string(), expected);
    let again = Config::parse("again", &config.to_toml()).unwrap();
    assert_eq!(again.topology(), topology);
    let (rules, _) = DIVIDED.split_once("[partitions]").unwrap();
    let topology = Config::parse("node.toml", rules).unwrap().topology();
    assert_eq!(
        topology.partitions.to_string(),
        "2 shards, by hash of the key, t1 everywhere, t2 everywhere"
    );
}

#[test]
fn shards_that_cant_be_are_named() {
    for (good, bad, message) in [
        (
            "region = \"b\", shard = 1",
            "region = \"b\", shard = 3",
            "no node has shard = 2, although one has shard = 3",
        ),
        ("region = \"b\", shard = 1", "region = \"b\"", "nodes 2 and 3 of region \"b\" both"),
        (
            "region = \"a\", shard = 1",
            "region = \"a\", shard = 128",
            ":8: shard = 128: must be from",
        ),
        ("tables.9 ", "tables.1 ", "tables.1: the tables of sessions must be on every node"),
        ("tables.7 ", "tables.x ", ":13: [partitions]: tables: \"x\" is not a number"),
        ("[\"00Ab\"]", "[\"01\", \"02\"]", ":13: [partitions]: tables.9: 2 starts"),
        ("00Ab", "zz", "\"zz\" is not hexadecimal"),
        ("bytes = 2", "bytes = 0", "tables.10: bytes = 0: must be from 1 to 8"),
        ("prefix_bytes = 4", "prefix_bytes = 0", "default: prefix_bytes = 0: must be 1 or more"),
        ("by = \"everywhere\"", "by = \"luck\"", "luck"),
        ("first = 1", "last = 1", "last"),
    ] {
        assert_eq!(DIVIDED.matches(good).count(), 1, "{good} occurs once in the text");
        let error = Config::parse("node.toml", &DIVIDED.replace(good, bad)).expect_err(bad);
        assert!(error.to_string().contains(message), "{bad}: {error}");
    }
}

#[test]
fn a_region_may_lack_a_shard_if_the_protocol_permits_it() {
    let text = DIVIDED.replace("region = \"b\", shard = 1", "region = \"b\", shard = 2");
    let topology = Config::parse("node.toml", &text).unwrap().topology();
    assert_eq!(topology.node_at(RegionId(0), ShardId(2)), None);
    let why = topology.check_replicas("calvin", false).unwrap_err();
    assert!(why.contains("region \"a\" has no node with shard = 2"), "{why}");
}

#[test]
fn nodes_without_a_vote_come_last() {
    let of = |id: u16| format!("id = {id}, region = \"b\"");
    let without = |text: &str, id| text.replace(&of(id), &format!("{}, votes = false", of(id)));
    let last = without(DIVIDED, 3);
    let config = Config::parse("node.toml", &last).unwrap();
    assert_eq!((config.topology().non_voting, config.topology().voter_count()), (1, 3));
    assert_eq!(Config::parse("again", &config.to_toml()).unwrap().topology(), config.topology());
}

/// Story: the first node had no vote, and the error was that no node has one.
#[test]
fn the_node_without_a_vote_that_has_an_earlier_id_is_named() {
    let without = |text: &str, id: u16| {
        let of = format!("{{ id = {id}, ");
        text.replace(&of, &format!("{of}votes = false, "))
    };
    for (id, line) in [(0, 7), (2, 9)] {
        let error = Config::parse("node.toml", &without(DIVIDED, id)).expect_err("not the last");
        let says = format!(
            "node.toml:{line}: votes = false: node {id} has no vote, and node 3 has one: nodes \
             without a vote have the last ids. Give the id {id} to a node that votes"
        );
        assert_eq!(error.to_string(), says);
    }
    let none = (0..4).fold(DIVIDED.to_owned(), |text, id| without(&text, id));
    let error = Config::parse("node.toml", &none).expect_err("nobody votes").to_string();
    assert!(error.starts_with("node.toml:7: votes = false: no node has a vote"), "{error}");
    let cache = GOOD.replace("id = 1\n", "id = 1\nvotes = false\n");
    let cache = format!(
        "{cache}\n[[nodes]]\nid = 2\nregion = \"eu-west\"\ncache_of = 0\npeer = \
         \"127.0.0.1:7003\"\nsql = \"127.0.0.1:5435\"\n"
    );
    let error = Config::parse("node.toml", &cache).expect_err("a cache").to_string();
    assert!(error.contains("node 1 has no vote, and node 2 is a cache"), "{error}");
}

/// If someone forgot the shards, two nodes of a region silently became two copies of all data.
#[test]
fn partitions_of_nodes_without_shards_are_refused() {
    let text = DIVIDED.replace(", shard = 0", "").replace(", shard = 1", "");
    let error = Config::parse("node.toml", &text).expect_err("no shards").to_string();
    assert!(error.starts_with("node.toml:13: [partitions]: all nodes have shard 0"), "{error}");
    assert!(error.contains("`shard = 1`") && error.contains("remove [partitions]"), "{error}");
    let (without, _) = text.split_once("[partitions]").unwrap();
    assert_eq!(Config::parse("node.toml", without).unwrap().topology().partitions.shards(), 1);
}

#[test]
fn a_setting_that_the_protocol_does_not_know_is_named_with_its_line() {
    for (bad, message) in [("sped = 7", "did you mean `speed`?"), ("speed = 700", "speed = 700")] {
        let config = Config::parse("node.toml", &GOOD.replace("speed = 7", bad)).unwrap();
        let error = config.protocol_options::<Options>().expect_err(bad).to_string();
        assert!(error.starts_with("node.toml:30: ") && error.contains(message), "{error}");
    }
}

#[test]
fn a_missing_key_is_named() {
    for key in ["cluster", "protocol", "node", "data_dir", "regions"] {
        let line = GOOD.lines().find(|line| line.starts_with(key)).unwrap();
        let error = Config::parse("node.toml", &GOOD.replace(line, "")).expect_err(key);
        assert!(error.message.contains(&format!("missing field `{key}`")), "{error}");
    }
}

#[test]
fn a_clock_has_a_bound_and_may_be_emulated() {
    assert_eq!(good().clock, ClockConfig { error_ms: 10, emulate: None });
    let table = "[clock]\nerror_ms = 80\n\
                 emulate = { offset_ms = 60, drift_ppm = 50, wander_ms = 5, seed = 3 }\n[wan]";
    let config = Config::parse("node.toml", &GOOD.replace("[wan]", table)).unwrap();
    let emulate = Some(Emulation { offset_ms: 60, drift_ppm: 50, wander_ms: 5, seed: 3 });
    assert_eq!(config.clock, ClockConfig { error_ms: 80, emulate });
    let again = Config::parse("again", &config.to_toml()).unwrap();
    assert_eq!(again.clock, config.clock);
}

#[test]
fn an_emulation_needs_every_round_trip() {
    let without =
        GOOD.replace("[[round_trips]]\nbetween = [\"eu-west\", \"us-east\"]\nms = 80.5", "");
    let error = Config::parse("node.toml", &without).expect_err("no round trip").to_string();
    assert!(error.contains("no entry for \"eu-west\" and \"us-east\""), "{error}");
}

#[test]
fn off_loopback_is_allowed_where_it_is_said_to_be_insecure() {
    let text = GOOD.replace("127.0.0.1:7000", "10.0.0.1:7000");
    let text = text.replace("workers = 2", "insecure = true");
    assert_eq!(Config::parse("node.toml", &text).unwrap().insecure, Insecure::Everything);
}

#[test]
fn clients_off_loopback_are_allowed_with_a_certificate_and_passwords() {
    let secure = "authentication = \"scram-sha-256\"\ntls_certificate = \"a.crt\"\n\
                  tls_key = \"/b.key\"\ninsecure = \"peers\"";
    let text = GOOD.replace("127.0.0.1:7000", "10.0.0.1:7000");
    let text = text.replace("127.0.0.1:5432", "10.0.0.1:5432").replace("workers = 2", secure);
    let config = Config::parse("node.toml", &text).unwrap();
    assert_eq!(config.authentication, Authentication::ScramSha256);
    assert_eq!(config.insecure, Insecure::Peers);
    assert_eq!(Config::parse("again", &config.to_toml()).unwrap().to_toml(), config.to_toml());
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("node.toml");
    std::fs::write(&path, &text).unwrap();
    let config = Config::read(&path).unwrap();
    assert_eq!(config.tls_certificate, Some(temp.path().join("a.crt")));
    assert_eq!(config.tls_key, Some("/b.key".into()));
    assert!(config.security().unwrap_err().contains("a.crt: "));
    for line in secure.lines() {
        let without = text.replace(line, "").replace("\n\n", "\n");
        assert!(Config::parse("node.toml", &without).is_err(), "{line}");
    }
}

#[test]
fn a_file_is_read_and_its_data_dir_is_beside_it() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("node.toml");
    let error = Config::read(&path).expect_err("no file").to_string();
    assert!(error.contains("node.toml") && error.contains("can't read"), "{error}");
    std::fs::write(&path, GOOD).unwrap();
    assert_eq!(Config::read(&path).unwrap().data_dir, temp.path().join("data"));
}

/// The documentation of the keys, which the tests check against the program.
const DOCUMENTATION: &str = include_str!("../../../docs/CONFIG.md");

#[test]
fn the_example_of_the_documentation_is_a_configuration() {
    let start = DOCUMENTATION.find("```toml\n").unwrap() + "```toml\n".len();
    let example = &DOCUMENTATION[start..];
    let example = &example[..example.find("```").unwrap()];
    let config = Config::parse("docs/CONFIG.md", example).unwrap();
    assert_eq!((config.nodes.len(), config.options.len()), (3, 1));
}

#[test]
fn every_key_is_documented() {
    let keys_of = |bad: &str, good: &str| {
        let error = Config::parse("node.toml", &GOOD.replace(good, bad)).expect_err(bad);
        let (_, expected) = error.message.split_once("expected ").expect("what is expected");
        let expected = expected.split(" in `").next().unwrap_or_default().to_owned();
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut documented = 0;
    for (bad, good, table) in [
        ("unknown = 1", "workers = 2", ""),
        ("unknown = 1", "id = 0", "nodes."),
        ("[partitions]\nunknown = 1", "workers = 2", "partitions."),
        ("unknown = 1", "ms = 80.5", "round_trips."),
        ("[clock]\nunknown = 1", "workers = 2", "clock."),
        ("unknown = 1", "jitter_ms = 0.5", "wan."),
    ] {
        for key in keys_of(bad, good) {
            // A protocol's table is named after the protocol.
            let key = key.replace("toy", "minerva");
            let written = [
                format!("| `{table}{key}` |"),
                format!("| `[[{key}]]` |"),
                format!("## `[{key}]`"),
            ];
            let is_there = written.iter().any(|written| DOCUMENTATION.contains(written));
            assert!(is_there, "{table}{key} is not in docs/CONFIG.md");
            documented += 1;
        }
    }
    assert_eq!(documented, 27 + 6 + 2 + 2 + 2 + 2);
}

/// The page that describes the keys to users has the defaults that the code has.
#[test]
fn the_page_has_each_key_with_a_number_and_its_default() {
    let page = include_str!("../../../docs/CONFIG.md");
    let defaults = toml::Table::try_from(Tuning::default()).unwrap();
    assert!(defaults.len() > 6, "{defaults}");
    for (key, default) in defaults {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/CONFIG.md has no row of {key}"));
        assert!(row.ends_with(&format!("| `{default}` |")), "{key} is {default} by default: {row}");
    }
}
