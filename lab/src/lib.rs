//! Regions on one machine, for software that knows nothing of it.
//!
//! Each region is a network namespace of Linux with one device, and all devices lead to one router
//! in this process, which hands each packet over when it would have arrived: after the delay of the
//! link, jitter and what bandwidth makes it wait, if it is not lost and the link is not cut.
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
//!         +----->| router: reads, looks at wan::Wan, waits, writes |<----------+
//!                +-----------------------------------------------+
//!                        ^
//!                        | cut, heal, round trips, status: a socket, or WideArea in the process
//! ```
//!
//! | module | is |
//! |---|---|
//! | [`wan`] | the wide area as a state machine, in virtual time |
//! | `packet` | what a packet says of itself: where to, and how large on the link |
//! | `router` | the thread between devices and wide area |
//! | `site` | whose lab it is: directories, locks, namespaces; how all of it is removed |
//! | `processes` | what runs in a namespace, and how it is ended |
//! | `region` | a region, and how to do something in it |
//! | [`control`] | what is asked of a lab that runs in another process |
//!
//! The namespaces are made by `ip` of iproute2: they are then where everybody's tools look for them
//! (`ip netns`), and a lab is one process for each region away, not a netlink stack with a runtime
//! of its own. Nothing of a lab is seen outside of its namespaces: the devices are made within, so
//! neither names nor addresses meet those of the machine or of another lab.
//!
//! **What is left behind.** Nothing, when a [`Lab`] is dropped. A process that is killed leaves
//! namespaces, and the programs in them; their names hold its number, and a lock that died with it
//! tells that nobody looks after them. The next lab removes them, and so does [`clear`].

#![cfg(target_os = "linux")]

pub mod control;
mod error;
mod lab;
mod options;
mod packet;
mod processes;
mod region;
mod router;
mod site;
pub mod wan;

pub use error::LabError;
pub use lab::{Lab, check};
pub use options::{Options, REGIONS_MAX};
pub use region::{Region, become_program};
pub use router::{LinkStatus, WideArea, WideAreaStatus};
pub use site::{Cleared, clear};
