//! Rows survive a round trip through every format.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::error::SqlError;
use crate::syntax;
use crate::types::SqlType;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::vocabulary::column::OutputColumn;

/// Parses the options of a COPY FROM.
pub(super) fn options(with: &str) -> Options {
    let with = if with.is_empty() { String::new() } else { format!("with ({with})") };
    statement(&format!("copy t from stdin {with}")).unwrap()
}

fn statement(text: &str) -> Result<Options, SqlError> {
    let parsed = syntax::parse(text)?.remove(0);
    Ok((**parsed.copy.as_ref().unwrap()).clone())
}

const TYPES: [SqlType; 4] = [SqlType::Int4, SqlType::Text, SqlType::Bytea, SqlType::Float8];

fn targets(types: &[SqlType]) -> Arc<[Target]> {
    let target = |(at, base): (usize, &SqlType)| Target {
        name: format!("c{at}"),
        ty: (*base).into(),
        is_never_null: false,
        is_null_quoted: false,
    };
    types.iter().enumerate().map(target).collect()
}

/// Returns the output of COPY TO.
fn written(options: &Options, types: &[SqlType], rows: &[Vec<Datum>]) -> Messages {
    let columns = targets(types);
    let columns = columns.iter().map(|it| OutputColumn::new(&it.name, it.ty));
    let quoted = vec![false; types.len()];
    let options = Arc::new(options.clone());
    let mut writer = RowWriter::new(options, columns.collect(), quoted, Zone::default());
    let mut all = Messages::default();
    let mut take = |write: &mut dyn FnMut(&mut Messages)| {
        let mut some = Messages::default();
        write(&mut some);
        assert_eq!(some.ends.last().copied().unwrap_or(0), some.bytes.len(), "messages are whole");
        all.bytes.extend(some.bytes);
    };
    take(&mut |out| writer.begin(out));
    rows.iter().for_each(|row| take(&mut |out| writer.row(row, out)));
    take(&mut |out| writer.finish(out));
    all
}

/// Returns the rows that COPY FROM reads from chunks of `size` bytes.
fn read(
    options: &Options,
    types: &[SqlType],
    bytes: &[u8],
    size: usize,
) -> Result<Vec<Vec<Datum>>, SqlError> {
    let mut reader = RowReader::new("t", Arc::new(options.clone()), targets(types));
    let (zone, mut rows) = (Zone::default(), Vec::new());
    for piece in bytes.chunks(size) {
        reader.push(piece);
        while let Some(row) = reader.next(&zone)? {
            rows.push(row);
        }
    }
    reader.end();
    while let Some(row) = reader.next(&zone)? {
        rows.push(row);
    }
    Ok(rows)
}

const FORMATS: [&str; 6] = [
    "",
    "format csv",
    "format binary",
    "format csv, header, null 'nil', quote '''', escape '!', delimiter ';'",
    "delimiter '|', null '', header match",
    "format csv, delimiter E'\\t', escape E'\\\\'",
];

fn text() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec![
        "\n", "\r", "\t", "\\", "\\.", "\\N", "\"", "'", "!", ",", ";", "|", "nil", "", "é", "x",
        "\u{8}", "\u{b}",
    ]);
    prop_oneof![
        prop::collection::vec(special, 0..6).prop_map(|parts| parts.concat()),
        "[^\u{0}]{0,8}",
    ]
}

fn row() -> impl Strategy<Value = Vec<Datum>> {
    let or_null =
        |datum: BoxedStrategy<Datum>| prop_oneof![1 => Just(Datum::Null), 4 => datum].boxed();
    let int = any::<i32>().prop_map(|int| Datum::Int(int.into())).boxed();
    let bytea = any::<Vec<u8>>().prop_map(Datum::Bytea).boxed();
    let float = any::<f32>().prop_filter("a number", |it| it.is_finite());
    let float = float.prop_map(|it| Datum::Float(it.into())).boxed();
    let columns = (
        or_null(int),
        or_null(text().prop_map(Datum::Text).boxed()),
        or_null(bytea),
        or_null(float),
    );
    columns.prop_map(|(a, b, c, d)| vec![a, b, c, d])
}

proptest! {
    #[test]
    fn rows_are_read_as_they_were_written(
        rows in prop::collection::vec(row(), 0..6),
        size in 1usize..50,
    ) {
        for with in FORMATS {
            let options = options(with);
            let messages = written(&options, &TYPES, &rows);
            let has_empty = !with.contains("null ''");
            let expected = if has_empty { rows.clone() } else { empty_as_null(&rows) };
            let found = read(&options, &TYPES, &messages.bytes, size);
            prop_assert_eq!(found, Ok(expected), "{}", with);
        }
    }

    #[test]
    fn one_text_is_read_as_it_was_written(values in prop::collection::vec(text(), 1..4)) {
        for with in ["", "format csv", "format binary"] {
            let options = options(with);
            let rows: Vec<_> = values.iter().map(|it| vec![Datum::Text(it.clone())]).collect();
            let messages = written(&options, &[SqlType::Text], &rows);
            prop_assert_eq!(read(&options, &[SqlType::Text], &messages.bytes, 3), Ok(rows));
        }
    }

    #[test]
    fn arbitrary_bytes_are_rows_or_an_error(bytes: Vec<u8>, size in 1usize..9) {
        for with in FORMATS {
            let options = options(with);
            if let Err(error) = read(&options, &TYPES, &bytes, size) {
                let is_data = error.code.as_str().starts_with("22");
                prop_assert!(is_data || error.code.as_str() == "08P01", "{}: {}", with, error);
            }
        }
    }
}

/// With the empty string as NULL, the text format can't represent empty strings.
fn empty_as_null(rows: &[Vec<Datum>]) -> Vec<Vec<Datum>> {
    let or_null = |datum: &Datum| match datum {
        Datum::Text(text) if text.is_empty() => Datum::Null,
        other => other.clone(),
    };
    rows.iter().map(|row| row.iter().map(or_null).collect()).collect()
}

#[test]
fn an_error_shows_as_much_as_postgresql_does() {
    let context = |with: &str, types: &[SqlType], data: &[u8]| {
        let error = read(&options(with), types, data, 4).unwrap_err();
        (error.code.to_string(), error.context.unwrap_or_default())
    };
    let reported = |code: &str, context: &str| (code.to_owned(), context.to_owned());
    let ints = [SqlType::Int4, SqlType::Int4];
    let long = "é".repeat(60);
    let shown = format!("COPY t, line 1, column c0: \"{}...\"", "é".repeat(50));
    assert_eq!(context("", &ints, long.as_bytes()), reported("22P02", &shown));
    assert_eq!(context("", &ints, b"1\t2\n\xff"), reported("22021", "COPY t, line 2"));
    assert_eq!(context("", &ints, b"1\t2\n1\0"), reported("22021", "COPY t, line 2"));
    let missing = "COPY t, line 2: \"1\"";
    assert_eq!(context("", &ints, b"1\t2\n1\n"), reported("22P04", missing));
    let binary = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x04\0\0\0\x01\0\0\0\x02\0\x01";
    let column = "COPY t, line 1, column c1";
    assert_eq!(context("format binary", &ints, binary), reported("22P03", column));
}

#[test]
fn the_old_syntax_says_the_same_as_the_new() {
    let pairs = [
        ("copy t from stdin csv header", "copy t from stdin with (format csv, header)"),
        ("COPY t FROM STDIN WITH CSV", "copy t from stdin (FORMAT 'csv')"),
        ("copy binary t from stdin", "copy t from stdin (format binary)"),
        ("copy t from stdin using delimiters '|'", "copy t from stdin (delimiter '|')"),
        (
            "copy t from stdin with delimiter as ';' null as 'x' csv quote as '''' escape '!'",
            "copy t from stdin (format csv, delimiter ';', null 'x', quote '''', escape '!')",
        ),
        (
            "copy t to stdout csv force quote a, \"B\"",
            "copy t to stdout (format csv, force_quote (a, \"B\"))",
        ),
        ("copy t to stdout csv force quote *", "copy t to stdout (format csv, force_quote *)"),
        (
            "copy t from stdin csv force not null a force null b encoding 'utf-8'",
            "copy t from stdin (format csv, force_not_null (a), force_null (b))",
        ),
        ("copy t from stdin freeze", "copy t from stdin (freeze, header false)"),
    ];
    for (old, new) in pairs {
        assert_eq!(statement(old), statement(new), "{old}");
    }
    for wrong in ["copy t from stdin where a > 1", "copy t from stdin (encoding 'latin1')"] {
        let error = statement(wrong).unwrap_err();
        assert_eq!(error.code.as_str(), "0A000", "{wrong}");
    }
    for wrong in [
        "copy",
        "copy t",
        "copy t from",
        "copy (select 1) to",
        "copy t to stdout (",
        "copy t to stdout csv x",
    ] {
        let error = statement(wrong).unwrap_err();
        assert_eq!(error.code.as_str(), "42601", "{wrong}");
    }
}
