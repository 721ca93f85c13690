//! Stored procedures: bodies of SQL statements, and of a subset of PL/pgSQL.
//!
//! ```text
//!   text --grammar--> Body: steps, which contain fragments of SQL
//!                     |
//!      CALL is planned: effects --> writes and sequences of the body, and whether
//!                     |             every replica may run it
//!      CALL runs:    run ---> steps in their order; a fragment is planned when it is first
//!                             reached, with the variables in scope as its parameters
//! ```
//!
//! A CALL outside of a transaction block is one program. Every replica runs it as a whole at its
//! place in the serial order, and no conflict aborts it. If a fragment needs DataFusion, or its
//! tables are not known yet, the procedure runs on one node and is certified, like that statement
//! on its own.

mod blocks;
mod body;
mod branches;
mod conditions;
mod effects;
mod fragment;
mod grammar;
mod hoisted_subqueries;
mod raise;
mod run;
mod slots;
mod statements;
mod step_budget;

pub(crate) use body::Body;
pub(crate) use effects::ProcedureEffects;
pub(crate) use run::{call, with_stack};
