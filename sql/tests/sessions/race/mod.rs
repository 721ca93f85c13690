//! Statements that meet at a few rows, and what holds after them at every isolation level.

/// The definitions. Rows are added by the statements.
pub const SETUP: &[&str] = &[
    "create table parent (id int primary key, code int unique, n int not null)",
    "create table child (id int primary key, parent int not null references parent, n int)",
    "create index on child (parent)",
    "create index on child (n)",
    "create table total (id int primary key, n int not null)",
    "insert into total values (1, 0)",
];

/// An increment, which no level may lose.
pub const ADD: &str = "update total set n = n + 1 where id = 1";

/// The number of keys.
const KEYS: u64 = 6;

/// Pseudorandom numbers.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, most: u64) -> u64 {
        let step = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = step.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// A statement that changes one of the rows, or now and then the schema.
pub fn statement(dice: &mut Dice) -> String {
    let (a, b) = (dice.below(KEYS), dice.below(KEYS));
    match dice.below(41) {
        0..10 => format!("insert into parent values ({a}, {b}, 0)"),
        10..15 => format!("delete from parent where id = {a}"),
        15..20 => format!("update parent set n = n + 1, code = {b} where id = {a}"),
        20..30 => format!("insert into child values ({a}, {b}, {a})"),
        30..35 => format!("delete from child where n = {a}"),
        35..39 => format!("update child set parent = {b}, n = n + 1 where id = {a}"),
        39 => "create index if not exists child_more on child (n, parent)".to_owned(),
        _ => "drop index if exists child_more".to_owned(),
    }
}

/// Whether a statement may end so: with its tag, or because of a constraint.
pub fn is_expected(done: &str) -> bool {
    let tags = ["INSERT", "UPDATE", "DELETE", "CREATE", "DROP"];
    tags.iter().any(|tag| done.starts_with(tag)) || matches!(done, "23503" | "23505" | "25P02")
}

/// Pairs of queries with the same answer, unless a constraint is violated or an index and its table
/// differ.
pub fn comparisons() -> Vec<(String, String)> {
    let orphans = "select count(*) from child c left join parent p on p.id = c.parent \
                   where p.id is null";
    let codes = "select count(distinct code) from parent";
    let mut pairs = vec![(orphans.to_owned(), "select 0".to_owned())];
    pairs.push((codes.to_owned(), "select count(code) from parent".to_owned()));
    for (table, column) in [("child", "n"), ("child", "parent"), ("parent", "code")] {
        pairs.extend((0..2 * KEYS).map(|k| {
            let count = format!("select count(*) from {table} where {column}");
            // The sum has no index.
            (format!("{count} = {k}"), format!("{count} + 0 = {k}"))
        }));
    }
    pairs
}
