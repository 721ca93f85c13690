//! Regions on one machine, for software that is not aware of them.
//!
//! Each region is a Linux network namespace with one device. All devices lead to one router in this
//! process. It delivers each packet when it would have arrived: after the link's delay, jitter and
//! the wait for bandwidth, unless the packet is lost or the link is cut.
//!
//! ```text
//!   namespace pangea-PID-N-us-east                     namespace pangea-PID-N-eu-west
//!  +-------------------------------+                  +-------------------------------+
//!  |  any program      lo          |                  |          lo      any program  |
//!  |      |                        |                  |                       |       |
//!  |    wan0  10.86.1.1            |                  |           10.86.2.1  wan0     |
//!  +------|------------------------+                  +-----------------------|-------+
//!         |                       this process                                |
//!         |      +-----------------------------------------------+            |
//!         +----->| router: reads, queries wan::Wan, waits, writes |<----------+
//!                +-----------------------------------------------+
//!                        ^
//!                        | cut, heal, round trips, status: a socket, or WideArea in the process
//! ```
//!
//! | module | is |
//! |---|---|
//! | [`wan`] | the WAN as a state machine, in virtual time |
//! | `packet` | the headers of a packet: its destination, and its size on the link |
//! | `router` | the thread between devices and WAN |
//! | `resources` | ownership of a lab: directories, locks, namespaces; how all of it is removed |
//! | `processes` | the processes in a namespace, and how they are ended |
//! | `region` | a region, and how to run code in it |
//! | [`control`] | requests to a lab that runs in another process |
//!
//! The namespaces are created by `ip` of iproute2. Common tools such as `ip netns` can then see
//! them, and a lab needs no netlink stack with its own runtime, only one extra process per region.
//! A lab is invisible outside of its namespaces. Its devices are created within, so neither names
//! nor addresses collide with those of the machine or of another lab.
//!
//! **Cleanup.** A dropped [`Lab`] leaves nothing behind. A killed process leaves namespaces and the
//! programs in them. Their names contain its process id, and its lock, which the kernel has
//! released, shows that they have no owner. The next lab removes them, and so does [`clear`].

#![cfg(target_os = "linux")]

pub mod control;
mod error;
mod lab;
mod options;
mod packet;
mod processes;
mod region;
mod resources;
mod router;
pub mod wan;

pub use error::LabError;
pub use lab::{Lab, check};
pub use options::{Options, REGIONS_MAX};
pub use region::{Region, become_program};
pub use resources::{Cleared, clear};
pub use router::{LinkStatus, WideArea, WideAreaStatus};
