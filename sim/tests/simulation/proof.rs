//! Checks docs/PROOF.md against the code.

use pangea_core::planted::Bug;

#[test]
fn the_table_of_planted_bugs_has_them_all() {
    let text = include_str!("../../../docs/PROOF.md");
    let (_, rest) = text.split_once("<!-- planted: begin -->").expect("the begin of the table");
    let (table, _) = rest.split_once("<!-- planted: end -->").expect("the end of the table");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), Bug::ALL.len(), "rewrite the table: see docs/PROOF.md");
    for bug in Bug::ALL {
        let row = format!("| `{bug}` | {} |", bug.mistake());
        assert!(rows.iter().any(|line| line.starts_with(&row)), "{row} is missing");
    }
}
