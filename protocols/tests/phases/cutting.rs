//! Cuts and the coordinator (Minerva §3.4), and strict reads.

use pangea_core::ids::{NodeId, Ticket};
use pangea_core::protocol::{Input, Protocol as _, Request, Submission};
use pangea_core::txn::Outcome;
use pangea_protocols::minerva::{Message, Options, Reads};

use super::script::program;
use super::support::{Cluster, Fate, by_hand};

/// Minerva §4: "the Raft protocol guarantees that a new leader will be elected to resume".
#[test]
fn a_new_coordinator_cuts_what_the_old_one_left() {
    let mut cluster = Cluster::new(3, by_hand());
    let old = cluster.leader();
    let other = (old + 1) % 3;
    let ticket = cluster.call(other, "put x 1");
    cluster.batch(other);
    cluster.call(old, "put y 1");
    cluster.batch(old);
    cluster.crash(old);
    cluster.run_for(1_000);
    let new = cluster.leader();
    assert_ne!(new, old);
    cluster.cut();
    assert_eq!(cluster.result(other, ticket), "");
    assert_eq!(cluster.value(new, "y"), "1", "durable on f + 1 replicas, so not lost");
    cluster.start(old);
    cluster.run_for(2_000);
    cluster.cut();
    assert_eq!(cluster.everywhere("x"), "1");
}

/// A proposal that is not decided is not applied: a minority decides nothing.
#[test]
fn a_coordinator_that_is_alone_decides_nothing() {
    let mut cluster = Cluster::new(3, by_hand());
    let leader = cluster.leader();
    let ticket = cluster.call(leader, "put x 1");
    cluster.batch(leader);
    cluster.rule = Box::new(|_, _, message| match message {
        message!(Agreement { .. }) => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    let before = cluster.nodes[leader].applied();
    cluster.cut();
    assert_eq!(cluster.nodes[leader].applied(), before);
    assert!(cluster.outcome(leader, ticket).is_none());
    cluster.heal();
    assert_eq!(cluster.result(leader, ticket), "");
}

/// A strict read sees all transactions acknowledged anywhere before it arrived; one on a snapshot
/// need not.
#[test]
fn a_strict_read_waits_for_a_cut_that_was_proposed_after_it_came() {
    for reads in [Reads::Snapshot, Reads::Strict] {
        let mut cluster = Cluster::new(3, Options { reads, ..by_hand() });
        let leader = cluster.leader();
        let behind = (leader + 1) % 3;
        cluster.rule = Box::new(move |_, to, message| match message {
            message!(Agreement { .. }) if to.index() == behind => Fate::HoldBack,
            _ => Fate::Deliver,
        });
        let write = cluster.call(leader, "put x 1");
        cluster.epoch();
        assert_eq!(cluster.result(leader, write), "", "acknowledged");
        let read = cluster.look(behind, "get x");
        cluster.settle();
        if reads == Reads::Snapshot {
            assert_eq!(cluster.result(behind, read), "-");
            continue;
        }
        cluster.heal();
        assert_eq!(cluster.value(behind, "x"), "1", "it has the write's epoch");
        assert!(
            cluster.outcome(behind, read).is_none(),
            "but that epoch was cut before the read arrived"
        );
        cluster.cut();
        assert_eq!(cluster.result(behind, read), "1");
    }
}

/// The coordinator names to a replica the cut for which its strict read waits. It leaves its place
/// before that cut is decided, and the next one decides another.
#[test]
fn a_strict_read_asks_the_next_coordinator_as_soon_as_that_decides_a_cut() {
    let mut cluster = Cluster::new(3, by_hand());
    let first = cluster.leader();
    let reader = (first + 1) % 3;
    cluster.rule = Box::new(move |from, _, message| match message {
        message!(Agreement { .. }) if from.index() == first => Fate::Lose,
        _ => Fate::Deliver,
    });
    let read = cluster.submit(reader, Request::Fresh);
    cluster.settle();
    cluster.cut();
    cluster.step(first, Input::Stop);
    cluster.settle();
    let next = cluster.leader();
    assert_ne!(next, first);
    cluster.call(next, "put x 1");
    cluster.batch(next);
    cluster.cut();
    assert_eq!(cluster.value(reader, "x"), "1");
    assert_eq!(cluster.mark(reader, "inputs.barrier_again"), 1);
    assert!(cluster.fresh(reader, read).is_none(), "that cut may be older than the read");
    cluster.cut();
    assert!(cluster.fresh(reader, read).is_some());
}

/// The coordinator names to a replica the cut for which its strict read waits. It crashes before
/// that cut is durable, and returns as the coordinator of a cluster without writes.
#[test]
fn a_strict_read_outlives_the_cut_that_it_waited_for() {
    let mut cluster = Cluster::new(3, Options { epoch_ms: 15, ..by_hand() });
    let leader = cluster.leader();
    let reader = (leader + 1) % 3;
    cluster.nodes[leader].syncs = false;
    let read = cluster.submit(reader, Request::Fresh);
    cluster.run_for(20);
    let is_told = |(_, to, message): &(NodeId, NodeId, Message)| {
        to.index() == reader && matches!(message, message!(Barrier { .. }))
    };
    assert!(cluster.sent.iter().any(is_told));
    assert!(cluster.fresh(reader, read).is_none());
    cluster.crash(leader);
    cluster.nodes[leader].syncs = true;
    cluster.start(leader);
    cluster.run_for(3_000);
    assert_eq!(cluster.leader(), leader, "otherwise, another case is tested");
    assert!(cluster.fresh(reader, read).is_some());
}

/// Story: the names of barrier requests began at 1 in each run of a replica. The coordinator had a
/// request of the reader's last run and answered it late, so that the reply came after the first
/// request of the next run, with the same name. The strict read was answered with a cut from before
/// it arrived, and missed an acknowledged transaction.
#[test]
fn a_reply_to_a_request_of_an_earlier_run_releases_no_strict_read() {
    let mut cluster = Cluster::new(3, by_hand());
    let leader = cluster.leader();
    let reader = (leader + 1) % 3;
    cluster.submit(reader, Request::Fresh);
    cluster.settle();
    cluster.crash(reader);
    cluster.start(reader);
    cluster.run_for(200);
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Barrier { .. }) if to.index() == reader => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    // The coordinator answers the first request, and the reply is slow.
    cluster.cut();
    let before = cluster.nodes[reader].applied();
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Barrier { .. }) | message!(Agreement { .. }) if to.index() == reader => {
            Fate::HoldBack
        }
        _ => Fate::Deliver,
    });
    let write = cluster.call(leader, "put x 1");
    cluster.epoch();
    assert_eq!(cluster.result(leader, write), "", "acknowledged");
    let read = cluster.submit(reader, Request::Fresh);
    cluster.settle();
    cluster.rule = Box::new(move |_, to, message| match message {
        message!(Agreement { .. }) if to.index() == reader => Fate::HoldBack,
        _ => Fate::Deliver,
    });
    cluster.release();
    assert_eq!(cluster.nodes[reader].applied(), before, "the write is not on this node yet");
    assert_eq!(cluster.fresh(reader, read), None, "the read arrived after the write");
    cluster.heal();
    cluster.cut();
    let version = cluster.fresh(reader, read).expect("the next cut releases the read");
    assert!(version > before);
    assert_eq!(cluster.value(reader, "x"), "1");
}

/// Story: a coordinator was cut off with the reader, proposed a cut for its read, and was deposed.
/// It was elected again, and its lost proposal was of the same run as all later ones, so the read
/// went on waiting for it. Without writes no later cut ever came.
#[test]
fn a_strict_read_asks_again_when_its_coordinator_was_deposed_and_elected_again() {
    let mut cluster = Cluster::new(5, Options { epoch_ms: 15, ..by_hand() });
    let old = cluster.leader();
    let reader = (old + 1) % 5;
    let is_minority = move |node: usize| node == old || node == reader;
    cluster.on_words(move |from, to, _| match is_minority(from) == is_minority(to) {
        true => Fate::Deliver,
        false => Fate::Lose,
    });
    cluster.sent.clear();
    let read = cluster.submit(reader, Request::Fresh);
    cluster.run_for(2_000);
    let is_told = |(_, to, message): &(NodeId, NodeId, Message)| {
        to.index() == reader && matches!(message, message!(Barrier { .. }))
    };
    assert!(cluster.sent.iter().any(is_told), "the read waits for a cut");
    let deposer = cluster.nodes[(old + 2) % 5].brain.as_ref().map(|brain| brain.status());
    let deposer = deposer.and_then(|status| status.coordinator).expect("a majority elects one");
    assert!(!is_minority(deposer.index()), "{deposer} leads the majority");
    // Only the old coordinator still reaches a majority.
    cluster.on_words(move |from, to, _| match from == old || to == old {
        true => Fate::Deliver,
        false => Fate::Lose,
    });
    cluster.run_for(3_000);
    assert_eq!(cluster.leader(), old, "otherwise, another case is tested");
    assert!(cluster.fresh(reader, read).is_some());
}

/// Story: node ids in agreement messages were looked up without a check, and a wrong one caused a
/// panic.
#[test]
fn a_message_of_agreement_in_another_name_is_refused() {
    let mut cluster = Cluster::new(3, by_hand());
    cluster.sent.clear();
    cluster.run_for(200);
    let is_agreement = |(from, to, message): &&(NodeId, NodeId, Message)| {
        from.index() == 1 && to.index() == 0 && matches!(message, message!(Agreement { .. }))
    };
    let (_, _, message) = cluster.sent.iter().find(is_agreement).cloned().expect("heartbeats");
    for from in [NodeId(2), NodeId(1)] {
        let message = message.clone();
        cluster.step(0, Input::Message { from, message });
    }
    assert_eq!(cluster.mark(0, "agreement.refused_name"), 1);
}

/// Story: without a coordinator, strict reads waited forever and without a limit.
#[test]
fn strict_reads_are_refused_when_too_many_wait() {
    const WAITING_MAX: u64 = 50_000;
    let mut cluster = Cluster::new(3, Options { reads: Reads::Strict, ..by_hand() });
    let reader = (cluster.leader() + 1) % 3;
    cluster.rule =
        Box::new(move |from, to, _| match from.index() == reader || to.index() == reader {
            true => Fate::HoldBack,
            false => Fate::Deliver,
        });
    let first = 1_000_000;
    let read = |n| Submission {
        ticket: Ticket(first + n),
        request: Request::serializable(program("look", "get x")),
    };
    cluster.step(reader, Input::Submit((0..=WAITING_MAX).map(read).collect()));
    let refused = cluster.outcome(reader, Ticket(first + WAITING_MAX)).cloned();
    let Some(Outcome::Aborted(abort)) = refused else { panic!("refused, not {refused:?}") };
    assert_eq!(abort.code.as_str(), "53000");
    assert!(abort.detail.is_some_and(|detail| detail.contains("coordinator")));
    assert!(cluster.outcome(reader, Ticket(first + WAITING_MAX - 1)).is_none(), "the read waits");
    cluster.heal();
    cluster.cut();
    assert_eq!(cluster.result(reader, Ticket(first)), "-");
    assert_eq!(cluster.result(reader, Ticket(first + WAITING_MAX - 1)), "-");
}
