//! etcd: a member in every place, each with all keys.
//!
//! One member leads, here that of the first place, and all writes are in its log before a majority
//! has them. Clients connect to the member of their place, which forwards requests that it can't
//! serve itself. The ten operations of YCSB are one transaction of etcd. etcd has no procedures, so
//! a write that depends on a read is not possible in one call, and TPC-C is not supported.
//!
//! | setting | why |
//! |---|---|
//! | `heartbeat-interval`, `election-timeout` | at least one round trip, and ten of them, as its documentation recommends |
//! | `quota-backend-bytes` | 8 GB, because it rejects writes above the default of 2 GB |
//! | `auto-compaction` | versions older than a minute, which are never read |
//!
//! It always waits for its disks; version 3.4 has no other mode.

mod client;
mod rows;
pub mod wire;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pangea_core::workload::{Settings, Workload};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tonic::{Code, Status};

use crate::access::AccessPoint;
use crate::baseline::{Checked, Durability, Options};
use crate::calls::{Work, Ycsb};
use crate::failure::Failure;
use crate::placement::Placement;
use crate::program::{self, Needed};
use crate::server::{Server, Signals, stop_all};
use crate::session::{Attempt, encode_values};
pub use client::Client;
use wire::{Op, PutRequest, RangeRequest, RequestOp};

const ETCD: Needed = Needed { name: "etcd", package: "etcd-server" };
const SIGNALS: Signals = Signals { clean: Signal::TERM, quick: Signal::KILL };
/// etcd's default, for a local network.
const HEARTBEAT_MS_MIN: u32 = 100;
/// The number of missing heartbeats after which a member starts an election.
const HEARTBEATS_LOST: u32 = 10;
/// Timeout for the election of a leader.
const START_DEADLINE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// The number of connections to a member, shared by its clients.
const CONNECTIONS: usize = 4;

/// Checks that etcd is installed and supports the options.
pub(crate) fn check(options: &Options) -> Result<(), Failure> {
    if options.durability == Durability::Os {
        let message = "etcd 3.4 always syncs its disks: only durability fsync is comparable";
        return Err(Failure::Usage(message.to_owned()));
    }
    ETCD.find().map(drop)
}

/// Running members.
#[derive(Debug)]
pub struct Etcd {
    /// Declared before the directory, so that the servers end before it is removed.
    servers: Vec<Server>,
    sites: Vec<EtcdMember>,
    /// The members by place, for clients.
    members: Vec<Arc<Member>>,
    puts: Arc<Puts>,
    options: Options,
    directory: TempDir,
}

/// The location of a member.
#[derive(Debug)]
struct EtcdMember {
    place: Placement,
    directory: PathBuf,
    clients: SocketAddr,
    members: SocketAddr,
}

/// The state shared by the clients of a place: connections to its member, made by the first client.
#[derive(Debug)]
pub(crate) struct Member {
    address: SocketAddr,
    connections: OnceCell<Vec<Client>>,
    sessions: AtomicU64,
    puts: Arc<Puts>,
}

impl Member {
    /// Opens a session for one client.
    pub async fn session(&self) -> Result<Session, Failure> {
        let connections = self.connections.get_or_try_init(|| connect(self.address)).await?;
        let number = self.sessions.fetch_add(1, Ordering::Relaxed) as usize;
        let client = connections[number % CONNECTIONS].clone();
        Ok(Session { client, puts: self.puts.clone() })
    }
}

/// Makes the connections to a member.
async fn connect(address: SocketAddr) -> Result<Vec<Client>, Failure> {
    let mut clients = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        clients.push(Client::connect(address).await?);
    }
    Ok(clients)
}

impl Etcd {
    /// Starts all members, and transfers leadership to that of the first place.
    pub(crate) async fn start(places: &[Placement], options: &Options) -> Result<Self, Failure> {
        check(options)?;
        let directory = program::temporary("etcd", options.within.as_deref())?;
        let mut sites = Vec::new();
        for place in places {
            let [clients, members] = place.free_ports()?;
            let directory = directory.path().join(format!("{}-{}", sites.len(), place.name()));
            program::make_dir(&directory, None)?;
            let place = place.clone();
            sites.push(EtcdMember { place, directory, clients, members });
        }
        let puts = Arc::<Puts>::default();
        let member = |site: &EtcdMember| {
            Arc::new(Member {
                address: site.clients,
                connections: OnceCell::new(),
                sessions: AtomicU64::new(0),
                puts: puts.clone(),
            })
        };
        let members = sites.iter().map(member).collect();
        let (servers, options) = (Vec::new(), options.clone());
        let mut etcd = Self { servers, sites, members, puts, options, directory };
        for index in 0..places.len() {
            let server = etcd.sites[index].serve(&etcd.cluster(), &etcd.options)?;
            etcd.servers.push(server);
        }
        etcd.wait_and_lead().await?;
        Ok(etcd)
    }

    /// The members and their peer addresses, for `initial-cluster`.
    fn cluster(&self) -> String {
        let member = |site: &EtcdMember| format!("{}=http://{}", site.place.name(), site.members);
        self.sites.iter().map(member).collect::<Vec<_>>().join(",")
    }

    /// Waits until every member has a leader, and the leader is the first member.
    async fn wait_and_lead(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            self.servers.iter().try_for_each(Server::is_running)?;
            let why = match self.lead().await {
                Ok(true) => return Ok(()),
                Ok(false) => "the first member is not the leader".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                return Err(Failure::failed("the members of etcd don't agree", why));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// For each member: a connection, its id, and the id of its leader.
    async fn members(&self) -> Result<Vec<(Client, u64, u64)>, Failure> {
        let mut members = Vec::new();
        for site in &self.sites {
            let mut client = Client::connect(site.clients).await?;
            let status = client.status().await;
            let status = status.map_err(|status| Failure::failed("etcd", status.message()))?;
            let id = status.header.map_or(0, |header| header.member_id);
            members.push((client, id, status.leader));
        }
        Ok(members)
    }

    /// Whether all members follow the first member. If another one leads, leadership is
    /// transferred.
    async fn lead(&self) -> Result<bool, Failure> {
        let mut members = self.members().await?;
        let first = members[0].1;
        if members.iter().all(|(_, _, leader)| *leader == first) {
            return Ok(true);
        }
        let is_leader = |(_, id, leader): &&mut (Client, u64, u64)| id == leader;
        if let Some((client, ..)) = members.iter_mut().find(is_leader) {
            let moved = client.move_leader(first).await;
            moved.map_err(|status| Failure::failed("etcd", status.message()))?;
        }
        Ok(false)
    }

    /// The place of the leader, if a member regards itself as the leader.
    pub(crate) async fn leader(&self) -> Result<Option<usize>, Failure> {
        Ok(self.members().await?.iter().position(|(_, id, leader)| id == leader))
    }

    /// The access for a client: the member of its place.
    pub(crate) fn access_point(&self, place: usize) -> AccessPoint {
        AccessPoint::Etcd(self.members[place].clone())
    }

    pub(crate) async fn load(
        &self,
        workload: &Workload,
        progress: impl FnMut(u64, u64),
    ) -> Result<(), Failure> {
        rows::load(&connect(self.sites[0].clients).await?, workload, progress).await
    }

    pub(crate) async fn check(&self, settings: &Settings) -> Result<Checked, Failure> {
        let mut members = Vec::new();
        for (server, site) in self.servers.iter().zip(&self.sites) {
            members.push((server.name.clone(), Client::connect(site.clients).await?));
        }
        rows::check(&mut members, settings, self.puts.bounds()).await
    }

    pub(crate) fn address(&self, place: usize) -> SocketAddr {
        self.sites[place].clients
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn server_mut(&mut self, place: usize) -> &mut Server {
        &mut self.servers[place]
    }

    /// Restarts a place's member on its files, and waits until it has the same leader as the
    /// others.
    pub(crate) async fn start_again(&mut self, place: usize) -> Result<(), Failure> {
        self.servers[place] = self.sites[place].serve(&self.cluster(), &self.options)?;
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            self.servers[place].is_running()?;
            let why = match self.members().await {
                Ok(members) if members.iter().all(|it| it.2 != 0 && it.2 == members[0].2) => {
                    return Ok(());
                }
                Ok(_) => "the members have no leader, or several".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                return Err(Failure::failed("the members of etcd don't agree", why));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        let stopped = stop_all(self.servers).await;
        let path = self.directory.path().display().to_string();
        let removed = self.directory.close();
        stopped.and(removed.map_err(|error| Failure::failed(format!("can't remove {path}"), error)))
    }
}

impl EtcdMember {
    fn serve(&self, cluster: &str, options: &Options) -> Result<Server, Failure> {
        let Self { place, directory, clients, members } = self;
        let heartbeat_ms = options.round_trip_ms.max(HEARTBEAT_MS_MIN);
        let mut command = program::command(place, None, &ETCD.find()?, "KILL");
        command.current_dir(directory).args([
            format!("--name={}", place.name()),
            format!("--data-dir={}", directory.join("data").display()),
            format!("--listen-client-urls=http://{clients}"),
            format!("--advertise-client-urls=http://{clients}"),
            format!("--listen-peer-urls=http://{members}"),
            format!("--initial-advertise-peer-urls=http://{members}"),
            format!("--initial-cluster={cluster}"),
            "--initial-cluster-state=new".to_owned(),
            format!("--heartbeat-interval={heartbeat_ms}"),
            format!("--election-timeout={}", HEARTBEATS_LOST * heartbeat_ms),
            format!("--quota-backend-bytes={}", 8_u64 << 30),
            "--auto-compaction-mode=periodic".to_owned(),
            "--auto-compaction-retention=1m".to_owned(),
            "--logger=zap".to_owned(),
            "--log-level=warn".to_owned(),
        ]);
        let name = format!("etcd in {}", place.name());
        Server::start(command, name, &directory.join("log"), SIGNALS)
    }
}

/// The number of keys put by transactions.
#[derive(Debug, Default)]
pub(super) struct Puts {
    /// Acknowledged puts.
    committed: AtomicU64,
    /// Puts with an unknown outcome.
    unknown: AtomicU64,
}

impl Puts {
    /// The minimum and the maximum number of keys put.
    fn bounds(&self) -> RangeInclusive<i64> {
        let committed = self.committed.load(Ordering::Relaxed) as i64;
        committed..=committed + self.unknown.load(Ordering::Relaxed) as i64
    }
}

/// A client's session, on a connection shared with others.
#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    puts: Arc<Puts>,
}

impl Session {
    pub async fn run(&mut self, work: &Work<'_>) -> Attempt {
        match work {
            Work::Ycsb(work) => self.ycsb(work).await,
            Work::NewOrder(_) | Work::Payment(_) => {
                Attempt::Aborted(Attempt::abort("0A000", "etcd has no procedures"))
            }
        }
    }

    async fn ycsb(&mut self, work: &Ycsb<'_>) -> Attempt {
        let reads = work
            .reads
            .iter()
            .map(|row| Op::Range(RangeRequest { key: rows::key(*row), ..RangeRequest::default() }));
        let writes = work.writes.iter().map(|(row, value)| {
            Op::Put(PutRequest { key: rows::key(*row), value: value.to_vec() })
        });
        let ops = reads.chain(writes).map(|op| RequestOp { op: Some(op) });
        let puts = work.writes.len() as u64;
        match self.client.txn(ops.collect()).await {
            Ok(answer) => {
                self.puts.committed.fetch_add(puts, Ordering::Relaxed);
                let found = answer.responses.iter().filter_map(|response| response.range.as_ref());
                let values = found.map(|range| range.kvs.first().map_or(&[][..], |kv| &kv.value));
                Attempt::Committed(encode_values(values))
            }
            Err(status) => {
                let attempt = attempt_of(&status);
                if let Attempt::Lost(_) = attempt {
                    self.puts.unknown.fetch_add(puts, Ordering::Relaxed);
                }
                attempt
            }
        }
    }
}

fn attempt_of(status: &Status) -> Attempt {
    match status.code() {
        // "too many requests": the request was rejected.
        Code::ResourceExhausted => Attempt::Undone(Attempt::abort("53000", status.message())),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            Attempt::Aborted(Attempt::abort("XX000", status.message()))
        }
        _ => Attempt::Lost(status.message().to_owned()),
    }
}
