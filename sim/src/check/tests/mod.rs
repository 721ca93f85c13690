//! Tests of the checkers: histories made by hand, and agreement with slow checkers that are
//! obviously right.

mod agreement;
mod lists;
mod registers;
mod speed;

use crate::record::{Atom, Name, Outcome, Recorded, Txn};

/// A committed transaction without operations, exempt from real-time order.
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
        level: None,
        note: None,
        ops: Vec::new(),
    }
}
