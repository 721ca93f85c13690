//! Faults of clocks in whole runs.

use pangea_core::time::{Span, Timestamp};
use pangea_protocols::minerva::Minerva;
use pangea_sim::Settings;
use pangea_sim::faults::{Fault, Rule, Target};
use pangea_sim::history::End;

use crate::runs::clean;

/// Minerva ends epochs by timers. While all clocks stand still, it ends none; timers that were set
/// before or meanwhile expire afterwards.
#[test]
fn no_timer_expires_while_clocks_stand_still_and_none_is_lost() {
    let rule = |node| {
        let fault = Fault::ClockFreeze { node: Target::Node(node) };
        Rule { at_ms: 1_000, lasts_ms: 2_000, fault }
    };
    let settings = Settings {
        rules: Some((0..3).map(rule).collect()),
        duration: Span::from_ms(4_000),
        ..Settings::default()
    };
    let report = clean::<Minerva>(&settings, &Default::default());
    assert_eq!(report.counts.faults.get("clock-freeze"), Some(&3), "{report}");
    let operations = &report.history.operations;
    let began = operations.iter().map(|operation| operation.invoked).min().unwrap();
    let committed = |from_ms, to_ms| {
        let (from, to) = (began + Span::from_ms(from_ms), began + Span::from_ms(to_ms));
        let is_within = |at: &Timestamp| (from..to).contains(at);
        let is_committed = |end: &End| matches!(end, End::Committed { .. });
        let ended = operations.iter().filter(|operation| is_committed(&operation.end));
        ended.filter_map(|operation| operation.ended).filter(is_within).count()
    };
    assert!(committed(0, 1_000) > 0, "{report}");
    assert_eq!(committed(2_000, 3_000), 0, "{report}");
    assert!(committed(3_000, 4_500) > 0, "{report}");
}
