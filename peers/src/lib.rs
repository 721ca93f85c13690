//! The databases that users would pick instead, started and given the same work as Pangea.
//!
//! ```text
//!   Kind::check --> Peer::start(places) --> load --> access(place).open() --> call
//!               --> check --> stop
//! ```
//!
//! - [`galera`]: MariaDB Galera, a master in every place;
//! - [`postgres`]: PostgreSQL, the primary in the first place, a synchronous standby in the others;
//! - [`etcd`]: a member in every place.
//!
//! A peer's clients make the calls that Pangea's make: the same procedures with the same arguments,
//! drawn from the same seed. Each is one call of a stored procedure there, or one transaction of
//! etcd. What a database asks its clients to do again is done again here, and counted.
//!
//! A server can be killed, started again, stopped and resumed while clients work.
//!
//! Nothing is installed: where a program is missing, the error names the package that has it. A
//! peer listens on its places' addresses alone, its files are in a directory that goes with it, and
//! its processes end when it is stopped, when it is dropped, and when the thread that started them
//! ends, whatever ends it.

mod access;
mod calls;
mod conditions;
pub mod etcd;
mod failure;
pub mod galera;
mod group;
mod peer;
mod place;
pub mod postgres;
mod program;
mod retries;
mod rows;
mod server;
mod session;
mod usage;

pub use access::Access;
pub use failure::Failure;
pub use peer::{Checked, Durability, Isolation, Kind, Options, Peer};
pub use place::Place;
pub use retries::Retries;
pub use rows::rows_of;
pub use session::{Lost, Session};
pub use usage::{Meter, Process, Usage, cpu_us_by_thread, memory_bytes_peak};
