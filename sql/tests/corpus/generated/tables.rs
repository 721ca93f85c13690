//! The tables of generated statements.

use fastrand::Rng;

use super::kinds::Kind;

/// A table.
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its columns and their kinds; the first is the primary key.
    pub columns: &'static [(&'static str, Kind)],
    /// Columns with a unique constraint.
    pub unique: &'static [&'static str],
    /// A condition that all rows satisfy.
    pub check: &'static str,
}

/// The tables. They share names and kinds of columns, so that they can be joined.
pub const TABLES: &[Table] = &[
    Table {
        name: "t1",
        columns: &[
            ("id", Kind::Int),
            ("a", Kind::Int),
            ("c", Kind::Text),
            ("n", Kind::Numeric),
            ("d", Kind::Date),
        ],
        unique: &[],
        check: "true",
    },
    Table {
        name: "t2",
        columns: &[
            ("id", Kind::Int),
            ("a", Kind::Int),
            ("c", Kind::Text),
            ("f", Kind::Float),
            ("b", Kind::Bool),
            ("l", Kind::Big),
        ],
        unique: &["a", "c"],
        check: "true",
    },
    Table {
        name: "t3",
        columns: &[
            ("id", Kind::Int),
            ("s", Kind::Timestamp),
            ("i", Kind::Interval),
            ("r", Kind::Array),
            ("j", Kind::Json),
        ],
        unique: &[],
        check: "true",
    },
    Table {
        name: "t4",
        columns: &[("id", Kind::Text), ("a", Kind::Int), ("n", Kind::Numeric)],
        unique: &[],
        check: "a < 100",
    },
];

const ROWS: u32 = 14;

/// Returns the statements that create and fill the tables. They are the same in each run.
pub fn statements() -> Vec<String> {
    let mut rng = Rng::with_seed(1);
    let mut statements = Vec::new();
    for table in TABLES {
        let columns: Vec<String> =
            table.columns.iter().map(|(name, kind)| format!("{name} {}", kind.name())).collect();
        let mut parts = vec!["primary key (id)".to_owned(), format!("check ({})", table.check)];
        if !table.unique.is_empty() {
            parts.push(format!("unique ({})", table.unique.join(", ")));
        }
        let name = table.name;
        let parts = [columns, parts].concat().join(", ");
        statements.push(format!("create table {name} ({parts})"));
        for row in 0..ROWS {
            let values: Vec<String> = table
                .columns
                .iter()
                .enumerate()
                .map(|(at, (_, kind))| match (at, kind) {
                    (0, Kind::Text) => format!("'k{row}'"),
                    (0, _) => row.to_string(),
                    _ if rng.u32(..5) == 0 => "null".to_owned(),
                    (_, Kind::Int) => rng.u32(..8).to_string(),
                    _ => kind.literals()[rng.usize(..kind.literals().len())].to_owned(),
                })
                .collect();
            let values = values.join(", ");
            // Random rows may violate a unique constraint.
            statements.push(format!("insert into {name} values ({values}) on conflict do nothing"));
        }
    }
    statements.push("create index t1_a on t1 (a, c desc)".to_owned());
    statements.push("create index t2_lower on t2 (lower(c)) where a > 1".to_owned());
    statements.push("create unique index t3_s on t3 (s, id)".to_owned());
    statements
}
