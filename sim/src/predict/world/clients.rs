//! Clients. In a closed loop each client calls again once it has its answer. In an open loop calls
//! arrive at random times, regardless of the calls in flight, and latency counts from the arrival.

use pangea_core::ids::Ticket;
use pangea_core::protocol::{Protocol, Request, Submission};
use pangea_core::txn::Program;
use pangea_core::workload::{Client as Seat, Generator};

use super::{ArrivalModel, Event, Settings, World};

/// Clients start one after the other within this time, because simultaneous clients stay in step
/// for long.
const START_NS: u64 = 1_000_000_000;
/// The maximum number of calls of a region in flight, as in a benchmark. Above it the cluster is
/// overloaded.
const IN_FLIGHT_MAX: usize = 100_000;

pub(super) struct Client {
    generator: Generator,
    rng: fastrand::Rng,
    pub(super) node: usize,
    began_ns: u64,
}

impl Client {
    /// Creates client `number`, which has its own generator and the workload of the client at
    /// `seat`.
    pub(super) fn new(settings: &Settings, seat: usize, number: usize) -> Self {
        let (clients, places) = (settings.clients as u32, settings.nodes() as u32);
        let seat = Seat::new(seat as u32, clients, places);
        let seed = settings.seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            generator: settings.workload.generator(seat),
            rng: fastrand::Rng::with_seed(seed),
            node: seat.region() as usize,
            began_ns: 0,
        }
    }
}

/// The times of a region's commits.
#[derive(Clone, Copy, Default)]
pub(super) struct Commits {
    last_ns: u64,
    longest_pause_ns: u64,
}

impl Commits {
    /// Starts at `now_ns` without history.
    pub(super) fn begin(now_ns: u64) -> Self {
        Self { last_ns: now_ns, longest_pause_ns: 0 }
    }

    fn add(&mut self, now_ns: u64) {
        self.longest_pause_ns = self.longest_pause_ns(now_ns);
        self.last_ns = now_ns;
    }

    /// The longest time until now without a commit.
    pub(super) fn longest_pause_ns(&self, now_ns: u64) -> u64 {
        self.longest_pause_ns.max(now_ns - self.last_ns)
    }
}

impl<P: Protocol> World<'_, P> {
    /// Starts the clients.
    pub(super) fn start_clients(&mut self) {
        match self.settings.pace {
            ArrivalModel::Closed => {
                for client in 0..self.clients.len() {
                    let later = START_NS * client as u64 / self.clients.len() as u64;
                    self.at(self.now_ns + later, Event::Begin(client));
                }
            }
            ArrivalModel::Open { .. } => {
                for client in (0..self.clients.len()).rev() {
                    self.idle[self.clients[client].node].push(client);
                }
                for region in 0..self.nodes.len().min(self.settings.clients) {
                    let gap = self.gap_ns();
                    self.at(self.now_ns + gap, Event::Arrive(region));
                }
            }
        }
    }

    /// Draws the time between two calls of a region; arrivals are independent.
    fn gap_ns(&mut self) -> u64 {
        let ArrivalModel::Open { per_sec } = self.settings.pace else {
            unreachable!("arrivals need an open loop")
        };
        let regions = self.nodes.len().min(self.settings.clients) as f64;
        (-(1.0 - self.rng.f64()).ln() * regions / per_sec * 1e9) as u64
    }

    /// Starts a region's next call, which is due.
    pub(super) fn arrive(&mut self, region: usize) {
        let gap = self.gap_ns();
        self.at(self.now_ns + gap, Event::Arrive(region));
        if self.is_lost(region) {
            return;
        }
        let client = match self.idle[region].pop() {
            Some(client) => client,
            None if self.in_flight[region] >= IN_FLIGHT_MAX => return,
            None => {
                // Adds a client with the workload of a client of this region, chosen round robin.
                let (regions, number) = (self.nodes.len(), self.clients.len());
                let clients = (self.settings.clients + regions - 1 - region) / regions;
                let seat = region + regions * (number % clients);
                self.clients.push(Client::new(self.settings, seat, number));
                self.clients.len() - 1
            }
        };
        self.call(vec![(client, true)]);
    }

    /// Delivers the outcomes of calls to clients, which call again in a closed loop.
    pub(super) fn deliver_answers(&mut self, answered: Vec<(usize, bool)>) {
        for &(client, is_committed) in &answered {
            let Client { node, began_ns, .. } = self.clients[client];
            self.in_flight[node] -= 1;
            if is_committed {
                let us = (self.now_ns - began_ns) / 1_000;
                let region = self.settings.region_of(node);
                self.latencies_us[region].push(u32::try_from(us).unwrap_or(u32::MAX));
                self.commits[region].add(self.now_ns);
            } else {
                self.aborted += 1;
            }
        }
        match self.settings.pace {
            ArrivalModel::Closed => self.call(answered),
            ArrivalModel::Open { .. } => {
                for (client, _) in answered {
                    self.idle[self.clients[client].node].push(client);
                }
            }
        }
    }

    pub(super) fn call(&mut self, callers: Vec<(usize, bool)>) {
        let now = self.now();
        for (index, _) in callers {
            let client = &mut self.clients[index];
            client.began_ns = self.now_ns;
            let call = client.generator.next(&mut client.rng, now);
            let procedure = self.settings.registry.id(call.procedure);
            let procedure = procedure.expect("workloads only call procedures that exist");
            self.tickets += 1;
            let request = Request::serializable(Program::Call { procedure, args: call.args });
            let submission = Submission { ticket: Ticket(self.tickets), request };
            self.in_flight[client.node] += 1;
            self.nodes[client.node].requests.push((index, submission));
        }
    }
}
