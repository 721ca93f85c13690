//! The bundled plans: each can be parsed, and each of its figures has runs.
//!
//! A test of `pangea` checks that their options are those of `pangea bench`.

use std::path::Path;

use pangea_sweep::{Plan, points, series};

#[test]
fn every_ready_plan_has_runs_and_figures_that_they_are_in() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plans");
    let mut names = Vec::new();
    for file in std::fs::read_dir(&directory).expect("plans/ is at the root") {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let plan = Plan::parse(&text).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        let points = points::expand(&plan).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        assert!(!plan.figures.is_empty(), "{name} draws nothing");
        assert!(!plan.note.is_empty(), "{name} does not say how it differs from the paper");
        for figure in &plan.figures {
            let checked = series::check(figure, &points);
            checked.unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        }
        names.push(name);
    }
    names.sort();
    let of_the_paper = ["figure-10", "figure-11", "figure-12", "figure-6", "figure-7", "figure-8"];
    for name in of_the_paper.into_iter().chain(["figure-9", "table-1", "quick"]) {
        assert!(names.iter().any(|it| it == name), "{name} is not among {names:?}");
    }
}
