//! What must hold of the outcomes of all workloads: no transaction number names two commits, and
//! the final rows contain what was acknowledged.

use std::collections::BTreeMap;

use pangea_core::ids::TxnId;
use pangea_core::workload::commits::CallOutcome;
use pangea_core::workload::{Ledger, Report, Rows, Workload};

use super::Violation;
use crate::history::{End, History};

/// Calls with this label load the tables. The conditions count from the load on.
const LOAD: &str = "load";

/// Checks that no two committed operations have the same transaction number. Reads of a snapshot
/// take no place in the order and have the number 0.
pub fn check_numbers(history: &History) -> Result<(), Violation> {
    let mut first: BTreeMap<TxnId, usize> = BTreeMap::new();
    for (at, operation) in history.operations.iter().enumerate() {
        let End::Committed { txn, .. } = operation.end else { continue };
        let is_numbered = txn.sequence() != 0;
        if let Some(other) = first.insert(txn, at).filter(|_| is_numbered) {
            let story = format!("T{other} and T{at} have both committed as transaction {txn}");
            return Err(Violation::new("numbers", "numbers", story));
        }
    }
    Ok(())
}

/// Checks the final rows, of which `report` tells, against the acknowledged commits.
pub fn check_rows(
    workload: &Workload,
    history: &History,
    rows: &dyn Rows,
    report: &Report,
) -> Result<(), Violation> {
    let (mut ledger, watch) = (Ledger::default(), workload.watch());
    for operation in history.operations.iter().filter(|it| it.call.label != LOAD) {
        let fate = match (&operation.end, operation.ended) {
            (End::Committed { .. } | End::Read { .. }, Some(ended)) => {
                CallOutcome::Committed { at: ended.us }
            }
            (End::Committed { .. } | End::Read { .. }, None) | (End::Ambiguous | End::Open, _) => {
                CallOutcome::Unknown
            }
            (End::Aborted(_) | End::Refused, _) => continue,
        };
        if let (CallOutcome::Committed { .. }, Some(result)) = (fate, operation.result()) {
            ledger.add_result(operation.call.label, result);
        }
        let (label, began) = (operation.call.label, operation.invoked.us);
        ledger.add(label, &watch.written(&operation.call), began, fate);
    }
    let checked = workload.check_commits(report, rows, &ledger.commits());
    checked.map_err(|violation| Violation::new("workload", "commits", violation.to_string()))
}

#[cfg(test)]
mod tests {
    use pangea_core::guarantee::Isolation;
    use pangea_core::ids::{NodeId, SnapshotVersion};
    use pangea_core::time::Timestamp;
    use pangea_core::workload::{Call, Settings, model::Model};

    use super::*;
    use crate::history::{CallKind, Operation};

    fn operation(label: &'static str, end: End) -> Operation {
        let call = Call { procedure: "p", args: Default::default(), label, is_read_only: false };
        let (invoked, node, how) = (Timestamp::default(), NodeId(0), CallKind::Ordered);
        let level = Isolation::Serializable;
        Operation { client: 0, node, how, level, call, invoked, ended: Some(invoked), end }
    }

    fn committed(sequence: u64) -> End {
        let (txn, version) = (TxnId::new(NodeId(1), sequence), SnapshotVersion(1));
        End::Committed { txn, version, result: Vec::new() }
    }

    #[test]
    fn a_number_names_one_commit() {
        let history = |numbers: &[u64]| History {
            operations: numbers.iter().map(|number| operation("p", committed(*number))).collect(),
        };
        assert_eq!(check_numbers(&history(&[1, 2, 3])), Ok(()));
        assert_eq!(check_numbers(&history(&[0, 0])), Ok(()), "reads have no number");
        let story = check_numbers(&history(&[1, 2, 1])).unwrap_err().story;
        assert!(story.contains("T0 and T2"), "{story}");
    }

    #[test]
    fn a_commit_that_is_not_among_the_rows_is_found() {
        let settings = Settings { customers: 2, hot: 2, ..Settings::default() };
        let workload = Workload::named("smallbank", &settings).unwrap();
        let registry = pangea_core::txn::Registry::new(pangea_core::workload::procedures());
        let mut model = Model::default();
        for call in workload.load_calls() {
            let procedure = registry.id(call.procedure).and_then(|id| registry.procedure(id));
            model.run(procedure.unwrap(), &call.args).unwrap();
        }
        let report = workload.check(&model).unwrap();
        let check = |end| {
            let history = History { operations: vec![operation("deposit", end)] };
            check_rows(&workload, &history, &model, &report)
        };
        assert_eq!(check(End::Refused), Ok(()));
        assert_eq!(check(End::Ambiguous), Ok(()));
        assert_eq!(check(committed(1)).unwrap_err().anomaly, "commits");
    }
}
