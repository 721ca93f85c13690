//! Source text in which each mutant is behind a switch.
//!
//! `a < b` becomes `(if on(7) { a <= b } else if on(8) { a >= b } else { a < b })`. Only one mutant
//! is chosen in a process, so a mutant's own text has no switches. The size of the text is
//! therefore the size of the source times the depth of nested expressions, at most.

use std::ops::Range;

/// A place of the source with its mutants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The expression or statement, in bytes of the source.
    pub span: Range<usize>,
    /// The mutants, each with its number.
    pub mutants: Vec<(u32, Change)>,
}

/// The change that a mutant makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This text instead of the expression.
    Replace(String),
    /// No statement.
    Remove,
}

/// A file with switches.
#[derive(Debug, Default)]
pub struct Switched {
    /// The text.
    pub text: String,
    /// Where the text of each mutant is.
    own: Vec<(Range<usize>, Vec<u32>)>,
    /// Where each place is, with its switches.
    places: Vec<(Range<usize>, Vec<u32>)>,
}

impl Switched {
    /// Returns the mutants that a compiler error at these bytes is about: those whose own text it
    /// is in, or else all of the innermost place.
    pub fn blamed(&self, error: &Range<usize>) -> &[u32] {
        let innermost = |ranges: &'_ [(Range<usize>, Vec<u32>)]| -> Option<usize> {
            let holds = |range: &Range<usize>| range.start <= error.start && error.end <= range.end;
            (0..ranges.len()).filter(|&i| holds(&ranges[i].0)).min_by_key(|&i| ranges[i].0.len())
        };
        innermost(&self.own)
            .map(|i| &self.own[i].1)
            .or_else(|| innermost(&self.places).map(|i| &self.places[i].1))
            .map_or(&[], Vec::as_slice)
    }

    /// Returns the mutants of all places inside these bytes.
    pub fn inside(&self, bytes: &Range<usize>) -> Vec<u32> {
        let is_inside = |range: &Range<usize>| bytes.start <= range.start && range.end <= bytes.end;
        let inside = self.places.iter().filter(|(range, _)| is_inside(range));
        inside.flat_map(|(_, numbers)| numbers).copied().collect()
    }
}

/// Puts the mutants into the source, except for those that are left out. `edits` has an outer place
/// before those inside.
pub fn switched(
    source: &str,
    edits: &[Edit],
    on: &str,
    is_left_out: &dyn Fn(u32) -> bool,
) -> Switched {
    let kept: Vec<Edit> = edits
        .iter()
        .map(|edit| {
            let mutants = edit.mutants.iter().filter(|(number, _)| !is_left_out(*number));
            Edit { span: edit.span.clone(), mutants: mutants.cloned().collect() }
        })
        .filter(|edit| !edit.mutants.is_empty())
        .collect();
    // At one byte, inner places end first, then outer ones begin first.
    let ends = kept.iter().enumerate().map(|(i, edit)| (edit.span.end, false, kept.len() - i, i));
    let begins = kept.iter().enumerate().map(|(i, edit)| (edit.span.start, true, i, i));
    let mut points: Vec<_> = begins.chain(ends).collect();
    points.sort_unstable();

    let mut out = Switched::default();
    let mut starts = vec![0; kept.len()];
    let mut at = 0;
    for (byte, begins, _, i) in points {
        out.text += &source[at..byte];
        at = byte;
        let edit = &kept[i];
        if begins {
            starts[i] = out.text.len();
            open(&mut out, edit, on);
        } else {
            let is_statement = edit.mutants.iter().any(|(_, change)| *change == Change::Remove);
            out.text += if is_statement { " }" } else { " })" };
            let numbers = edit.mutants.iter().map(|(number, _)| *number).collect();
            out.places.push((starts[i]..out.text.len(), numbers));
        }
    }
    out.text += &source[at..];
    out
}

fn open(out: &mut Switched, edit: &Edit, on: &str) {
    if let [(number, Change::Remove)] = edit.mutants.as_slice() {
        out.text += &format!("if !{on}({number}) {{ ");
        return;
    }
    out.text += "(";
    for (number, change) in &edit.mutants {
        let Change::Replace(text) = change else { unreachable!("a removal is alone") };
        out.text += &format!("if {on}({number}) {{ ");
        let start = out.text.len();
        out.text += text;
        out.own.push((start..out.text.len(), vec![*number]));
        out.text += " } else ";
    }
    out.text += "{ ";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace(span: Range<usize>, mutants: &[(u32, &str)]) -> Edit {
        let change = |&(number, text): &(u32, &str)| (number, Change::Replace(text.to_owned()));
        Edit { span, mutants: mutants.iter().map(change).collect() }
    }

    #[test]
    fn inner_places_are_switched_in_the_original_only() {
        let source = "f(a < b && c);";
        let edits = [
            Edit { span: 0..14, mutants: vec![(0, Change::Remove)] },
            replace(2..12, &[(1, "a < b || c")]),
            replace(2..7, &[(2, "a <= b"), (3, "a >= b")]),
        ];
        let out = switched(source, &edits, "on", &|_| false);
        let expected = "if !on(0) { f((if on(1) { a < b || c } else { \
            (if on(2) { a <= b } else if on(3) { a >= b } else { a < b }) && c })); }";
        assert_eq!(out.text, expected);
        let byte = out.text.find("a <= b").unwrap();
        assert_eq!(out.blamed(&(byte..byte + 1)), [2]);
        let byte = out.text.find("a < b })").unwrap();
        assert_eq!(out.blamed(&(byte..byte + 1)), [2, 3]);
        assert_eq!(out.blamed(&(0..3)), [0]);
        let expression = out.text.find('(').unwrap()..out.text.find(';').unwrap();
        assert_eq!(out.inside(&expression), [2, 3, 1]);
        assert_eq!(switched(source, &edits, "on", &|_| true).text, source);
    }
}
