//! Shared code of tests of whole runs.

use pangea_core::protocol::Protocol;
use pangea_sim::{Report, Settings, run};

/// Runs settings that must pass: no violation, and at least one commit.
pub fn clean<P: Protocol>(settings: &Settings, options: &P::Options) -> Report {
    let report = run::<P>(settings, options).unwrap();
    assert!(report.violation.is_none(), "{options:?}: {report}");
    assert!(report.counts.committed > 0, "{report}");
    report
}
