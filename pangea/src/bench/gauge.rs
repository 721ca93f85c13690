//! Reads what is used in the measured time, also while something happens to the servers.
//!
//! ```text
//!   here        |<------------- measured ------------->|
//!   kernel, lab *                                      *        read at the ends
//!                \ asked                                \ asked
//!   a node        *                                      *      half a round trip later, both
//! ```
//!
//! Whatever is divided by the transactions or the seconds of the measured time must be counted over
//! as long a time. So the kernel and the lab are read at its two ends, where nothing is waited for,
//! and nodes are asked at both ends too, all at once: each then tells what it did in a time that
//! begins and ends as much later as it is far away.

use std::sync::Arc;
use std::time::Duration;

use pangea_node::client::Client;
use tokio::task::JoinSet;

use super::ground::Ground;
use super::usage::{Told, Usage};
use crate::cluster::Number;
use crate::drive::Undone;
use crate::failure::Failure;
use crate::script::Retries;

/// How long a node may take to tell what it counted.
const ASK_DEADLINE: Duration = Duration::from_secs(30);

type Machine<'a> = Box<dyn Fn() -> Result<Usage, Failure> + 'a>;
type Again<'a> = Box<dyn Fn() -> Vec<Undone> + 'a>;

/// What it reads from.
pub(super) struct Gauge<'a> {
    machine: Machine<'a>,
    again: Again<'a>,
    /// Of nodes that tell: peers' servers don't.
    clients: &'a [Client],
}

impl<'a> Gauge<'a> {
    /// Of whatever `machine` reads, and of the nodes at the other end of these clients.
    pub fn new(machine: impl Fn() -> Result<Usage, Failure> + 'a, clients: &'a [Client]) -> Self {
        Self { machine: Box::new(machine), again: Box::new(Vec::new), clients }
    }

    /// Of nodes that are processes.
    pub fn of_nodes(ground: &'a Ground, numbers: Vec<Number>, clients: &'a [Client]) -> Self {
        Self::new(move || Ok(Usage::of_nodes(&numbers)?.in_lab(ground.usage()?)), clients)
    }

    /// Of a peer's servers.
    pub fn of_peer(ground: &'a Ground, peer: &pangea_peers::Peer) -> Self {
        let (meter, retries) = (peer.meter(), peer.retries().clone());
        let again = move || {
            let undone = |(code, count)| Undone { kind: None, code, count };
            retries.take().into_iter().map(undone).collect()
        };
        let machine = move || Ok(Usage::of_peer(&meter)?.in_lab(ground.usage()?));
        Self { again: Box::new(again), ..Self::new(machine, &[]) }
    }

    /// The same, where clients do transactions again by themselves.
    #[must_use]
    pub fn with_retries(self, retries: Arc<Retries>) -> Self {
        let Self { machine, again, clients } = self;
        let again = Box::new(move || [again(), retries.take()].concat());
        Self { machine, again, clients }
    }

    /// What the kernel and the lab counted so far.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn read(&self) -> Result<Usage, Failure> {
        (self.machine)()
    }

    /// Which aborts there were since this was last asked that no client saw.
    pub fn undone(&self) -> Vec<Undone> {
        (self.again)()
    }

    /// What each node counted so far.
    ///
    /// # Errors
    /// When one does not tell, unless it may be silent because something happens to it: then there
    /// is nothing of it.
    pub async fn ask(&self, may_be_silent: bool) -> Result<Vec<Option<Told>>, Failure> {
        let mut asking = JoinSet::new();
        let nodes = self.clients.len();
        for (index, client) in self.clients.iter().cloned().enumerate() {
            asking.spawn(async move {
                let told = tokio::time::timeout(ASK_DEADLINE, Told::ask(&client, nodes)).await;
                let silent = |_| {
                    let (region, secs) = (client.region(), ASK_DEADLINE.as_secs());
                    Failure::Failed(format!("{region} does not say in {secs} s what it counted"))
                };
                (index, told.map_err(silent).flatten())
            });
        }
        let mut all = vec![None; nodes];
        while let Some(told) = asking.join_next().await {
            let (index, told) = told.expect("asking does not panic");
            all[index] = match told {
                Ok(told) => Some(told),
                Err(_) if may_be_silent => None,
                Err(failure) => return Err(failure),
            };
        }
        Ok(all)
    }
}
