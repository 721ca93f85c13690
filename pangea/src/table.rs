//! The style of tables.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// A single line below the header, and no other lines.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Returns a table with these columns; the flag marks columns of numbers.
pub fn aligned<'a>(columns: impl IntoIterator<Item = (&'a str, bool)>) -> Table {
    let (names, hold_numbers): (Vec<&str>, Vec<bool>) = columns.into_iter().unzip();
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(names);
    for (column, holds_numbers) in table.column_iter_mut().zip(hold_numbers) {
        if holds_numbers {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns a table in which all columns except the first contain numbers.
pub fn numbers<S: AsRef<str>>(header: &[S]) -> Table {
    aligned(header.iter().enumerate().map(|(index, name)| (name.as_ref(), index > 0)))
}
