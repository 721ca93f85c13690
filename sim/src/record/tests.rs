//! Tests that files are read back as they were written, and that errors name their lines.

use super::read::read;
use super::write::write;
use super::*;

const SAMPLE: &str = concat!(
    r#"{"client":1,"begin":0,"end":9,"outcome":"committed","ops":["#,
    r#"{"append":{"key":"x","value":1}},{"read":{"key":"x","value":[1]}}]}"#,
    "\n",
    r#"{"client":"b","begin":-5,"outcome":"unknown","ops":["#,
    r#"{"write":{"key":3,"value":"a"}},{"read":{"key":3}}]}"#,
    "\n\n",
    r#"{"client":2,"begin":3,"end":4,"outcome":"committed","real_time":false,"at":7,"#,
    r#""level":"snapshot-isolation","note":"old","ops":["#,
    r#"{"scan":{"from":1,"to":9,"rows":[[3,"a"]]}},{"delete":{"key":3}},"#,
    r#"{"read":{"key":3,"value":null}}]}"#,
    "\n",
    r#"{"client":2,"begin":9,"end":9,"outcome":"committed","final":true,"#,
    r#""ops":[{"scan":{"rows":[]}}]}"#,
    "\n"
);

fn error(text: &str) -> String {
    read(&mut text.as_bytes(), &mut |_| {}).expect_err(text).to_string()
}

#[test]
fn what_is_written_is_read_back() {
    let mut bytes = 0;
    let first = read(&mut SAMPLE.as_bytes(), &mut |so_far| bytes = so_far).unwrap();
    assert_eq!(bytes, SAMPLE.len() as u64);
    let ids: Vec<usize> = first.txns.iter().map(|txn| txn.id).collect();
    assert_eq!(ids, [1, 2, 4, 5], "transactions have the numbers of their lines");
    assert_eq!(first.txns[1].ops.len(), 1, "a read without a value has no constraint");
    assert!(first.txns[3].is_final);
    assert_eq!(first.txns[2].level, Some(Isolation::Snapshot));
    assert_eq!(first.txns[3].level, None);
    let mut text = Vec::new();
    write(&first, &mut text).unwrap();
    let again = read(&mut &text[..], &mut |_| {}).unwrap();
    let without_ids = |recorded: &Recorded| -> Vec<Txn> {
        recorded.txns.iter().map(|txn| Txn { id: 0, ..txn.clone() }).collect()
    };
    assert_eq!(without_ids(&again), without_ids(&first));
    assert_eq!(again.names.atoms, first.names.atoms);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let good = concat!(
        r#"{"client":1,"begin":0,"end":9,"outcome":"committed","#,
        r#""ops":[{"append":{"key":"x","value":1}}]}"#
    );
    let line = |ops: &str| {
        format!(r#"{{"client":2,"begin":1,"end":2,"outcome":"committed","ops":[{ops}]}}"#)
    };
    for (second, words) in [
        (good[..40].to_owned(), &["line 2", "the object is incomplete", "truncated"][..]),
        ("nonsense".to_owned(), &["line 2", "column", "one JSON object for each line"]),
        ("\u{1}".to_owned(), &["line 2"]),
        (
            good.replace("{\"client", "{\"level\":\"strict\",\"client"),
            &["line 2", "unknown isolation level", "snapshot-isolation"],
        ),
        (good.replace("begin", "start"), &["unknown field `start`", "expected one of", "`begin`"]),
        (good.replace("\"client\":1,", ""), &["missing field `client`"]),
        (good.replace("committed", "done"), &["unknown variant `done`", "`aborted`"]),
        (good.replace(r#""end":9,"#, ""), &["has no end", "unknown"]),
        (good.replace("9", "-1"), &["ends at -1", "before its begin at 0"]),
        (good.replace("9", "1.5"), &["floating point", "expected i64"]),
        (good.to_owned(), &["line 2", "duplicate append of 1 to \"x\"", "already in line 1"]),
        (line(r#"{"write":{"key":"x","value":2}}"#), &["key \"x\" is a register", "in line 1"]),
        (line(r#"{"push":{"key":"x","value":2}}"#), &["unknown variant `push`", "`append`"]),
        (line(r#"{"append":{"key":"x","v":2}}"#), &["unknown field `v`", "`value`"]),
        (line(r#"{"append":{"key":"x","value":true}}"#), &["boolean", "64-bit integer"]),
        (line(r#"{"append":{"key":"x","value":18446744073709551615}}"#), &["a 64-bit integer"]),
        (line(r#"{"read":{"key":"x"}}"#), &["read of \"x\" has no `value`", "null for no value"]),
        (line(r#"{"scan":{"from":1}}"#), &["no `rows`", "[] for none"]),
        (line(r#"{"scan":{"from":1,"to":5,"rows":[[5,1]]}}"#), &["row 5", "outside its range"]),
        (line(r#"{"scan":{"rows":[[5,1],[5,2]]}}"#), &["row 5 twice"]),
        (
            line(r#"{"delete":{"key":"y"}}"#).replace("\"ops\"", "\"final\":true,\"ops\""),
            &["final", "only read"],
        ),
        (good.replace("1}", "2}").repeat(2), &["line 2", "trailing characters"]),
        (good.replace(":0,", ":\"0\","), &["string \"0\"", "expected i64"]),
        (good.replace(":1,\"begin", ":[1],\"begin"), &["sequence", "expected a 64-bit integer"]),
        (good.replace("\"committed\"", "true"), &["expected an outcome"]),
        (good.replace("[{", "{").replace("}]", "}"), &["invalid type: map", "expected a sequence"]),
        (line("7"), &["expected", "one operation"]),
        (line(r#"{"append":{"value":2}}"#), &["missing field `key`"]),
        (line(r#"{"append":{"key":"x"}}"#), &["missing field `value`"]),
        (line(r#"{"append":{"key":"x","value":null}}"#), &["null", "expected a 64-bit integer"]),
        (line(r#"{"read":{"key":"x","value":{}}}"#), &["map", "expected the result of a read"]),
        (line(r#"{"read":{"key":"x","value":[[1]]}}"#), &["sequence", "expected a 64-bit integer"]),
        (line(r#"{"scan":{"rows":[[5]]}}"#), &["invalid length 1", "expected"]),
        (line(r#"{"scan":{"rows":[5]}}"#), &["integer `5`", "expected"]),
        (
            line(r#"{"delete":{"key":"y"},"read":{"key":"y","value":1}}"#),
            &["expected", "one operation"],
        ),
    ] {
        let text = format!("{good}\n{second}\n");
        let error = error(&text);
        for word in words.iter().chain(&["line 2"]) {
            assert!(error.contains(word), "{word:?} does not occur in: {error}");
        }
    }
    let twice = line(r#"{"write":{"key":"r","value":7}}"#);
    let error = error(&format!("{twice}\n\n{twice}"));
    assert!(
        error.starts_with("line 3: duplicate write of 7 to \"r\", already in line 1"),
        "{error}"
    );
}

#[test]
fn bytes_that_are_no_text_are_an_error_and_no_input_is_an_empty_history() {
    let garbage: &[u8] = &[0xff, 0xfe, b'\n'];
    assert!(read(&mut &*garbage, &mut |_| {}).unwrap_err().to_string().starts_with("line 1: "));
    assert!(read(&mut &b""[..], &mut |_| {}).unwrap().txns.is_empty());
}
