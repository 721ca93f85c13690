//! Random writes, combined from random parts.

use super::kinds::Kind;
use super::queries::{Column, Generated, Generator};
use super::tables::{TABLES, Table};

impl Generator {
    /// Returns a write. It is rolled back, so that each seed finds the same rows.
    pub fn write(&mut self) -> Generated {
        let table = self.pick(TABLES);
        let columns: Vec<Column> = table
            .columns
            .iter()
            .enumerate()
            .map(|(at, (name, kind))| Column {
                name: format!("{}.{name}", table.name),
                kind: *kind,
                is_unique: at == 0,
            })
            .collect();
        let mut sql = match self.rng.u32(..4) {
            0 => self.delete(table, &columns),
            1 => self.insert(table),
            _ => self.update(table, &columns),
        };
        if self.chance(70) {
            let kind = self.kind();
            let value = self.expression(&columns, kind, 1, 0);
            sql.push_str(&format!(" returning {value}, {}.*", table.name));
        }
        Generated { sql, is_ordered: false }
    }

    fn delete(&mut self, table: &Table, columns: &[Column]) -> String {
        let condition = self.condition(columns, 1);
        if self.chance(30) {
            let other = self.pick(TABLES).name;
            let both = self.condition(columns, 0);
            let key = format!("x.id::text = {}.id::text", table.name);
            return format!("delete from {} using {other} x where {key} and {both}", table.name);
        }
        format!("delete from {} where {condition}", table.name)
    }

    fn update(&mut self, table: &Table, columns: &[Column]) -> String {
        // PostgreSQL checks uniqueness row by row, Pangea after all rows. Values that are unique in
        // the end may collide in between. Therefore unique columns are not updated.
        let mut free = table.columns[1..].to_vec();
        free.retain(|(name, _)| !table.unique.contains(name));
        let (column, kind) = *self.pick(&free);
        let value = self.expression(columns, kind, 2, 1);
        let condition = self.condition(columns, 1);
        if self.chance(30) {
            // Joins at most one row of the other table. With several, it is undefined which of them
            // is used.
            let other = self.pick(TABLES);
            let key = format!("x.id::text = {}.id::text", table.name);
            return format!(
                "update {} set {column} = {value} from {} x where {key} and {condition}",
                table.name, other.name
            );
        }
        format!("update {} set {column} = {value} where {condition}", table.name)
    }

    fn insert(&mut self, table: &Table) -> String {
        let mut rows = Vec::new();
        for row in 0..self.rng.u32(1..4) {
            let mut values = Vec::new();
            for (at, (_, kind)) in table.columns.iter().enumerate() {
                // Half of the keys exist already.
                let key = row + self.rng.u32(..2) * 100;
                values.push(match (at, kind) {
                    (0, Kind::Text) => format!("'k{key}'"),
                    (0, _) => key.to_string(),
                    _ => self.expression(&[], *kind, 1, 0),
                });
            }
            rows.push(format!("({})", values.join(", ")));
        }
        let conflict = match self.rng.u32(..3) {
            0 => "",
            1 => " on conflict do nothing",
            _ => " on conflict (id) do update set a = excluded.a + 1",
        };
        let has_a = table.columns.iter().any(|(name, _)| *name == "a");
        let conflict = if has_a || !conflict.contains("update") { conflict } else { "" };
        format!("insert into {} values {}{conflict}", table.name, rows.join(", "))
    }
}
