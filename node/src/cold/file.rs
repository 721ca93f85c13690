//! The file of cold values: a `redb` database without durability.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pangea_core::ids::{SnapshotVersion, TableId};
use pangea_core::key::Key;
use pangea_core::store::{Cold, Copied};
use pangea_core::value::Value;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

/// Maps table and key to the version and the value.
const VALUES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("values");

/// The cache size of `redb`. It is small because values that are read often are warm and need no
/// cache.
const CACHE_BYTES: usize = 8 << 20;

/// Called with the reason when the file can no longer be read or written.
pub type OnColdError = Arc<dyn Fn(String) + Send + Sync>;

/// A file of cold values.
pub struct ColdFile {
    database: Database,
    /// The artificial delay of each read, to measure the effect of a slow disk.
    latency: Duration,
    on_error: OnColdError,
}

impl fmt::Debug for ColdFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ColdFile({:?})", self.database)
    }
}

impl ColdFile {
    /// Creates an empty file at `path`, replacing an existing one.
    ///
    /// # Errors
    /// When it can't be created.
    pub fn create(path: &Path, latency: Duration, on_error: OnColdError) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(path)?;
        Self::over(Unsynced(file), latency, on_error).map_err(io::Error::other)
    }

    fn over(
        backend: impl StorageBackend,
        latency: Duration,
        on_error: OnColdError,
    ) -> Result<Self, redb::Error> {
        let database =
            Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?;
        let made = Self { database, latency, on_error };
        // Creates the table.
        made.write(|_| Ok(()))?;
        Ok(made)
    }

    fn write(
        &self,
        change: impl FnOnce(
            &mut redb::Table<'_, &'static [u8], &'static [u8]>,
        ) -> Result<(), redb::StorageError>,
    ) -> Result<(), redb::Error> {
        let txn = self.database.begin_write()?;
        change(&mut txn.open_table(VALUES)?)?;
        Ok(txn.commit()?)
    }

    fn read(
        &self,
        keys: &[(TableId, Key)],
    ) -> Result<Vec<Option<(SnapshotVersion, Value)>>, redb::Error> {
        let txn = self.database.begin_read()?;
        let table = txn.open_table(VALUES)?;
        let value = |(id, key): &(TableId, Key)| {
            let found = table.get(place(*id, key).as_slice())?;
            Ok(found.map(|found| versioned(found.value())))
        };
        keys.iter().map(value).collect()
    }

    /// Returns the result, or stops the node on an error. A transaction can't continue without its
    /// rows, and no other result would be identical on all replicas.
    fn expect<T>(&self, what: &str, result: Result<T, redb::Error>) -> T {
        result.unwrap_or_else(|error| {
            let reason = format!(
                "the node stopped: rows that are not in memory can't be {what}: {error}. No \
                 acknowledged data is lost"
            );
            (self.on_error)(reason.clone());
            panic!("{reason}");
        })
    }
}

impl Cold for ColdFile {
    fn put(&self, values: &[Copied]) {
        let put = self.write(|table| {
            values.iter().try_for_each(|Copied { table: id, key, version, value }| {
                let bytes = [&version.0.to_le_bytes()[..], value].concat();
                table.insert(place(*id, key).as_slice(), bytes.as_slice()).map(|_| ())
            })
        });
        self.expect("written", put);
    }

    fn get(&self, keys: &[(TableId, Key)]) -> Vec<Option<(SnapshotVersion, Value)>> {
        if !self.latency.is_zero() {
            // The configured artificial delay.
            std::thread::sleep(self.latency);
        }
        self.expect("read", self.read(keys))
    }

    fn remove(&self, gone: &[(TableId, Key, SnapshotVersion)]) {
        let removed = self.write(|table| {
            gone.iter().try_for_each(|(id, key, version)| {
                let place = place(*id, key);
                let found = table.get(place.as_slice())?;
                let is_it = found.is_some_and(|found| versioned(found.value()).0 == *version);
                if is_it {
                    table.remove(place.as_slice())?;
                }
                Ok(())
            })
        });
        self.expect("removed", removed);
    }

    fn clear(&self) {
        // Drops the whole table, because removing the rows one by one would take long.
        let clear = || -> Result<(), redb::Error> {
            let txn = self.database.begin_write()?;
            txn.delete_table(VALUES)?;
            txn.open_table(VALUES)?;
            Ok(txn.commit()?)
        };
        self.expect("removed", clear());
    }
}

/// The key of a row in the file.
fn place(table: TableId, key: &Key) -> Vec<u8> {
    [&table.0.to_be_bytes()[..], key].concat()
}

/// Decodes a version and a value encoded by [`ColdFile::put`].
fn versioned(bytes: &[u8]) -> (SnapshotVersion, Value) {
    let (version, value) = bytes.split_at(size_of::<u64>());
    let version = u64::from_le_bytes(version.try_into().expect("a version has eight bytes"));
    (SnapshotVersion(version), Value::copy_from(value))
}

/// A file that need not survive a crash.
#[derive(Debug)]
struct Unsynced(File);

impl StorageBackend for Unsynced {
    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn copied(number: u64, version: u64) -> Copied {
        let (table, key) = (TableId(number as u32 % 3), Key::from(&number.to_be_bytes()[..]));
        let value = Value::copy_from(&[version as u8; 300]);
        Copied { table, key, version: SnapshotVersion(version), value }
    }

    fn keys(values: &[Copied]) -> Vec<(TableId, Key)> {
        values.iter().map(|it| (it.table, it.key.clone())).collect()
    }

    #[test]
    fn what_was_put_last_is_there_until_it_is_removed_and_nothing_after_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cold.redb");
        let create = || ColdFile::create(&path, Duration::ZERO, Arc::new(|_| panic!()));
        let file = create().unwrap();
        let first: Vec<Copied> = (0..400).map(|i| copied(i, 1)).collect();
        let second: Vec<Copied> = (0..100).map(|i| copied(i, 2)).collect();
        file.put(&first);
        file.put(&second);
        let gone = |it: &Copied| (it.table, it.key.clone(), it.version);
        file.remove(&first[50..200].iter().map(gone).collect::<Vec<_>>());
        let found = file.get(&keys(&first));
        let version = |at: usize| found[at].as_ref().map(|(version, _)| version.0);
        assert!((0..100).all(|at| version(at) == Some(2)), "the wrong version was removed");
        assert!((100..200).all(|at| version(at).is_none()));
        assert!((200..400).all(|at| found[at].as_ref().unwrap().1 == first[at].value));
        file.clear();
        assert!(file.get(&keys(&first)).iter().all(Option::is_none));
        file.put(&first);
        drop(file);
        assert!(create().unwrap().get(&keys(&first)).iter().all(Option::is_none));
    }

    #[test]
    fn a_file_does_not_grow_for_ever_with_what_is_put_into_it_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cold.redb");
        let file = ColdFile::create(&path, Duration::ZERO, Arc::new(|_| panic!())).unwrap();
        let put = |version| file.put(&(0..400).map(|i| copied(i, version)).collect::<Vec<_>>());
        (1..20).for_each(put);
        let before = path.metadata().unwrap().len();
        (20..200).for_each(put);
        assert!(path.metadata().unwrap().len() <= 2 * before);
    }

    /// A disk that starts to fail on command.
    #[derive(Debug)]
    struct Failing(Unsynced, Arc<AtomicBool>);

    impl Failing {
        fn check(&self) -> io::Result<()> {
            match self.1.load(Ordering::Relaxed) {
                true => Err(io::Error::other("no such disk")),
                false => Ok(()),
            }
        }
    }

    impl StorageBackend for Failing {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.check().and_then(|()| self.0.read(offset, out))
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.check().and_then(|()| self.0.set_len(len))
        }

        fn sync_data(&self) -> io::Result<()> {
            self.check()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.check().and_then(|()| self.0.write(offset, data))
        }
    }

    #[test]
    fn a_disk_that_fails_is_told_of_before_whoever_needs_it_is_stopped() {
        let fails = Arc::new(AtomicBool::new(false));
        let backend = Failing(Unsynced(tempfile::tempfile().unwrap()), fails.clone());
        let reported: Arc<Mutex<Vec<String>>> = Arc::default();
        let on_error = {
            let reported = reported.clone();
            Arc::new(move |reason| reported.lock().unwrap().push(reason))
        };
        let file = ColdFile::over(backend, Duration::ZERO, on_error).unwrap();
        let values: Vec<Copied> = (0..100).map(|i| copied(i, 1)).collect();
        file.put(&values);
        fails.store(true, Ordering::Relaxed);
        let put = || file.put(&values);
        let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(put));
        assert!(stopped.is_err());
        let reported = reported.lock().unwrap();
        assert!(reported[0].contains("can't be written: ") && reported[0].contains("no such disk"));
    }
}
