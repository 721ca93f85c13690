//! What must be the same on all nodes: the program, as far as it is known, and the settings.
//!
//! Nodes compare a fingerprint of it. The rest lets a node that refuses another one say what
//! differs, so that both logs name it.

use pangea_core::ids::NodeId;
use pangea_core::txn::{CODE_VERSION, Registry};
use serde::{Deserialize, Serialize};

/// The maximum number of procedures and settings that are named as different.
const NAMED_MAX: usize = 5;
/// The maximum length of all names and settings, so that a hello fits its frame. Above it only the
/// fingerprints are compared.
const BYTES_MAX: usize = 12 << 10;

/// What must be the same on all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Likeness {
    /// The release of the program. It may differ.
    pub release: String,
    /// The version of the behavior of procedures and SQL.
    pub code_version: u32,
    /// The names of the procedures, a line each, in order; empty if they are too long. Lists are
    /// one text, so that a hello from a stranger takes no more memory than its bytes.
    pub procedures: String,
    /// The settings of the protocol, as lines of the configuration file.
    pub settings: String,
    /// The partitioning, and a line for each thing else in which nodes differ from the usual.
    pub nodes: String,
}

impl Likeness {
    /// The program of this process with these procedures and settings.
    pub fn of(registry: &Registry, settings: &str, nodes: String) -> Self {
        let mut likeness = Self {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            code_version: CODE_VERSION,
            procedures: registry.names().collect::<Vec<_>>().join("\n"),
            settings: settings.to_owned(),
            nodes,
        };
        if likeness.bytes() > BYTES_MAX {
            likeness.procedures.clear();
        }
        if likeness.bytes() > BYTES_MAX {
            likeness.settings.clear();
            likeness.nodes.clear();
        }
        likeness
    }

    fn bytes(&self) -> usize {
        self.procedures.len() + self.settings.len() + self.nodes.len()
    }

    /// Describes how this of the node `me` differs from that of another one, whose fingerprint is
    /// another.
    pub(crate) fn difference(
        &self,
        (me, node): (NodeId, NodeId),
        other: &Self,
        protocol: &str,
    ) -> String {
        let (me, node) = (me.0, node.0);
        let mut all = Vec::new();
        let are_known = !self.procedures.is_empty() && !other.procedures.is_empty();
        let only = |of: &str, not_of: &str, node: u16| {
            let is_only = |name: &&str| !not_of.lines().any(|other| other == *name);
            let names: Vec<&str> = of.lines().filter(is_only).collect();
            (!names.is_empty()).then(|| format!("{} (node {node})", some_of(&names)))
        };
        if are_known {
            let (ours, others) = (&self.procedures, &other.procedures);
            let sides = [only(ours, others, me), only(others, ours, node)];
            let sides: Vec<String> = sides.into_iter().flatten().collect();
            if !sides.is_empty() {
                all.push(format!("procedures that only one has: {}", sides.join(", ")));
            }
        }
        if self.code_version != other.code_version {
            let (ours, others) = (self.code_version, other.code_version);
            all.push(format!(
                "the version of the code: {ours} (node {me}, release {}), {others} (node {node}, \
                 release {})",
                self.release, other.release
            ));
        }
        let sides = [
            only(&self.settings, &other.settings, me),
            only(&other.settings, &self.settings, node),
        ];
        let sides: Vec<String> = sides.into_iter().flatten().collect();
        if !sides.is_empty() {
            all.push(format!("`[{protocol}]`: {}", sides.join(", ")));
        }
        let ([ours, ours_else], [others, others_else]) = (self.split_nodes(), other.split_nodes());
        if ours != others {
            all.push(format!(
                "`[partitions]` or `shard`: {ours} (node {me}), {others} (node {node})"
            ));
        }
        let sides = [only(ours_else, others_else, me), only(others_else, ours_else, node)];
        let sides: Vec<String> = sides.into_iter().flatten().collect();
        if !sides.is_empty() {
            all.push(format!("`[[nodes]]`: {}", sides.join(", ")));
        }
        match all.is_empty() {
            true => format!("`[{protocol}]`, `[partitions]`, `[[nodes]]`, or the procedures"),
            false => all.join("; "),
        }
    }
}

impl Likeness {
    /// The partitioning, and the other lines about the nodes.
    fn split_nodes(&self) -> [&str; 2] {
        self.nodes.split_once('\n').unwrap_or((&self.nodes, "")).into()
    }

    /// Whether the two nodes are known to run programs with other procedures or other code.
    pub(super) fn is_other_program(&self, other: &Self) -> bool {
        let are_known = !self.procedures.is_empty() && !other.procedures.is_empty();
        let is_other = are_known && self.procedures != other.procedures;
        is_other || self.code_version != other.code_version
    }
}

/// The first of some names.
fn some_of(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likeness(procedures: &[&str], settings: &[&str]) -> Likeness {
        Likeness {
            release: "1.2.0".to_owned(),
            code_version: 5,
            procedures: procedures.join("\n"),
            settings: settings.join("\n"),
            nodes: "1 shard".to_owned(),
        }
    }

    fn difference(ours: &Likeness, other: &Likeness) -> String {
        ours.difference((NodeId(0), NodeId(2)), other, "minerva")
    }

    #[test]
    fn what_differs_is_named_with_the_node_that_has_it() {
        let ours = likeness(&["a", "b", "c"], &["epoch_ms = 15", "solver = \"exact\""]);
        let other = likeness(&["b", "d"], &["epoch_ms = 20", "solver = \"exact\""]);
        assert_eq!(
            difference(&ours, &other),
            "procedures that only one has: a, c (node 0), d (node 2); `[minerva]`: epoch_ms = 15 \
             (node 0), epoch_ms = 20 (node 2)"
        );
        let newer = Likeness { code_version: 6, release: "1.3.0".to_owned(), ..ours.clone() };
        assert_eq!(
            difference(&ours, &newer),
            "the version of the code: 5 (node 0, release 1.2.0), 6 (node 2, release 1.3.0)"
        );
        assert!(ours.is_other_program(&newer) && ours.is_other_program(&other));
        let divided = Likeness { nodes: "2 shards".to_owned(), ..ours.clone() };
        assert_eq!(
            difference(&ours, &divided),
            "`[partitions]` or `shard`: 1 shard (node 0), 2 shards (node 2)"
        );
        assert!(!ours.is_other_program(&divided));
        let names: Vec<String> = (0..7).map(|number| format!("p{number}")).collect();
        let many = likeness(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        let text = difference(&many, &likeness(&["p0"], &[]));
        assert_eq!(text, "procedures that only one has: p1, p2, p3, p4, p5 and 1 more (node 0)");
    }

    /// Story: nodes whose files differed in `votes` were told that they differ in the settings, the
    /// partitions or the procedures.
    #[test]
    fn nodes_that_count_other_votes_or_caches_are_told_so() {
        let ours = likeness(&["a"], &[]);
        let of = |nodes: &str| Likeness { nodes: nodes.to_owned(), ..ours.clone() };
        let silent = of("1 shard\n`votes = false` of node 3");
        let says = "`[[nodes]]`: `votes = false` of node 3 (node 2)";
        assert_eq!(difference(&ours, &silent), says);
        let other = of("1 shard\n`votes = false` of nodes 2 to 3\n`cache_of` of caches: [0]");
        assert_eq!(
            difference(&silent, &other),
            "`[[nodes]]`: `votes = false` of node 3 (node 0), `votes = false` of nodes 2 to 3, \
             `cache_of` of caches: [0] (node 2)"
        );
        assert!(!ours.is_other_program(&silent));
    }

    #[test]
    fn without_the_names_the_possible_differences_are_listed() {
        let unknown = Likeness { procedures: String::new(), ..likeness(&[], &[]) };
        assert_eq!(
            difference(&unknown, &likeness(&["a"], &[])),
            "`[minerva]`, `[partitions]`, `[[nodes]]`, or the procedures"
        );
    }
}
