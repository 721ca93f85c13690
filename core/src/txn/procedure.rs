//! Procedures, the context in which they run, and their registry.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{Abort, Adder, Footprint, Guards, Parts, read_and_add};
use crate::ids::{AdderId, ProcedureId, TableId};
use crate::key::{Direction, Key, KeyRange};
use crate::value::Value;

/// The reason why a program ended early. Programs pass it on with `?` and never inspect it.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The program decided not to commit. Deterministic: the run on every replica decides the same.
    Abort(Abort),
    /// The executor requires the program to end now, and may run it again.
    Interrupted,
}

impl From<Abort> for Stop {
    fn from(abort: Abort) -> Self {
        Self::Abort(abort)
    }
}

/// A range to read, with its direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// The table.
    pub table: TableId,
    /// The keys to read.
    pub range: KeyRange,
    /// The order in which they are read.
    pub direction: Direction,
}

/// The callback of a scan. Called with each row, in order, until it breaks.
pub type Visit<'a> = dyn FnMut(&[u8], &Value) -> ControlFlow<()> + 'a;

/// The environment of a program: the database at its place in the order, including its own writes.
pub trait Context {
    /// The value of a key, or `None` if the key does not exist.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] if the executor requires the run to end.
    fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Stop>;

    /// Visits the rows of a range in order until `visit` breaks or the range ends. Only the visited
    /// part counts as read.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] if the executor requires the run to end.
    fn scan(&mut self, scan: &Scan, visit: &mut Visit<'_>) -> Result<(), Stop>;

    /// Sets the value of a key, whether it exists or not.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] if the executor requires the run to end.
    fn put(&mut self, table: TableId, key: Key, value: Value) -> Result<(), Stop>;

    /// Deletes a key, whether it exists or not.
    ///
    /// # Errors
    /// [`Stop::Interrupted`] if the executor requires the run to end.
    fn delete(&mut self, table: TableId, key: Key) -> Result<(), Stop>;

    /// Adds an amount to a row if it exists, and returns whether it does. The program depends on
    /// nothing else of the row, so an executor may record the addition in place of a read and a
    /// write.
    ///
    /// # Errors
    /// [`Stop::Abort`] if the row can't hold the result; [`Stop::Interrupted`] if the executor
    /// requires the run to end.
    fn add(
        &mut self,
        table: TableId,
        key: Key,
        adder: &dyn Adder,
        amount: &[u8],
    ) -> Result<bool, Stop> {
        read_and_add(self, (table, key), adder, amount)
    }

    /// Names rows that the program is about to look up, so that they can be prefetched in parallel.
    /// Only a hint: it is not a read and has no effect.
    fn fetch(&mut self, rows: &[(TableId, Key)]) {
        let _ = rows;
    }

    /// Names rows that the program is about to write without reading them. A hint like
    /// [`Context::fetch`], for executors that write in place.
    fn fetch_to_write(&mut self, rows: &[(TableId, Key)]) {
        let _ = rows;
    }

    /// The approximate number of keys of a table, if it is known. It differs between replicas, so a
    /// query plan may depend on it, but a result must not.
    fn estimate(&self, table: TableId) -> Option<usize> {
        let _ = table;
        None
    }

    /// A table in partitions, for a reader whose result does not depend on their order. `None` if
    /// the program has written to the table, its reads must be recorded, or all replicas run it;
    /// the program must then scan.
    fn parts(&self, table: TableId) -> Option<Arc<dyn Parts>> {
        let _ = table;
        None
    }

    /// The guards of the run. `None` if the executor checks all reads anyway, or if no row that was
    /// read can change before the commit.
    fn guards(&mut self) -> Option<&mut dyn Guards> {
        None
    }

    /// Checks whether the run must end. Readers of [`Parts`] call it every few milliseconds.
    ///
    /// # Errors
    /// [`Stop::Abort`] or [`Stop::Interrupted`], as a read would.
    fn look(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

/// A named deterministic function over the database.
///
/// Its behavior depends only on its arguments and its reads. It must not use a clock, random
/// numbers, iteration over hash maps, or floating-point operations whose results differ between
/// machines.
pub trait Procedure: Send + Sync {
    /// The name by which clients call it. The same in every version of the program.
    fn name(&self) -> &str;

    /// The version of the procedure: a program must raise it when a call may read or write other
    /// rows, or return another result, than before, and when other calls are divisible. Nodes with
    /// other versions of a procedure reject each other, and an upgraded node does not run the
    /// transactions of the earlier version.
    fn version(&self) -> u32 {
        0
    }

    /// Runs the program and returns its result, in its own encoding.
    ///
    /// # Errors
    /// [`Stop::Abort`] if the program decides not to commit; [`Stop::Interrupted`] passed on from
    /// the context.
    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop>;

    /// The adders that its runs use.
    fn adders(&self) -> Vec<Arc<dyn Adder>> {
        Vec::new()
    }

    /// The footprint of the program, if it follows from the arguments. If it is `None`, a
    /// reconnaissance run finds it (Calvin §3.2.1).
    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let _ = args;
        None
    }

    /// Whether every run stays within the declared footprint, whatever the data. An executor that
    /// runs one program at a time then need not compute or check it.
    ///
    /// A procedure may return true only if no row that it reads leads it to another key or range,
    /// and the footprint includes the accesses of every branch. A violation is not reported, and
    /// the run commits. With one worker it does so at its place; with several, it runs after the
    /// others of its slice, like any footprint violation, so replicas may diverge. On several
    /// shards, the run has no effects, gets a reconnaissance, and is sequenced again.
    fn is_footprint_certain(&self) -> bool {
        false
    }

    /// Whether the program can be divided over shards: no shard needs the rows of another one.
    /// Each shard on which the transaction writes then runs the program with its own rows, as soon
    /// as it has its locks, and no rows are sent. If all rows are on one shard, the program is run
    /// as any other.
    ///
    /// A procedure may return true only if, for these arguments and any data:
    ///
    /// - It declares the footprint, and [calls it certain](Self::is_footprint_certain). Otherwise
    ///   the transaction is not divided.
    /// - What it writes to the rows of a shard depends only on the arguments, the rows of that
    ///   shard, and rows of tables that are on all shards. Rows of other shards seem not to exist,
    ///   except those that the run has written itself, and what it writes to them is dropped.
    /// - Its result depends only on the arguments. Some shard gives it to the client.
    /// - It never aborts, panics, or leaves its footprint, also if rows are missing or malformed.
    ///   It may return false for arguments with which it would abort.
    ///
    /// The size of the written values is not limited, because it may depend on rows. A result or a
    /// number of rows above the limits of a transaction is an abort.
    ///
    /// The shards do not ask each other before they commit. If the program aborts on one of them,
    /// others may have committed, and clients may know. So that transactions stay atomic, there is
    /// no such abort: the node stops with a message that names the procedure. All replicas of its
    /// shard stop at the same transaction, and have applied none of its writes. A program in which
    /// the mistake is mended, and that has the same [version](Self::version), continues with it.
    /// The other conditions are not checked. If they do not hold, rows and results may be wrong,
    /// the same on all replicas of a shard.
    fn is_divisible(&self, args: &[u8]) -> bool {
        let _ = args;
        false
    }

    /// Names keys that a run will look up, as far as they follow from the arguments. Only a hint:
    /// the executor may prefetch their rows in parallel before it runs the program. It may name too
    /// few or too many.
    fn hint(&self, args: &[u8], name: &mut dyn FnMut(TableId, &[u8])) {
        let _ = (args, name);
    }

    /// Whether the program writes far more bytes than its arguments have (a load), so that running
    /// it on every replica is cheaper than sending its writes.
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

/// Must be raised whenever a procedure, SQL, or their executors return a different result for the
/// same arguments and data. The text of an error is part of a result: a procedure can store SQLERRM
/// in a row. A node whose version differs from that of its log or its peers does not run the
/// transactions that they agreed on.
pub const CODE_VERSION: u32 = 5;

/// Identifies the behavior of a node's procedures, as far as the program declares it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeDigest(pub u64);

impl fmt::Display for CodeDigest {
    /// The first digits, which are enough to tell the programs of a cluster apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0 >> 32)
    }
}

/// The procedures of a node, by name and number, and their adders. The same on every node.
#[derive(Clone)]
pub struct Registry {
    /// Ordered by name.
    by_name: Vec<Arc<dyn Procedure>>,
    /// The positions in `by_name`, ordered by number.
    by_id: Vec<(ProcedureId, usize)>,
    /// The adders, ordered by number.
    adders: Vec<(AdderId, Arc<dyn Adder>)>,
    code: CodeDigest,
}

impl Default for Registry {
    /// Without procedures.
    fn default() -> Self {
        Self::new([])
    }
}

impl ProcedureId {
    /// The number of the procedure with this name.
    pub fn of(name: &str) -> Self {
        Self(xxh3_64(name.as_bytes()) as u32)
    }
}

impl AdderId {
    /// The number of the adder with this name.
    pub fn of(name: &str) -> Self {
        Self(xxh3_64(name.as_bytes()) as u32)
    }
}

impl Registry {
    /// Creates a registry of these procedures and of the adders that they name.
    ///
    /// # Panics
    /// If two have the same name or number. Procedures may name the same adder.
    pub fn new(procedures: impl IntoIterator<Item = Arc<dyn Procedure>>) -> Self {
        let mut by_name: Vec<_> = procedures.into_iter().collect();
        by_name.sort_by(|a, b| a.name().cmp(b.name()));
        let is_unique = by_name.windows(2).all(|pair| pair[0].name() != pair[1].name());
        assert!(is_unique, "two procedures have the same name");
        let numbered = by_name.iter().enumerate();
        let numbered = numbered.map(|(position, it)| (ProcedureId::of(it.name()), position));
        let mut by_id: Vec<_> = numbered.collect();
        by_id.sort_unstable();
        for pair in by_id.windows(2) {
            let [(id, a), (other, b)] = [pair[0], pair[1]];
            let (a, b) = (by_name[a].name(), by_name[b].name());
            assert!(id != other, "rename procedure {a:?} or {b:?}: both have the number {id}");
        }
        let adders = adders_of(&by_name);
        let code = code_of(&by_name, &adders);
        Self { by_name, by_id, adders, code }
    }

    /// The number of the procedure with this name.
    pub fn id(&self, name: &str) -> Option<ProcedureId> {
        let found = self.by_name.binary_search_by(|procedure| procedure.name().cmp(name));
        found.ok().map(|_| ProcedureId::of(name))
    }

    /// The procedure with this number.
    pub fn procedure(&self, id: ProcedureId) -> Option<&dyn Procedure> {
        let found = self.by_id.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.by_name.get(self.by_id[found].1).map(|procedure| &**procedure)
    }

    /// The adder with this number.
    pub fn adder(&self, id: AdderId) -> Option<&dyn Adder> {
        let found = self.adders.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(&*self.adders[found].1)
    }

    /// A digest of the procedures and adders: registries with the same digest run a program with
    /// the same result.
    pub fn code(&self) -> CodeDigest {
        self.code
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.iter().map(|procedure| procedure.name())
    }
}

/// See [`Registry::code`].
fn code_of(by_name: &[Arc<dyn Procedure>], adders: &[(AdderId, Arc<dyn Adder>)]) -> CodeDigest {
    // No name contains this byte, so different procedures never give the same bytes.
    const END: u8 = 0xff;
    let mut hasher = Xxh3::new();
    hasher.update(&CODE_VERSION.to_le_bytes());
    for procedure in by_name {
        hasher.update(procedure.name().as_bytes());
        hasher.update(&[END]);
        hasher.update(&procedure.version().to_le_bytes());
    }
    for (_, adder) in adders {
        hasher.update(&[END]);
        hasher.update(adder.name().as_bytes());
        hasher.update(&[END]);
        hasher.update(&adder.version().to_le_bytes());
    }
    CodeDigest(hasher.digest())
}

/// The adders that procedures name, each once, ordered by number.
fn adders_of(procedures: &[Arc<dyn Procedure>]) -> Vec<(AdderId, Arc<dyn Adder>)> {
    let all = procedures.iter().flat_map(|procedure| procedure.adders());
    let mut adders: Vec<_> = all.map(|adder| (AdderId::of(adder.name()), adder)).collect();
    adders.sort_by_key(|(id, _)| *id);
    adders.dedup_by(|(id, adder), (other, of)| {
        let (name, other_name) = (adder.name(), of.name());
        let is_same = id == other;
        assert!(
            !is_same || name == other_name,
            "rename adder {name:?} or {other_name:?}: both have the number {id}"
        );
        is_same
    });
    adders
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
