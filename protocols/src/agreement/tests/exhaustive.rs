//! Every order of events that three replicas of a log can see, for few events: see
//! [`crate::exhaustive`].

use pangea_core::planted::{Bug, is_planted};
use xxhash_rust::xxh3::Xxh3;

use super::super::storage::State;
use super::*;
use crate::exhaustive::{self, Act, Bounds, Brain, Happened, Out, Sent, View};

/// A replica and its user, which persists the records before it sends any message.
struct Replica {
    agreement: Agreement<u32>,
    /// The number of records written.
    head: usize,
    decided: Vec<(u64, u32)>,
    /// A digest of the records from which it started and of all events since, in order, because
    /// `omnipaxos` does not expose its state.
    history: u64,
}

impl Replica {
    fn take(&mut self) -> Out {
        let Ready { records, messages, skipped, decided, .. } = self.agreement.take_ready();
        assert_eq!(skipped, None, "no entry is truncated");
        let mut out = Out::default();
        if !records.is_empty() {
            out.records.push(postcard::to_stdvec(&records).expect("the message can be encoded"));
            self.head += 1;
        }
        self.decided.extend(decided);
        let after = if is_planted(Bug::VoteBeforeFsync) { 0 } else { self.head };
        let sent = |(to, bytes): (NodeId, _)| (after, Sent { to: to.0 as u8, lane: 0, bytes });
        out.sends.extend(messages.into_iter().map(sent));
        out
    }
}

fn replay(log: &[Vec<u8>]) -> State<u32> {
    let mut state = State::default();
    log.iter().flat_map(|record| decode(record)).for_each(|record| state.replay(record));
    state
}

fn decode(record: &[u8]) -> Vec<Record<u32>> {
    postcard::from_bytes(record).expect("the message can be decoded")
}

fn digest((number, entry): (u64, u32)) -> u64 {
    exhaustive::digest(format!("{number} {entry}").as_bytes())
}

impl Brain for Replica {
    fn start(me: u8, _starts: u64, log: &[Vec<u8>]) -> (Self, Out) {
        let topology = Topology::one_node_per_region("t", &["a", "b", "c"], Span::from_ms(1));
        let records = log.iter().flat_map(|record| decode(record));
        let agreement = Agreement::new(NodeId(me.into()), &topology, records, 0);
        let history = exhaustive::digest(format!("{:?}", replay(log)).as_bytes());
        let mut replica = Self { agreement, head: log.len(), decided: Vec::new(), history };
        let out = replica.take();
        (replica, out)
    }

    fn step(&mut self, event: &Happened<'_>) -> Out {
        match event {
            // Its user handles the disk.
            Happened::Durable(_) | Happened::PeerDown(_) => return Out::default(),
            Happened::Message { from, bytes } => {
                let said = self.agreement.on_message(NodeId((*from).into()), bytes, &|_| true);
                match said {
                    Ok(()) => {}
                    Err(Refused("agreement.out_of_place")) => return Out::default(),
                    Err(Refused(why)) => return Out { stop: Some(why.into()), ..Out::default() },
                }
            }
            Happened::PeerUp(peer) => self.agreement.on_peer_up(NodeId((*peer).into())),
            Happened::Act(Act::Propose(nth)) => self.agreement.propose(100 + u32::from(*nth)),
            Happened::Act(Act::Campaign) => self.agreement.campaign(),
            Happened::Act(Act::Submit | Act::Read(_) | Act::Fetch) => return Out::default(),
        }
        self.history = exhaustive::digest(format!("{} {event:?}", self.history).as_bytes());
        self.take()
    }

    fn digest(&self, _synced: usize, hasher: &mut Xxh3) {
        hasher.update(&self.history.to_le_bytes());
    }

    fn digest_log(log: &[Vec<u8>], hasher: &mut Xxh3) {
        hasher.update(format!("{:?}", replay(log)).as_bytes());
    }

    fn held(log: &[Vec<u8>]) -> Vec<((u8, u64), u64)> {
        let records = replay(log).to_records();
        let entries = records.into_iter().find_map(|record| match record {
            Record::Entries { from: 0, entries } => Some(entries),
            _ => None,
        });
        let numbered = (1..).zip(entries.expect("no entry is truncated"));
        numbered.map(|entry: (u64, u32)| ((0, entry.0), digest(entry))).collect()
    }

    fn look(&self, _log: &[Vec<u8>], view: &mut View) {
        view.is_leader = self.agreement.is_leader();
        view.known.extend(self.decided.iter().map(|entry| ((0, entry.0), digest(*entry))));
        view.needs.extend(self.decided.iter().map(|entry| (digest(*entry), vec![(0, entry.0)])));
    }

    fn describe(bytes: &[u8]) -> String {
        describe::<u32>(bytes)
    }
}

/// The first of three replicas leads, and the second may campaign.
const CALM: Bounds = Bounds {
    proposals: 2,
    campaigns: 1,
    campaigners: [false, true, false],
    frail: None,
    crashes: 0,
    submits: [0; 3],
    reads: [0; 3],
    opening: &[],
    decisions: 2,
    states_max: exhaustive::STATES_MAX,
};

#[test]
fn replicas_of_a_log_agree_in_every_order() {
    let mut all = vec![
        Bounds { campaigns: 0, ..CALM },
        Bounds { proposals: 1, ..CALM },
        Bounds { campaigns: 0, frail: Some(0), crashes: 1, ..CALM },
    ];
    for frail in [Some(0), Some(1), Some(2)] {
        all.push(Bounds { proposals: 1, campaigns: 0, frail, crashes: 1, ..CALM });
        if frail != Some(2) || exhaustive::IS_LARGE {
            all.push(Bounds { proposals: 0, frail, crashes: 1, ..CALM });
        }
        if exhaustive::IS_LARGE {
            all.push(Bounds { proposals: 1, frail, crashes: 1, ..CALM });
            all.push(Bounds { campaigns: 0, frail, crashes: 1, ..CALM });
        }
    }
    if exhaustive::IS_LARGE {
        all.push(CALM);
    }
    exhaustive::all_is_well::<Replica>(&all);
}

#[cfg(feature = "planted")]
#[test]
fn a_planted_bug_of_agreement_is_found_with_the_fewest_choices() {
    let frail = Some(2);
    exhaustive::is_found::<Replica>(Bug::VoteBeforeFsync, Bounds { frail, ..CALM });
    exhaustive::is_found::<Replica>(Bug::EntriesKept, CALM);
}
