//! One other node, and the slot that its sessions occupy one after the other.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pangea_core::ids::NodeId;

use super::accept::{HANDSHAKE_MAX, Parked};
use super::link::Link;
use super::session::Session;
use super::shared::Shared;

/// The maximum number of distinct reasons that are remembered; there are fewer kinds.
const REPORTED_MAX: usize = 64;

/// One other node.
pub(super) struct Peer {
    pub(super) id: NodeId,
    pub(super) address: SocketAddr,
    pub(super) link: Link,
    slot: Mutex<Slot>,
    freed: Condvar,
    parked: Mutex<Option<Parked>>,
    /// The reasons reported to the operator since the last session began.
    reported: Mutex<BTreeSet<String>>,
}

/// The slot of a peer's session. It holds one at a time, from before its `PeerUp` to after its
/// `PeerDown`.
#[derive(Debug, Default)]
struct Slot {
    session: Option<Arc<Session>>,
    is_taken: bool,
}

/// The slot is occupied, or a newer session has it.
pub(super) struct Busy;

impl Peer {
    pub(super) fn new(id: NodeId, address: SocketAddr, link: Link) -> Self {
        Self {
            id,
            address,
            link,
            slot: Mutex::default(),
            freed: Condvar::new(),
            parked: Mutex::default(),
            reported: Mutex::default(),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn parked(&self) -> MutexGuard<'_, Option<Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.slot().session.clone()
    }

    /// Takes the peer's slot for a session. Closes a session that occupies it, because its dialer
    /// has abandoned it.
    pub(super) fn start_session(
        &self,
        shared: &Shared,
        session: &Arc<Session>,
    ) -> Result<(), Busy> {
        let until = Instant::now() + HANDSHAKE_MAX;
        let mut slot = self.slot();
        while slot.is_taken {
            if let Some(present) = &slot.session {
                if session.id.is_before(present.id) {
                    return Err(Busy);
                }
                present.close("the peer has reconnected");
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Busy);
            }
            let woken = self.freed.wait_timeout(slot, left);
            slot = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        if shared.is_stopping() {
            return Err(Busy);
        }
        *slot = Slot { session: Some(session.clone()), is_taken: true };
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    /// Stops sends on the session, before its `PeerDown`.
    pub(super) fn clear_session(&self) {
        self.slot().session = None;
    }

    /// Frees the slot for the next session, after the `PeerDown`.
    pub(super) fn end_session(&self) {
        let mut slot = self.slot();
        assert!(slot.session.is_none(), "a session is removed before it ends");
        slot.is_taken = false;
        self.freed.notify_all();
    }

    /// Waits until no session occupies the slot, at most until `until`.
    pub(super) fn wait_free(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        // The caller goes on in either case.
        drop(self.freed.wait_timeout_while(self.slot(), left, |slot| slot.is_taken));
    }

    /// Reports a reason to the operator, unless it has been reported since the last session began.
    pub(super) fn report(&self, shared: &Shared, reason: &str) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        if reported.insert(reason.to_owned()) {
            drop(reported);
            shared.trouble(Some(self.id), self.address, reason);
        }
    }
}
