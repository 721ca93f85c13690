//! Sessions on the engine in memory.

mod certified;
mod deltas;
mod depth;
mod interrupted;
mod isolation;
mod levels;
mod online;
mod procedures;
mod race;
mod replay;
mod robust;
mod script;
mod slt;
mod strict;
#[cfg(not(feature = "relational"))]
mod without_relational;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a session's future, which is complete at once on this engine.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory engine never waits"),
    }
}
