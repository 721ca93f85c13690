//! The parameters with which a driver makes a replica.

use std::sync::Arc;

use super::Protocol;
use crate::ids::NodeId;
use crate::topology::Topology;
use crate::txn::Registry;

/// The parameters of a new replica.
#[derive(Clone, Debug)]
pub struct Setup<P: Protocol> {
    /// The id of this node.
    pub me: NodeId,
    /// The cluster.
    pub topology: Arc<Topology>,
    /// The procedures that programs may call.
    pub registry: Arc<Registry>,
    /// The protocol's settings.
    pub options: P::Options,
}
