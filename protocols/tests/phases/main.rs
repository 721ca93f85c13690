//! The protocols phase by phase: the claims of the papers, on real replicas in a lockstep world.
//!
//! The tests of `transcripts` compare all that a few replicas of either protocol do with golden
//! texts. The others check claims of Minerva, and old bugs.

mod away;
mod behind;
mod committing;
mod contention;
mod cutting;
mod execution;
mod nonsense;
mod passing;
mod recovery;
mod rejoin;
mod replication;
mod script;
mod stragglers;
mod support;
mod transcripts;
mod transfer;
