//! The expressions of `\set`: numbers, texts, variables, operators and functions.
//!
//! ```text
//!   joined  = sum { "||" sum }
//!   sum     = product { ("+" | "-") product }
//!   product = factor { ("*" | "/" | "%") factor }
//!   factor  = "-" factor | number | 'text' | :variable | name "(" joined, .. ")" | "(" joined ")"
//!           | true | false | null
//! ```

use super::draw::{self, Draw, Function};
use super::value::Value;

/// The maximum nesting depth of parentheses, functions and signs.
const DEPTH_MAX: usize = 50;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    Value(Value),
    /// The value of a slot.
    Variable(usize),
    Negative(Box<Self>),
    Binary(Operator, Box<Self>, Box<Self>),
    Call(Function, Vec<Self>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Join,
}

impl Expression {
    /// Parses an expression. `slot` resolves a variable, or returns the error if it does not exist.
    ///
    /// # Errors
    /// The expected and the actual input.
    pub fn parse(
        text: &str,
        slot: &mut dyn FnMut(&str) -> Result<usize, String>,
    ) -> Result<Self, String> {
        let words = words(text)?;
        let mut parser = Parser { words, at: 0, depth: 0, slot };
        let expression = parser.joined()?;
        match parser.peek() {
            None => Ok(expression),
            Some(word) => Err(format!("expected an operator or the end, found {}", word.shown())),
        }
    }

    /// Evaluates the expression.
    ///
    /// # Errors
    /// The part that cannot be computed.
    pub fn evaluate(&self, draw: &mut Draw) -> Result<Value, String> {
        match self {
            Self::Value(value) => Ok(value.clone()),
            Self::Variable(slot) => Ok(draw.values[*slot].clone()),
            Self::Negative(of) => match of.evaluate(draw)? {
                Value::Double(value) => Ok(Value::Double(-value)),
                other => {
                    let negative = other.int()?.checked_neg();
                    negative.map(Value::Int).ok_or_else(|| out_of_range("-"))
                }
            },
            Self::Binary(operator, left, right) => {
                let (left, right) = (left.evaluate(draw)?, right.evaluate(draw)?);
                operator.apply(left, right)
            }
            Self::Call(function, arguments) => {
                let arguments: Result<Vec<Value>, String> =
                    arguments.iter().map(|it| it.evaluate(draw)).collect();
                function.call(&arguments?, draw)
            }
        }
    }
}

fn out_of_range(operator: &str) -> String {
    format!("{operator}: the result exceeds 64 bits")
}

impl Operator {
    fn shown(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
            Self::Join => "||",
        }
    }

    /// As in pgbench: the result of two integers is an integer, otherwise a double.
    fn apply(self, left: Value, right: Value) -> Result<Value, String> {
        let place = |error: String| format!("{}: {error}", self.shown());
        if self == Self::Join {
            return Ok(match (left, right) {
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                (left, right) => Value::Text(format!("{left}{right}")),
            });
        }
        if let (Value::Int(left), Value::Int(right)) = (&left, &right) {
            let (left, right) = (*left, *right);
            if right == 0 && matches!(self, Self::Divide | Self::Remainder) {
                return Err(place("division by zero".to_owned()));
            }
            let result = match self {
                Self::Add => left.checked_add(right),
                Self::Subtract => left.checked_sub(right),
                Self::Multiply => left.checked_mul(right),
                Self::Divide => left.checked_div(right),
                Self::Remainder => left.checked_rem(right),
                Self::Join => unreachable!("it is handled above"),
            };
            return result.map(Value::Int).ok_or_else(|| out_of_range(self.shown()));
        }
        let (left, right) = (left.double().map_err(place)?, right.double().map_err(place)?);
        Ok(Value::Double(match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide => left / right,
            Self::Remainder => left % right,
            Self::Join => unreachable!("it is handled above"),
        }))
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Word {
    Value(Value),
    Variable(String),
    Name(String),
    Sign(&'static str),
}

impl Word {
    fn shown(&self) -> String {
        match self {
            Self::Value(Value::Text(text)) => format!("'{text}'"),
            Self::Value(value) => value.to_string(),
            Self::Variable(name) => format!(":{name}"),
            Self::Name(name) => name.clone(),
            Self::Sign(sign) => format!("`{sign}`"),
        }
    }
}

const SIGNS: [&str; 9] = ["||", "(", ")", ",", "+", "-", "*", "/", "%"];

fn words(text: &str) -> Result<Vec<Word>, String> {
    let (mut words, mut at) = (Vec::new(), 0);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let len = |is_part: fn(char) -> bool| {
            rest[1..].find(|c| !is_part(c)).map_or(rest.len(), |end| end + 1)
        };
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if c.is_whitespace() {
            at += c.len_utf8();
        } else if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            words.push(Word::Sign(sign));
            at += sign.len();
        } else if c == '\'' {
            let end =
                super::scan::quoted(text, at).map_err(|what| format!("{what} is not terminated"));
            let end = end?.expect("a string begins here");
            let inner = text[at + 1..end - 1].replace("''", "'");
            words.push(Word::Value(Value::Text(inner)));
            at = end;
        } else if c == ':' && len(is_of_name) > 1 {
            let end = len(is_of_name);
            words.push(Word::Variable(rest[1..end].to_owned()));
            at += end;
        } else if c.is_ascii_digit() || c == '.' {
            let end = number_len(rest);
            words.push(Word::Value(number(&rest[..end])?));
            at += end;
        } else if c.is_ascii_alphabetic() || c == '_' {
            let end = len(is_of_name);
            words.push(Word::Name(rest[..end].to_owned()));
            at += end;
        } else {
            return Err(format!(
                "expected a number, a string, a variable or a function, found {c:?}"
            ));
        }
    }
    Ok(words)
}

/// Returns the length of the number at the start of a text: digits, a point, an exponent.
fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let follows_e = at > 0 && matches!(bytes[at - 1], b'e' | b'E');
        match byte {
            b'0'..=b'9' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'_' => at += 1,
            b'+' | b'-'
                if follows_e && bytes[..at - 1].iter().all(|b| !b.is_ascii_alphabetic()) =>
            {
                at += 1;
            }
            _ => break,
        }
    }
    at
}

fn number(word: &str) -> Result<Value, String> {
    match Value::of_word(word) {
        Value::Text(_) => Err(format!("expected a number, found {word}")),
        number => Ok(number),
    }
}

struct Parser<'a> {
    words: Vec<Word>,
    at: usize,
    depth: usize,
    slot: &'a mut dyn FnMut(&str) -> Result<usize, String>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Word> {
        self.words.get(self.at)
    }

    fn next(&mut self) -> Option<Word> {
        let word = self.words.get(self.at).cloned();
        self.at += 1;
        word
    }

    fn takes(&mut self, sign: &str) -> bool {
        let is_it = matches!(self.peek(), Some(Word::Sign(found)) if *found == sign);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, sign: &str, what: &str) -> Result<(), String> {
        if self.takes(sign) {
            return Ok(());
        }
        let found = self.peek().map_or_else(|| "the end".to_owned(), Word::shown);
        Err(format!("expected {what}, found {found}"))
    }

    fn joined(&mut self) -> Result<Expression, String> {
        self.chain(&[("||", Operator::Join)], Self::sum)
    }

    fn sum(&mut self) -> Result<Expression, String> {
        self.chain(&[("+", Operator::Add), ("-", Operator::Subtract)], Self::product)
    }

    fn product(&mut self) -> Result<Expression, String> {
        let operators =
            [("*", Operator::Multiply), ("/", Operator::Divide), ("%", Operator::Remainder)];
        self.chain(&operators, Self::factor)
    }

    fn chain(
        &mut self,
        operators: &[(&'static str, Operator)],
        part: fn(&mut Self) -> Result<Expression, String>,
    ) -> Result<Expression, String> {
        let mut left = part(self)?;
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.takes(sign)) {
            let right = part(self)?;
            left = Expression::Binary(*operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn factor(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} nested parentheses and signs"));
        }
        let factor = self.factor_within();
        self.depth -= 1;
        factor
    }

    fn factor_within(&mut self) -> Result<Expression, String> {
        match self.next() {
            Some(Word::Value(value)) => Ok(Expression::Value(value)),
            Some(Word::Variable(name)) => (self.slot)(&name).map(Expression::Variable),
            Some(Word::Sign("-")) => Ok(Expression::Negative(Box::new(self.factor()?))),
            Some(Word::Sign("(")) => {
                let inner = self.joined()?;
                self.expect(")", "an operator or `)`")?;
                Ok(inner)
            }
            Some(Word::Name(name)) => self.named(&name),
            found => {
                let found = found.map_or_else(|| "the end".to_owned(), |word| word.shown());
                Err(format!("expected a number, a string, a variable or a function, found {found}"))
            }
        }
    }

    fn named(&mut self, name: &str) -> Result<Expression, String> {
        let word = match name.to_ascii_lowercase().as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            "null" => Some(Value::Null),
            _ => None,
        };
        if let Some(value) = word {
            return Ok(Expression::Value(value));
        }
        let function = Function::named(name).ok_or_else(|| {
            let known = draw::FUNCTIONS.iter().map(|(name, ..)| *name);
            pangea_sweep::plan_error::unknown("function", name, known)
        })?;
        self.expect("(", &format!("`(` after {name}"))?;
        let mut arguments = Vec::new();
        if !self.takes(")") {
            loop {
                arguments.push(self.joined()?);
                if self.takes(")") {
                    break;
                }
                self.expect(",", "an operator, `,` or `)`")?;
            }
        }
        function.check_count(arguments.len())?;
        Ok(Expression::Call(function, arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Value, String> {
        let known = |name: &str| if name == "x" { Ok(0) } else { Err(format!("no {name}")) };
        let expression = Expression::parse(text, &mut { known })?;
        expression.evaluate(&mut Draw::new(vec![Value::Int(7)], 1, 3, 0))
    }

    #[test]
    fn operators_bind_as_in_sql_and_integers_stay_integers() {
        for (text, expected) in [
            ("1 + 2 * 3", Value::Int(7)),
            ("(1 + 2) * 3 - -4", Value::Int(13)),
            ("7 / 2", Value::Int(3)),
            ("7 / 2.0", Value::Double(3.5)),
            ("10 - 3 - 2", Value::Int(5)),
            ("-:x % 4", Value::Int(-3)),
            ("1e3", Value::Double(1_000.0)),
            ("'item ' || :x + 1 || ''''", Value::Text("item 8'".to_owned())),
            ("null || 'a'", Value::Null),
            ("greatest(1, :x, 3)", Value::Int(7)),
            ("abs(-2.5)", Value::Double(2.5)),
            ("sequence()", Value::Int(3)),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_was_expected() {
        for (text, said) in [
            ("", "expected a number, a string, a variable or a function, found the end"),
            ("1 +", "found the end"),
            ("1 2", "expected an operator or the end, found 2"),
            ("(1", "expected an operator or `)`, found the end"),
            ("random(1, 2", "expected an operator, `,` or `)`, found the end"),
            ("random_zipf(1, 2, 1)", "did you mean \"random_zipfian\"?"),
            ("random(1)", "random takes 2 arguments"),
            ("random", "expected `(` after random"),
            (":y", "no y"),
            ("'a", "the string is not terminated"),
            ("1 ? 2", "found '?'"),
            ("12ab", "expected a number, found 12ab"),
            ("1 / 0", "/: division by zero"),
            ("'a' + 1", "+: expected a number, found the string 'a'"),
            ("9223372036854775807 + 1", "exceeds 64 bits"),
            ("random(3, 1)", "random: the range 3 to 1 is empty"),
        ] {
            let error = value(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        let deep = "(".repeat(60);
        assert!(value(&deep).unwrap_err().contains("nested parentheses"));
    }
}
