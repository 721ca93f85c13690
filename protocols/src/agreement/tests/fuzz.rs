//! Messages that are nearly right, to a leader and to a follower with a log.

use super::*;
use crate::fuzzing::{Outcome, Target, run};

/// Three replicas of which the first leads, with three entries decided and one in flight.
fn in_the_middle() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.replicas[0].campaign();
    cluster.settle();
    (0..3).for_each(|entry| drop(cluster.decide(entry)));
    cluster.replicas[0].propose(3);
    cluster
}

/// The messages between the replicas from their start on, each after a byte for its receiver.
fn seeds() -> Vec<Vec<u8>> {
    let mut cluster = Cluster::new();
    let mut seeds = Vec::new();
    let mut say = |cluster: &mut Cluster| {
        while let wire = cluster.wire()
            && !wire.is_empty()
        {
            for (from, to, bytes) in wire {
                seeds.push([&[to.0 as u8 & 1][..], &bytes].concat());
                cluster.say(from.index(), to.index(), &bytes);
            }
        }
    };
    for at in 0..60 {
        cluster.replicas.iter_mut().for_each(|replica| replica.on_tick(true));
        say(&mut cluster);
        let leader = cluster.replicas.iter().position(Agreement::is_leader);
        if let Some(leader) = leader.filter(|_| at % 4 == 0) {
            cluster.replicas[leader].propose(at);
            say(&mut cluster);
        }
        if at == 40 {
            cluster.replicas.iter_mut().for_each(|replica| replica.trim(2));
            cluster.replicas[1].campaign();
            cluster.replicas[2].on_peer_up(NodeId(1));
            say(&mut cluster);
        }
    }
    seeds.sort();
    seeds.dedup();
    // Some of each kind, not every heartbeat.
    seeds.into_iter().step_by(5).collect()
}

/// The first byte selects the receiver; the other one of the two is the sender.
fn look(input: &[u8]) -> Outcome {
    let Some((to, bytes)) = input.split_first() else { return Outcome::refused("nothing") };
    let (to, from) = (usize::from(to & 1), usize::from(to & 1 ^ 1));
    match check::decode::<u32>(bytes) {
        Err(refused) => return Outcome::refused(refused),
        Ok(said) => {
            let encoded = postcard::to_stdvec(&said).expect("the message can be encoded");
            let again = check::decode::<u32>(&encoded).expect("the encoding is reversible");
            assert_eq!(postcard::to_stdvec(&again).expect("the message can be encoded"), encoded);
        }
    }
    // A replica allocates 20 MB for its outbox at the start, which no message causes.
    let mut made = None;
    allocation_counter::opt_out(|| made = Some(in_the_middle()));
    let mut cluster = made.expect("the cluster was created");
    cluster.say(from, to, bytes);
    let replica = &mut cluster.replicas[to];
    let ready = replica.take_ready();
    // Whatever state it is in now, it must continue.
    (0..60).for_each(|_| replica.on_tick(true));
    replica.take_ready();
    match cluster.refused.first() {
        Some(refused) => Outcome::refused(refused),
        None => Outcome::taken((ready.records.len(), ready.messages.len())),
    }
}

#[test]
fn messages() {
    run(Target {
        name: "agreement",
        seeds: seeds().into_iter().filter(|seed| matches!(look(seed), Outcome::Taken(_))).collect(),
        mend: |_| {},
        look,
        // Serde reserves up to 1 MiB for a list; there are three copies of it.
        bytes_max: 3 << 20,
        bytes_per_byte: 256,
    });
}
