//! The commands of `pangea` as they are typed.

mod advise;
mod arguments;
mod bench;
mod caches;
mod calibrate;
mod demo;
mod embedded;
#[path = "../processes/mod.rs"]
mod processes;
mod prompt;
mod script;
mod start_errors;
mod stopping;
#[path = "../support/mod.rs"]
mod support;
mod torture;
