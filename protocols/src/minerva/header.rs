//! Minerva's use of the record header: its flag marks writes of a re-execution.
//!
//! The paper tags an item with the epoch of its last update (`eid`) and, before it is committed,
//! with its writer (`tid`). The store's snapshot version is the epoch. The header contains the
//! writer, and whether it committed as executed or was re-executed.

use pangea_core::ids::TxnId;
use pangea_core::store::RecordHeader;

/// The header of a write that was made at the transaction's source and found valid.
pub fn as_executed(txn: TxnId) -> RecordHeader {
    RecordHeader::new(txn)
}

/// The header of a write that was made by running the transaction in its epoch's order.
pub fn reexecuted(txn: TxnId) -> RecordHeader {
    RecordHeader::new(txn).flagged()
}
