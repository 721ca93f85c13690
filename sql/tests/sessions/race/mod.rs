//! Statements that meet at a few rows, and what holds after them at every isolation level.

/// The definitions. Rows are added by the statements.
pub const SETUP: &[&str] = &[
    "create table parent (id int primary key, code int unique, n int not null)",
    "create table child (id int primary key, parent int not null references parent, n int, x int)",
    "create index on child (parent)",
    "create index on child (n)",
    "create table total (id int primary key, n int not null)",
    "insert into total values (1, 0)",
];

/// An increment, which no level may lose.
const ADD: &str = "update total set n = n + 1 where id = 1";

/// The number of keys.
const KEYS: u64 = 3;

/// Runs a statement of a session: returns the first value, the tag, or the SQLSTATE.
pub type Run<'a> = dyn FnMut(&str) -> String + 'a;

/// Pseudorandom numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        let step = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = step.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Runs statements alone and in blocks, and checks every now and then what holds. Returns the
/// number of increments that were committed.
pub fn work(seed: u64, rounds: u64, run: &mut Run<'_>) -> i64 {
    let mut dice = Dice(seed);
    let mut added = 0;
    for _ in 0..rounds {
        let is_added = match dice.below(20) {
            0 => {
                check(run);
                false
            }
            1 => ends_as_expected(ADD, run),
            2 => block(&[&statement(&mut dice), ADD], run),
            3..12 => {
                ends_as_expected(&statement(&mut dice), run);
                false
            }
            _ => {
                block(&[&statement(&mut dice), &statement(&mut dice)], run);
                false
            }
        };
        added += i64::from(is_added);
    }
    added
}

/// Checks that constraints hold and that indexes agree with their tables, on one snapshot.
pub fn check(run: &mut Run<'_>) {
    assert_eq!(run("begin isolation level repeatable read read only"), "BEGIN");
    for (one, other) in comparisons() {
        assert_eq!(run(&one), run(&other), "{one}");
    }
    assert_eq!(run("commit"), "COMMIT");
}

/// A statement that changes one of the rows, or now and then the schema. Parents without children
/// and children of few parents are frequent, because they are what races are about.
fn statement(dice: &mut Dice) -> String {
    let (a, b) = (dice.below(KEYS), dice.below(KEYS));
    match dice.below(24) {
        0..5 => format!("insert into parent values ({a}, {b}, 0)"),
        5..9 => format!("delete from parent where id = {a}"),
        9..11 => format!("update parent set n = n + 1, code = {b} where id = {a}"),
        11..16 => format!("insert into child values ({a}, {b}, {a}, {b})"),
        16..19 => "delete from child".to_owned(),
        19..21 => format!("delete from child where n = {a}"),
        21 => format!("update child set parent = {b}, n = n + 1, x = {b} where id = {a}"),
        22 => "create index if not exists child_x on child (x)".to_owned(),
        _ => "drop index if exists child_x".to_owned(),
    }
}

/// Runs a statement, which ends with its tag or because of a constraint. Returns whether it has
/// changed a row.
fn ends_as_expected(sql: &str, run: &mut Run<'_>) -> bool {
    let done = run(sql);
    let tags = ["INSERT", "UPDATE", "DELETE", "CREATE", "DROP"];
    let is_tag = tags.iter().any(|tag| done.starts_with(tag));
    assert!(is_tag || matches!(&*done, "23503" | "23505" | "25P02"), "{sql}: {done}");
    done == "UPDATE 1"
}

/// Runs statements in a block. Returns whether the last one changed a row and is committed.
fn block(statements: &[&str], run: &mut Run<'_>) -> bool {
    assert_eq!(run("begin"), "BEGIN");
    let mut has_changed = false;
    for sql in statements {
        has_changed = ends_as_expected(sql, run);
    }
    let end = run("commit");
    assert!(matches!(&*end, "COMMIT" | "ROLLBACK" | "40001"), "{end}");
    has_changed && end == "COMMIT"
}

/// Pairs of queries with the same answer, unless a constraint is violated or an index and its table
/// differ.
fn comparisons() -> Vec<(String, String)> {
    let orphans = "select count(*) from child c left join parent p on p.id = c.parent \
                   where p.id is null";
    let codes = "select count(distinct code) from parent";
    let mut pairs = vec![(orphans.to_owned(), "select 0".to_owned())];
    pairs.push((codes.to_owned(), "select count(code) from parent".to_owned()));
    let indexed = [("child", "n"), ("child", "parent"), ("child", "x"), ("parent", "code")];
    for (table, column) in indexed {
        pairs.extend((0..KEYS).map(|k| {
            let count = format!("select count(*) from {table} where {column}");
            // The sum has no index.
            (format!("{count} = {k}"), format!("{count} + 0 = {k}"))
        }));
    }
    pairs
}
