//! Walks over syntax trees.
//!
//! The parser's walk is generic over the visitor, and each kind of visitor costs about 500 compiled
//! functions: eight kinds were a quarter of the code that is generated for this crate. These walks
//! take any visitor as a trait object, so each is compiled once.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, ObjectName, Query, Select, Statement, TableFactor, ValueWithSpan, Visit, VisitMut,
    Visitor, VisitorMut,
};

/// Shows a tree to a visitor. Returns a break if the visitor ended the walk.
pub(crate) fn walk(tree: &impl Visit, visitor: &mut dyn Visitor<Break = ()>) -> ControlFlow<()> {
    tree.visit(&mut Any(visitor))
}

/// Shows a tree to a visitor that may change it. Returns a break if the visitor ended the walk.
pub(crate) fn walk_mut(
    tree: &mut impl VisitMut,
    visitor: &mut dyn VisitorMut<Break = ()>,
) -> ControlFlow<()> {
    tree.visit(&mut Any(visitor))
}

/// Changes all expressions of a tree, each after its parts.
pub(crate) fn for_each_expr(tree: &mut impl VisitMut, change: impl FnMut(&mut Expr)) {
    struct Each<F>(F);
    impl<F: FnMut(&mut Expr)> VisitorMut for Each<F> {
        type Break = ();
        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            (self.0)(expr);
            ControlFlow::Continue(())
        }
    }
    let _ = walk_mut(tree, &mut Each(change));
}

/// A visitor of any kind.
struct Any<'a, V: ?Sized>(&'a mut V);

/// Forwards methods of a visitor. All must be listed: the default of a missing one does nothing.
macro_rules! forward {
    ($($method:ident: $node:ty;)*) => {
        $(fn $method(&mut self, node: $node) -> ControlFlow<()> {
            self.0.$method(node)
        })*
    };
}

impl Visitor for Any<'_, dyn Visitor<Break = ()> + '_> {
    type Break = ();

    forward! {
        pre_visit_query: &Query;
        post_visit_query: &Query;
        pre_visit_select: &Select;
        post_visit_select: &Select;
        pre_visit_relation: &ObjectName;
        post_visit_relation: &ObjectName;
        pre_visit_table_factor: &TableFactor;
        post_visit_table_factor: &TableFactor;
        pre_visit_expr: &Expr;
        post_visit_expr: &Expr;
        pre_visit_statement: &Statement;
        post_visit_statement: &Statement;
        pre_visit_value: &ValueWithSpan;
        post_visit_value: &ValueWithSpan;
    }
}

impl VisitorMut for Any<'_, dyn VisitorMut<Break = ()> + '_> {
    type Break = ();

    forward! {
        pre_visit_query: &mut Query;
        post_visit_query: &mut Query;
        pre_visit_select: &mut Select;
        post_visit_select: &mut Select;
        pre_visit_relation: &mut ObjectName;
        post_visit_relation: &mut ObjectName;
        pre_visit_table_factor: &mut TableFactor;
        post_visit_table_factor: &mut TableFactor;
        pre_visit_expr: &mut Expr;
        post_visit_expr: &mut Expr;
        pre_visit_statement: &mut Statement;
        post_visit_statement: &mut Statement;
        pre_visit_value: &mut ValueWithSpan;
        post_visit_value: &mut ValueWithSpan;
    }
}
