//! A bit that flips in the memory of one node, which its peers' digests must find.
//!
//! No client uses this node: until it is found, whoever reads the row there gets a wrong value, and
//! may write what follows from it everywhere. No protocol prevents that. What it must do is to find
//! the replica that differs, and to stop it. The run then replaces the node, and goes on.

use std::time::{Duration, Instant};

use super::Nemesis;
use crate::failure::Failure;
use crate::protocol::{NAMES, words_of};

/// The time limit for the peers to find a flipped bit. A row that a blind write or a deletion
/// replaces first is never found, so another one is flipped as often as there is time.
const FOUND_DEADLINE: Duration = Duration::from_secs(120);
/// The time between two flips.
const AGAIN: Duration = Duration::from_secs(10);
/// The time between two looks.
const LOOK: Duration = Duration::from_millis(50);

impl Nemesis<'_> {
    /// Flips bits of the node's rows until it stops by itself, and replaces it.
    ///
    /// # Errors
    /// If it does not stop, does not say why, or can't be replaced.
    pub(super) async fn flip(&mut self, node: usize) -> Result<(), Failure> {
        self.heal().await?;
        let began = Instant::now();
        let (mut flips, mut next) = (0u32, began);
        let ended = loop {
            if let Some(ended) = self.cluster.members[node].ended_by_itself() {
                break ended;
            }
            if began.elapsed() > FOUND_DEADLINE {
                let (region, seconds) = (self.region(node), FOUND_DEADLINE.as_secs());
                return Err(Failure::Failed(format!(
                    "check failed: {flips} flipped bits in {region} were not found within \
                     {seconds} s"
                )));
            }
            if Instant::now() >= next {
                self.tell(&format!("flip a bit in {}", self.region(node)));
                self.cluster.members[node].flip();
                (flips, next) = (flips + 1, Instant::now() + AGAIN);
            }
            tokio::time::sleep(LOOK).await;
        };
        self.tell(&format!("found after {} ms: {ended}", began.elapsed().as_millis()));
        if !is_clear(&ended) {
            return Err(Failure::Failed(format!(
                "check failed: a node stopped without the version and the tables that differ: \
                 {ended}"
            )));
        }
        self.cluster.members[node].kill().await;
        self.tell(&format!("replace {}", self.region(node)));
        self.cluster.members[node].start_replacing().await?;
        let clients = self.cluster.clients().await?;
        self.cluster.usable(&clients).await
    }
}

/// Whether a message says which version, in the protocol's words, and which tables differ.
fn is_clear(message: &str) -> bool {
    let has = |word: &str| message.contains(word);
    let mut versions = NAMES.iter().map(|name| format!(" {} ", words_of(name).epoch));
    versions.any(|version| has(&version)) && has("table") && has("differ")
}
