//! Sessions on the engine in memory.

mod certified;
mod depth;
mod isolation;
mod online;
mod procedures;
mod replay;
mod robust;
mod script;
mod slt;
mod strict;
#[cfg(not(feature = "relational"))]
mod without_relational;
