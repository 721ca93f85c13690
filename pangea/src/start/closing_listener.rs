//! The listener for PostgreSQL clients after the node has begun to stop.

use std::net::TcpListener;

use pangea_node::pgwire::{self, Security};
use tokio::runtime::Runtime;

use crate::failure::Failure;

/// Answers new clients while the node stops, until it is dropped. Without it they would wait in the
/// listener's backlog, or find no listener, and would not know why.
pub struct ClosingListener {
    /// The runtime of the sessions ends before the node does.
    runtime: Runtime,
    listener: TcpListener,
    security: Security,
}

impl ClosingListener {
    /// Prepares another handle of the listener.
    ///
    /// # Errors
    /// If the system has no more threads or files.
    pub fn new(listener: &TcpListener, security: &Security) -> Result<Self, Failure> {
        let listener = listener.try_clone();
        let cant = |error| Failure::failed("can't listen for SQL clients", error);
        let (listener, security) = (listener.map_err(cant)?, security.clone());
        Ok(Self { runtime: crate::runtime(1)?, listener, security })
    }

    /// Refuses clients from now on. They must not be accepted elsewhere any more.
    pub fn begin(&self) {
        let (listener, security) = (self.listener.try_clone(), self.security.clone());
        self.runtime.spawn(async move {
            // Without another file, clients are told nothing.
            let listener = listener.and_then(tokio::net::TcpListener::from_std);
            if let Ok(listener) = listener {
                pgwire::refuse(security, listener).await;
            }
        });
    }

    /// Ends the listener, when the node has stopped.
    pub fn end(self) {
        self.runtime.shutdown_background();
    }
}
