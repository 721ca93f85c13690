//! Stored procedures: bodies of SQL statements, and of a subset of PL/pgSQL.
//!
//! ```text
//!   text --grammar--> Body: steps, which hold fragments of SQL
//!                     |
//!      CALL is planned: survey ---> what it may write, which sequences it takes numbers of,
//!                     |             and whether every replica may run it
//!      CALL runs:    run ---> steps in their order; a fragment is planned where it is first
//!                             reached, with the variables in sight as its parameters
//! ```
//!
//! A CALL outside of a transaction block is one program: it runs whole at its place in the order,
//! on every replica, and no conflict ends it. Where a fragment needs DataFusion, or its tables are
//! not known yet, it runs in one place and is certified, as such a statement alone is.

mod blocks;
mod body;
mod branches;
mod conditions;
mod counted;
mod fragment;
mod grammar;
mod lifted;
mod raise;
mod run;
mod slots;
mod statements;
mod survey;
mod variables;

pub(crate) use body::Body;
pub(crate) use fragment::Signature;
pub(crate) use run::call;
pub(crate) use slots::unassigned;
pub(crate) use survey::Survey;
