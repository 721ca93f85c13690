//! Tests of the checkers: histories made by hand, and agreement with checkers that are slow and
//! plainly right.

mod agreement;
mod lists;
mod registers;
mod speed;

use crate::record::{Atom, Name, Outcome, Recorded, Txn};

/// A committed transaction that did nothing and is not held to real time.
fn txn_by_hand() -> Txn {
    Txn {
        id: 0,
        client: Atom::Text("by hand".into()),
        begin: 0,
        end: Some(0),
        outcome: Outcome::Committed,
        is_held: false,
        is_final: false,
        at: None,
        note: None,
        ops: Vec::new(),
    }
}
