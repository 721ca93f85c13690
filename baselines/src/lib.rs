//! Baselines: other databases that users could choose, started here and given the same work as
//! Pangea.
//!
//! ```text
//!   Kind::check --> Baseline::start(places) --> load --> access(place).open() --> call
//!               --> check --> stop
//! ```
//!
//! - [`galera`]: MariaDB Galera, a master in every place;
//! - [`postgres`]: PostgreSQL, the primary in the first place, a synchronous standby in the others;
//! - [`etcd`]: a member in every place.
//!
//! The clients of a baseline make the same calls as Pangea's: the same procedures with the same
//! arguments, drawn from the same seed. Each call is one call of a stored procedure there, or one
//! transaction of etcd. Transactions that a database asks its clients to retry are retried here,
//! and counted.
//!
//! A server can be killed, restarted, paused and resumed while clients work.
//!
//! Nothing is installed: if a program is missing, the error names its package. A baseline listens
//! only on its places' addresses. Its files are in a temporary directory that is removed with it.
//! Its processes end when it is stopped, when it is dropped, and when the thread that started them
//! ends for any reason.

mod access;
mod baseline;
mod calls;
mod conditions;
pub mod etcd;
mod failure;
pub mod galera;
mod group;
mod placement;
mod ports;
pub mod postgres;
mod program;
mod retries;
mod rows;
mod server;
mod session;
mod usage;

pub use access::Access;
pub use baseline::{Baseline, Checked, Durability, Isolation, Kind, Options};
pub use failure::Failure;
pub use placement::Placement;
pub use ports::free_ports;
pub use retries::Retries;
pub use rows::rows_of;
pub use session::{Lost, Session};
pub use usage::{Meter, Process, Usage, cpu_us_by_thread, memory_bytes_peak};
