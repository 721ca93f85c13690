//! The protocols phase by phase: the claims of the papers, on real replicas in a lockstep world.
//!
//! The tests of `transcripts` compare all that a few replicas of either protocol do with golden
//! texts. The others check claims of Minerva, and old bugs.

/// The message of this name and these fields, as a value or as a pattern: its name is enough to
/// know the component that it is of.
macro_rules! message {
    (@ $wrapper:ident $component:ident $name:ident $fields:tt) => {
        pangea_protocols::minerva::Message::Inputs(pangea_protocols::inputs::Message::$wrapper(
            pangea_protocols::$component::Message::$name $fields,
        ))
    };
    (@ $name:ident $fields:tt) => {
        pangea_protocols::minerva::Message::Inputs(
            pangea_protocols::inputs::Message::$name $fields,
        )
    };
    (Batch $fields:tt) => { message!(@ Streams streams Batch $fields) };
    (Ack $fields:tt) => { message!(@ Streams streams Ack $fields) };
    (ProofOfAvailability $fields:tt) => { message!(@ Streams streams ProofOfAvailability $fields) };
    (Fetch $fields:tt) => { message!(@ Streams streams Fetch $fields) };
    (Gone $fields:tt) => { message!(@ Streams streams Gone $fields) };
    (Greeting $fields:tt) => { message!(@ Presence presence Greeting $fields) };
    (Rejoin $fields:tt) => { message!(@ Presence presence Rejoin $fields) };
    (RejoinReply $fields:tt) => { message!(@ Presence presence RejoinReply $fields) };
    (CheckpointRequest $fields:tt) => { message!(@ Transfer transfer CheckpointRequest $fields) };
    (CheckpointChunk $fields:tt) => { message!(@ Transfer transfer CheckpointChunk $fields) };
    (CheckpointAck $fields:tt) => { message!(@ Transfer transfer CheckpointAck $fields) };
    (CheckpointGone $fields:tt) => { message!(@ Transfer transfer CheckpointGone $fields) };
    ($name:ident $fields:tt) => { message!(@ $name $fields) };
}

mod away;
mod behind;
mod committing;
mod contention;
mod cutting;
mod digests;
mod execution;
mod failing;
mod foreign;
mod growth;
mod lateness;
mod mako_groups;
mod mako_input;
mod mako_links;
mod mako_moves;
mod nonsense;
mod old_disks;
mod passing;
mod recovery;
mod rejoin;
mod relaying;
mod replication;
mod script;
mod sealing;
mod skipping;
mod stopping;
mod stragglers;
mod support;
mod tiga_disks;
mod tiga_links;
mod tiga_stops;
mod transcripts;
mod transfer;
mod upgrade;
