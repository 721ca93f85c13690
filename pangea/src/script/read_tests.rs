//! Tests of valid files, and of the messages for invalid ones.

use super::*;

fn parse(text: &str) -> Result<Script, ScriptError> {
    script(Path::new("s.sql"), text, &[])
}

const SHOP: &str = "
-- schema
\\set items 100
CREATE TABLE item (id int PRIMARY KEY, name text, stock int);
-- rows item :items * 2
\\set name 'item ' || :row
INSERT INTO item (id, name, stock) VALUES (:row, :name, least(5, 9)) ON CONFLICT DO NOTHING;
-- transaction buy weight 3
\\set id random(1, :items)
UPDATE item SET stock = stock - 1 WHERE id = :id;
-- transaction look
\\set id random_zipfian(1, :items, 0.9)
BEGIN;
SELECT stock FROM item WHERE id = :id \\gset
\\set more :stock + 1
\\sleep 2 ms
SELECT :more::int, :id;
COMMIT;
-- check stock
SELECT id FROM item WHERE stock < 0 AND :committed_buy = :items;
";

#[test]
fn a_file_has_tables_rows_transactions_and_checks() {
    let script = parse(SHOP).unwrap();
    assert_eq!(script.constants, [("items".to_owned(), Value::Int(100))]);
    assert_eq!((script.schema.len(), script.schema[0].line), (1, 4));
    let rows = &script.rows[0];
    assert_eq!((rows.table.as_str(), rows.count), ("item", 200));
    let (mut part, values) = (String::new(), rows.values.clone());
    rows.insert.render(values, 4, &mut part);
    assert_eq!(part, "($5, $6, least(5, 9))");
    let [buy, look] = &script.transactions[..] else { panic!() };
    assert_eq!((buy.name, buy.weight, look.name, look.weight), ("buy", 3, "look", 1));
    assert!(buy.wanted.is_empty());
    let [(slot, 15, _)] = look.wanted[..] else { panic!("{:?}", look.wanted) };
    assert_eq!(look.names[slot], "stock");
    let Step::Run(last) = &look.steps[5] else { panic!("{:?}", look.steps) };
    assert_eq!(last.rendered(), "SELECT $1::int, $2");
    assert_eq!(script.checks[0].name, "stock");
}

#[test]
fn the_command_line_stands_above_the_file() {
    let defines: [Define; 1] = ["items=7".parse().unwrap()];
    let script = script(Path::new("s.sql"), SHOP, &defines).unwrap();
    assert_eq!(script.rows[0].count, 14);
    let defines: [Define; 1] = ["item=7".parse().unwrap()];
    let wrong = super::script(Path::new("s.sql"), SHOP, &defines).unwrap_err();
    assert!(wrong.message.contains("did you mean \"items\"?"), "{wrong:?}");
    assert!("7=items".parse::<Define>().is_err());
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let of = |body: &str| format!("\\set n 9\n-- transaction t\n{body}");
    for (text, line, said) in [
        (String::new(), 1, "there is no transaction"),
        ("-- transaction t heavy\nselect 1;".to_owned(), 1, "`-- transaction NAME [weight N]`"),
        ("-- transaction t weight 0\nselect 1;".to_owned(), 1, "a weight must be a number from 1"),
        ("-- transaction 9\nselect 1;".to_owned(), 1, "is not a name"),
        (of(""), 2, "the transaction has no statement"),
        (of("select :m;"), 3, "there is no variable \"m\""),
        (of("\\set id random(1, :nn)\nselect :id;"), 3, "did you mean \"n\"?"),
        (of("\\set id randm(1, 2)\nselect :id;"), 3, "did you mean \"random\"?"),
        (of("\\set client_id 4\nselect 1;"), 3, "can't be set"),
        (of("\\sett x 4\nselect 1;"), 3, "did you mean \"set\"?"),
        (of("\\set x\nselect 1;"), 3, "expected `\\set NAME EXPRESSION`"),
        (of("\\gset\nselect 1;"), 3, "\\gset is not allowed here"),
        (of("begin;\nselect 1;"), 3, "there is no COMMIT for this BEGIN"),
        (of("begin;\nbegin;\ncommit;"), 4, "BEGIN within a block"),
        (of("begin;\nselect 1;\ncommit;\nselect 2;"), 6, "a transaction is one statement"),
        (of("select 1;\nselect 2;"), 4, "a transaction is one statement"),
        (of("begin;\nrollback;"), 4, "end with COMMIT"),
        (of("set reads = strict;"), 3, "or begins with BEGIN"),
        (of("select 1;\n-- transaction t\nselect 1;"), 4, "transaction t is already in line 2"),
        (of("select 1;\n-- check c\nselect :committed_x;"), 5, "did you mean \"committed_t\"?"),
        (of("select 1;\n-- check c d\nselect 1;"), 4, "`-- check NAME`"),
        (of("select 1;\n-- check c\nselect 1; select 2;"), 4, "a check is one query"),
        (of("select 1;\n-- rows t\ninsert into t values (1);"), 4, "`-- rows TABLE COUNT`"),
        (of("select 1;\n-- rows t :m\ninsert into t values (1);"), 4, "no variable \"m\""),
        (of("select 1;\n-- rows t -1\ninsert into t values (1);"), 4, "-1; must be from 0 to"),
        (of("select 1;\n-- rows t 5\ndelete from t;"), 5, "`INSERT INTO .. VALUES (..)`"),
        (of("select 1;\n-- rows t 5\ninsert into t values (1), (2);"), 5, "with one row"),
        (of("select 1;\n-- rows t 5\ninsert into t select :row;"), 5, "`INSERT INTO .. VALUES"),
        (of("select 1;\n-- rows t 5\nselect 1; insert into t values (1);"), 5, "one INSERT at"),
        (of("select 1;\n-- schema\ncreate table t as select :n;"), 5, "has no variables: :n"),
        (of("select 1;\n-- schema\n\\set n 4\n"), 5, "n is already set"),
    ] {
        let wrong = parse(&text).unwrap_err();
        assert!(wrong.line == line && wrong.message.contains(said), "{text}: {wrong:?}");
    }
}
