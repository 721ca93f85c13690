//! Expressions as PostgreSQL prints them in plans.

use std::collections::BTreeMap;

use crate::expr::arithmetic::Arithmetic;
use crate::expr::arrays::{ArrayFunction, Test};
use crate::expr::enums::EnumFunction;
use crate::expr::functions::Function;
use crate::expr::query::Aggregate;
use crate::expr::regexes::RegexFunction;
use crate::expr::temporal::Temporal;
use crate::expr::{Binary, Comparison, Expr, SequenceCall, Unary, signatures};
use crate::relational::{INIT_SEQUENCE_FIRST, init_plan_of};
use crate::sequence::Used;
use crate::syntax::quoted_name;
use crate::types::datum::Datum;
use crate::types::zone::Zone;
use crate::types::{ColumnType, SqlType, text};
use crate::vocabulary::aggregate::AggregateKind;

/// The displayed text and, if known, the type of each column, by its name in DataFusion.
pub(crate) type Known = BTreeMap<String, (String, Option<SqlType>)>;

/// The names of columns and sequences in expressions.
pub(crate) struct Names<'a> {
    /// Columns of the row, by position.
    pub columns: Vec<String>,
    pub sequences: &'a [Used],
    /// Columns of outer queries, by their names in DataFusion.
    pub outer: &'a Known,
    pub zone: &'a Zone,
}

/// Formats a type as in a cast.
pub(crate) fn type_name(base: SqlType) -> String {
    ColumnType::from(base).to_string()
}

/// Formats a constant of a type, if the type is known.
pub(crate) fn constant(datum: &Datum, base: Option<SqlType>, zone: &Zone) -> String {
    if let Some(number) = init_plan_of(datum) {
        return format!("${number}");
    }
    let of_value = match datum {
        Datum::Null | Datum::Bool(_) => SqlType::Bool,
        Datum::Int(value) if i32::try_from(*value).is_ok() => SqlType::Int4,
        Datum::Int(_) => SqlType::Int8,
        Datum::Float(_) => SqlType::Float8,
        Datum::Numeric(_) => SqlType::Numeric,
        Datum::Text(_) => SqlType::Text,
        Datum::Bytea(_) => SqlType::Bytea,
        Datum::Date(_) => SqlType::Date,
        Datum::Timestamp(_) => SqlType::Timestamptz,
        Datum::Time(_) => SqlType::Time,
        Datum::Interval(_) => SqlType::Interval,
        Datum::Uuid(_) => SqlType::Uuid,
        Datum::Jsonb(_) => SqlType::Jsonb,
        // The type of an enum comes from the context.
        Datum::Enum(_) => SqlType::Text,
        Datum::Array(_) => SqlType::Array(crate::types::Element::TEXT),
    };
    let base = base.filter(|base| *base != SqlType::Unknown).unwrap_or(of_value);
    match datum {
        Datum::Null => format!("NULL::{}", type_name(base)),
        Datum::Bool(value) => value.to_string(),
        Datum::Int(value @ 0..) if base.is_integer() && i32::try_from(*value).is_ok() => {
            value.to_string()
        }
        Datum::Numeric(_) if !text::format(base, datum, zone).starts_with('-') => {
            text::format(base, datum, zone)
        }
        datum => {
            let base = if base.is_integer() { of_value } else { base };
            let shown = text::format(base, datum, zone).replace('\'', "''");
            format!("'{shown}'::{}", type_name(base))
        }
    }
}

fn comparison(op: Comparison) -> &'static str {
    match op {
        Comparison::Equal => "=",
        Comparison::NotEqual => "<>",
        Comparison::Less => "<",
        Comparison::LessOrEqual => "<=",
        Comparison::Greater => ">",
        Comparison::GreaterOrEqual => ">=",
    }
}

fn arithmetic(op: Arithmetic) -> &'static str {
    match op {
        Arithmetic::Add => "+",
        Arithmetic::Subtract => "-",
        Arithmetic::Multiply => "*",
        Arithmetic::Divide => "/",
        Arithmetic::Remainder => "%",
        Arithmetic::BitAnd => "&",
        Arithmetic::BitOr => "|",
        Arithmetic::BitXor => "#",
    }
}

fn like(is_negated: bool, is_case_blind: bool) -> &'static str {
    match (is_negated, is_case_blind) {
        (false, false) => "~~",
        (false, true) => "~~*",
        (true, false) => "!~~",
        (true, true) => "!~~*",
    }
}

/// Converts a name like `DateTruncate` to `date_truncate`, for functions without a name of their
/// own.
fn snake(name: &str) -> String {
    let word: String = name.chars().take_while(char::is_ascii_alphanumeric).collect();
    let mut shown = String::with_capacity(word.len() + 4);
    for (at, c) in word.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            shown.push('_');
        }
        shown.push(c.to_ascii_lowercase());
    }
    shown
}

impl Names<'_> {
    /// Formats an expression of a type, if the type is known.
    #[recursive::recursive]
    pub(crate) fn shown(&self, expr: &Expr, base: Option<SqlType>) -> String {
        match expr {
            Expr::Const(datum) => constant(datum, base, self.zone),
            Expr::Column(at) => {
                self.columns.get(*at).cloned().unwrap_or_else(|| format!("column{}", at + 1))
            }
            Expr::Param(at) => format!("${}", at + 1),
            Expr::Outer(id, _) => {
                let name = id.physical_name();
                self.outer.get(&name).map_or(name, |(shown, _)| shown.clone())
            }
            Expr::Aggregate(_) | Expr::Window(_) | Expr::Rows(..) => "?".to_owned(),
            Expr::Subquery(_) => "(SubPlan)".to_owned(),
            Expr::Unary(op, operand) => self.unary(*op, operand),
            Expr::Binary(op, left, right) => self.binary(*op, expr, left, right),
            Expr::In { operand, list, is_negated } => self.list(operand, list, *is_negated),
            Expr::Case(branches, otherwise) => {
                let mut shown = "CASE".to_owned();
                for (when, then) in branches {
                    let (when, then) = (self.shown(when, None), self.shown(then, base));
                    shown.push_str(&format!(" WHEN {when} THEN {then}"));
                }
                shown.push_str(&format!(" ELSE {} END", self.shown(otherwise, base)));
                shown
            }
            Expr::Coalesce(list) => format!("COALESCE({})", self.all(list, base)),
            Expr::Call(function, args) => self.call(*function, args),
            Expr::Sequence(call, at, args) => self.sequence(*call, *at, args),
        }
    }

    /// Formats a list of expressions.
    pub(crate) fn all(&self, list: &[Expr], base: Option<SqlType>) -> String {
        let shown: Vec<String> = list.iter().map(|item| self.shown(item, base)).collect();
        shown.join(", ")
    }

    fn unary(&self, op: Unary, operand: &Expr) -> String {
        let inner = |base| self.shown(operand, base);
        match op {
            Unary::Not => format!("(NOT {})", inner(None)),
            Unary::Negate(base) => format!("(- {})", inner(Some(base))),
            Unary::IsNull { is_negated } => {
                format!("({} IS {}NULL)", inner(None), if is_negated { "NOT " } else { "" })
            }
            Unary::IsTruth { value, is_negated } => {
                let not = if is_negated { "NOT " } else { "" };
                let value = match value {
                    Some(true) => "TRUE",
                    Some(false) => "FALSE",
                    None => "UNKNOWN",
                };
                format!("({} IS {not}{value})", inner(None))
            }
            Unary::TrimBlanks => inner(None),
            Unary::Cast { from, to, .. } if from.is_integer() && to.base.is_integer() => {
                inner(Some(from))
            }
            Unary::Cast { from, to, .. } => match operand {
                Expr::Const(Datum::Text(_)) if from == SqlType::Unknown || from.is_string() => {
                    inner(Some(to.base))
                }
                Expr::Const(datum) if !datum.is_null() => {
                    let shown = text::format(from, datum, self.zone).replace('\'', "''");
                    format!("'{shown}'::{to}")
                }
                _ => format!("({})::{to}", inner(Some(from))),
            },
        }
    }

    fn binary(&self, op: Binary, whole: &Expr, left: &Expr, right: &Expr) -> String {
        let infix = |sign: &str, bases: (Option<SqlType>, Option<SqlType>)| {
            format!("({} {sign} {})", self.shown(left, bases.0), self.shown(right, bases.1))
        };
        let both = |base: SqlType| (Some(base), Some(base));
        match op {
            Binary::And => {
                let parts = whole.conjuncts();
                let shown: Vec<String> = parts.iter().map(|it| self.shown(it, None)).collect();
                format!("({})", shown.join(" AND "))
            }
            Binary::Or => {
                let mut parts = Vec::new();
                let mut rest = vec![whole];
                while let Some(part) = rest.pop() {
                    match part {
                        Expr::Binary(Binary::Or, left, right) => rest.extend([&**right, &**left]),
                        part => parts.push(self.shown(part, None)),
                    }
                }
                format!("({})", parts.join(" OR "))
            }
            Binary::Compare(op, base) => infix(comparison(op), both(base)),
            Binary::IsDistinct { is_negated: false } => infix("IS DISTINCT FROM", (None, None)),
            Binary::IsDistinct { is_negated: true } => {
                format!("(NOT {})", infix("IS DISTINCT FROM", (None, None)))
            }
            Binary::Arithmetic(op, base) => infix(arithmetic(op), both(base)),
            Binary::Concat => infix("||", (None, None)),
            Binary::ShiftDate { is_backwards } => {
                infix(if is_backwards { "-" } else { "+" }, (Some(SqlType::Date), None))
            }
            Binary::DaysBetween => infix("-", both(SqlType::Date)),
            Binary::Temporal(op) => match op {
                Temporal::Later(base) => infix("+", (Some(base), Some(SqlType::Interval))),
                Temporal::Earlier(base) => infix("-", (Some(base), Some(SqlType::Interval))),
                Temporal::Between => infix("-", (None, None)),
                Temporal::Multiply => infix("*", (None, None)),
                Temporal::Divide => infix("/", (None, None)),
            },
        }
    }

    /// Formats `IN` like PostgreSQL, as a test against an array.
    fn list(&self, operand: &Expr, list: &[Expr], is_negated: bool) -> String {
        let (sign, which) = if is_negated { ("<>", "ALL") } else { ("=", "ANY") };
        let operand = self.shown(operand, None);
        let constants = list.iter().map(|item| match item {
            Expr::Const(datum) if init_plan_of(datum).is_none() => Some(datum.clone()),
            _ => None,
        });
        let array = match constants.collect::<Option<Vec<Datum>>>() {
            Some(items) => array_of(items, self.zone),
            None => format!("ARRAY[{}]", self.all(list, None)),
        };
        format!("({operand} {sign} {which} ({array}))")
    }

    fn call(&self, function: Function, args: &[Expr]) -> String {
        let infix = |sign: &str| {
            let (left, right) = (self.shown(&args[0], None), self.shown(&args[1], None));
            format!("({left} {sign} {right})")
        };
        match (function, args) {
            (Function::Like { is_negated, is_case_blind }, [_, _]) => {
                infix(like(is_negated, is_case_blind))
            }
            (Function::Array(ArrayFunction::Quantified { test, is_all }), [operand, array]) => {
                let sign = match test {
                    Test::Compare(op) => comparison(op),
                    Test::Like { is_negated, is_case_blind } => like(is_negated, is_case_blind),
                };
                let which = if is_all { "ALL" } else { "ANY" };
                let (operand, array) = (self.shown(operand, None), self.shown(array, None));
                format!("({operand} {sign} {which} ({array}))")
            }
            (Function::Regex(RegexFunction::Matches { is_negated, is_case_blind }), [_, _]) => {
                infix(like(is_negated, is_case_blind).replacen("~~", "~", 1).as_str())
            }
            (Function::Enum(EnumFunction::Value), [value, ..]) => self.shown(value, None),
            (Function::Array(ArrayFunction::Make), items) => {
                format!("ARRAY[{}]", self.all(items, None))
            }
            (Function::Array(ArrayFunction::Contains), [_, _]) => infix("@>"),
            (Function::Array(ArrayFunction::IsContained), [_, _]) => infix("<@"),
            (Function::Array(ArrayFunction::Overlaps), [_, _]) => infix("&&"),
            (Function::Greatest, items) => format!("GREATEST({})", self.all(items, None)),
            (Function::Least, items) => format!("LEAST({})", self.all(items, None)),
            (Function::Today, []) => "CURRENT_DATE".to_owned(),
            (Function::Extract(_), [Expr::Const(Datum::Text(field)), from]) => {
                format!("EXTRACT({field} FROM {})", self.shown(from, None))
            }
            (function, args) => {
                let name = signatures::name_of(function).map(str::to_owned);
                let name = name.unwrap_or_else(|| snake(&format!("{function:?}")));
                format!("{name}({})", self.all(args, None))
            }
        }
    }

    fn sequence(&self, call: SequenceCall, at: usize, args: &[Expr]) -> String {
        if let Some(number) = at.checked_sub(INIT_SEQUENCE_FIRST) {
            return format!("${number}");
        }
        let name = self.sequences.get(at).map(|used| quoted_name(&used.name)).unwrap_or_default();
        let name = format!("'{}'::regclass", name.replace('\'', "''"));
        match call {
            SequenceCall::Next => format!("nextval({name})"),
            SequenceCall::Current => format!("currval({name})"),
            SequenceCall::Last => "lastval()".to_owned(),
            SequenceCall::Set => format!("setval({name}, {})", self.all(args, None)),
        }
    }

    /// Formats an aggregate over columns of this row.
    pub(crate) fn aggregate(&self, aggregate: &Aggregate) -> String {
        let args: Vec<String> =
            aggregate.args.iter().map(|(arg, base)| self.shown(arg, Some(*base))).collect();
        let args = if args.is_empty() { "*".to_owned() } else { args.join(", ") };
        let distinct = if aggregate.is_distinct { "DISTINCT " } else { "" };
        let mut shown = format!("{}({distinct}{args}", kind_name(aggregate.kind));
        let order: Vec<String> =
            aggregate.order.iter().map(|(expr, base)| self.shown(expr, Some(*base))).collect();
        if !order.is_empty() {
            shown.push_str(&format!(" ORDER BY {}", order.join(", ")));
        }
        shown.push(')');
        if let Some(filter) = &aggregate.filter {
            shown.push_str(&format!(" FILTER (WHERE {})", self.shown(filter, None)));
        }
        shown
    }
}

/// `'{1,2}'::integer[]`
fn array_of(items: Vec<Datum>, zone: &Zone) -> String {
    let base = match items.iter().find(|item| !item.is_null()) {
        Some(Datum::Int(_)) => {
            let fits = |item: &Datum| match item {
                Datum::Int(value) => i32::try_from(*value).is_ok(),
                _ => true,
            };
            if items.iter().all(fits) { SqlType::Int4 } else { SqlType::Int8 }
        }
        Some(Datum::Float(_)) => SqlType::Float8,
        Some(Datum::Numeric(_)) => SqlType::Numeric,
        Some(Datum::Bool(_)) => SqlType::Bool,
        Some(Datum::Date(_)) => SqlType::Date,
        Some(Datum::Timestamp(_)) => SqlType::Timestamptz,
        Some(Datum::Time(_)) => SqlType::Time,
        Some(Datum::Interval(_)) => SqlType::Interval,
        Some(Datum::Uuid(_)) => SqlType::Uuid,
        _ => SqlType::Text,
    };
    let base = base.array().unwrap_or(SqlType::Text);
    constant(&Datum::array(items), Some(base), zone)
}

fn kind_name(kind: AggregateKind) -> &'static str {
    match kind {
        AggregateKind::Count => "count",
        AggregateKind::Sum => "sum",
        AggregateKind::Avg => "avg",
        AggregateKind::Min => "min",
        AggregateKind::Max => "max",
        AggregateKind::And => "bool_and",
        AggregateKind::Or => "bool_or",
        AggregateKind::BitAnd => "bit_and",
        AggregateKind::BitOr => "bit_or",
        AggregateKind::BitXor => "bit_xor",
        AggregateKind::Spread { is_sample: true, is_root: true } => "stddev",
        AggregateKind::Spread { is_sample: false, is_root: true } => "stddev_pop",
        AggregateKind::Spread { is_sample: true, is_root: false } => "variance",
        AggregateKind::Spread { is_sample: false, is_root: false } => "var_pop",
        AggregateKind::Array => "array_agg",
        AggregateKind::Text => "string_agg",
        AggregateKind::Json { is_binary: false } => "json_agg",
        AggregateKind::Json { is_binary: true } => "jsonb_agg",
        AggregateKind::Object { is_binary: false } => "json_object_agg",
        AggregateKind::Object { is_binary: true } => "jsonb_object_agg",
    }
}
