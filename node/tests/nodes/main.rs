//! Nodes and the PostgreSQL server, with real sockets, logs and clients.

mod endings;
mod geogauss_losses;
mod geogauss_sql;
mod insight;
mod log;
mod minerva;
mod network;
mod node;
mod pgwire;
mod sql_scripts;
mod stopping;
#[path = "../support/mod.rs"]
mod support;
