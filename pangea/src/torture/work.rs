//! The clients' transactions as SQL, and their representation in a history.
//!
//! | table | a row is | written by |
//! |---|---|---|
//! | `lists` | a list: a text, each value after a comma | `items = items \|\| ',7'`, or an INSERT of the first |
//! | `registers` | a register | an UPDATE that returns the previous value, or a blind one |
//! | `rows` | a row that is inserted and deleted | INSERT, DELETE |
//! | `marks` | a transaction that deleted | INSERT, with the DELETE |
//! | `every` | a list | an UPDATE of all of them, which replicas run again when they restart |
//! | `counters` | a counter | `n = n + 1`; they are no part of the history, but are counted |
//!
//! Few keys are in use at a time, so that clients conflict. They are replaced by others over time,
//! so that lists and the histories of each key stay short.

use std::sync::atomic::{AtomicI64, Ordering};

use fastrand::Rng;
use tokio_postgres::{Client, Error};

use super::history::{Attempt, Key};

/// The tables.
pub const SCHEMA: &str = "
    create table lists (id bigint primary key, items text not null);
    create table registers (id bigint primary key, v bigint not null, before bigint);
    create table rows (id bigint primary key, v bigint not null);
    create table marks (id bigint primary key, v bigint not null);
    create table every (id bigint primary key, items text not null);
    insert into every values (1, ''), (2, ''), (3, '');
    create table counters (id bigint primary key, n bigint not null);
    insert into counters values (1, 0), (2, 0), (3, 0)";

/// Lists in use at a time.
const LISTS: i64 = 6;
/// Registers in use at a time.
const REGISTERS: i64 = 5;
/// Lists that are always appended to together.
const EVERY: std::ops::RangeInclusive<i64> = 1..=3;
/// Counters.
const COUNTERS: std::ops::RangeInclusive<i64> = 1..=3;
/// Rows that may exist at a time.
const ROWS: i64 = 16;
/// After this number of transactions, one list and one register are replaced, and all rows are.
const PERIOD: i64 = 200;
/// The maximum number of steps of a transaction block.
const STEPS_MAX: usize = 4;

/// Numbers that all clients share. No value is used twice.
#[derive(Default)]
pub struct Numbers {
    values: AtomicI64,
    txns: AtomicI64,
}

impl Numbers {
    /// Returns a new, unique value.
    pub fn value(&self) -> i64 {
        self.values.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the period, which determines the keys in use.
    fn period(&self) -> i64 {
        self.txns.fetch_add(1, Ordering::Relaxed) / PERIOD
    }
}

/// One operation. Values are drawn when it runs, and drawn again when it is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Append { list: i64 },
    AppendEvery,
    ReadEvery,
    ReadList { list: i64 },
    ReadLists { from: i64, to: i64 },
    Swap { register: i64 },
    Overwrite { register: i64 },
    ReadRegister { register: i64 },
    Insert { row: i64 },
    Delete { row: i64 },
    Increment { counter: i64 },
    Scan { from: i64, to: i64 },
}

/// A transaction to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A single autocommit statement.
    Autocommit(Step),
    /// BEGIN, some statements, COMMIT.
    Block(Vec<Step>),
}

impl Work {
    /// Draws the next transaction.
    pub fn draw(numbers: &Numbers, rng: &mut Rng) -> Self {
        let period = numbers.period();
        if rng.bool() {
            return Self::Autocommit(loop {
                // A deletion includes a mark, which needs a block.
                match Step::draw(period, rng) {
                    Step::Delete { .. } => {}
                    step => break step,
                }
            });
        }
        let count = rng.usize(2..=STEPS_MAX);
        Self::Block((0..count).map(|_| Step::draw(period, rng)).collect())
    }

    /// Returns whether it may write.
    pub fn is_write(&self) -> bool {
        match self {
            Self::Autocommit(step) => step.is_write(),
            Self::Block(steps) => steps.iter().any(|step| step.is_write()),
        }
    }
}

impl Step {
    fn draw(period: i64, rng: &mut Rng) -> Self {
        let list = period + rng.i64(0..LISTS);
        let register = period + rng.i64(0..REGISTERS);
        let first = period * ROWS;
        let row = first + rng.i64(0..ROWS);
        match rng.u32(0..100) {
            0..19 => Self::Append { list },
            19..22 => Self::Increment { counter: rng.i64(COUNTERS) },
            22..34 => Self::ReadList { list },
            34..42 => Self::ReadLists { from: period, to: period + LISTS },
            42..56 => Self::Swap { register },
            56..59 => Self::Overwrite { register },
            59..67 => Self::ReadRegister { register },
            67..78 => Self::Insert { row },
            78..86 => Self::Delete { row },
            86..88 => Self::AppendEvery,
            88..90 => Self::ReadEvery,
            _ => Self::Scan { from: row, to: row + rng.i64(1..=ROWS) },
        }
    }

    /// Returns whether it may write.
    pub fn is_write(self) -> bool {
        match self {
            Self::Append { .. }
            | Self::AppendEvery
            | Self::Swap { .. }
            | Self::Overwrite { .. }
            | Self::Insert { .. }
            | Self::Delete { .. }
            | Self::Increment { .. } => true,
            Self::ReadEvery
            | Self::ReadList { .. }
            | Self::ReadLists { .. }
            | Self::ReadRegister { .. }
            | Self::Scan { .. } => false,
        }
    }

    /// Runs the operation. In a block, a missing list or register is created. An autocommit
    /// statement instead returns that it found none; [`Self::make`] then creates it.
    ///
    /// # Errors
    /// If the node rejects the operation or the connection is lost.
    pub async fn run(
        self,
        client: &Client,
        numbers: &Numbers,
        attempt: &mut Attempt,
    ) -> Result<Found, Error> {
        match self {
            Self::Append { list } => append(client, numbers, attempt, list).await,
            Self::AppendEvery => append_every(client, numbers.value(), attempt).await,
            Self::ReadEvery => read_every(client, attempt).await.map(|()| Found::Something),
            Self::Swap { register } => swap(client, numbers, attempt, register).await,
            Self::Overwrite { register } => overwrite(client, numbers, attempt, register).await,
            Self::Insert { row } => {
                let value = numbers.value();
                attempt.write(Key::Row(row), value);
                client.execute("insert into rows values ($1, $2)", &[&row, &value]).await?;
                Ok(Found::Something)
            }
            Self::Delete { row } => delete(client, numbers, attempt, row).await,
            Self::Increment { counter } => {
                attempt.increment(counter);
                let update = "update counters set n = n + 1 where id = $1";
                client.execute(update, &[&counter]).await?;
                Ok(Found::Something)
            }
            Self::ReadList { list } => {
                read_lists(client, attempt, list, list + 1).await.map(|()| Found::Something)
            }
            Self::ReadLists { from, to } => {
                read_lists(client, attempt, from, to).await.map(|()| Found::Something)
            }
            Self::ReadRegister { register } => {
                let select = "select v from registers where id = $1";
                let row = client.query_opt(select, &[&register]).await?;
                let value = row.map(|row| row.try_get(0)).transpose()?;
                attempt.read(Key::Register(register), value);
                Ok(Found::Something)
            }
            Self::Scan { from, to } => {
                let select = "select id, v from rows where id >= $1 and id < $2";
                let rows = client.query(select, &[&from, &to]).await?;
                let rows: Result<Vec<(i64, i64)>, Error> =
                    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect();
                attempt.scan(from, to, &rows?);
                Ok(Found::Something)
            }
        }
    }

    /// Creates the missing list or register.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub async fn make(
        self,
        client: &Client,
        numbers: &Numbers,
        attempt: &mut Attempt,
    ) -> Result<(), Error> {
        let value = numbers.value();
        match self {
            Self::Append { list } => {
                attempt.append(Key::List(list), value);
                let insert = "insert into lists values ($1, $2)";
                client.execute(insert, &[&list, &format!(",{value}")]).await?;
            }
            Self::Swap { register } | Self::Overwrite { register } => {
                attempt.write(Key::Register(register), value);
                let insert = "insert into registers values ($1, $2, null)";
                client.execute(insert, &[&register, &value]).await?;
            }
            other => unreachable!("{other:?} always returns a row"),
        }
        Ok(())
    }
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The operation is complete.
    Something,
    /// The list or register does not exist yet.
    Nothing,
}

async fn append(
    client: &Client,
    numbers: &Numbers,
    attempt: &mut Attempt,
    list: i64,
) -> Result<Found, Error> {
    let (key, value, at) = (Key::List(list), numbers.value(), attempt.len());
    attempt.append(key, value);
    let update = "update lists set items = items || $2 where id = $1 returning items";
    let row = client.query_opt(update, &[&list, &format!(",{value}")]).await?;
    let Some(row) = row else { return Ok(nothing(attempt, at, key)) };
    attempt.read_list(key, Some(row.try_get(0)?));
    Ok(Found::Something)
}

/// Appends a value to all lists of a table, without a condition. Protocols treat such a statement
/// as a load: replicas run it again instead of sending or logging what it writes.
async fn append_every(client: &Client, value: i64, attempt: &mut Attempt) -> Result<Found, Error> {
    EVERY.for_each(|list| attempt.append(Key::Every(list), value));
    client.execute("update every set items = items || $1", &[&format!(",{value}")]).await?;
    Ok(Found::Something)
}

async fn read_every(client: &Client, attempt: &mut Attempt) -> Result<(), Error> {
    for row in client.query("select id, items from every", &[]).await? {
        attempt.read_list(Key::Every(row.try_get(0)?), Some(row.try_get(1)?));
    }
    Ok(())
}

/// Writes a register and reads its previous value, in one statement.
async fn swap(
    client: &Client,
    numbers: &Numbers,
    attempt: &mut Attempt,
    register: i64,
) -> Result<Found, Error> {
    let (key, value, at) = (Key::Register(register), numbers.value(), attempt.len());
    attempt.write(key, value);
    let update = "update registers set before = v, v = $2 where id = $1 returning before";
    let row = client.query_opt(update, &[&register, &value]).await?;
    let Some(row) = row else { return Ok(nothing(attempt, at, key)) };
    attempt.read(key, row.try_get(0)?);
    attempt.swap_last();
    Ok(Found::Something)
}

async fn overwrite(
    client: &Client,
    numbers: &Numbers,
    attempt: &mut Attempt,
    register: i64,
) -> Result<Found, Error> {
    let (key, value, at) = (Key::Register(register), numbers.value(), attempt.len());
    attempt.write(key, value);
    let update = "update registers set v = $2, before = null where id = $1";
    if client.execute(update, &[&register, &value]).await? == 0 {
        return Ok(nothing(attempt, at, key));
    }
    Ok(Found::Something)
}

/// Replaces the write noted at `at`, which found no row, by a read that found none.
fn nothing(attempt: &mut Attempt, at: usize, key: Key) -> Found {
    attempt.take_back(at);
    match key {
        Key::List(_) | Key::Every(_) => attempt.read_list(key, None),
        Key::Register(_) | Key::Row(_) | Key::Mark(_) => attempt.read(key, None),
    }
    Found::Nothing
}

/// Deletes a row, and leaves a mark if the row existed.
async fn delete(
    client: &Client,
    numbers: &Numbers,
    attempt: &mut Attempt,
    row: i64,
) -> Result<Found, Error> {
    let (key, at) = (Key::Row(row), attempt.len());
    attempt.delete(key);
    let gone = client.query_opt("delete from rows where id = $1 returning v", &[&row]).await?;
    let Some(gone) = gone else {
        nothing(attempt, at, key);
        return Ok(Found::Something);
    };
    attempt.read(key, Some(gone.try_get(0)?));
    attempt.swap_last();
    let mark = numbers.value();
    attempt.write(Key::Mark(mark), mark);
    client.execute("insert into marks values ($1, $1)", &[&mark]).await?;
    Ok(Found::Something)
}

async fn read_lists(
    client: &Client,
    attempt: &mut Attempt,
    from: i64,
    to: i64,
) -> Result<(), Error> {
    let select = "select id, items from lists where id >= $1 and id < $2 order by id";
    let rows = client.query(select, &[&from, &to]).await?;
    let mut rows = rows.iter().peekable();
    for list in from..to {
        let row = match rows.peek() {
            Some(row) if row.try_get::<_, i64>(0)? == list => rows.next(),
            _ => None,
        };
        let text: Option<&str> = row.map(|row| row.try_get(1)).transpose()?;
        attempt.read_list(Key::List(list), text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_are_in_blocks_alone_and_keys_give_way_to_others() {
        let (numbers, mut rng) = (Numbers::default(), Rng::with_seed(3));
        let works: Vec<Work> = (0..2_000).map(|_| Work::draw(&numbers, &mut rng)).collect();
        let is_deletion = |step: &Step| matches!(step, Step::Delete { .. });
        let deletes = |work: &Work| match work {
            Work::Autocommit(step) => is_deletion(step),
            Work::Block(steps) => steps.iter().any(is_deletion),
        };
        let is_block = |work: &&Work| matches!(work, Work::Block(_));
        assert!(works.iter().filter(is_block).any(deletes));
        assert!(!works.iter().filter(|work| !is_block(work)).any(deletes));
        let lists = |works: &[Work]| -> Vec<i64> {
            let list = |work: &Work| match work {
                Work::Autocommit(Step::Append { list }) => Some(*list),
                _ => None,
            };
            works.iter().filter_map(list).collect()
        };
        assert!(lists(&works[..200]).iter().all(|list| (0..LISTS).contains(list)));
        assert!(lists(&works[1_800..]).iter().all(|list| (9..9 + LISTS).contains(list)));
    }
}
