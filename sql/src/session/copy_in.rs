//! COPY FROM: rows are parsed as they arrive, and written in one transaction or in batches.
//!
//! ```text
//!   in a transaction    rows are buffered up to its write limit, and written at the end
//!   autocommit          also buffered, and written by one program at the end; but if there are
//!                       more than one transaction can write: batches, each a program of its own,
//!                       one after the other, while the rows of the next one are read
//! ```
//!
//! A batch is a call of `sql.statement` with the rows in its arguments, rather than a certified
//! transaction. Because it runs at its place in the order, it cannot conflict with another
//! transaction. If a protocol aborts it nevertheless, it is retried.
//!
//! Batches are committed in order. If one fails, those before it are committed, and those after it
//! are not. With `copy_atomic` there are no batches, and a COPY that is too large fails.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use pangea_core::exec::TXN_BYTES_MAX;
use pangea_core::txn::{Outcome, Program, SqlState};

use super::copy::{Copy, no_copy};
use super::sequences::{CachedValues, NUMBERS_MAX, TRIES_MAX};
use super::statement::submit;
use super::{Response, Session, now};
use crate::catalog::QualifiedName;
use crate::copy::{RowReader, Rows, in_context, on_line, row_of};
use crate::engine::Unavailable;
use crate::error::{SqlError, code};
use crate::plan::{CopyFrom, Plan, Planned};
use crate::statement::{Arguments, Returned, STATEMENT};
use crate::syntax::Parsed;

/// The maximum number of rows in a batch. A batch takes as long as a commit, a round trip between
/// regions or more, and some 50 ms on every replica. Fewer rows load more slowly; more rows delay
/// other transactions for longer.
const BATCH_ROWS: u64 = 32_768;
/// The maximum bytes of a batch's rows.
const BATCH_BYTES: usize = 2 << 20;
/// The maximum bytes of one call, including its other arguments; `check_program` allows 24 MiB.
const CALL_BYTES_MAX: u64 = 23 << 20;
/// The maximum number of rows in one program. In memory a row takes more than its encoded bytes.
const CALL_ROWS_MAX: u64 = 1 << 20;
/// The bytes of a sequence number, which is sent with its row.
const NUMBER_BYTES: u64 = 8;
/// The maximum number of retries of a batch that lost to another transaction.
const RETRIES_MAX: u32 = 10;

/// A COPY FROM in progress.
pub(super) struct CopyIn {
    parsed: Parsed,
    planned: Arc<Planned>,
    reader: RowReader,
    batch: Batch,
    /// The number of sequence numbers that a row draws.
    draws: u64,
    mode: Mode,
    flight: Option<Flight>,
    committed: u64,
}

/// The way in which rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// In the open transaction.
    InTransaction,
    /// In one program, unless there are too many rows.
    AtOnce,
    /// In batches, because there are too many rows for one program.
    InBatches,
}

/// Rows, and their positions in the input.
#[derive(Clone, Debug, Default)]
struct Batch {
    rows: Rows,
    /// The position of each row in the input.
    lines: Vec<Line>,
    /// The beginnings of the input lines.
    text: Vec<u8>,
}

/// The position of a row in the input.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    number: u64,
    /// The ends of its text, and of the row itself, within the batch.
    text_end: u32,
    row_end: u32,
}

/// The pending outcome of a submitted program.
type Answer = Pin<Box<dyn Future<Output = Result<Outcome, Unavailable>> + Send>>;

/// A submitted batch.
struct Flight {
    batch: Batch,
    answer: Answer,
    borrowed: CachedValues,
    tries: u32,
}

impl Batch {
    fn new(types: &Rows) -> Self {
        Self { rows: Rows::new(types.types.clone()), ..Self::default() }
    }

    fn push(&mut self, row: &[crate::types::datum::Datum], reader: &RowReader) {
        self.rows.push(row);
        self.text.extend_from_slice(reader.line());
        self.lines.push(Line {
            number: reader.line_number(),
            text_end: self.text.len() as u32,
            row_end: self.rows.byte_len() as u32,
        });
    }

    /// Returns the next batch of rows, starting at row `from`.
    fn part(&self, from: usize) -> Self {
        let mut part = Self::new(&self.rows);
        let before = from.checked_sub(1).map_or(Line::default(), |before| self.lines[before]);
        let fits = |(at, line): &(usize, &Line)| {
            (*at as u64) < BATCH_ROWS && ((line.row_end - before.row_end) as usize) < BATCH_BYTES
        };
        let lines = self.lines[from..].iter().enumerate();
        // A row larger than a batch is a batch by itself.
        let count = lines.take_while(fits).count().max(1);
        let last = self.lines[from + count - 1];
        part.rows = self.rows.part(before.row_end as usize..last.row_end as usize, count as u64);
        part.text = self.text[before.text_end as usize..last.text_end as usize].to_vec();
        let line = |line: &Line| Line {
            number: line.number,
            text_end: line.text_end - before.text_end,
            row_end: line.row_end - before.row_end,
        };
        part.lines = self.lines[from..from + count].iter().map(line).collect();
        part
    }

    /// Adds the input line of a row to its error.
    fn explain(&self, mut error: SqlError, of: &QualifiedName) -> SqlError {
        let table = of.name();
        let row = row_of(&mut error).and_then(|row| usize::try_from(row).ok());
        let error = error.in_table(of);
        let Some((row, line)) = row.and_then(|row| Some((row, self.lines.get(row)?))) else {
            return error;
        };
        let start = row.checked_sub(1).map_or(0, |before| self.lines[before].text_end);
        let (number, line) = (line.number, &self.text[start as usize..line.text_end as usize]);
        // As in PostgreSQL, errors of key checks do not show the line, because they occur after it.
        let shows_line = [code::NOT_NULL, code::CHECK].contains(&error.code) && !line.is_empty();
        let what = if shows_line { on_line(line) } else { String::new() };
        in_context(error, table, number, &what)
    }
}

impl CopyIn {
    pub(super) fn new(parsed: Parsed, planned: Arc<Planned>, is_in_transaction: bool) -> Self {
        let copy = copied(&planned);
        let types = copy.source.iter().map(|column| column.ty).collect();
        let table = &copy.targets.own().table.name;
        let reader = RowReader::new(table.name(), copy.options.clone(), copy.source.clone());
        let batch = Batch { rows: Rows::new(types), ..Batch::default() };
        let draws = (0..planned.sequences.len()).map(|at| planned.draws(at)).sum();
        Self {
            parsed,
            planned,
            reader,
            batch,
            draws,
            mode: if is_in_transaction { Mode::InTransaction } else { Mode::AtOnce },
            flight: None,
            committed: 0,
        }
    }

    fn table(&self) -> &QualifiedName {
        &copied(&self.planned).targets.own().table.name
    }

    fn take_batch(&mut self) -> Batch {
        let next = Batch::new(&self.batch.rows);
        std::mem::replace(&mut self.batch, next)
    }

    /// Whether there are enough rows for a batch, or too many for one write.
    fn is_full(&self) -> bool {
        let rows = &self.batch.rows;
        match self.mode {
            Mode::InTransaction => rows.byte_len() > TXN_BYTES_MAX,
            Mode::InBatches => rows.count >= BATCH_ROWS || rows.byte_len() >= BATCH_BYTES,
            Mode::AtOnce => {
                let numbers = self.draws.saturating_mul(rows.count);
                let bytes = numbers.saturating_mul(NUMBER_BYTES) + rows.byte_len() as u64;
                rows.count > CALL_ROWS_MAX || numbers > NUMBERS_MAX || bytes > CALL_BYTES_MAX
            }
        }
    }

    /// Whether rows that failed may be written in batches instead.
    fn may_be_parted(&self, error: &SqlError) -> bool {
        let is_more = self.batch.rows.count > 1;
        self.mode == Mode::AtOnce && is_more && error.code == code::LIMIT_EXCEEDED
    }

    /// Returns the error, with a note about the rows that are committed nevertheless.
    fn with_committed(&self, mut error: SqlError) -> SqlError {
        if self.committed > 0 {
            let note = format!(
                "The first {} rows are committed: the data exceeds one transaction, and \
                 copy_atomic is off.",
                self.committed
            );
            error.detail = Some(match error.detail {
                Some(detail) => format!("{detail} {note}"),
                None => note,
            });
        }
        error
    }
}

fn copied(planned: &Planned) -> &CopyFrom {
    let Plan::CopyFrom(copy) = &planned.plan else { panic!("it was planned as a COPY FROM") };
    copy
}

impl Session {
    fn take_copy_in(&mut self) -> Result<Box<CopyIn>, SqlError> {
        match self.copy.take() {
            Some(Copy::In(copy)) => Ok(copy),
            _ => Err(no_copy()),
        }
    }

    /// Receives data of a COPY FROM. An error ends it.
    ///
    /// # Errors
    /// If no COPY FROM is in progress, the data is malformed, or a batch fails.
    pub async fn copy_data(&mut self, data: &[u8]) -> Result<(), SqlError> {
        let mut copy = self.take_copy_in()?;
        copy.reader.push(data);
        let read = self.read_rows(&mut copy).await;
        match read {
            Ok(()) => {
                self.copy.put(Copy::In(copy));
                Ok(())
            }
            Err(error) => Err(self.end_copy(&mut copy, error).await),
        }
    }

    /// Ends a COPY FROM, and returns PostgreSQL's command tag.
    ///
    /// # Errors
    /// If no COPY FROM is in progress, the rest of the data is malformed, or its rows cannot be
    /// written.
    pub async fn copy_done(&mut self) -> Result<String, SqlError> {
        let mut copy = self.take_copy_in()?;
        match self.finish_copy(&mut copy).await {
            Ok(tag) => Ok(tag),
            Err(error) => Err(self.end_copy(&mut copy, error).await),
        }
    }

    /// Ends a COPY FROM that its client cannot continue, and returns the error.
    pub async fn copy_fail(&mut self, why: &str) -> SqlError {
        let message = format!("COPY from stdin failed: {why}");
        let error = SqlError::new(code::QUERY_CANCELED, message);
        match self.take_copy_in() {
            Ok(mut copy) => {
                let (table, number) =
                    (copy.table().name().to_owned(), copy.reader.line_number() + 1);
                let error = in_context(error, &table, number, "");
                self.end_copy(&mut copy, error).await
            }
            Err(none) => none,
        }
    }

    /// Ends a COPY with an error. An error of the batch submitted before takes precedence.
    async fn end_copy(&mut self, copy: &mut CopyIn, error: SqlError) -> SqlError {
        let error = match self.settle(copy).await {
            Ok(()) => error,
            Err(earlier) => earlier,
        };
        let error = copy.with_committed(error);
        self.fail_copy(error)
    }

    /// Parses the rows received so far.
    async fn read_rows(&mut self, copy: &mut CopyIn) -> Result<(), SqlError> {
        self.check_interruption()?;
        while let Some(row) = copy.reader.next(self.settings.zone())? {
            copy.batch.push(&row, &copy.reader);
            if copy.is_full() {
                self.on_full(copy).await?;
            }
        }
        Ok(())
    }

    async fn on_full(&mut self, copy: &mut CopyIn) -> Result<(), SqlError> {
        match copy.mode {
            Mode::AtOnce => self.submit_parts(copy).await,
            Mode::InBatches => {
                let batch = copy.take_batch();
                self.submit(copy, batch).await
            }
            Mode::InTransaction => {
                let mebibytes = TXN_BYTES_MAX >> 20;
                let message = format!("the transaction wrote more than {mebibytes} MiB");
                let hint = "Outside of a transaction block COPY commits in batches, unless \
                            copy_atomic is on.";
                Err(SqlError::new(code::LIMIT_EXCEEDED, message).with_hint(hint))
            }
        }
    }

    /// Writes the rows in batches, because there are more than one transaction can write.
    async fn submit_parts(&mut self, copy: &mut CopyIn) -> Result<(), SqlError> {
        if self.settings.is_on("copy_atomic") {
            let message = "the rows exceed the size limit of a transaction";
            return Err(SqlError::new(code::LIMIT_EXCEEDED, message)
                .with_detail(format!("A transaction can write {} MiB.", TXN_BYTES_MAX >> 20))
                .with_hint("SET copy_atomic = off lets COPY commit in batches."));
        }
        copy.mode = Mode::InBatches;
        let whole = copy.take_batch();
        let mut at = 0;
        while at < whole.lines.len() {
            let part = whole.part(at);
            at += part.lines.len();
            self.submit(copy, part).await?;
        }
        Ok(())
    }

    async fn finish_copy(&mut self, copy: &mut CopyIn) -> Result<String, SqlError> {
        copy.reader.end();
        self.read_rows(copy).await?;
        let batch = copy.take_batch();
        if copy.mode == Mode::InTransaction {
            self.write_in_transaction(copy, &batch).await?;
            return Ok(format!("COPY {}", batch.rows.count));
        }
        self.submit(copy, batch).await?;
        match self.settle(copy).await {
            // Together with its keys and indexes it is too large for one program.
            Err(error) if copy.may_be_parted(&error) => {
                self.submit_parts(copy).await?;
                self.settle(copy).await?;
            }
            settled => settled?,
        }
        Ok(format!("COPY {}", copy.committed))
    }

    async fn write_in_transaction(
        &mut self,
        copy: &mut CopyIn,
        batch: &Batch,
    ) -> Result<(), SqlError> {
        let mut tries = 0;
        loop {
            let drawn = self.draw(&copy.planned, batch.rows.count, tries).await?;
            let given = (&[][..], Some(&batch.rows));
            let (drawn, borrowed) = drawn;
            let done = self.run_open((None, &copy.planned), given, (drawn, &borrowed));
            self.apply_settings()?;
            match done {
                Err(error) if is_short(&error) && tries < TRIES_MAX => tries += 1,
                Err(error) => return Err(too_short(batch.explain(error, copy.table()))),
                Ok(Response::Command { .. }) => return Ok(()),
                Ok(_) => return Err(SqlError::new(code::INTERNAL, "a COPY returned rows")),
            }
        }
    }

    /// Submits a batch once the previous one is committed, without waiting for the outcome.
    async fn submit(&mut self, copy: &mut CopyIn, batch: Batch) -> Result<(), SqlError> {
        self.settle(copy).await?;
        if batch.rows.count > 0 {
            copy.flight = Some(self.launch(copy, batch, 0).await?);
        }
        Ok(())
    }

    async fn launch(
        &mut self,
        copy: &mut CopyIn,
        mut batch: Batch,
        tries: u32,
    ) -> Result<Flight, SqlError> {
        let (drawn, borrowed) =
            self.draw(&copy.planned, batch.rows.count, tries.min(TRIES_MAX)).await?;
        let args = Arguments {
            text: copy.parsed.text.clone(),
            param_types: Vec::new(),
            env: self.env(Vec::new(), now(), drawn),
            is_bulk: false,
            rows: Some(std::mem::take(&mut batch.rows)),
        };
        let encoded = args.encode().into();
        batch.rows = args.rows.expect("they were there");
        let procedure = self.engine.registry().id(STATEMENT).ok_or_else(|| {
            SqlError::new(code::INTERNAL, "the node does not know the procedure sql.statement")
        })?;
        let engine = self.engine.clone();
        let program = Program::Call { procedure, args: encoded };
        let mut answer: Answer = Box::pin(async move { submit(&*engine, program).await });
        // The first poll submits it.
        let early = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
        if let Poll::Ready(early) = early {
            answer = Box::pin(std::future::ready(early));
        }
        Ok(Flight { batch, answer, borrowed, tries })
    }

    /// Waits for the submitted batch.
    async fn settle(&mut self, copy: &mut CopyIn) -> Result<(), SqlError> {
        while let Some(Flight { batch, mut answer, borrowed, tries }) = copy.flight.take() {
            let outcome = answer.as_mut().await.map_err(|error| self.unknown_outcome(error))?;
            let abort = match outcome {
                Outcome::Committed { txn, version, result, .. } => {
                    self.note_commit(txn, version);
                    let returned = Returned::decode(&result)?;
                    self.give_back(&borrowed, &returned.current);
                    self.note_drawn(returned.current, returned.last_number);
                    copy.committed += returned.executed.count;
                    return Ok(());
                }
                Outcome::Aborted(abort) => abort,
            };
            let error = self.give_back_after(&borrowed, abort.into());
            let error = batch.explain(error, copy.table());
            let may_pass = error.code == SqlState::SERIALIZATION_FAILURE || is_short(&error);
            if !may_pass || tries >= RETRIES_MAX {
                copy.batch = batch;
                return Err(too_short(error));
            }
            copy.flight = Some(self.launch(copy, batch, tries + 1).await?);
        }
        Ok(())
    }
}

/// Converts the error of too few sequence numbers to one that clients know.
fn too_short(error: SqlError) -> SqlError {
    if !is_short(&error) {
        return error;
    }
    let message = format!("the statement needs too many values of sequence \"{}\"", error.message);
    SqlError::new(code::LIMIT_EXCEEDED, message)
}

/// Whether a statement received too few sequence numbers.
pub(super) fn is_short(error: &SqlError) -> bool {
    error.code == code::TOO_FEW_NUMBERS
}
