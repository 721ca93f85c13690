//! Commands that make regions out of network namespaces. They take root.

mod bench;
mod lab;
#[path = "../support/mod.rs"]
mod support;
