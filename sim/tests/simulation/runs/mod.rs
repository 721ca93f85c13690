//! What tests of whole runs have in common.

use pangea_core::protocol::Protocol;
use pangea_sim::{Report, Settings, run};

/// A run that must end well: nothing is wrong, something was done, and all that replicas say to
/// each other makes sense.
pub fn clean<P: Protocol>(settings: &Settings, options: &P::Options) -> Report {
    let report = run::<P>(settings, options).unwrap();
    assert!(report.violation.is_none(), "{options:?}: {report}");
    assert!(report.counts.committed > 0, "{report}");
    assert_eq!(report.counts.nonsense(), None, "{report}");
    report
}
