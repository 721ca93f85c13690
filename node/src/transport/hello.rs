//! The first frame of a connection, and the check of its sender.
//!
//! ```text
//!   dialer                         acceptor
//!     |-- Hello ------------------->|  magic, then its identity: a peer's lane, or a client
//!     |<----------------- Welcome --|  or Refused, with the reason as text
//! ```
//!
//! A peer must be in the same cluster, run the same protocol with the same procedures, and be a
//! known node. It must also be the one of the two that dials: the one with the lower id.

use std::fmt;

use pangea_core::ids::NodeId;
use pangea_core::protocol::Lane;
use serde::{Deserialize, Serialize};

use super::likeness::Likeness;

/// The first bytes of every hello.
const MAGIC: &[u8; 8] = b"PANGEA\r\n";

/// The contents of a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hello {
    Peer(PeerHello),
    Client(ClientHello),
}

/// A lane of a session between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerHello {
    pub cluster: String,
    pub protocol: String,
    pub fingerprint: u64,
    pub likeness: Likeness,
    pub from: NodeId,
    pub to: NodeId,
    pub lane: LaneName,
    pub session: SessionId,
}

/// The id of a session, which its two connections have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionId {
    /// A random number that differs between runs of the dialing node.
    pub incarnation: u64,
    /// The number of the attempt, increasing within a run.
    pub attempt: u64,
}

impl SessionId {
    /// Whether this is an earlier attempt of the same run of the dialer, abandoned before `other`.
    pub(crate) fn is_before(self, other: Self) -> bool {
        self.incarnation == other.incarnation && self.attempt < other.attempt
    }
}

/// [`Lane`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LaneName {
    Control,
    Bulk,
}

impl From<Lane> for LaneName {
    fn from(lane: Lane) -> Self {
        match lane {
            Lane::Control => Self::Control,
            Lane::Bulk => Self::Bulk,
        }
    }
}

impl From<LaneName> for Lane {
    fn from(lane: LaneName) -> Self {
        match lane {
            LaneName::Control => Self::Control,
            LaneName::Bulk => Self::Bulk,
        }
    }
}

/// The hello of a program that submits transactions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientHello {
    pub cluster: String,
}

/// The welcome of an accepted client. A peer's welcome is empty, because a peer knows these values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientWelcome {
    pub node: NodeId,
    pub region: String,
    pub protocol: String,
}

/// The reason of a refusal, for both operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, MAGIC.to_vec()).expect("a hello can be encoded")
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Refusal> {
        let rest = body
            .strip_prefix(MAGIC)
            .ok_or_else(|| Refusal("hello without Pangea's magic bytes".to_owned()))?;
        postcard::from_bytes(rest).map_err(|_| Refusal("malformed hello".to_owned()))
    }
}

/// The expected values of a hello.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub cluster: String,
    pub protocol: &'static str,
    pub fingerprint: u64,
    pub likeness: Likeness,
    pub me: NodeId,
    pub nodes: usize,
}

impl Identity {
    /// Checks a peer's hello.
    pub(crate) fn check_peer(&self, hello: &PeerHello) -> Result<(), Refusal> {
        self.check_cluster(&hello.cluster)?;
        let refuse = |reason: String| Err(Refusal(reason));
        if hello.protocol != self.protocol {
            return refuse(format!(
                "protocol {:?} does not match {:?}, which this node runs",
                hello.protocol, self.protocol
            ));
        }
        if hello.fingerprint != self.fingerprint {
            let nodes = (self.me, hello.from);
            let what = self.likeness.difference(nodes, &hello.likeness, self.protocol);
            let advice = match self.likeness.is_other_program(&hello.likeness) {
                true => {
                    ". To upgrade, stop all nodes in order (SIGTERM), and start all with the new \
                     program"
                }
                false => "",
            };
            return refuse(format!(
                "the two nodes differ in {what}. Settings, partitions, votes, caches, procedures \
                 and code must be the same on all nodes{advice}"
            ));
        }
        if hello.to != self.me {
            return refuse(format!(
                "the dialer expected node {}, but this is node {}",
                hello.to, self.me
            ));
        }
        if hello.from.index() >= self.nodes {
            return refuse(format!("node {} is not in this cluster's configuration", hello.from));
        }
        if hello.from >= self.me {
            return refuse(format!(
                "node {} must not dial node {}: the node with the lower id dials",
                hello.from, self.me
            ));
        }
        Ok(())
    }

    /// Checks that a client or a peer belongs to this cluster.
    pub(crate) fn check_cluster(&self, cluster: &str) -> Result<(), Refusal> {
        if cluster == self.cluster {
            return Ok(());
        }
        Err(Refusal(format!(
            "cluster {cluster:?} does not match {:?}, which this node is in",
            self.cluster
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_its_encoding_and_nothing_shorter_passes() {
        let hello = Hello::Client(ClientHello { cluster: "here".to_owned() });
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        for len in 0..bytes.len() {
            assert!(Hello::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn an_attempt_is_old_only_within_one_run_of_its_dialer() {
        let id = |incarnation, attempt| SessionId { incarnation, attempt };
        assert!(id(7, 1).is_before(id(7, 2)));
        assert!(!id(7, 2).is_before(id(7, 2)));
        assert!(
            !id(6, 1).is_before(id(7, 2)),
            "a clock that was set back does not prevent reconnecting"
        );
    }
}
