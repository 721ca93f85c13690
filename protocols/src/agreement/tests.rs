//! Tests with three replicas of a log of numbers, and a peer that sends arbitrary messages.

use std::ops::Range;

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::messages::ballot_leader_election::{
    BLEMessage, HeartbeatMsg, HeartbeatReply, HeartbeatRequest,
};
use omnipaxos::messages::sequence_paxos::{
    AcceptDecide, AcceptSync, Accepted, Compaction, Decide, NotAccepted, PaxosMessage as Envelope,
    PaxosMsg, Prepare, PrepareReq, Promise,
};
use omnipaxos::storage::SnapshotType;
use omnipaxos::util::{LogSync, SequenceNumber};
use proptest::prelude::*;

use super::*;

mod disorder;
mod exhaustive;
mod fuzz;

/// The range of sound entries.
const SOUND: Range<u32> = 0..1_000;

type Wire = Vec<(NodeId, NodeId, Vec<u8>)>;

struct Cluster {
    replicas: Vec<Agreement<u32>>,
    decided: Vec<Vec<u32>>,
    refused: Vec<Refused>,
    /// The last entry that each replica has skipped.
    skipped: Vec<Option<u64>>,
    /// A replica that is disconnected in both directions.
    away: Option<usize>,
    /// Links, from sender to receiver, that deliver nothing.
    lost: Vec<(usize, usize)>,
}

impl Cluster {
    fn new() -> Self {
        let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
        let replica = |id| Agreement::new(id, &topology, [], 0);
        Self {
            replicas: topology.node_ids().map(replica).collect(),
            decided: vec![Vec::new(); 3],
            refused: Vec::new(),
            skipped: vec![None; 3],
            away: None,
            lost: Vec::new(),
        }
    }

    fn say(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let is_sound = |entry: &u32| SOUND.contains(entry);
        let said = self.replicas[to].on_message(NodeId(from as u16), bytes, &is_sound);
        self.refused.extend(said.err());
    }

    fn say_paxos(&mut self, from: usize, to: usize, msg: PaxosMsg<Wrapped<u32>>) {
        let [sender, receiver] = [from, to].map(|id| pid(NodeId(id as u16)));
        let message = PaxosMessage::SequencePaxos(Envelope { from: sender, to: receiver, msg });
        self.say(
            from,
            to,
            &postcard::to_stdvec(&AgreementMessage::Paxos(message))
                .expect("the message can be encoded"),
        );
    }

    /// Takes the messages that the replicas have to send.
    fn wire(&mut self) -> Wire {
        let mut wire = Wire::new();
        for (id, replica) in self.replicas.iter_mut().enumerate() {
            let ready = replica.take_ready();
            self.skipped[id] = self.skipped[id].max(ready.skipped);
            self.decided[id].extend(ready.decided.iter().map(|(_, entry)| *entry));
            let from = NodeId(id as u16);
            wire.extend(ready.messages.into_iter().map(|(to, bytes)| (from, to, bytes)));
        }
        wire
    }

    fn settle(&mut self) {
        for _ in 0..1_000 {
            let mut wire = self.wire();
            if wire.is_empty() {
                return;
            }
            let is_cut = |id: NodeId| self.away == Some(id.index());
            let is_lost = |way| self.lost.contains(&way);
            wire.retain(|(from, to, _)| !is_cut(*from) && !is_cut(*to));
            wire.retain(|(from, to, _)| !is_lost((from.index(), to.index())));
            for (from, to, bytes) in wire {
                self.say(from.index(), to.index(), &bytes);
            }
        }
        panic!("replicas exchange messages without end");
    }

    fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.replicas.iter_mut().for_each(|replica| replica.on_tick(true));
            self.settle();
        }
    }

    /// Proposes on the leader and returns the replicas that have decided the entry.
    fn decide(&mut self, entry: u32) -> Vec<usize> {
        let Some(leader) = self.replicas.iter().position(Agreement::is_leader) else {
            return Vec::new();
        };
        self.replicas[leader].propose(entry);
        self.settle();
        (0..3).filter(|&id| self.decided[id].last() == Some(&entry)).collect()
    }
}

#[test]
fn what_replicas_say_to_each_other_is_not_refused() {
    let mut cluster = Cluster::new();
    cluster.run(100);
    for entry in 0..20 {
        assert_eq!(cluster.decide(entry), [0, 1, 2]);
        if entry % 5 == 4 {
            for replica in &mut cluster.replicas {
                replica.trim(u64::from(entry));
            }
            let deposed = (entry as usize / 5) % 3;
            cluster.replicas[deposed].campaign();
            cluster.replicas[(deposed + 1) % 3].on_peer_up(NodeId(deposed as u16));
            cluster.run(200);
        }
    }
    assert_eq!(cluster.refused, []);
}

/// A cluster that has elected a leader, and the index of the leader.
fn led() -> (Cluster, usize) {
    let mut cluster = Cluster::new();
    cluster.run(100);
    let leader = cluster.replicas.iter().position(Agreement::is_leader).expect("a replica leads");
    (cluster, leader)
}

/// A cluster that has decided 0..100 while its last replica was disconnected, and has truncated 90
/// of these. The last replica has decided `before` entries before that.
fn forgetful(before: u32) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.run(100);
    for entry in 0..100 {
        cluster.away = (entry >= before).then_some(2);
        let decided = cluster.decide(entry);
        assert_eq!(decided.len(), if entry < before { 3 } else { 2 });
    }
    for replica in &mut cluster.replicas[..2] {
        assert!(replica.compact(90));
        assert_eq!(replica.forgotten(), 90);
    }
    cluster.away = None;
    cluster
}

fn after_coming_back(mut cluster: Cluster, before: u32) {
    let kept = || (0..before).chain(90..100);
    assert_eq!(cluster.skipped, [None, None, Some(90)]);
    assert_eq!(cluster.decided[2], kept().collect::<Vec<u32>>());
    assert_eq!(cluster.decide(100), [0, 1, 2]);
    assert_eq!(cluster.refused, []);
    // Its records restore the same state, whatever its user had processed.
    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
    for taken in [0, u64::from(before), 90, 95, 101] {
        let records = cluster.replicas[2].compacted_records();
        let mut again = Agreement::new(NodeId(2), &topology, records, taken);
        let ready = again.take_ready();
        assert_eq!(ready.skipped, (taken < 90).then_some(90));
        assert_eq!(ready.decided.len() as u64, 101 - taken.max(90));
        assert!(ready.decided.first().is_none_or(|(number, _)| *number == taken.max(90) + 1));
    }
}

#[test]
fn a_replica_that_lacks_what_is_forgotten_skips_it() {
    for before in [0, 5] {
        let mut cluster = forgetful(before);
        for id in 0..2 {
            cluster.replicas[id].on_peer_up(NodeId(2));
            cluster.replicas[2].on_peer_up(NodeId(id as u16));
        }
        cluster.run(300);
        after_coming_back(cluster, before);
    }
}

/// A leader learns from the promises of its followers which entries they have truncated.
#[test]
fn a_replica_that_lacks_what_is_forgotten_can_lead() {
    for before in [0, 5] {
        let mut cluster = forgetful(before);
        cluster.replicas[2].campaign();
        // Too soon for the old leader to inform it.
        cluster.settle();
        assert!(cluster.replicas[2].is_leader());
        after_coming_back(cluster, before);
    }
}

/// A replica that is missing few entries receives those, and not the ones that it has.
#[test]
fn a_replica_that_lacks_what_is_kept_skips_nothing() {
    let mut cluster = forgetful(93);
    cluster.replicas[2].campaign();
    cluster.run(300);
    assert_eq!(cluster.skipped, [None; 3]);
    assert_eq!(cluster.decided[2], (0..100).collect::<Vec<u32>>());
    assert_eq!(cluster.refused, []);
}

/// Story: a former leader was disconnected with entries that no other replica had. The others
/// decided other entries in their place, and it obtained the effects of these from a peer before
/// agreement had informed it of them. When it restarted, its own entries counted as decided. It
/// would have sent them to any replica that was missing some.
#[test]
fn what_the_user_of_a_replica_has_from_elsewhere_does_not_decide_what_is_in_its_log() {
    let (mut cluster, old) = led();
    cluster.away = Some(old);
    (500..503).for_each(|entry| cluster.replicas[old].propose(entry));
    cluster.run(100);
    let new = (old + 1) % 3;
    cluster.replicas[new].campaign();
    cluster.settle();
    for entry in 0..5 {
        cluster.replicas[new].propose(entry);
        cluster.settle();
    }
    assert_eq!(cluster.decided[new], [0, 1, 2, 3, 4]);

    let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
    let records = cluster.replicas[old].compacted_records();
    cluster.replicas[old] = Agreement::new(NodeId(old as u16), &topology, records, 3);
    cluster.away = None;
    cluster.run(300);
    assert_eq!(cluster.decided[old], [3, 4]);
    let log = cluster.replicas[old].compacted_records();
    let entries = log.iter().find_map(|record| match record {
        Record::Entries { from: 0, entries } => Some(entries.as_slice()),
        _ => None,
    });
    assert_eq!(entries, Some(&[0, 1, 2, 3, 4][..]));
    assert_eq!(cluster.refused, []);
}

/// Story: an acknowledgement to a deposed leader, whose log the next leader had shortened in the
/// meantime, was rejected as nonsense, because it named more entries than there were.
#[test]
fn an_acknowledgement_to_a_leader_that_has_fewer_entries_now_is_not_refused() {
    let (mut cluster, leader) = led();
    let peer = (leader + 1) % 3;
    let now = cluster.replicas[leader].term().0;
    let mut acknowledge = |n| {
        let accepted = Accepted { n, accepted_idx: 7 };
        cluster.say_paxos(peer, leader, PaxosMsg::Accepted(accepted));
        std::mem::take(&mut cluster.refused)
    };
    assert_eq!(acknowledge(Ballot { n: now.n - 1, ..now }), []);
    assert_eq!(acknowledge(now), [Refused("agreement.refused_index")]);
}

/// Story: a replica had a checkpoint past the entries that it knew to be decided, because it had
/// installed one from a peer. The leader trimmed up to there, and that was rejected as nonsense.
#[test]
fn a_trim_beyond_what_is_known_to_be_decided_is_not_refused() {
    let (mut cluster, leader) = led();
    let peer = (leader + 1) % 3;
    assert_eq!(cluster.decide(0), [0, 1, 2]);
    cluster.replicas[leader].propose(1);
    for (to, bytes) in cluster.replicas[leader].take_ready().messages {
        cluster.say(leader, to.index(), &bytes);
    }
    for (upto, refused) in [(2, vec![]), (3, vec![Refused("agreement.refused_index")])] {
        cluster.say_paxos(leader, peer, PaxosMsg::Compaction(Compaction::Trim(upto)));
        assert_eq!(cluster.refused, refused);
        assert_eq!(cluster.replicas[peer].forgotten(), 0, "entry 2 is not known to be decided");
    }
    cluster.settle();
    assert_eq!(cluster.decided[peer], [0, 1]);
}

/// Story: a region that had lost only its link to the coordinator could not write for as long as
/// that lasted, although a third region reached both.
#[test]
fn leadership_moves_to_the_replica_that_all_others_reach() {
    for one_way in [false, true] {
        for turn in 0..3 {
            let (mut cluster, leader) = led();
            let [cut_off, between] = [1, 2].map(|step| (leader + step) % 3);
            let [cut_off, between] =
                if turn == 0 { [between, cut_off] } else { [cut_off, between] };
            cluster.lost = vec![(leader, cut_off)];
            if !one_way {
                cluster.lost.push((cut_off, leader));
            }
            cluster.run(400);
            assert!(cluster.replicas[between].is_leader(), "{:?} are lost", cluster.lost);
            assert_eq!(cluster.decide(7).len(), 3);
            // It keeps leadership while it reaches more replicas, and loses it to the nearest after
            // that.
            let term = cluster.replicas[between].term();
            cluster.run(2_000);
            assert_eq!(cluster.replicas[between].term(), term);
            cluster.lost.clear();
            cluster.run(400);
            assert!(cluster.replicas[leader].is_leader());
            assert_eq!(cluster.decide(8).len(), 3);
            assert_eq!(cluster.refused, []);
        }
    }
}

/// A replica that hears no other, or fewer than others do, does not campaign.
#[test]
fn a_replica_that_reaches_fewer_leaves_leadership_where_it_is() {
    let (mut cluster, leader) = led();
    cluster.away = Some((leader + 1) % 3);
    let term = cluster.replicas[leader].term();
    cluster.run(2_000);
    assert_eq!(cluster.replicas[leader].term(), term);
    cluster.away = Some(leader);
    cluster.run(400);
    let next = cluster.replicas.iter().rposition(Agreement::is_leader).expect("a replica leads");
    cluster.away = None;
    cluster.run(400);
    assert!(cluster.replicas[leader].is_leader(), "the nearest replica leads again, after {next}");
    assert_eq!(cluster.refused, []);
}

fn number() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..8, Just(usize::MAX), Just(usize::MAX - 1), Just(1 << 48), any::<usize>()]
}

fn ballot() -> impl Strategy<Value = Ballot> {
    let n = prop_oneof![0u32..6, Just(u32::MAX), Just(1 << 31), any::<u32>()];
    let pid = prop_oneof![0u64..5, Just(u64::MAX), any::<u64>()];
    let config = prop_oneof![4 => Just(1u32), 1 => any::<u32>()];
    let made = |(config_id, n, priority, pid)| Ballot { config_id, n, priority, pid };
    prop_oneof![(config, n, 0u32..4, pid).prop_map(made), Just(Ballot::default())]
}

fn entries() -> impl Strategy<Value = Vec<Wrapped<u32>>> {
    let entry = prop_oneof![8 => 0u32..1_000, 1 => any::<u32>()];
    prop::collection::vec(entry.prop_map(Wrapped), 0..4)
}

fn sequence() -> impl Strategy<Value = SequenceNumber> {
    let part = || prop_oneof![0u64..6, Just(u64::MAX), any::<u64>()];
    (part(), part()).prop_map(|(session, counter)| SequenceNumber { session, counter })
}

fn log_sync() -> impl Strategy<Value = LogSync<Wrapped<u32>>> {
    let forgotten = prop_oneof![
        3 => Just(None),
        3 => Just(Some(SnapshotType::Complete(EmptySnapshot))),
        1 => Just(Some(SnapshotType::Delta(EmptySnapshot))),
    ];
    (forgotten, entries(), number()).prop_map(|(decided_snapshot, suffix, sync_idx)| LogSync {
        decided_snapshot,
        suffix,
        sync_idx,
        stopsign: None,
    })
}

fn paxos() -> impl Strategy<Value = PaxosMsg<Wrapped<u32>>> {
    let prepare = (ballot(), number(), ballot(), number()).prop_map(
        |(n, decided_idx, n_accepted, accepted_idx)| {
            PaxosMsg::Prepare(Prepare { n, decided_idx, n_accepted, accepted_idx })
        },
    );
    let sync = prop::option::of(log_sync());
    let promise = (ballot(), ballot(), number(), number(), sync).prop_map(
        |(n, n_accepted, decided_idx, accepted_idx, log_sync)| {
            PaxosMsg::Promise(Promise { n, n_accepted, decided_idx, accepted_idx, log_sync })
        },
    );
    let accept_sync = (ballot(), sequence(), number(), log_sync()).prop_map(
        |(n, seq_num, decided_idx, log_sync)| {
            PaxosMsg::AcceptSync(AcceptSync { n, seq_num, decided_idx, log_sync })
        },
    );
    let accept = (ballot(), sequence(), number(), entries()).prop_map(
        |(n, seq_num, decided_idx, entries)| {
            PaxosMsg::AcceptDecide(AcceptDecide { n, seq_num, decided_idx, entries })
        },
    );
    let decide = (ballot(), sequence(), number())
        .prop_map(|(n, seq_num, decided_idx)| PaxosMsg::Decide(Decide { n, seq_num, decided_idx }));
    let accepted = (ballot(), number())
        .prop_map(|(n, accepted_idx)| PaxosMsg::Accepted(Accepted { n, accepted_idx }));
    prop_oneof![
        prepare,
        promise,
        accept_sync,
        accept,
        decide,
        accepted,
        ballot().prop_map(|n| PaxosMsg::PrepareReq(PrepareReq { n })),
        ballot().prop_map(|n| PaxosMsg::NotAccepted(NotAccepted { n })),
        entries().prop_map(PaxosMsg::ProposalForward),
        number().prop_map(|upto| PaxosMsg::Compaction(Compaction::Trim(upto))),
        prop::option::of(number())
            .prop_map(|upto| PaxosMsg::Compaction(Compaction::Snapshot(upto))),
    ]
}

fn election() -> impl Strategy<Value = HeartbeatMsg> {
    let round = || prop_oneof![0u32..20, any::<u32>()];
    let reply =
        (round(), ballot(), ballot(), any::<bool>()).prop_map(|(round, ballot, leader, happy)| {
            HeartbeatMsg::Reply(HeartbeatReply { round, ballot, leader, happy })
        });
    prop_oneof![round().prop_map(|round| HeartbeatMsg::Request(HeartbeatRequest { round })), reply]
}

fn name() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![20 => Just((2u64, 1u64)), 1 => (any::<u64>(), any::<u64>())]
}

fn message() -> impl Strategy<Value = AgreementMessage<u32>> {
    let hears = prop_oneof![4 => 0u64..5, 1 => any::<u64>()];
    prop_oneof![
        3 => (name(), paxos()).prop_map(|((from, to), msg)| {
            AgreementMessage::Paxos(PaxosMessage::SequencePaxos(Envelope { from, to, msg }))
        }),
        1 => (name(), election()).prop_map(|((from, to), msg)| {
            AgreementMessage::Paxos(PaxosMessage::BLE(BLEMessage { from, to, msg }))
        }),
        1 => prop::collection::btree_set(hears, 0..4).prop_map(AgreementMessage::Hears),
    ]
}

/// Whether it claims entries or votes that may not exist. Within its limits no replica can detect
/// that.
fn is_lie(said: &AgreementMessage<u32>) -> bool {
    match said {
        AgreementMessage::Paxos(PaxosMessage::SequencePaxos(Envelope { msg, .. })) => matches!(
            msg,
            PaxosMsg::AcceptSync(_)
                | PaxosMsg::AcceptDecide(_)
                | PaxosMsg::Promise(_)
                | PaxosMsg::Accepted(_)
                | PaxosMsg::Decide(_)
        ),
        AgreementMessage::Paxos(PaxosMessage::BLE(_)) | AgreementMessage::Hears(_) => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// No message that decodes makes a replica panic, including votes that were never cast.
    #[test]
    fn no_message_panics(messages in prop::collection::vec(message(), 1..12), leads: bool) {
        let mut cluster = Cluster::new();
        cluster.run(60);
        (0..3).for_each(|entry| assert_eq!(cluster.decide(entry), [0, 1, 2]));
        if leads {
            cluster.replicas[0].campaign();
        }
        for message in &messages {
            let bytes = postcard::to_stdvec(message).expect("the message can be encoded");
            cluster.say(1, 0, &bytes);
            let _ = cluster.replicas[0].take_ready();
        }
    }

    /// After any nonsense a replica still decides with the other replicas, except possibly with its
    /// sender.
    #[test]
    fn replicas_decide_after_nonsense(messages in prop::collection::vec(message(), 1..12)) {
        let mut cluster = Cluster::new();
        cluster.run(60);
        (0..3).for_each(|entry| assert_eq!(cluster.decide(entry), [0, 1, 2]));
        for message in messages.iter().filter(|message| !is_lie(message)) {
            let bytes = postcard::to_stdvec(message).expect("the message can be encoded");
            cluster.say(1, 0, &bytes);
            cluster.settle();
        }
        cluster.run(2_000);
        let decided = cluster.decide(999);
        prop_assert!(decided.len() >= 2 && decided.contains(&0), "{:?}", cluster.decided);
    }
}
