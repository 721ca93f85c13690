//! The places of a file that mutants change.

use std::ops::Range;

use proc_macro2::Span;
use serde::{Deserialize, Serialize};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Lit, Stmt, UnOp};

use crate::rewrite::{Change, Edit};

/// A mutant: one change at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutant {
    /// The path in the repository.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// The operator that makes the change.
    pub kind: Kind,
    /// The code.
    pub was: String,
    /// The code instead.
    pub now: String,
}

/// An operator that makes changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `<` becomes `<=` or `>=`, `==` becomes `!=`, and so on.
    Comparison,
    /// `&&` becomes `||`, and the reverse.
    Logic,
    /// `+` becomes `-`, and the reverse.
    Arithmetic,
    /// `!x` becomes `x`.
    Negation,
    /// The condition of `if`, `while` or a guard of `match` becomes true or false.
    Condition,
    /// A number is one more or one less, `true` becomes `false`.
    Constant,
    /// `min` becomes `max`, `first` becomes `last`, and so on.
    Opposite,
    /// A call or an assignment is left out.
    Removal,
}

/// Methods and their opposites.
const OPPOSITES: [(&str, &str); 12] = [
    ("min", "max"),
    ("min_by_key", "max_by_key"),
    ("first", "last"),
    ("first_key_value", "last_key_value"),
    ("pop_first", "pop_last"),
    ("pop_front", "pop_back"),
    ("push_front", "push_back"),
    ("front", "back"),
    ("any", "all"),
    ("is_some", "is_none"),
    ("is_some_and", "is_none_or"),
    ("take_while", "skip_while"),
];

/// Calls that decide nothing: they count, measure, or reserve memory.
const MEASURE: [&str; 9] = [
    "mark",
    "reached",
    "begin_work",
    "end_work",
    "with_capacity",
    "reserve",
    "shrink_to_fit",
    "shrink_to",
    "drop",
];

/// Functions that decide nothing: assertions about the state, and texts.
const CHECKS: [&str; 3] = ["invariants", "check_invariants", "fmt"];

/// The mutants of a file, with their places. The numbers begin at `first`.
pub fn find(file: &str, text: &str, first: u32) -> syn::Result<Found> {
    let syntax = syn::parse_file(text)?;
    let mut finder = Finder { file, text, first, found: Found::default() };
    finder.visit_file(&syntax);
    Ok(finder.found)
}

/// What a file has.
#[derive(Debug, Default)]
pub struct Found {
    /// Mutants in the order of their numbers.
    pub mutants: Vec<Mutant>,
    /// Their places.
    pub edits: Vec<Edit>,
    /// Modules of the file that only tests have.
    pub test_modules: Vec<String>,
}

struct Finder<'a> {
    file: &'a str,
    text: &'a str,
    first: u32,
    found: Found,
}

/// `mutate!(Bug: right => wrong)`.
struct Planted(Expr);

impl Parse for Planted {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.parse::<syn::Ident>()?;
        input.parse::<syn::Token![:]>()?;
        let right = input.parse()?;
        input.parse::<proc_macro2::TokenStream>()?;
        Ok(Self(right))
    }
}

impl Finder<'_> {
    fn add(&mut self, span: Span, mutants: Vec<(Kind, Change)>) {
        let bytes = span.byte_range();
        let (start, was) = (span.start(), self.text[bytes.clone()].to_owned());
        let mut numbered = Vec::new();
        for (kind, change) in mutants {
            numbered.push((self.first + self.found.mutants.len() as u32, change.clone()));
            self.found.mutants.push(Mutant {
                file: self.file.to_owned(),
                line: start.line,
                column: start.column + 1,
                kind,
                was: was.clone(),
                now: match change {
                    Change::Replace(text) => text,
                    Change::Remove => String::new(),
                },
            });
        }
        if !numbered.is_empty() {
            self.found.edits.push(Edit { span: bytes, mutants: numbered });
        }
    }

    /// Returns the text of `whole` with another text in the place of a part.
    fn with(&self, whole: Span, part: Range<usize>, now: &str) -> Change {
        let whole = whole.byte_range();
        let (before, after) =
            (&self.text[whole.start..part.start], &self.text[part.end..whole.end]);
        Change::Replace(format!("{before}{now}{after}"))
    }

    fn condition(&mut self, condition: &Expr, kinds: &[&str]) {
        match condition {
            Expr::Let(_) => {}
            Expr::Binary(both) if has_let(condition) => {
                self.condition(&both.left, kinds);
                self.condition(&both.right, kinds);
            }
            _ => {
                let change = |now: &&str| (Kind::Condition, Change::Replace((*now).to_owned()));
                self.add(condition.span(), kinds.iter().map(change).collect());
            }
        }
    }

    fn number(&mut self, number: &syn::LitInt) {
        let Ok(value) = number.base10_parse::<u128>() else { return };
        let suffix = number.suffix();
        let numbers = [value.checked_add(1), value.checked_sub(1)];
        let change = |now| (Kind::Constant, Change::Replace(format!("{now}{suffix}")));
        self.add(number.span(), numbers.into_iter().flatten().map(change).collect());
    }

    fn removal(&mut self, statement: &Expr, semicolon: Span) {
        let call = match statement {
            Expr::Try(tried) => &*tried.expr,
            other => other,
        };
        let is_removed = match call {
            Expr::MethodCall(call) => !decides_nothing(&call.method),
            Expr::Call(call) => !is_measure(call),
            Expr::Assign(assignment) => !matches!(*assignment.left, Expr::Infer(_)),
            _ => false,
        };
        if is_removed {
            let bytes = statement.span().byte_range().start..semicolon.byte_range().end;
            let before = self.found.edits.len();
            self.add(statement.span(), vec![(Kind::Removal, Change::Remove)]);
            self.found.edits[before].span = bytes;
        }
    }
}

fn decides_nothing(name: &syn::Ident) -> bool {
    MEASURE.iter().any(|measure| name == measure)
}

fn is_measure(call: &syn::ExprCall) -> bool {
    matches!(&*call.func, Expr::Path(path)
        if path.path.segments.last().is_some_and(|last| decides_nothing(&last.ident)))
}

/// Returns whether `&&` has a `let` on one of its sides, so that it is no expression by itself.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(both) if matches!(both.op, BinOp::And(_)) => {
            has_let(&both.left) || has_let(&both.right)
        }
        _ => false,
    }
}

/// Returns whether an attribute is `cfg` with a word such as `test`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list().ok();
        let text = list.map(|list| list.tokens.to_string()).unwrap_or_default();
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && !text.starts_with("not")
                && ["test", "planted", "bench", "shuttle"].iter().any(|word| text.contains(word))
    })
}

/// Operators, their mutants, and the kind.
fn changed(operator: &BinOp) -> (Kind, &'static [&'static str]) {
    use Kind::{Arithmetic, Comparison, Logic};
    match operator {
        BinOp::Lt(_) => (Comparison, &["<=", ">="]),
        BinOp::Le(_) => (Comparison, &["<", ">"]),
        BinOp::Gt(_) => (Comparison, &[">=", "<="]),
        BinOp::Ge(_) => (Comparison, &[">", "<"]),
        BinOp::Eq(_) => (Comparison, &["!="]),
        BinOp::Ne(_) => (Comparison, &["=="]),
        BinOp::And(_) => (Logic, &["||"]),
        BinOp::Or(_) => (Logic, &["&&"]),
        BinOp::Add(_) => (Arithmetic, &["-"]),
        BinOp::Sub(_) => (Arithmetic, &["+"]),
        BinOp::AddAssign(_) => (Arithmetic, &["-="]),
        BinOp::SubAssign(_) => (Arithmetic, &["+="]),
        _ => (Arithmetic, &[]),
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item;
        let attributes = match item {
            Item::Fn(item) if item.sig.constness.is_some() => return,
            Item::Fn(item) if CHECKS.iter().any(|name| item.sig.ident == name) => return,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => {
                let name = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
                if name.is_some_and(|name| name.ident == "Debug" || name.ident == "Display") {
                    return;
                }
                &item.attrs
            }
            Item::Mod(item) => {
                if item.content.is_none() && is_for_tests(&item.attrs) {
                    self.found.test_modules.push(item.ident.to_string());
                }
                &item.attrs
            }
            Item::Trait(item) => &item.attrs,
            // Constants and types have no place for a switch.
            _ => return,
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let is_check = CHECKS.iter().any(|name| item.sig.ident == name);
        if item.sig.constness.is_none() && !is_check && !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_block(&mut self, block: &'ast Block) {
        for statement in &block.stmts {
            if let Stmt::Expr(expression, Some(semicolon)) = statement {
                self.removal(expression, semicolon.span());
            }
            self.visit_stmt(statement);
        }
    }

    fn visit_expr_if(&mut self, node: &'ast syn::ExprIf) {
        self.condition(&node.cond, &["true", "false"]);
        visit::visit_expr_if(self, node);
    }

    fn visit_expr_while(&mut self, node: &'ast syn::ExprWhile) {
        self.condition(&node.cond, &["false"]);
        visit::visit_expr_while(self, node);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard, &["true", "false"]);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        let (kind, operators) = changed(&node.op);
        if !(has_let(&node.left) || has_let(&node.right)) {
            let (whole, part) = (node.span(), node.op.span().byte_range());
            let changes = operators.iter().map(|now| (kind, self.with(whole, part.clone(), now)));
            let changes = changes.collect();
            self.add(whole, changes);
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        if let UnOp::Not(not) = &node.op {
            let changed = self.with(node.span(), not.span().byte_range(), "");
            self.add(node.span(), vec![(Kind::Negation, changed)]);
        }
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_call(&mut self, node: &'ast syn::ExprCall) {
        if !is_measure(node) {
            visit::visit_expr_call(self, node);
        }
    }

    fn visit_expr_method_call(&mut self, node: &'ast syn::ExprMethodCall) {
        if decides_nothing(&node.method) {
            return self.visit_expr(&node.receiver);
        }
        let pairs = OPPOSITES.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
        if let Some((_, now)) = pairs.into_iter().find(|(was, _)| node.method == was) {
            let changed = self.with(node.span(), node.method.span().byte_range(), now);
            self.add(node.span(), vec![(Kind::Opposite, changed)]);
        }
        visit::visit_expr_method_call(self, node);
    }

    fn visit_expr_lit(&mut self, node: &'ast syn::ExprLit) {
        match &node.lit {
            Lit::Int(number) => self.number(number),
            Lit::Bool(value) => {
                let now = if value.value { "false" } else { "true" };
                self.add(value.span, vec![(Kind::Constant, Change::Replace(now.to_owned()))]);
            }
            _ => {}
        }
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        if node.path.is_ident("mutate")
            && let Ok(Planted(right)) = node.parse_body()
        {
            self.visit_expr(&right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(text: &str) -> Vec<String> {
        let found = find("a.rs", text, 0).unwrap();
        let change = |mutant: &Mutant| format!("{} -> {}", mutant.was, mutant.now);
        found.mutants.iter().map(change).collect()
    }

    #[test]
    fn each_operator_finds_its_places() {
        let body = |text: &str| changes(&format!("fn f() {{ {text} }}"));
        assert_eq!(body("a < b"), ["a < b -> a <= b", "a < b -> a >= b"]);
        assert_eq!(body("a && b"), ["a && b -> a || b"]);
        assert_eq!(body("a += b"), ["a += b -> a -= b"]);
        assert_eq!(body("!a"), ["!a -> a"]);
        assert_eq!(body("if a {}"), ["a -> true", "a -> false"]);
        assert_eq!(body("match a { b if c => {} }"), ["c -> true", "c -> false"]);
        assert_eq!(body("g(7u8)"), ["7u8 -> 8u8", "7u8 -> 6u8"]);
        assert_eq!(body("a.min(b)"), ["a.min(b) -> a.max(b)"]);
        assert_eq!(body("a.push(b);"), ["a.push(b) -> "]);
        assert_eq!(body("a = b;"), ["a = b -> "]);
        assert_eq!(body("mutate!(Bug: a == b => c == d)"), ["a == b -> a != b"]);
    }

    #[test]
    fn a_let_chain_is_changed_in_its_parts_only() {
        let found = changes("fn f() { if let Some(a) = b && c {} }");
        assert_eq!(found, ["c -> true", "c -> false"]);
    }

    #[test]
    fn tests_constants_types_patterns_and_measures_are_left_alone() {
        for text in [
            "const A: u8 = 1;",
            "const fn f() -> u8 { 1 }",
            "#[cfg(test)] mod tests { fn f() -> u8 { 1 } }",
            "fn f(a: [u8; 2]) { let 3 = b; }",
            "fn f() { cx.mark(4); }",
            "fn f() -> u8 { Vec::with_capacity(5) }",
            "fn f() { [a; 6]; }",
            "fn f() { assert!(a < b); }",
            "impl fmt::Debug for A { fn fmt(&self) -> u8 { 1 } }",
        ] {
            assert_eq!(changes(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn modules_of_tests_are_named() {
        let found = find("a.rs", "#[cfg(test)] mod one; mod two;", 0).unwrap();
        assert_eq!(found.test_modules, ["one"]);
    }
}
