//! Computes the depth of a statement's tree before it is parsed, and balances chains of AND and OR.
//!
//! The parser reads a chain such as `a + b + c` in a loop, and makes a tree as deep as the chain is
//! long. Every walk over the tree, and its drop too, takes stack for each level. Therefore the
//! depth is computed from the tokens:
//!
//! ```text
//!   level    the content of a pair of brackets, or of CASE to END; the statement itself
//!   operand  the tokens between two of the level's commas, ANDs, ORs, set operations
//!
//!   depth of an operand = its operators and keywords + its deepest level
//!   depth of a level    = its deepest operand + its set operations + its chain of AND and OR
//! ```
//!
//! AND and OR bind less tightly than every other operator, and their grouping does not change the
//! result. A long chain of them is parsed on a separate stack, and then grouped as a balanced tree.

use std::mem;
use std::ops::ControlFlow;

use sqlparser::ast::{self, BinaryOperator, Expr, VisitorMut};
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::Postgres;
use super::walk::walk_mut;
use crate::error::{SqlError, code};

/// Maximum depth of a tree. Threads have 2 MB of stack for a walk over it.
const DEPTH_MAX: usize = 800;

/// A chain with at most this number of ANDs and ORs stays as it was parsed.
const CHAIN_MAX: usize = 32;

/// Maximum number of ANDs and ORs in a statement. Each is a level of its tree until it is balanced.
const LINKS_MAX: usize = 100_000;

/// Maximum stack that the drop of a tree takes for each of its levels, in bytes.
const LEVEL_BYTES: usize = 512;

/// Stack for the parser and for the balancing walk, in bytes. It is added to the stack for the
/// levels.
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
    /// Number of operators of the operand that is being read. `inner` is the depth of its deepest
    /// level.
    operators: usize,
    inner: usize,
    /// Depth of the deepest operand before it.
    deepest: usize,
    set_operations: usize,
    links: usize,
    /// Number of BETWEENs whose AND has not been read.
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
            // A balanced tree of ORs, each of whose operands is a balanced tree of ANDs.
            links => 2 * (links.ilog2() as usize + 1),
        };
        self.deepest.max(self.operators + self.inner) + self.set_operations + chain
    }
}

/// From this depth on, the parser's own limit may have ended it. That limit is 50, counted
/// differently.
const PARSER_DEPTH: usize = 20;

/// Maximum stack that the parser takes for the deepest tree, in bytes.
const PARSER_BYTES: usize = 64 << 20;

/// The depth and the chains of a statement, which determine how it is parsed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// Number of its ANDs and ORs.
    links: usize,
    depth: usize,
}

impl Shape {
    /// Computes the shape of a statement, and refuses one whose tree would be too deep.
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

    /// Returns whether the parser refused a statement only because of its own depth limit. When it
    /// tries alternatives, the parser forgets that the limit ended the first one.
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

    /// Parses the statement with as much stack as its chains need, and balances them.
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
            let _ = walk_mut(&mut statement, &mut Balance);
            Ok(statement)
        })
    }
}

/// The open levels, from the statement inwards.
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
        // A bracket that opens a subscript or an argument list is an operator too.
        self.top.operators += 1;
        self.outer.push(mem::replace(&mut self.top, Level::new(bracket)));
    }

    /// Ends a level of this kind. A level of another kind stays open: the parser will refuse the
    /// statement.
    fn close(&mut self, bracket: Bracket) {
        if self.top.bracket == bracket {
            self.end_top();
        }
    }

    /// Ends the innermost level. Returns false if only the statement itself is open.
    fn end_top(&mut self) -> bool {
        let Some(outer) = self.outer.pop() else { return false };
        let inner = mem::replace(&mut self.top, outer);
        self.top.inner = self.top.inner.max(inner.depth());
        true
    }

    /// Returns the depth of the whole statement. Levels that were never closed count too.
    fn depth(mut self) -> usize {
        while self.end_top() {}
        self.top.depth()
    }
}

/// Returns the error of a statement that is nested too deeply.
pub(super) fn too_deep() -> SqlError {
    SqlError::new(code::TOO_COMPLEX, "stack depth limit exceeded")
        .with_hint("The statement is nested too deeply: use a list, as in x IN (1, 2).")
}

/// Groups the chains of AND and of OR in a statement as balanced trees. Each chain is balanced
/// before the walk descends into it.
struct Balance;

impl VisitorMut for Balance {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } = expr {
            let op = op.clone();
            let placeholder = Expr::Value(ast::Value::Null.into());
            let operands = operands(mem::replace(expr, placeholder), &op);
            *expr = balanced(operands, &op);
        }
        ControlFlow::Continue(())
    }
}

/// Returns the operands of a chain of an operator, in order.
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

/// Returns a tree of minimum depth over the operands, of which there is at least one.
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
