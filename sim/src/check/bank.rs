//! Checks that every audit finds the total that was loaded, and no overdrawn account.

use pangea_core::workload::bank::{Bank, decode_balances};

use super::Violation;
use crate::history::{End, History, Operation};

/// Checks every audit that returned a result. An audit of a snapshot from before the load, which a
/// node that has just started may still serve, must find no accounts.
///
/// # Errors
/// The first audit that is wrong.
pub fn check(bank: &Bank, history: &History) -> Result<(), Violation> {
    let violation = |story| Violation::new("bank", "total", story);
    let opened = |operation: &Operation| match operation.end {
        End::Committed { version, .. } if operation.call.label == "load" => Some(version),
        _ => None,
    };
    let opened_at = history.operations.iter().filter_map(opened).max().unwrap_or_default();
    for (id, operation) in history.operations.iter().enumerate() {
        let Some(result) = operation.result() else { continue };
        if operation.call.label != "audit" {
            continue;
        }
        let balances = decode_balances(result)
            .map_err(|error| violation(format!("the answer of T{id} is a {error}")))?;
        let total: i64 = balances.iter().map(|(_, balance)| balance).sum();
        // Read-only calls may be answered from a snapshot, too, unless reads are strict.
        let is_before = match operation.end {
            End::Read { version, .. } | End::Committed { version, .. } => version < opened_at,
            _ => false,
        };
        let expected = if is_before { 0 } else { bank.total() };
        if total != expected as i64 {
            let story = format!(
                "T{id} (client {}, {:?}, at {}) found {total} in all accounts, not {expected}",
                operation.client, operation.how, operation.node
            );
            return Err(violation(story));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::CallKind;
    use pangea_core::codec::Writer;
    use pangea_core::guarantee::Isolation;
    use pangea_core::ids::{NodeId, SnapshotVersion, TxnId};
    use pangea_core::time::Timestamp;
    use pangea_core::workload::{Call, Settings};

    fn audit(balances: &[(u32, i64)]) -> History {
        let call = Call {
            procedure: "bank_audit",
            args: Default::default(),
            label: "audit",
            is_read_only: true,
        };
        let mut result = Vec::new();
        result.put_varint(balances.len() as u64);
        for &(account, balance) in balances {
            result.put_varint(account.into());
            result.put_u64(balance as u64);
        }
        let end = End::Read { version: SnapshotVersion(1), result };
        let invoked = Timestamp::default();
        let (node, how) = (NodeId(0), CallKind::Snapshot);
        let (level, ended) = (Isolation::Serializable, Some(invoked));
        let audit = Operation { client: 0, node, how, level, call, invoked, ended, end };
        History { operations: vec![audit] }
    }

    /// Bank workload, seed 2610 with clients that work for 100 ms: a full stop rolled a node back
    /// to a state before the load, which it had not logged yet. There an audit that was sent as a
    /// program found no money.
    #[test]
    fn an_audit_before_the_accounts_are_opened_finds_nothing_however_it_is_asked_for() {
        let bank = Bank::new(&Settings { accounts: 2, ..Settings::default() }).unwrap();
        let load = Call {
            procedure: "bank_load",
            args: Default::default(),
            label: "load",
            is_read_only: false,
        };
        let txn = TxnId::default();
        let committed = |version, result| End::Committed { txn, version, result };
        let mut history = audit(&[]);
        let result = history.operations[0].result().expect("the audit was answered").to_vec();
        history.operations[0].end = committed(SnapshotVersion(0), result);
        let mut opening = history.operations[0].clone();
        opening.call = load;
        opening.end = committed(SnapshotVersion(1), Vec::new());
        assert!(
            check(&bank, &history).is_err(),
            "an opening without time is before no other operation"
        );
        history.operations.push(opening);
        assert_eq!(check(&bank, &history), Ok(()));
    }

    #[test]
    fn an_audit_that_misses_half_of_a_transfer_is_caught() {
        let bank = Bank::new(&Settings { accounts: 2, ..Settings::default() }).unwrap();
        assert_eq!(check(&bank, &audit(&[(0, 90), (1, 110)])), Ok(()));
        let story = check(&bank, &audit(&[(0, 90), (1, 100)])).unwrap_err().story;
        assert!(story.contains("found 190") && story.contains("not 200"), "{story}");
    }
}
