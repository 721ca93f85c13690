//! Shared support code of the tests.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod cluster;
pub mod mem_disk;
pub mod mem_net;
pub mod toy;
