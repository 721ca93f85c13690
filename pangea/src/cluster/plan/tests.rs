//! Tests of plans.

use super::*;
use pangea_core::partition::Rule;
use pangea_node::config::with_system_tables;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn plan() -> Plan {
    Plan::of_named_regions("minerva", &names(&["us-east", "eu-west", "af-south"])).unwrap()
}

#[test]
fn each_node_has_its_own_addresses_and_directory_and_the_same_distances() {
    let plan = Plan { jitter_ms: 1.5, ..plan() };
    let configs = plan.configs(Path::new("/d")).unwrap();
    assert_eq!(configs.len(), 3);
    for (index, config) in configs.iter().enumerate() {
        assert_eq!(config.node.index(), index);
        assert_eq!(config.nodes, configs[0].nodes);
        assert_eq!(config.data_dir, Path::new("/d").join(&plan.regions[index]).join("data"));
        assert_eq!(config.tuning, plan.tuning);
        let wan = config.emulated_wan().unwrap();
        assert_eq!(wan.one_way[0][1].us, 34_000, "half of the 68 ms to eu-west");
        assert_eq!(wan.one_way[1][2], wan.one_way[2][1]);
        assert_eq!(wan.jitter.us, 1_500);
        assert_eq!(Config::parse("again", &config.to_toml()).unwrap().nodes, config.nodes);
    }
    let ports: std::collections::BTreeSet<u16> =
        configs[0].nodes.iter().flat_map(|node| [node.peer.port(), node.sql.port()]).collect();
    assert_eq!(ports.len(), 6, "no port twice");
}

#[test]
fn each_region_has_a_node_for_each_shard() {
    let partitions = Partitions::new(2, Rule::Hash { prefix_bytes: 4 });
    let plan = Plan { protocol: "calvin".to_owned(), ..plan() }.divided(partitions.clone());
    plan.check().unwrap();
    assert_eq!(plan.places()[..3], ["us-east.0", "us-east.1", "eu-west.0"]);
    let configs = plan.configs(Path::new("/d")).unwrap();
    assert_eq!(configs[3].data_dir, Path::new("/d/eu-west.1/data"));
    let topology = configs[3].topology();
    let of_nodes = with_system_tables(partitions);
    assert_eq!((topology.node_count(), &topology.partitions), (6, &of_nodes));
    assert_eq!(topology.place_name(NodeId(3)), plan.places()[3]);
    let of_other = Plan { protocol: "minerva".to_owned(), ..plan.clone() }.check().unwrap_err();
    assert!(of_other.to_string().contains("all rows on each node"), "{of_other}");
    let too_many = plan.divided(Partitions::new(20, Rule::Everywhere)).check().unwrap_err();
    assert!(too_many.to_string().contains("60 nodes"), "{too_many}");
}

#[test]
fn regions_have_the_replicas_that_are_given() {
    let partitions = Partitions::new(2, Rule::Hash { prefix_bytes: 4 });
    let plan = Plan { protocol: "tiga".to_owned(), ..plan() }.divided(partitions);
    let text = "us-east,eu-west,af-south/eu-west";
    let placed = plan.clone().placed(Some(text), &[]).unwrap();
    placed.check().unwrap();
    assert_eq!(placed.places(), ["us-east.0", "eu-west.0", "eu-west.1", "af-south.0"]);
    assert_eq!([0, 1, 2, 3].map(|node| placed.region_of(node)), [0, 1, 1, 2]);
    assert_eq!(placed.shards_of_nodes(), [0, 0, 1, 0]);
    let topology = placed.configs(Path::new("/d")).unwrap()[0].topology();
    let named: Vec<_> = topology.node_ids().map(|node| topology.place_name(node)).collect();
    assert_eq!(named, placed.places());
    let placement =
        |number: u8| Placement { address: [10, 9, number, 1].into(), command_prefix: Vec::new() };
    let placements = (1..=3).map(placement).collect();
    let apart = Plan { placements, ..placed.clone() }.configs(Path::new("/d")).unwrap();
    let peers = apart[0].nodes.iter().map(|node| node.peer.to_string());
    assert_eq!(peers.collect::<Vec<_>>()[1..3], ["10.9.2.1:21000", "10.9.2.1:21002"]);
    let south = names(&["af-south"]);
    let without = plan.clone().placed(None, &south).unwrap();
    without.check().unwrap();
    let expected = ["us-east.0", "us-east.1", "eu-west.0", "eu-west.1", "af-south.0"];
    assert_eq!(without.places(), expected);
    let topology = without.configs(Path::new("/d")).unwrap()[4].topology();
    assert_eq!((topology.non_voting, topology.voter_count()), (1, 4));
}

#[test]
fn each_shard_may_have_a_learner_beside_its_first_replica() {
    let refused = plan().with_learners().unwrap_err();
    let says = "--learners: protocol \"minerva\" has no learners; use --protocol mako";
    assert_eq!(refused, Failure::Usage(says.to_owned()));
    let plan = Plan { protocol: "mako".to_owned(), ..plan() }.with_learners().unwrap();
    plan.check().unwrap();
    assert_eq!(plan.places(), ["us-east", "eu-west", "af-south", "us-east.learner"]);
    let topology = plan.configs(Path::new("/d")).unwrap()[3].topology();
    let named: Vec<_> = topology.node_ids().map(|node| topology.place_name(node)).collect();
    assert_eq!((named, topology.voter_count()), (plan.places(), 3));
    assert_eq!((plan.voters_of(0), plan.region_of(3)), (3, 0));
    assert_eq!(plan.homes_in(&[]), Ok(Some(vec![0, 1, 2])), "a learner has no clients");
    assert_eq!(plan.homes_in(&names(&["us-east"])), Ok(Some(vec![0])));
    let wrong = plan.homes_in(&names(&["us-east", "mars"])).unwrap_err();
    let says = "there is no region \"mars\"; expected some of us-east, eu-west, af-south";
    assert_eq!(wrong, says);
    let of = |name: &str| nodes_named(&plan.places(), name);
    assert_eq!([of("us-east"), of("us-east.learner"), of("mars")], [vec![0, 3], vec![3], vec![]]);
}

/// Story: each of these errors named another option, or another cause.
#[test]
fn options_about_replicas_that_cant_be_are_named_with_the_cause() {
    let tiga = || Plan { protocol: "tiga".to_owned(), ..plan() };
    let two = || tiga().divided(Partitions::new(2, Rule::Hash { prefix_bytes: 4 }));
    let (all, south) = (tiga().regions, names(&["af-south"]));
    let text = "us-east,eu-west,af-south/eu-west";
    let other = "needs a voting replica of each shard in each region; use --protocol tiga or mako";
    for (plan, replicas, non_voting, says) in [
        (plan(), Some(text), &[][..], format!("--replicas-in: protocol \"minerva\" {other}")),
        (plan(), None, &south[..], format!("--non-voting: protocol \"minerva\" {other}")),
        (
            tiga(),
            Some(text),
            &[],
            "--replicas-in: it names replicas of 2 shards; add --partitions 2".to_owned(),
        ),
        (
            two(),
            Some("us-east"),
            &[],
            "--replicas-in: it names replicas of 1 shard, and --partitions is 2".to_owned(),
        ),
        (
            tiga(),
            None,
            &all[..],
            "--non-voting: it names all regions, and a region is needed that votes".to_owned(),
        ),
        (
            two(),
            Some(text),
            &south[..],
            "--non-voting: region \"af-south\" is in --replicas-in, too, which names replicas that \
             vote"
                .to_owned(),
        ),
        (
            two(),
            Some("us-east/eu-west"),
            &[],
            "--replicas-in: region \"af-south\" has no replica; name it for a shard or in \
             --non-voting, or leave it out of --regions"
                .to_owned(),
        ),
    ] {
        let error = plan.placed(replicas, non_voting).unwrap_err();
        assert_eq!(error, Failure::Usage(says));
    }
}

#[test]
fn what_nodes_would_warn_of_is_known_before_they_start_and_once() {
    let options = "leaders = \"rotated\"\npath = \"super\"".parse().unwrap();
    let plan = Plan { protocol: "tiga".to_owned(), options, ..plan() };
    let warnings = plan.warnings().unwrap();
    let keys: Vec<_> = warnings.iter().map(|it| it.split(' ').next().unwrap()).collect();
    assert_eq!(keys, ["tiga.leaders", "tiga.path"]);
    assert!(warnings[0].contains("in us-east. Set"), "{warnings:?}");
    let options = "ack = \"cached\"".parse().unwrap();
    let plan = Plan { protocol: "geogauss".to_owned(), options, ..plan };
    assert!(plan.warnings().unwrap()[0].contains("geogauss.ack"));
}

#[test]
fn without_distance_nothing_is_emulated() {
    let plan = Plan::of_equal_distances("minerva", &names(&["a", "b"]), 0.0).unwrap();
    assert_eq!(plan.configs(Path::new("/d")).unwrap()[0].emulated_wan(), None);
}

#[test]
fn in_places_of_their_own_nodes_know_the_distances_and_do_not_emulate_them() {
    let placement =
        |number: u8| Placement { address: [10, 9, number, 1].into(), command_prefix: Vec::new() };
    let plan = Plan { jitter_ms: 1.0, placements: (1..=3).map(placement).collect(), ..plan() };
    let config = &plan.configs(Path::new("/d")).unwrap()[1];
    assert_eq!(config.emulated_wan(), None);
    assert_eq!(config.topology().one_way[0][1].us, 34_000);
    let me = config.me();
    assert_eq!((me.peer.to_string(), me.sql.to_string()), {
        ("10.9.2.1:21000".to_owned(), "10.9.2.1:21001".to_owned())
    });
}

#[test]
fn options_reach_the_protocol_and_unknown_ones_are_named() {
    let mut plan = plan();
    plan.options.insert("epoch_ms".to_owned(), toml::Value::Integer(40));
    let config = &plan.configs(Path::new("/d")).unwrap()[1];
    let options: pangea_protocols::minerva::Options = config.protocol_options().unwrap();
    assert_eq!(options.epoch_ms, 40);
    plan.options.insert("speed".to_owned(), toml::Value::Integer(9));
    let error = plan.check().unwrap_err();
    assert!(matches!(&error, Failure::Usage(text) if text.contains("speed")), "{error}");
}

/// Story: a cluster with these options was once started, and its nodes reported the error and
/// exited.
#[test]
fn options_that_this_cluster_cant_have_are_refused_before_it_starts() {
    for (options, word) in [
        ("replication = \"asynchronous\"\nmaster_region = \"nowhere\"", "us-east, eu-west"),
        ("replication = \"asynchronous\"\ncheckpoints = \"frozen\"", "zigzag"),
        ("master_region = \"eu-west\"", "remove master_region"),
    ] {
        let options = options.parse().unwrap();
        let plan = Plan { protocol: "calvin".to_owned(), options, ..plan() };
        let error = plan.check().unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains(word)), "{error}");
    }
    let options = "replication = \"asynchronous\"\nmaster_region = \"eu-west\"";
    let options = options.parse().unwrap();
    Plan { protocol: "calvin".to_owned(), options, ..plan() }.check().unwrap();
}

#[test]
fn what_is_no_cluster_is_refused() {
    let of_named = |regions: &[&str]| Plan::of_named_regions("minerva", &names(regions));
    for (regions, word) in [
        (&["us-east", "atlantis"][..], "atlantis"),
        (&["us-east", "us-east"], "twice"),
        (&[], "0 regions"),
    ] {
        let error = of_named(regions).unwrap_err();
        assert!(matches!(&error, Failure::Usage(text) if text.contains(word)), "{error}");
    }
    of_named(&["us-east"]).unwrap().check().expect("one region is a cluster, too");
    let unknown = Plan { protocol: "raft".to_owned(), ..plan() };
    assert!(matches!(unknown.check(), Err(Failure::Usage(text)) if text.contains("minerva")));
    let far = Plan::of_equal_distances("minerva", &names(&["a", "b"]), 1e6).unwrap();
    assert!(matches!(far.check(), Err(Failure::Usage(text)) if text.contains("1000000")));
}

#[test]
fn a_majority_is_as_far_as_the_last_region_that_it_needs() {
    let of = |names: &[&str]| {
        let regions = self::names(names);
        Plan::of_named_regions("minerva", &regions).unwrap().majority_round_trips_ms()
    };
    assert_eq!(of(&["us-east"]), [0.0]);
    assert_eq!(of(&["us-east", "eu-west", "ap-northeast"]), [68.0, 68.0, 149.0]);
    let five = of(&["us-east", "eu-west", "ap-northeast", "us-west", "eu-north"]);
    assert_eq!(five, [68.0, 68.0, 149.0, 97.0, 112.0]);
}

#[test]
fn caches_come_after_all_nodes_and_are_named_after_their_homes() {
    let plan = Plan { protocol: "geogauss".to_owned(), caches: 2, ..plan() };
    plan.check().unwrap();
    let configs = plan.configs(Path::new("/d")).unwrap();
    let homes: Vec<_> = configs[8].nodes.iter().filter_map(|node| node.cache_of).collect();
    assert_eq!(homes, [0, 1, 2, 0, 1, 2].map(NodeId));
    let names: Vec<String> = (2..9).map(|node| plan.name_of(node)).collect();
    assert_eq!(names[..3], ["af-south", "us-east.cache1", "eu-west.cache1"]);
    assert_eq!(names[6], "af-south.cache2");
    assert_eq!(configs[8].me().region, "af-south");
    assert_eq!(Plan { caches: 1, ..plan }.name_of(3), "us-east.cache");
}

#[test]
fn a_region_of_several_nodes_is_all_of_them() {
    let places: Vec<String> = ["a.0", "a.1", "ab.0", "ab.1"].map(str::to_owned).into();
    assert_eq!(nodes_named(&places, "a"), [0, 1]);
    assert_eq!(nodes_named(&places, "ab.1"), [3]);
    assert!(nodes_named(&places, "b").is_empty());
}
