//! Tests of the key encoding: bytes sort like columns, decoding inverts encoding, and no input
//! panics.

use std::cmp::Ordering;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// A column's value, with PostgreSQL's comparison.
#[derive(Clone, Debug)]
enum Value {
    Bool(bool),
    I16(i16),
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
    /// Sign, digits and scale of a number, which can also be compared as an integer in units of
    /// 10^-20.
    Numeric(bool, Vec<u8>, i32),
    Special(Special),
    Text(String),
    Bytea(Vec<u8>),
    Uuid([u8; 16]),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Special {
    NegativeInfinity,
    Infinity,
    NaN,
}

#[derive(Clone, Copy, Debug)]
struct Column {
    kind: u8,
    order: Order,
    nulls: Option<Nulls>,
}

const KINDS: u8 = 10;
const UNITS_EXPONENT: i32 = 20;

fn units(is_negative: bool, digits: &[u8], scale: i32) -> i128 {
    let integer = digits.iter().fold(0_i128, |sum, &digit| sum * 10 + i128::from(digit));
    let units = integer * 10_i128.pow((UNITS_EXPONENT - scale) as u32);
    if is_negative { -units } else { units }
}

/// PostgreSQL's float comparison: NaN equals NaN and is greater than every number.
fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn rank(special: Special) -> i32 {
    match special {
        Special::NegativeInfinity => -1,
        Special::Infinity => 1,
        Special::NaN => 2,
    }
}

impl Value {
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::I16(a), Self::I16(b)) => a.cmp(b),
            (Self::I32(a), Self::I32(b)) => a.cmp(b),
            (Self::I64(a), Self::I64(b)) => a.cmp(b),
            (Self::F32(a), Self::F32(b)) => compare_floats(f64::from(*a), f64::from(*b)),
            (Self::F64(a), Self::F64(b)) => compare_floats(*a, *b),
            (Self::Numeric(an, ad, a_scale), Self::Numeric(bn, bd, b_scale)) => {
                units(*an, ad, *a_scale).cmp(&units(*bn, bd, *b_scale))
            }
            (Self::Special(a), Self::Special(b)) => rank(*a).cmp(&rank(*b)),
            (Self::Special(a), Self::Numeric(..)) => rank(*a).cmp(&0),
            (Self::Numeric(..), Self::Special(b)) => 0.cmp(&rank(*b)),
            (Self::Text(a), Self::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Self::Bytea(a), Self::Bytea(b)) => a.cmp(b),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            _ => unreachable!("values of a column have the same type"),
        }
    }

    fn decimal(&self) -> Decimal {
        match self {
            Self::Numeric(is_negative, digits, scale) => {
                Decimal::from_digits(*is_negative, digits, *scale).unwrap()
            }
            Self::Special(Special::NegativeInfinity) => Decimal::NEGATIVE_INFINITY,
            Self::Special(Special::Infinity) => Decimal::INFINITY,
            Self::Special(Special::NaN) => Decimal::NAN,
            _ => unreachable!("not a numeric"),
        }
    }

    fn put(&self, order: Order, encoder: &mut KeyEncoder) {
        match self {
            Self::Bool(value) => encoder.put_bool(*value, order),
            Self::I16(value) => encoder.put_i16(*value, order),
            Self::I32(value) => encoder.put_i32(*value, order),
            Self::I64(value) => encoder.put_i64(*value, order),
            Self::F32(value) => encoder.put_f32(*value, order),
            Self::F64(value) => encoder.put_f64(*value, order),
            Self::Numeric(..) | Self::Special(_) => encoder.put_numeric(&self.decimal(), order),
            Self::Text(value) => encoder.put_text(value, order),
            Self::Bytea(value) => encoder.put_bytea(value, order),
            Self::Uuid(value) => encoder.put_uuid(*value, order),
        }
    }
}

fn is_same_value(kind: u8, order: Order, expected: &Value, decoder: &mut KeyDecoder<'_>) -> bool {
    let read = match kind {
        0 => Value::Bool(decoder.bool(order).unwrap()),
        1 => Value::I16(decoder.i16(order).unwrap()),
        2 => Value::I32(decoder.i32(order).unwrap()),
        3 => Value::I64(decoder.i64(order).unwrap()),
        4 => Value::F32(decoder.f32(order).unwrap()),
        5 => Value::F64(decoder.f64(order).unwrap()),
        6 => return decoder.numeric(order).unwrap() == expected.decimal(),
        7 => Value::Text(decoder.text(order).unwrap()),
        8 => Value::Bytea(decoder.bytea(order).unwrap()),
        _ => Value::Uuid(decoder.uuid(order).unwrap()),
    };
    read.compare(expected) == Ordering::Equal
}

/// Values of one type, so similar that many are equal or share a prefix.
fn value(kind: u8) -> BoxedStrategy<Value> {
    let floats = [0.0, -0.0, 1.5, -1.5, f64::MAX, f64::MIN, f64::NAN, -f64::NAN];
    let floats = select([&floats[..], &[f64::INFINITY, f64::NEG_INFINITY, 5e-324]].concat());
    let bytes = prop::collection::vec(select(vec![0_u8, 1, 2, 127, 254, 255]), 0..5);
    match kind {
        0 => any::<bool>().prop_map(Value::Bool).boxed(),
        1 => prop_oneof![any::<i16>(), -1..=1_i16, Just(i16::MIN), Just(i16::MAX)]
            .prop_map(Value::I16)
            .boxed(),
        2 => prop_oneof![any::<i32>(), -1..=1, Just(i32::MIN), Just(i32::MAX)]
            .prop_map(Value::I32)
            .boxed(),
        3 => prop_oneof![any::<i64>(), -1..=1_i64, Just(i64::MIN), Just(i64::MAX)]
            .prop_map(Value::I64)
            .boxed(),
        4 => prop_oneof![any::<u32>().prop_map(f32::from_bits), floats.prop_map(|f| f as f32)]
            .prop_map(Value::F32)
            .boxed(),
        5 => {
            prop_oneof![any::<u64>().prop_map(f64::from_bits), floats].prop_map(Value::F64).boxed()
        }
        6 => numeric(),
        7 => "[\0\u{1}ab\u{e9}\u{10ffff}]{0,4}".prop_map(Value::Text).boxed(),
        8 => bytes.prop_map(Value::Bytea).boxed(),
        _ => prop_oneof![any::<[u8; 16]>(), Just([0; 16]), Just([255; 16])]
            .prop_map(Value::Uuid)
            .boxed(),
    }
}

fn numeric() -> BoxedStrategy<Value> {
    let digits = prop_oneof![
        prop::collection::vec(0..=9_u8, 0..=12),
        prop::collection::vec(select(vec![0_u8, 9, 1]), 0..=5),
    ];
    let number = (any::<bool>(), digits, -6..=20_i32)
        .prop_map(|(is_negative, digits, scale)| Value::Numeric(is_negative, digits, scale));
    let specials = vec![Special::NegativeInfinity, Special::Infinity, Special::NaN];
    prop_oneof![9 => number, 1 => select(specials).prop_map(Value::Special)].boxed()
}

fn column() -> impl Strategy<Value = Column> {
    let orders = select(vec![Order::Ascending, Order::Descending]);
    let nulls = select(vec![None, Some(Nulls::First), Some(Nulls::Last)]);
    (0..KINDS, orders, nulls).prop_map(|(kind, order, nulls)| Column { kind, order, nulls })
}

fn cell(column: Column) -> BoxedStrategy<Option<Value>> {
    match column.nulls {
        None => value(column.kind).prop_map(Some).boxed(),
        Some(_) => prop::option::of(value(column.kind)).boxed(),
    }
}

type Row = Vec<Option<Value>>;

fn two_rows() -> impl Strategy<Value = (Vec<Column>, Row, Row)> {
    prop::collection::vec(column(), 1..4).prop_flat_map(|columns| {
        let row = columns.iter().map(|&column| cell(column)).collect::<Vec<_>>();
        // Half of the columns of the second row repeat the first row's, so that later columns
        // matter.
        let other = (row.clone(), prop::collection::vec(any::<bool>(), columns.len()));
        (Just(columns), row, other).prop_map(|(columns, first, (second, repeats))| {
            let pick = |((a, b), repeat): ((&Option<Value>, Option<Value>), bool)| {
                if repeat { a.clone() } else { b }
            };
            let second = first.iter().zip(second).zip(repeats).map(pick).collect();
            (columns, first, second)
        })
    })
}

fn compare_cells(column: Column, a: &Option<Value>, b: &Option<Value>) -> Ordering {
    let null_against_value = match column.nulls {
        Some(Nulls::First) => Ordering::Less,
        _ => Ordering::Greater,
    };
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => null_against_value,
        (Some(_), None) => null_against_value.reverse(),
        (Some(a), Some(b)) if column.order == Order::Descending => b.compare(a),
        (Some(a), Some(b)) => a.compare(b),
    }
}

fn compare_rows(columns: &[Column], a: &Row, b: &Row) -> Ordering {
    let cells = columns.iter().zip(a.iter().zip(b));
    cells
        .map(|(&column, (a, b))| compare_cells(column, a, b))
        .find(|&ordering| ordering != Ordering::Equal)
        .unwrap_or(Ordering::Equal)
}

fn encode(columns: &[Column], row: &Row) -> Key {
    let mut encoder = KeyEncoder::new();
    for (column, cell) in columns.iter().zip(row) {
        if let Some(nulls) = column.nulls {
            encoder.put_marker(cell.is_none(), nulls);
        }
        if let Some(value) = cell {
            value.put(column.order, &mut encoder);
        }
    }
    encoder.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn keys_sort_like_their_columns((columns, a, b) in two_rows()) {
        let expected = compare_rows(&columns, &a, &b);
        prop_assert_eq!(encode(&columns, &a).cmp(&encode(&columns, &b)), expected);
    }

    #[test]
    fn columns_are_read_as_they_were_written((columns, row, _) in two_rows()) {
        let key = encode(&columns, &row);
        let mut decoder = KeyDecoder::new(&key);
        for (column, cell) in columns.iter().zip(&row) {
            if let Some(nulls) = column.nulls {
                prop_assert_eq!(decoder.is_null(nulls).unwrap(), cell.is_none());
            }
            if let Some(value) = cell {
                prop_assert!(is_same_value(column.kind, column.order, value, &mut decoder));
            }
        }
        prop_assert!(decoder.finish().is_ok());
    }

    #[test]
    fn a_key_that_is_cut_short_is_an_error((columns, row, _) in two_rows(), cut: usize) {
        let key = encode(&columns, &row);
        let key = &key[..cut % key.len()];
        prop_assert!(reencode(&columns, key).is_none(), "a part of a key is not a key");
    }

    #[test]
    fn what_decodes_encodes_to_the_same_bytes(
        columns in prop::collection::vec(column(), 1..4),
        bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), 0..7_u8, 249..=255_u8, 120..136_u8], 0..20),
    ) {
        if let Some((again, rest)) = reencode(&columns, &bytes) {
            prop_assert_eq!(&bytes[..bytes.len() - rest], &again[..]);
        }
    }

    #[test]
    fn a_decimal_is_written_as_it_can_be_read(number in numeric()) {
        let decimal = number.decimal();
        prop_assert_eq!(decimal.to_string().parse(), Ok(decimal));
    }
}

/// Decodes `bytes` and encodes the result again. Also returns the number of bytes left.
fn reencode(columns: &[Column], bytes: &[u8]) -> Option<(Key, usize)> {
    let mut decoder = KeyDecoder::new(bytes);
    let mut encoder = KeyEncoder::new();
    for column in columns {
        if let Some(nulls) = column.nulls {
            let is_null = decoder.is_null(nulls).ok()?;
            encoder.put_marker(is_null, nulls);
            if is_null {
                continue;
            }
        }
        let order = column.order;
        match column.kind {
            0 => encoder.put_bool(decoder.bool(order).ok()?, order),
            1 => encoder.put_i16(decoder.i16(order).ok()?, order),
            2 => encoder.put_i32(decoder.i32(order).ok()?, order),
            3 => encoder.put_i64(decoder.i64(order).ok()?, order),
            4 => encoder.put_f32(decoder.f32(order).ok()?, order),
            5 => encoder.put_f64(decoder.f64(order).ok()?, order),
            6 => encoder.put_numeric(&decoder.numeric(order).ok()?, order),
            7 => encoder.put_text(&decoder.text(order).ok()?, order),
            8 => encoder.put_bytea(&decoder.bytea(order).ok()?, order),
            _ => encoder.put_uuid(decoder.uuid(order).ok()?, order),
        }
    }
    Some((encoder.finish(), decoder.rest().len()))
}

#[test]
fn numerics_of_every_size_sort_by_value() {
    let huge = format!("1{}", "0".repeat(131_071));
    let tiny = format!("0.{}1", "0".repeat(16_382));
    // Includes the exponents at which the encoding changes from one byte to five.
    let [e100, e101, e102] = [99, 100, 101].map(|zeros| format!("1{}", "0".repeat(zeros)));
    let [f100, f101, f102] = [100, 101, 102].map(|zeros| format!("0.{}1", "0".repeat(zeros)));
    let ascending = [
        "-Infinity",
        &format!("-{huge}"),
        "-100.01",
        "-100.0",
        "-99",
        "-1",
        "-0.1",
        "-0.011",
        &format!("-{tiny}"),
        "0.000",
        &tiny,
        &f102,
        &f101,
        &f100,
        "0.011",
        "0.0110001",
        "0.1",
        "1",
        "1.0000000000000000000000000000000000000001",
        "9.99",
        "10",
        &e100,
        &e101,
        &e102,
        &huge,
        "Infinity",
        "NaN",
    ];
    let encode = |text: &str, order| {
        let mut encoder = KeyEncoder::new();
        encoder.put_numeric(&text.parse().unwrap(), order);
        encoder.finish()
    };
    for text in ascending {
        let key = encode(text, Order::Descending);
        let read = KeyDecoder::new(&key).numeric(Order::Descending);
        assert_eq!(read, Ok(text.parse().unwrap()), "{text:.20}");
    }
    for pair in ascending.windows(2) {
        for (order, expected) in
            [(Order::Ascending, Ordering::Less), (Order::Descending, Ordering::Greater)]
        {
            let (a, b) = (encode(pair[0], order), encode(pair[1], order));
            assert_eq!(a.cmp(&b), expected, "{:.20} {:.20} {order:?}", pair[0], pair[1]);
        }
    }
}

#[test]
fn numbers_beyond_postgresql_and_words_are_refused() {
    let too_large = format!("1{}", "0".repeat(131_072));
    let too_fine = format!("0.{}1", "0".repeat(16_383));
    for text in ["", "-", ".", "1e5", " 1", "1,0", "nan", "--1", "1.2.3", &too_large, &too_fine] {
        assert_eq!(text.parse::<Decimal>(), Err(DecimalError), "{text:.20}");
    }
    assert_eq!("-.5".parse(), Decimal::from_digits(true, &[5], 1));
    assert_eq!("+7.".parse(), Decimal::from_digits(false, &[7, 0], 1));
    assert_eq!(Decimal::from_digits(false, &[10], 0), Err(DecimalError));
    assert_eq!("-0.00".parse(), Ok(Decimal::ZERO));
}

#[test]
fn a_prefix_of_columns_is_a_prefix_of_the_key() {
    let mut encoder = KeyEncoder::new();
    encoder.put_text("a", Order::Ascending);
    let prefix = encoder.clone();
    encoder.put_i16(-1, Order::Ascending);
    let range = crate::key::KeyRange::prefix(prefix.as_bytes());
    assert!(range.contains(&encoder.finish()));
    let mut longer = KeyEncoder::new();
    longer.put_text("ab", Order::Ascending);
    assert!(!range.contains(longer.as_bytes()), "another string is not in the prefix's range");
}
