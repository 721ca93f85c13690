//! No step handles an unbounded number of transactions: what is urgent would wait for all of them.

use pangea_core::protocol::Protocol;
use pangea_core::time::Span;
use pangea_protocols::calvin::Calvin;
use pangea_protocols::minerva::Minerva;
use pangea_sim::faults::{Fault, Rule};
use pangea_sim::{RealTime, Settings};

use crate::runs::clean;

/// Nodes that are near each other serve many clients. One connection is cut for two seconds.
fn severed(a: u16, b: u16) -> Settings {
    let fault = Fault::Cut { from: vec![a], to: vec![b], one_way: false };
    Settings {
        rules: Some(vec![Rule { at_ms: 500, lasts_ms: 2_000, fault }]),
        clients_per_node: 30,
        lists: 300,
        one_way_max: Span::from_ms(10),
        duration: Span::from_ms(3_500),
        real_time: RealTime::Writes,
        ..Settings::default()
    }
}

/// B4 of the audit: a replica that lacks the coordinator alone gets all batches and no cuts. When
/// the connection is back, it gets a hundred cuts at once. The simulator reports a step that is
/// longer than its limit, so the runs are clean only if no step is.
fn assert_cuts_are_applied_in_steps<P: Protocol>(options: &P::Options, mark: &str) {
    let mut in_steps = 0;
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let report = clean::<P>(&severed(a, b), options);
        in_steps += report.counts.mark(mark);
        let most = report.counts.step_txns_max;
        assert!(most > 0 && most < 400, "a step with {most} transactions: {report}");
        assert!(format!("{report}").contains(&format!("{most} transactions in one step")));
    }
    assert!(in_steps > 0, "no replica got more cuts at once than a step applies");
}

#[test]
fn minerva_applies_the_cuts_of_two_seconds_in_steps() {
    assert_cuts_are_applied_in_steps::<Minerva>(&Default::default(), "minerva.cuts_in_steps");
}

#[test]
fn calvin_applies_the_cuts_of_two_seconds_in_steps() {
    assert_cuts_are_applied_in_steps::<Calvin>(&Default::default(), "calvin.cuts_in_steps");
}
