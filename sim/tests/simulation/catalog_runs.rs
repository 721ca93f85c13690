//! An index and a changing schema on Minerva under faults. An anomaly that a serializable database
//! would not show is found.

use pangea_core::time::Span;
use pangea_protocols::minerva::{Minerva, Options};
use pangea_sim::check::catalog::check;
use pangea_sim::history::End;
use pangea_sim::{Settings, run};

const SEEDS: u64 = 8;

fn settings(seed: u64, workload: &str) -> Settings {
    let (workload, duration) = (workload.to_owned(), Span::from_ms(4_000));
    Settings { seed, workload, duration, ..Settings::default() }
}

#[test]
fn nobody_sees_half_of_a_schema_change_or_an_index_of_another_table() {
    for workload in ["index", "ddl"] {
        let (mut read, mut altered) = (0, 0);
        for seed in 0..SEEDS {
            let options = Options { checkpoint_bytes: 30_000, ..Options::default() };
            let report = run::<Minerva>(&settings(seed, workload), &options).unwrap();
            assert!(report.violation.is_none(), "{report}");
            for operation in report.history.operations.iter().filter(|op| op.result().is_some()) {
                read += u32::from(operation.call.label == "read");
                altered += u32::from(operation.call.label == "alter");
            }
        }
        assert!(read > 100, "{workload}: {read}");
        assert_eq!(altered > 20, workload == "ddl", "{altered}");
    }
}

#[test]
fn an_answer_that_lacks_an_entry_of_the_index_is_found() {
    let report = run::<Minerva>(&settings(1, "index"), &Options::default()).unwrap();
    let mut history = report.history;
    assert_eq!(check(&history), Ok(()));
    let is_long = |result: &Vec<u8>| result.len() > 8;
    let answer =
        history.operations.iter_mut().filter(|op| op.call.label == "read").find_map(|operation| {
            match &mut operation.end {
                End::Committed { result, .. } | End::Read { result, .. } if is_long(result) => {
                    Some(result)
                }
                _ => None,
            }
        });
    // The last number is the row of the last entry.
    *answer.expect("a client saw rows").last_mut().expect("the answer is long enough") ^= 1;
    let story = check(&history).unwrap_err().story;
    assert!(story.contains("index"), "{story}");
}
