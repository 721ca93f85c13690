//! Minerva phase by phase: the claims of the paper, on real replicas in a lockstep world.

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
mod transfer;
