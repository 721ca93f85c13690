//! Settings for runs of Tiga with replicas of each shard in some of the regions.

use pangea_core::ids::RegionId;
use pangea_core::topology::Replicas;
use pangea_protocols::tiga::Options;
use pangea_sim::Settings;

use crate::tiga_drawn::{
    away, drawn, drawn_approach, drawn_divided, on_shards, replaced, upgraded,
};

/// Replicas of some shards in some of the regions, so that a region may lack some shards.
fn drawn_replicas(dice: &mut fastrand::Rng, nodes: usize, shards: u16) -> Replicas {
    let replicas = (0..shards).map(|_| {
        let mut regions: Vec<u16> = (0..nodes as u16).collect();
        dice.shuffle(&mut regions);
        // Mostly three, sometimes fewer or more.
        let count = [3, 3, 3, 3, 2, 1, 5][dice.usize(..7)].min(nodes);
        regions.into_iter().take(count).map(RegionId).collect()
    });
    Replicas::new(replicas.collect()).expect("each shard has a replica")
}

/// The same as [`crate::tiga_drawn::drawn_divided`] with regions that lack replicas of some shards.
pub fn drawn_partial(seed: u64) -> (Settings, Options) {
    let (settings, options) = drawn(seed);
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xa17);
    let (nodes, shards) = ([3, 4, 4, 5, 5, 2][dice.usize(..6)], [2, 2, 3][dice.usize(..3)]);
    let replicas = Some(drawn_replicas(dice, nodes, shards));
    (Settings { shards, nodes, replicas, ..settings }, drawn_approach(options, dice))
}

/// Regions of which only the first one has both shards: nodes 0, 2 and 3 have the first shard, and
/// nodes 1, 4 and 5 the second one.
fn apart(settings: Settings) -> Settings {
    let of = |regions: [u16; 3]| regions.map(RegionId).into_iter().collect();
    let replicas = Replicas::new(vec![of([0, 1, 2]), of([0, 3, 4])]).expect("each has some");
    Settings { nodes: 5, shards: 2, replicas: Some(replicas), ..settings }
}

/// The node of one of the three replicas of a shard in [`apart`].
fn place_apart(shard: u16, replica: u16) -> u16 {
    [[0, 2, 3], [1, 4, 5]][usize::from(shard)][usize::from(replica)]
}

/// The same as [`crate::tiga_drawn::away_divided`] with regions that have one shard each.
pub fn away_partial(seed: u64) -> (Settings, Options) {
    let (settings, options) = away(seed, "list-append");
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xa4);
    let (shard, is_from_all) = (dice.u16(..2), dice.bool());
    let place = |replica: u16| place_apart(shard, replica);
    let places = |replicas: Vec<u16>| -> Vec<u16> {
        let others = (0..3).map(|replica| place_apart(1 - shard, replica));
        let of_shard = replicas.into_iter().map(place);
        if is_from_all { of_shard.chain(others).collect() } else { of_shard.collect() }
    };
    (apart(on_shards(settings, place, places)), drawn_approach(options, dice))
}

/// The same as [`crate::tiga_drawn::replaced_divided`] with regions that have one shard each.
pub fn replaced_partial(seed: u64) -> (Settings, Options) {
    let (settings, options) = replaced(seed, "list-append");
    let place = |replica: u16| place_apart((seed % 2) as u16, replica);
    let places = |replicas: Vec<u16>| replicas.into_iter().map(place).collect();
    let options = drawn_approach(options, &mut fastrand::Rng::with_seed(seed ^ 0xa5));
    (apart(on_shards(settings, place, places)), options)
}

/// The same as `upgraded_divided` with regions that lack replicas of some shards.
pub fn upgraded_partial(seed: u64) -> (Settings, Options) {
    let (settings, options) = upgraded(seed);
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xa6);
    let (nodes, shards) = ([3, 4, 5][dice.usize(..3)], [2, 2, 3][dice.usize(..3)]);
    let replicas = Some(drawn_replicas(dice, nodes, shards));
    (Settings { shards, nodes, replicas, ..settings }, drawn_approach(options, dice))
}

/// Drawn runs of one or several shards with non-voting replicas in further regions.
pub fn drawn_non_voting(seed: u64) -> (Settings, Options) {
    let dice = &mut fastrand::Rng::with_seed(seed ^ 0xa7);
    let (settings, options) = match dice.u8(..3) {
        0 => drawn(seed),
        1 => drawn_divided(seed),
        _ => drawn_partial(seed),
    };
    (Settings { non_voting: dice.usize(1..=3), ..settings }, options)
}
