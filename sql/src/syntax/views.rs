//! The clause of CREATE VIEW that the parser does not know.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::words::word;
use crate::catalog::CheckOption;

/// Removes `WITH [LOCAL | CASCADED] CHECK OPTION` from the end of a CREATE VIEW.
pub(super) fn take_check_option(tokens: &mut Vec<TokenWithSpan>) -> Option<CheckOption> {
    let is_word = |token: &TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
    let places: Vec<usize> = (0..tokens.len()).filter(|at| is_word(&tokens[*at])).collect();
    let words = |range: &[usize]| -> Vec<String> {
        range.iter().map_while(|at| word(&tokens[*at].token)).collect()
    };
    let first = words(&places[..places.len().min(4)]);
    let is_view =
        first.first().is_some_and(|it| it == "CREATE") && first.iter().any(|it| it == "VIEW");
    if !is_view {
        return None;
    }
    let forms = [
        (&["WITH", "CASCADED", "CHECK", "OPTION"][..], CheckOption::Cascaded),
        (&["WITH", "LOCAL", "CHECK", "OPTION"][..], CheckOption::Local),
        (&["WITH", "CHECK", "OPTION"][..], CheckOption::Cascaded),
    ];
    for (form, option) in forms {
        let Some(start) = places.len().checked_sub(form.len()) else { continue };
        if words(&places[start..]) == form {
            let end = places[places.len() - 1];
            tokens.drain(places[start]..=end);
            return Some(option);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::parse;

    #[test]
    fn a_check_option_is_taken_off_the_end() {
        let check = |text: &str| parse(text).unwrap()[0].check;
        let view = "create or replace view v as select 1 as a";
        assert_eq!(check(view), None);
        let cases = [
            ("with check option", CheckOption::Cascaded),
            ("With Cascaded Check Option", CheckOption::Cascaded),
            ("with local check option", CheckOption::Local),
        ];
        for (end, expected) in cases {
            assert_eq!(check(&format!("{view} {end}")), Some(expected), "{end}");
        }
        let parsed = parse(&format!("{view} with check option; select 1")).unwrap();
        assert!(!parsed[0].ast.to_string().to_lowercase().contains("check"));
        assert_eq!(&*parsed[0].text, format!("{view} with check option"));
        assert!(parse("select 1 with check option").is_err());
    }
}
