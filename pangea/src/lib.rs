//! Pangea as a library: a cluster, or one node of a cluster, within a program.
//!
//! The advantage over a separate server is procedures in Rust ([`SqlProcedure`]). These functions
//! run at their place in the serial order on every node, next to the data. Any PostgreSQL client of
//! the program's nodes can call them by `CALL`.
//!
//! ```
//! use pangea::{Cluster, Datum, Sql, SqlProcedure, SqlType, Stop, raise};
//!
//! struct Withdraw;
//!
//! impl SqlProcedure for Withdraw {
//!     fn name(&self) -> &str {
//!         "withdraw"
//!     }
//!
//!     fn params(&self) -> Vec<SqlType> {
//!         vec![SqlType::Int4, SqlType::Int8]
//!     }
//!
//!     fn run(&self, args: &[Datum], cx: &mut Sql<'_>) -> Result<Vec<Datum>, Stop> {
//!         let update = "update account set balance = balance - $2
//!                       where id = $1 and balance >= $2";
//!         match cx.sql(update, args)?.count {
//!             1 => Ok(Vec::new()),
//!             _ => Err(raise("there is not enough")),
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), pangea::Error> {
//! let cluster = Cluster::builder().procedure(Withdraw).start()?;
//! let mut connection = cluster.connect(0)?;
//! connection.query("create table account (id int primary key, balance bigint)", &[])?;
//! connection.query("insert into account values (1, 100)", &[])?;
//! connection.call("withdraw", &[Datum::Int(1), Datum::Int(30)])?;
//! let left = connection.query("select balance from account", &[])?;
//! assert_eq!(left.rows, [[Datum::Int(70)]]);
//! // psql -h 127.0.0.1 -p <port> -c 'call withdraw(1, 70)'
//! println!("{}", cluster.sql_address(0));
//! # Ok(())
//! # }
//! ```
//!
//! All nodes of a cluster must have the same procedures, with the same code. Peers reject a node
//! whose procedures have other names or numbers. The code of procedures with the same name is not
//! compared.

mod advise;
mod allocator;
mod bench;
mod calibrate;
mod check;
mod cluster;
#[doc(hidden)]
pub mod command_line;
mod demo;
mod embedded;
mod failure;
mod lab;
mod load_generator;
mod protocol;
mod regions;
mod script;
mod signals;
mod sim;
mod sizes;
mod sql;
mod start;
mod table;
mod torture;

pub use embedded::{Builder, Cluster, Connection, Error};
pub use pangea_core::ids::TableId;
pub use pangea_core::key::{Direction, Key, KeyRange};
pub use pangea_core::txn::{Context, Procedure, Scan, Stop};
pub use pangea_core::value::Value;
pub use pangea_node::config::Config;
pub use pangea_sql::error::SqlError;
pub use pangea_sql::native::{Rows, Sql, SqlProcedure, raise};
pub use pangea_sql::types::SqlType;
pub use pangea_sql::types::datum::Datum;

use command_line::{runtime, say, warn, warn_all};
