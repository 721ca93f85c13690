//! Programs: what they may do, and how they are found.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{Abort, Footprint, Parts};
use crate::ids::{ProcedureId, TableId};
use crate::key::{Direction, Key, KeyRange};
use crate::value::Value;

/// Why a program ended early. A program passes it on with `?` and never looks inside.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The program decided not to commit. Deterministic: every replica's run decides the same.
    Abort(Abort),
    /// The executor needs the program to end now, and may run it again.
    Interrupted,
}

impl From<Abort> for Stop {
    fn from(abort: Abort) -> Self {
        Self::Abort(abort)
    }
}

/// A range to read, and from which end.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// The table.
    pub table: TableId,
    /// The keys to look at.
    pub range: KeyRange,
    /// Which end to start from.
    pub direction: Direction,
}

/// What a scan calls with each row, in order, until it breaks.
pub type Visit<'a> = dyn FnMut(&[u8], &Value) -> ControlFlow<()> + 'a;

/// All that a program can reach: the database as of its place in the order, with its own writes.
pub trait Context {
    /// The value of a key, or nothing when there is none.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] when the executor needs the run to end.
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop>;

    /// Visits the rows of a range in order until `visit` breaks or the range ends. Only what was
    /// visited counts as read.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] when the executor needs the run to end.
    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop>;

    /// Sets the value of a key, whether it exists or not.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] when the executor needs the run to end.
    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop>;

    /// Deletes a key, whether it exists or not.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] when the executor needs the run to end.
    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop>;

    /// Says which rows the program is about to look up, so that they can be fetched from memory
    /// side by side. Only a hint: it is no read, and changes nothing.
    fn fetch(&mut self, rows: &[(TableId, Key)]) {
        let _ = rows;
    }

    /// Says which rows the program is about to write without having looked at them. A hint as
    /// [`Context::fetch`] is, for who writes them at once.
    fn fetch_to_write(&mut self, rows: &[(TableId, Key)]) {
        let _ = rows;
    }

    /// How many keys a table has, about, where that is known. Replicas differ in it: a plan may
    /// depend on it, a result may not.
    fn estimate(&self, table: TableId) -> Option<usize> {
        let _ = table;
        None
    }

    /// All of a table in parts, for a reader whose result does not depend on their order. Nothing
    /// where the program has rows of its own there, where what it reads must be known, or where all
    /// replicas run it: it scans then.
    fn parts(&self, table: TableId) -> Option<Arc<dyn Parts>> {
        let _ = table;
        None
    }

    /// Ends the run where it must end: for who reads [`Parts`], every some milliseconds.
    ///
    /// # Errors
    /// [`Stop::Abort`] or [`Stop::Interrupted`], as a read would.
    fn look(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

/// A named deterministic function over the database.
///
/// Everything that it does follows from its arguments and from what it reads: no clock, no
/// randomness, no iteration over hash maps, no floating-point whose result differs between
/// machines.
pub trait Procedure: Send + Sync {
    /// The name that clients call it by. The same in every version of the program.
    fn name(&self) -> &str;

    /// Runs the program and returns its result, in its own encoding.
    ///
    /// # Errors
    /// [`Stop::Abort`] when the program decides not to commit, [`Stop::Interrupted`] passed on from
    /// the context.
    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop>;

    /// What the program will touch, where its arguments tell. Where they don't, nothing, and a
    /// reconnaissance run finds it (Calvin §3.2.1).
    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let _ = args;
        None
    }

    /// Whether every run stays within the declared footprint, whatever the data. Then an executor
    /// that runs one program at a time need neither compute nor check it.
    ///
    /// A procedure may say so alone where no row that it finds leads it to another key or range,
    /// and where the footprint has all that any branch touches. Nobody is told of a run that leaves
    /// it: it commits. On a node with one worker it does so in its place, on one with several after
    /// the others of its slice, as any that has left its footprint; so replicas may come to differ.
    /// Over several shards it changes nothing, is looked up, and is sequenced once more.
    fn is_footprint_certain(&self) -> bool {
        false
    }

    /// Names keys that a run will look up, as far as the arguments tell. Only a hint, so that an
    /// executor can fetch their rows from memory side by side before it runs the program: it may
    /// name too few or too many.
    fn hint(&self, args: &[u8], name: &mut dyn FnMut(TableId, &[u8])) {
        let _ = (args, name);
    }

    /// Whether the program writes far more than its arguments say (a load), so that it is cheaper
    /// to run it on every replica than to ship its writes.
    fn is_bulk(&self, args: &[u8]) -> bool {
        let _ = args;
        false
    }

    /// Whether the program never writes, so that it can run on a snapshot without being ordered.
    fn is_read_only(&self, args: &[u8]) -> bool {
        let _ = args;
        false
    }
}

/// Raised whenever a procedure, SQL, or what runs them comes to another result than it did, for the
/// same arguments and the same data. Nodes with another version than their log or their peers don't
/// run what those have agreed on.
const CODE_VERSION: u32 = 4;

/// What the procedures of a node do, in so far as its program says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeDigest(pub u64);

/// The procedures that a node knows, each under its name and number. The same on every node.
#[derive(Clone, Default)]
pub struct Registry {
    by_name: Vec<Arc<dyn Procedure>>,
}

impl Registry {
    /// A registry of these procedures, numbered in the order of their names.
    ///
    /// # Panics
    /// When two have the same name.
    pub fn new(procedures: impl IntoIterator<Item = Arc<dyn Procedure>>) -> Self {
        let mut by_name: Vec<_> = procedures.into_iter().collect();
        by_name.sort_by(|a, b| a.name().cmp(b.name()));
        let is_unique = by_name.windows(2).all(|pair| pair[0].name() != pair[1].name());
        assert!(is_unique, "two procedures have the same name");
        assert!(by_name.len() <= usize::from(u16::MAX), "too many procedures");
        Self { by_name }
    }

    /// The number of the procedure called `name`.
    pub fn id(&self, name: &str) -> Option<ProcedureId> {
        let found = self.by_name.binary_search_by(|procedure| procedure.name().cmp(name));
        found.ok().map(|position| ProcedureId(position as u16))
    }

    /// The procedure with this number.
    pub fn procedure(&self, id: ProcedureId) -> Option<&dyn Procedure> {
        self.by_name.get(usize::from(id.0)).map(|procedure| &**procedure)
    }

    /// Names what the procedures do: two registries with the same run a program alike.
    pub fn code(&self) -> CodeDigest {
        let mut hasher = Xxh3::new();
        hasher.update(&CODE_VERSION.to_le_bytes());
        for name in self.names() {
            hasher.update(name.as_bytes());
            // No name holds this byte, so that two lists of names are never the same bytes.
            hasher.update(&[0xff]);
        }
        CodeDigest(hasher.digest())
    }

    /// The names in order: equal on two nodes exactly when their numbers mean the same.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.iter().map(|procedure| procedure.name())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
