//! How deep a statement's tree is, before there is one, and chains of AND and OR made shallow.
//!
//! Chains such as `a + b + c` are parsed in a loop to a tree as deep as they are long, and every
//! walk over it, its end too, takes stack for each level. So the depth is found from the tokens:
//!
//! ```text
//!   level    what a pair of brackets, or CASE to END, holds; the statement itself
//!   operand  what lies between two of the level's commas, ANDs, ORs, set operations
//!
//!   depth of an operand = its operators and keywords + its deepest level
//!   depth of a level    = its deepest operand + its set operations + its chain of AND and OR
//! ```
//!
//! AND and OR bind less than every other operator, and mean the same however they are grouped: a
//! long chain of them is parsed on a stack of its own, and then grouped as a balanced tree.

use std::convert::Infallible;
use std::mem;
use std::ops::ControlFlow;

use sqlparser::ast::{self, BinaryOperator, Expr, VisitMut, VisitorMut};
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::Postgres;
use crate::error::{SqlError, code};

/// The deepest tree. Threads have 2 MB of stack for a walk over it.
const DEPTH_MAX: usize = 800;

/// Up to so many ANDs and ORs a chain stays as it was parsed.
const CHAIN_MAX: usize = 32;

/// The most ANDs and ORs of a statement, each a level of its tree until that is balanced.
const LINKS_MAX: usize = 100_000;

/// What the end of a tree takes of the stack for each of its levels, at most.
const LEVEL_BYTES: usize = 512;

/// What the parser and the walk that balances take of the stack beside it.
const WALK_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Statement,
    Parenthesis,
    Square,
    Case,
}

/// An open level.
struct Level {
    bracket: Bracket,
    /// Of the operand that is being read: its own operators, and the deepest level in it.
    operators: usize,
    inner: usize,
    /// The deepest operand before it.
    deepest: usize,
    set_operations: usize,
    links: usize,
    /// BETWEENs whose AND is still to come.
    betweens: usize,
}

impl Level {
    fn new(bracket: Bracket) -> Self {
        let (operators, inner, deepest) = (0, 0, 0);
        Self { bracket, operators, inner, deepest, set_operations: 0, links: 0, betweens: 0 }
    }

    fn next_operand(&mut self) {
        let operand = mem::take(&mut self.operators) + mem::take(&mut self.inner);
        self.deepest = self.deepest.max(operand);
        self.betweens = 0;
    }

    fn depth(&self) -> usize {
        let chain = match self.links {
            links @ 0..=CHAIN_MAX => links,
            // Of ORs, and within each of them of ANDs.
            links => 2 * (links.ilog2() as usize + 1),
        };
        self.deepest.max(self.operators + self.inner) + self.set_operations + chain
    }
}

/// From this depth on the parser's own limit may be what ended it. It counts to 50, in its own way.
const PARSER_DEPTH: usize = 20;

/// What the parser takes of the stack at most, to the deepest tree.
const PARSER_BYTES: usize = 64 << 20;

/// How the statement is to be parsed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// Its ANDs and ORs.
    links: usize,
    depth: usize,
}

impl Shape {
    /// Refuses what would be too deep a tree.
    pub(super) fn check(tokens: &[TokenWithSpan]) -> Result<Self, SqlError> {
        let mut levels = Levels::default();
        tokens.iter().for_each(|token| levels.read(&token.token));
        let links = levels.links;
        let depth = levels.depth();
        if depth > DEPTH_MAX || links > LINKS_MAX {
            return Err(too_deep());
        }
        Ok(Self { links, depth })
    }

    /// Whether a statement that the parser refused is one that it would take if it went deeper:
    /// where it tries one thing after another, it forgets that its limit ended the first.
    pub(super) fn is_deeper_than_parsed(
        self,
        dialect: &Postgres,
        tokens: &[TokenWithSpan],
    ) -> bool {
        self.depth >= PARSER_DEPTH
            && stacker::grow(PARSER_BYTES, || {
                let parser = Parser::new(dialect).with_recursion_limit(DEPTH_MAX);
                let mut parser = parser.with_tokens_with_locations(tokens.to_vec());
                parser.parse_statement().is_ok() && parser.peek_token().token == Token::EOF
            })
    }

    /// Parses such a statement with as much stack as it needs.
    pub(super) fn parse<E>(
        self,
        parse: impl FnOnce() -> Result<ast::Statement, E>,
    ) -> Result<ast::Statement, E> {
        if self.links <= CHAIN_MAX {
            return parse();
        }
        let bytes = WALK_BYTES + self.links * LEVEL_BYTES;
        stacker::maybe_grow(bytes, bytes, || {
            let mut statement = parse()?;
            let ControlFlow::Continue(()) = statement.visit(&mut Balance);
            Ok(statement)
        })
    }
}

/// The levels that are open, from the statement inwards.
struct Levels {
    outer: Vec<Level>,
    top: Level,
    links: usize,
}

impl Default for Levels {
    fn default() -> Self {
        Self { outer: Vec::new(), top: Level::new(Bracket::Statement), links: 0 }
    }
}

impl Levels {
    fn read(&mut self, token: &Token) {
        let top = &mut self.top;
        match token {
            Token::LParen => self.open(Bracket::Parenthesis),
            Token::LBracket => self.open(Bracket::Square),
            Token::RParen => self.close(Bracket::Parenthesis),
            Token::RBracket => self.close(Bracket::Square),
            Token::Comma => top.next_operand(),
            Token::Word(word) => match word.keyword {
                Keyword::NoKeyword => {}
                Keyword::CASE => self.open(Bracket::Case),
                Keyword::END => self.close(Bracket::Case),
                Keyword::WHEN | Keyword::THEN | Keyword::ELSE if top.bracket == Bracket::Case => {
                    top.next_operand();
                }
                Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT => {
                    top.next_operand();
                    top.set_operations += 1;
                }
                Keyword::AND if top.betweens > 0 => {
                    top.betweens -= 1;
                    top.operators += 1;
                }
                Keyword::AND | Keyword::OR => {
                    top.next_operand();
                    top.links += 1;
                    self.links += 1;
                }
                keyword => {
                    top.betweens += usize::from(keyword == Keyword::BETWEEN);
                    top.operators += 1;
                }
            },
            Token::Whitespace(_)
            | Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Placeholder(_)
            | Token::Period => {}
            _ => top.operators += 1,
        }
    }

    fn open(&mut self, bracket: Bracket) {
        // As a subscript or an argument list it is an operator too.
        self.top.operators += 1;
        self.outer.push(mem::replace(&mut self.top, Level::new(bracket)));
    }

    /// Ends a level of this kind. Another one stays open: the parser will refuse the statement.
    fn close(&mut self, bracket: Bracket) {
        if self.top.bracket == bracket {
            self.end_top();
        }
    }

    /// Ends the innermost level; whether there was one within the statement.
    fn end_top(&mut self) -> bool {
        let Some(outer) = self.outer.pop() else { return false };
        let inner = mem::replace(&mut self.top, outer);
        self.top.inner = self.top.inner.max(inner.depth());
        true
    }

    /// The whole statement's depth. Levels that nothing ended count too.
    fn depth(mut self) -> usize {
        while self.end_top() {}
        self.top.depth()
    }
}

/// The error of a statement that is nested too deeply.
pub(super) fn too_deep() -> SqlError {
    SqlError::new(code::TOO_COMPLEX, "stack depth limit exceeded")
        .with_hint("The statement is nested too deeply: use a list, as in x IN (1, 2).")
}

/// Groups the chains of AND and of OR in a statement as balanced trees, each before the walk goes
/// down into it.
struct Balance;

impl VisitorMut for Balance {
    type Break = Infallible;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
        if let Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } = expr {
            let op = op.clone();
            let placeholder = Expr::Value(ast::Value::Null.into());
            let operands = operands(mem::replace(expr, placeholder), &op);
            *expr = balanced(operands, &op);
        }
        ControlFlow::Continue(())
    }
}

/// What a chain of an operator connects, in its order.
fn operands(chain: Expr, op: &BinaryOperator) -> Vec<Expr> {
    let mut operands = Vec::new();
    let mut rest = vec![chain];
    while let Some(expr) = rest.pop() {
        match expr {
            Expr::BinaryOp { left, op: of, right } if of == *op => rest.extend([*right, *left]),
            operand => operands.push(operand),
        }
    }
    operands
}

/// A tree of no more levels than needed over operands, of which there is one at least.
fn balanced(mut operands: Vec<Expr>, op: &BinaryOperator) -> Expr {
    while operands.len() > 1 {
        let mut pairs = operands.into_iter();
        let mut joined = Vec::with_capacity(pairs.len().div_ceil(2));
        while let Some(left) = pairs.next() {
            joined.push(match pairs.next() {
                Some(right) => {
                    let (left, right) = (Box::new(left), Box::new(right));
                    Expr::BinaryOp { left, op: op.clone(), right }
                }
                None => left,
            });
        }
        operands = joined;
    }
    operands.pop().expect("a chain has operands")
}
