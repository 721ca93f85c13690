//! A running node of any protocol. The protocol that a configuration names is looked up here, so
//! that programs above this crate are not compiled once for each protocol.

use std::sync::Arc;

use pangea_core::ids::ProcedureId;
use pangea_core::protocol::Protocol;
use pangea_core::txn::{Program, Registry};
use pangea_protocols::{WithProtocol, with_protocol};
use pangea_sql::engine::Engine;

use crate::config::Config;
use crate::driver::{CommitReply, Handle, Stopped};
use crate::meter::Meter;
use crate::node::{Node, StartError};

/// A running node. Dropping it stops the node at once, as a crash does.
pub trait RunningNode: Send + Sync {
    /// The node for SQL sessions.
    fn engine(&self) -> Arc<dyn Engine>;

    /// Requests without SQL.
    fn requests(&self) -> Arc<dyn Requests>;

    /// Asks the node to stop in order, without waiting for it. Nodes that stop together should all
    /// be asked before the first is waited for.
    fn begin_stop(&self);

    /// Stops the node in order and waits for it: none of its threads and open files remain. Returns
    /// whether it has written its last checkpoint.
    ///
    /// # Errors
    /// The reason, if it had failed before.
    fn stop(self: Box<Self>) -> Result<Stopped, String>;
}

/// Requests to a node of this process, without sockets. They fail once the node has ended.
pub trait Requests: Send + Sync {
    /// Orders and commits programs. Each reply is called once.
    fn submit(&self, programs: Vec<(Program, CommitReply)>);

    /// Returns the number of a procedure.
    fn procedure(&self, name: &str) -> Option<ProcedureId>;

    /// Returns whether the node is believed to accept calls.
    fn is_running(&self) -> bool;

    /// Waits until the node has ended, because it was stopped or because it failed.
    fn wait_ended(&self);

    /// Stops the node at once, as a crash does.
    fn stop_now(&self);
}

/// Starts the configured node on the real network, with a meter that records the cost of each
/// operation if one is given.
///
/// # Errors
/// When there is no such protocol, its settings are invalid, the state on disk can't be used, or
/// the address is in use.
pub fn start(
    config: &Config,
    registry: Arc<Registry>,
    meter: Option<Arc<Meter>>,
) -> Result<Box<dyn RunningNode>, StartError> {
    let started = with_protocol(&config.protocol, Start { config, registry, meter });
    started.map_err(StartError::Protocol)?
}

/// Checks the protocol's settings in a configuration.
///
/// # Errors
/// When there is no such protocol, its settings are invalid, or this cluster can't have them.
pub fn check(config: &Config) -> Result<(), StartError> {
    with_protocol(&config.protocol, Check { config }).map_err(StartError::Protocol)?
}

struct Start<'a> {
    config: &'a Config,
    registry: Arc<Registry>,
    meter: Option<Arc<Meter>>,
}

impl WithProtocol for Start<'_> {
    type Output = Result<Box<dyn RunningNode>, StartError>;

    fn run<P: Protocol>(self) -> Self::Output {
        let node = Node::<P>::start_metered(self.config, self.registry, self.meter)?;
        Ok(Box::new(node))
    }
}

struct Check<'a> {
    config: &'a Config,
}

impl WithProtocol for Check<'_> {
    type Output = Result<(), StartError>;

    fn run<P: Protocol>(self) -> Self::Output {
        self.config.checked_options::<P>().map(drop).map_err(StartError::Config)
    }
}

impl<P: Protocol> RunningNode for Node<P> {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::new(self.handle().clone())
    }

    fn requests(&self) -> Arc<dyn Requests> {
        Arc::new(self.handle().clone())
    }

    fn begin_stop(&self) {
        self.handle().stop();
    }

    fn stop(self: Box<Self>) -> Result<Stopped, String> {
        self.handle().stop();
        self.wait_stopped()
    }
}

impl<P: Protocol> Requests for Handle<P> {
    fn submit(&self, programs: Vec<(Program, CommitReply)>) {
        self.submit_many(programs);
    }

    fn procedure(&self, name: &str) -> Option<ProcedureId> {
        self.registry().id(name)
    }

    fn is_running(&self) -> bool {
        self.inbox().closed_because().is_empty()
    }

    fn wait_ended(&self) {
        self.inbox().wait_closed();
    }

    fn stop_now(&self) {
        Self::stop_now(self);
    }
}
