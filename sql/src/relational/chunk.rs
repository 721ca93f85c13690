//! Conversion of table rows into batches of columns.
//!
//! Most types are stored in Arrow's format, or nearly: their bytes are copied from the row to the
//! column without decoding a value. Values are decoded for three kinds of columns: those that a
//! condition reads, those of types stored in another format, and those of rows that are older than
//! some of their columns.

use std::mem;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use pangea_core::codec::DecodeError;

use super::values::Column;
use crate::catalog::Table;
use crate::error::SqlError;
use crate::expr::{Env, Expr};
use crate::rows::{Columns, Fields};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// The maximum number of rows in a batch.
pub(super) const ROWS_MAX: usize = 8_192;

/// The maximum bytes that the rows of a batch take in the table, unless a single row is larger.
const BYTES_MAX: usize = 4 << 20;

/// The mapping from the rows of a table to columns.
#[derive(Debug)]
pub(super) struct Layout {
    table: Arc<Table>,
    /// The types of the table's columns up to the last one read, and their positions in the batch.
    fields: Vec<(SqlType, Option<usize>)>,
    wanted: Columns,
    /// The position of the row's key in the batch.
    key: Option<usize>,
    /// Whether bytes can be copied from rows to columns.
    is_direct: bool,
    filter: Option<Expr>,
    /// The columns that the condition reads.
    filtered: Columns,
    types: Vec<SqlType>,
    schema: SchemaRef,
}

impl Layout {
    /// Makes a layout of the columns at these positions of a table. The position after the last
    /// column is the row's key.
    pub(super) fn new(
        table: &Arc<Table>,
        projection: &[usize],
        filter: Option<Expr>,
        schema: SchemaRef,
    ) -> Self {
        let key_at = table.types().len();
        let all: Vec<SqlType> = table.types().collect();
        let place = |column: usize| projection.iter().position(|at| *at == column);
        let width = projection.iter().filter(|at| **at != key_at).map(|at| at + 1).max();
        let width = width.unwrap_or(0);
        let fields = (0..width).map(|column| (all[column], place(column))).collect();
        let type_at = |at: &usize| all.get(*at).copied().unwrap_or(SqlType::Bytea);
        let types: Vec<SqlType> = projection.iter().map(type_at).collect();
        Self {
            table: table.clone(),
            fields,
            wanted: Columns::these(projection.iter().copied().filter(|at| *at != key_at)),
            key: place(key_at),
            is_direct: types.iter().all(|base| Column::is_direct(*base)),
            filtered: Columns::these(filter.iter().flat_map(Expr::columns)),
            filter,
            types,
            schema,
        }
    }
}

/// Rows being converted into batches.
pub(super) struct Chunk {
    layout: Arc<Layout>,
    columns: Vec<Column>,
    count: usize,
    bytes: usize,
    row: Vec<Datum>,
    ready: Vec<RecordBatch>,
}

impl Chunk {
    pub(super) fn new(layout: Arc<Layout>) -> Self {
        let columns = layout.types.iter().map(|base| Column::new(*base)).collect();
        Self { layout, columns, count: 0, bytes: 0, row: Vec::new(), ready: Vec::new() }
    }

    /// Adds a row if it satisfies the condition.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], env: &Env) -> Result<(), SqlError> {
        let layout = self.layout.clone();
        if let Some(filter) = &layout.filter {
            layout.table.decode_to(&layout.filtered, value, &mut self.row)?;
            if !filter.is_true(&self.row, env)? {
                return Ok(());
            }
        }
        if !(layout.is_direct && self.push_bytes(&layout, value)?) {
            layout.table.decode_to(&layout.wanted, value, &mut self.row)?;
            for ((_, place), datum) in layout.fields.iter().zip(&self.row) {
                place.iter().for_each(|place| self.columns[*place].push(datum));
            }
        }
        if let Some(place) = layout.key {
            self.columns[place].push_bytes(key);
        }
        self.count += 1;
        self.bytes += value.len();
        if self.count == ROWS_MAX || self.bytes >= BYTES_MAX {
            self.cut();
        }
        Ok(())
    }

    /// Copies the stored columns of a row. Returns `false` if the row does not have all of them.
    fn push_bytes(&mut self, layout: &Layout, value: &[u8]) -> Result<bool, DecodeError> {
        let mut fields = Fields::open(value)?;
        if fields.count() < layout.fields.len() {
            return Ok(false);
        }
        for (base, place) in &layout.fields {
            let raw = fields.next(*base)?;
            if let Some(place) = place {
                self.columns[*place].push_raw(*base, raw)?;
            }
        }
        Ok(true)
    }

    /// Completes a batch of the rows added so far.
    pub(super) fn cut(&mut self) {
        self.bytes = 0;
        if self.count == 0 {
            return;
        }
        let arrays = self.columns.iter_mut().map(Column::finish).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(mem::take(&mut self.count)));
        let schema = self.layout.schema.clone();
        let batch = RecordBatch::try_new_with_options(schema, arrays, &options);
        self.ready.push(batch.expect("columns are as the schema has them"));
    }

    /// Returns all batches, including the rows added so far.
    pub(super) fn take(&mut self) -> Vec<RecordBatch> {
        self.cut();
        mem::take(&mut self.ready)
    }
}
