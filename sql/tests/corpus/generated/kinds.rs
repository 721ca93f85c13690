//! The types of generated values, and the templates of expressions of each type.

/// A type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `boolean`
    Bool,
    /// `integer`
    Int,
    /// `bigint`
    Big,
    /// `numeric`
    Numeric,
    /// `double precision`. Values are sums of few powers of two, and therefore exact in any order
    Float,
    /// `text`
    Text,
    /// `date`
    Date,
    /// `timestamp`
    Timestamp,
    /// `interval`
    Interval,
    /// `integer[]`
    Array,
    /// `jsonb`
    Json,
}

use Kind::{Array, Big, Bool, Date, Float, Int, Interval, Json, Numeric, Text, Timestamp};

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 11] =
        [Bool, Int, Big, Numeric, Float, Text, Date, Timestamp, Interval, Array, Json];

    /// Returns values as SQL, none of them NULL.
    pub fn literals(self) -> &'static [&'static str] {
        match self {
            Bool => &["true", "false", "(1 = 1)"],
            Int => &["0", "1", "2", "3", "7", "-1", "(-12)"],
            Big => &["0::bigint", "3::bigint", "5000000000", "'-4'::bigint"],
            Numeric => &["0.0", "1.5", "2.25", "-3.10", "10.00", "numeric '0.001'"],
            Float => &["0.5::float8", "3::float8", "'-1.25'::float8", "0::float8"],
            Text => {
                &["''::text", "'x'::text", "'y'::text", "'zz'::text", "'X y'::text", "'ä'::text"]
            }
            Date => &["date '2024-02-29'", "date '2023-12-31'", "'1999-01-01'::date"],
            Timestamp => &["timestamp '2024-02-29 12:30:00'", "timestamp '2023-12-31 23:59:59.5'"],
            Interval => {
                &["interval '1 day'", "interval '1 month -2 days'", "interval '90 minutes'"]
            }
            Array => &["array[1, 2]", "'{}'::int[]", "array[3, null]", "array[2, 1, 7]"],
            Json => &[
                "'{\"a\": 1, \"b\": [1, 2]}'::jsonb",
                "'[1, \"x\", null]'::jsonb",
                "'3'::jsonb",
                "'{}'::jsonb",
            ],
        }
    }

    /// Returns whether equal values are displayed identically. 1.5 and 1.50 are not, nor 1 day and
    /// 24 hours.
    pub fn is_shown_alike(self) -> bool {
        !matches!(self, Numeric | Float | Interval | Json)
    }

    /// Returns its name, for casts of NULL.
    pub fn name(self) -> &'static str {
        match self {
            Bool => "bool",
            Int => "int",
            Big => "bigint",
            Numeric => "numeric",
            Float => "float8",
            Text => "text",
            Date => "date",
            Timestamp => "timestamp",
            Interval => "interval",
            Array => "int[]",
            Json => "jsonb",
        }
    }
}

/// Templates of expressions: the kind, the text with a hole for each operand, and the kinds of the
/// operands. No template fails for any operand values, so the order of evaluation does not matter.
pub const PARTS: &[(Kind, &str, &[Kind])] = &[
    (Int, "({} + {})", &[Int, Int]),
    (Int, "({} - {})", &[Int, Int]),
    (Int, "({} * 3)", &[Int]),
    (Int, "({} / 4)", &[Int]),
    (Int, "({} % 5)", &[Int]),
    (Int, "(- {})", &[Int]),
    (Int, "abs({})", &[Int]),
    (Int, "({} & {})", &[Int, Int]),
    (Int, "length({})", &[Text]),
    (Int, "strpos({}, {})", &[Text, Text]),
    (Int, "({} - {})", &[Date, Date]),
    (Int, "cardinality({})", &[Array]),
    (Int, "array_position({}, {})", &[Array, Int]),
    (Int, "({})[1]", &[Array]),
    (Int, "{}::int", &[Bool]),
    (Int, "ascii({})", &[Text]),
    (Big, "({} + {})", &[Big, Int]),
    (Big, "({} - {})", &[Int, Big]),
    (Big, "{}::bigint", &[Int]),
    (Big, "({} % 1000)", &[Big]),
    (Numeric, "({} + {})", &[Numeric, Numeric]),
    (Numeric, "({} - {})", &[Numeric, Int]),
    (Numeric, "({} * {})", &[Numeric, Numeric]),
    (Numeric, "({} * {})", &[Int, Numeric]),
    (Numeric, "({} / 4.0)", &[Numeric]),
    (Numeric, "({} % 2.5)", &[Numeric]),
    (Numeric, "round({}, 1)", &[Numeric]),
    (Numeric, "trunc({})", &[Numeric]),
    (Numeric, "floor({})", &[Numeric]),
    (Numeric, "{}::numeric", &[Int]),
    (Numeric, "{}::numeric(20, 2)", &[Numeric]),
    (Numeric, "extract(month from {})", &[Date]),
    (Numeric, "extract(epoch from {})", &[Interval]),
    (Float, "({} + {})", &[Float, Float]),
    (Float, "({} - {})", &[Float, Int]),
    (Float, "({} * 0.5::float8)", &[Float]),
    (Float, "abs({})", &[Float]),
    (Float, "floor({})", &[Float]),
    (Float, "{}::float8", &[Int]),
    (Text, "({} || {})", &[Text, Text]),
    (Text, "({} || {})", &[Text, Int]),
    (Text, "upper({})", &[Text]),
    (Text, "lower({})", &[Text]),
    (Text, "left({}, {})", &[Text, Int]),
    (Text, "substr({}, 2, 3)", &[Text]),
    (Text, "replace({}, 'x', {})", &[Text, Text]),
    (Text, "lpad({}, 3, '*')", &[Text]),
    (Text, "trim({})", &[Text]),
    (Text, "reverse({})", &[Text]),
    (Text, "split_part({}, 'x', 1)", &[Text]),
    (Text, "concat({}, {})", &[Text, Int]),
    (Text, "{}::text", &[Int]),
    (Text, "{}::text", &[Numeric]),
    (Text, "{}::text", &[Float]),
    (Text, "{}::text", &[Bool]),
    (Text, "{}::text", &[Date]),
    (Text, "{}::text", &[Interval]),
    (Text, "{}::text", &[Array]),
    (Text, "({} ->> 'a')", &[Json]),
    (Text, "({} ->> 0)", &[Json]),
    (Text, "{}::text", &[Json]),
    (Text, "jsonb_typeof({})", &[Json]),
    (Text, "to_char({}, 'YYYY-MM-DD HH24:MI')", &[Timestamp]),
    (Text, "array_to_string({}, ',', '-')", &[Array]),
    (Text, "md5({})", &[Text]),
    (Date, "({} + 1)", &[Date]),
    (Date, "({} - {})", &[Date, Int]),
    (Date, "{}::date", &[Timestamp]),
    (Timestamp, "({} + {})", &[Timestamp, Interval]),
    (Timestamp, "({} - {})", &[Timestamp, Interval]),
    (Timestamp, "({} + {})", &[Date, Interval]),
    (Timestamp, "{}::timestamp", &[Date]),
    (Timestamp, "date_trunc('month', {})", &[Timestamp]),
    (Interval, "({} + {})", &[Interval, Interval]),
    (Interval, "(- {})", &[Interval]),
    (Interval, "({} * 2)", &[Interval]),
    (Interval, "({} - {})", &[Timestamp, Timestamp]),
    (Interval, "age({}, {})", &[Timestamp, Timestamp]),
    (Interval, "justify_days({})", &[Interval]),
    (Array, "({} || {})", &[Array, Int]),
    (Array, "({} || {})", &[Array, Array]),
    (Array, "array[{}, {}]", &[Int, Int]),
    (Array, "array_remove({}, {})", &[Array, Int]),
    (Array, "({})[2:3]", &[Array]),
    (Json, "({} -> 'b')", &[Json]),
    (Json, "({} -> 0)", &[Json]),
    (Json, "to_jsonb({})", &[Int]),
    (Json, "to_jsonb({})", &[Text]),
    (Json, "to_jsonb({})", &[Array]),
    (Json, "jsonb_build_object('k', {}, 'l', {})", &[Int, Text]),
    (Json, "jsonb_build_array({}, {})", &[Numeric, Bool]),
    (Bool, "({} and {})", &[Bool, Bool]),
    (Bool, "({} or {})", &[Bool, Bool]),
    (Bool, "(not {})", &[Bool]),
    (Bool, "({} is true)", &[Bool]),
    (Bool, "({} is not false)", &[Bool]),
    (Bool, "({} between {} and {})", &[Int, Int, Int]),
    (Bool, "({} between {} and {})", &[Date, Date, Date]),
    (Bool, "({} in (1, {}, 3))", &[Int, Int]),
    (Bool, "({} not in ('x', {}))", &[Text, Text]),
    (Bool, "({} like '%' || {})", &[Text, Text]),
    (Bool, "({} ilike 'x%')", &[Text]),
    (Bool, "({} ~ '^[xy]')", &[Text]),
    (Bool, "({} = any ({}))", &[Int, Array]),
    (Bool, "({} <> all ({}))", &[Int, Array]),
    (Bool, "({} @> {})", &[Array, Array]),
    (Bool, "({} && {})", &[Array, Array]),
    (Bool, "({} @> {})", &[Json, Json]),
    (Bool, "({} ? 'a')", &[Json]),
    (Bool, "({} < {})", &[Int, Numeric]),
    (Bool, "({} = {})", &[Int, Big]),
    (Bool, "({} >= {})", &[Float, Int]),
    (Bool, "({} < {})", &[Date, Timestamp]),
];

/// Aggregates that do not depend on the order of rows: the kind, the text, and the kind of the
/// argument.
pub const AGGREGATES: &[(Kind, &str, Kind)] = &[
    (Big, "count({})", Int),
    (Big, "count({})", Text),
    (Big, "count(distinct {})", Int),
    (Big, "count(distinct {})", Text),
    (Big, "sum({})", Int),
    (Numeric, "sum({})", Big),
    (Numeric, "sum({})", Numeric),
    (Numeric, "sum(distinct {})", Numeric),
    (Numeric, "avg({})", Int),
    (Numeric, "avg({})", Numeric),
    (Float, "sum({})", Float),
    (Interval, "sum({})", Interval),
    (Int, "min({})", Int),
    (Int, "max({})", Int),
    (Big, "max({})", Big),
    (Numeric, "min({})", Numeric),
    (Float, "max({})", Float),
    (Text, "min({})", Text),
    (Text, "max({})", Text),
    (Date, "max({})", Date),
    (Timestamp, "min({})", Timestamp),
    (Bool, "bool_and({})", Bool),
    (Bool, "bool_or({})", Bool),
];

/// Aggregates with an explicit order. Their argument occurs twice.
pub const ORDERED_AGGREGATES: &[(Kind, &str, Kind)] = &[
    (Text, "string_agg({}, ',' order by {})", Text),
    (Array, "array_agg({} order by {} desc)", Int),
    (Json, "jsonb_agg({} order by {})", Int),
];
