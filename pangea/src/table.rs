//! How tables look.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// A line below the header and no other.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A table with a header.
pub fn table<S: AsRef<str>>(header: &[S]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(header.iter().map(AsRef::as_ref));
    table
}

/// A table of which all columns but the first hold numbers.
pub fn numbers<S: AsRef<str>>(header: &[S]) -> Table {
    let mut table = table(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
