//! Tests of the log on an in-memory disk that tears, fills up and fails, and on the real disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::support::mem_disk::MemDisk;
use bytes::Bytes;
use pangea_core::ids::{LogPosition, SnapshotVersion};
use pangea_core::log::{FRAME_HEADER_LEN, Mark, PAYLOAD_LEN_MAX};
use pangea_node::disk::{Disk, OsDisk};
use pangea_node::log::{
    Append, Durability, Log, LogError, LogEvent, LogEvents, LogOptions, Recovered,
};
use proptest::prelude::*;

/// Far longer than any operation here takes: a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(30);

const SEGMENT_BYTES: u64 = 2_048;

fn options(dir: &Path) -> LogOptions {
    let (dir, durability) = (dir.to_owned(), Durability::Fsync);
    LogOptions { dir, durability, segment_bytes: SEGMENT_BYTES, meter: None }
}

fn dir() -> PathBuf {
    PathBuf::from("/log")
}

struct Running {
    log: Log,
    recovered: Recovered,
    events: Receiver<LogEvent>,
}

fn events() -> (LogEvents, Receiver<LogEvent>) {
    let (sender, receiver): (Sender<LogEvent>, _) = channel();
    // A test that has ended ignores further reports.
    (Arc::new(move |event| drop(sender.send(event))), receiver)
}

fn open(disk: &(impl Disk + Clone)) -> Result<Running, LogError> {
    open_with(disk, &options(&dir()))
}

fn open_with(disk: &(impl Disk + Clone), options: &LogOptions) -> Result<Running, LogError> {
    let (sink, events) = events();
    let (log, recovered) = Log::open(Arc::new(disk.clone()), options, sink)?;
    Ok(Running { log, recovered, events })
}

fn record(position: u64) -> Bytes {
    Bytes::from(format!("record {position} {}", "x".repeat(position as usize % 60)))
}

fn records(positions: impl IntoIterator<Item = u64>) -> Vec<(LogPosition, Bytes)> {
    positions.into_iter().map(|p| (LogPosition(p), record(p))).collect()
}

impl Running {
    fn append(&self, positions: impl IntoIterator<Item = u64>) {
        let append = |p: u64| {
            let record = record(p);
            Append { position: LogPosition(p), record: vec![record.slice(..3), record.slice(3..)] }
        };
        self.log.append(&mut positions.into_iter().map(append).collect());
    }

    fn wait_durable(&self, position: u64) {
        loop {
            match self.events.recv_timeout(DEADLINE).expect("a report") {
                LogEvent::Durable(durable) if durable.0 >= position => return,
                LogEvent::Durable(_) => {}
                LogEvent::Failed(error) => panic!("{error}"),
            }
        }
    }

    fn wait_failed(&self) -> (u64, LogError) {
        let mut durable = 0;
        loop {
            match self.events.recv_timeout(DEADLINE).expect("a report") {
                LogEvent::Durable(position) => durable = position.0,
                LogEvent::Failed(error) => return (durable, error),
            }
        }
    }
}

fn mark(below: u64) -> Mark {
    Mark { below: LogPosition(below), checkpoint: SnapshotVersion(below) }
}

fn segments(disk: &MemDisk) -> Vec<PathBuf> {
    let is_segment = |path: &PathBuf| path.to_string_lossy().contains("/log-");
    disk.paths().into_iter().filter(is_segment).collect()
}

/// A log of 100 records in several segments.
fn hundred(disk: &MemDisk) {
    let running = open(disk).unwrap();
    for first in (1..100).step_by(5) {
        running.append(first..first + 5);
        running.wait_durable(first + 4);
    }
    running.log.stop();
    assert!(segments(disk).len() > 3);
}

#[test]
fn what_was_written_comes_back_on_the_real_disk_and_the_log_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let options = options(&temp.path().join("log"));
    for run in 0..5 {
        let running = open_with(&OsDisk, &options).unwrap();
        assert_eq!(running.recovered.records, records(1..=run * 40));
        assert_eq!((running.recovered.head.0, &running.recovered.cut), (run * 40, &None));
        running.append(run * 40 + 1..=run * 40 + 40);
        if run % 2 == 0 {
            running.log.stop();
        } else {
            running.wait_durable(run * 40 + 40);
            drop(running);
        }
    }
}

#[test]
fn records_that_come_during_a_sync_share_the_next_one() {
    let disk = MemDisk::default();
    let running = open(&disk).unwrap();
    running.append(1..=1);
    running.wait_durable(1);
    let before = running.log.counters().groups.load(std::sync::atomic::Ordering::Relaxed);
    let held_sync = disk.hold_sync();
    (2..=20).for_each(|position| running.append([position]));
    drop(held_sync);
    running.wait_durable(20);
    let groups = running.log.counters().groups.load(std::sync::atomic::Ordering::Relaxed);
    assert!((1..=2).contains(&(groups - before)), "{} groups", groups - before);
    running.log.stop();
}

#[test]
fn truncated_segments_go_and_full_ones_are_used_again() {
    let disk = MemDisk::default();
    hundred(&disk);
    let before = segments(&disk).len();
    let running = open(&disk).unwrap();
    running.log.truncate(mark(90));
    running.append(101..=101);
    running.wait_durable(101);
    running.log.stop();
    assert!(segments(&disk).len() <= before - 2, "{:?}", disk.paths());
    let spares = disk.paths().len() - segments(&disk).len();
    assert!((1..=8).contains(&spares), "{:?}", disk.paths());

    let running = open(&disk).unwrap();
    assert_eq!(running.recovered.records, records(90..=101));
    assert_eq!(running.recovered.mark, mark(90));
    // These records go through the recycled segments, which contain old records.
    for first in (102..300).step_by(3) {
        running.append(first..first + 3);
        running.wait_durable(first + 2);
    }
    drop(running);
    let recovered = open(&disk).unwrap().recovered;
    assert_eq!((recovered.records, recovered.cut), (records(90..=299), None));
}

#[test]
fn a_record_longer_than_a_segment_has_a_segment_of_its_own() {
    let disk = MemDisk::default();
    let running = open(&disk).unwrap();
    let long = Bytes::from(vec![7; 3 * SEGMENT_BYTES as usize]);
    let append =
        |p, record: &Bytes| Append { position: LogPosition(p), record: vec![record.clone()] };
    running.log.append(&mut vec![append(1, &long), append(2, &record(2)), append(3, &long)]);
    running.wait_durable(3);
    running.log.stop();
    let recovered = open(&disk).unwrap().recovered;
    let found: Vec<_> = recovered.records.into_iter().map(|(_, record)| record).collect();
    assert_eq!(found, [long.clone(), record(2), long]);
}

/// The record of an epoch can be this long if tables are partitioned. It once caused a panic of the
/// writer's thread.
#[test]
fn a_record_longer_than_a_frame_and_than_what_may_wait_is_written_and_comes_back() {
    let disk = MemDisk::default();
    let running = open(&disk).unwrap();
    // The record is longer than the queue's limit of 128 MiB.
    let len = 2 * PAYLOAD_LEN_MAX + 1_000;
    let long = Bytes::from((0..len).map(|at| (at >> 12) as u8).collect::<Vec<_>>());
    let append = |p, record: Bytes| Append { position: LogPosition(p), record: vec![record] };
    for p in [1, 3] {
        running.log.append(&mut vec![append(p, long.clone())]);
        running.log.append(&mut vec![append(p + 1, record(p + 1))]);
    }
    running.wait_durable(4);
    running.log.stop();
    let recovered = open(&disk).unwrap().recovered;
    assert_eq!(recovered.cut, None);
    let found: Vec<_> = recovered.records.into_iter().map(|(_, record)| record).collect();
    assert!(found == [long.clone(), record(2), long, record(4)]);
}

#[test]
fn a_torn_tail_is_cut_off_and_reported_and_the_log_goes_on_from_there() {
    let disk = MemDisk::default();
    hundred(&disk);
    let last = segments(&disk).pop().unwrap();
    let mut cut_at = 0;
    disk.damage(&last, |bytes| {
        // The last frame ends with x or a digit, followed by zeros.
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        cut_at = end;
        bytes[end - 3..].fill(0);
    });
    let running = open(&disk).unwrap();
    let cut = running.recovered.cut.clone().expect("a cut");
    assert_eq!((&cut.path, cut.torn.frames), (&last, 0));
    assert!(cut.offset < cut_at, "{cut:?}");
    assert_eq!(running.recovered.records, records(1..=99));
    running.append(100..=120);
    running.wait_durable(120);
    drop(running);
    let recovered = open(&disk).unwrap().recovered;
    assert_eq!((recovered.records, recovered.cut), (records(1..=120), None));
}

#[test]
fn whole_records_after_a_hole_in_the_last_group_go_with_it_once_and_for_all() {
    let disk = MemDisk::default();
    hundred(&disk);
    let last = segments(&disk).pop().unwrap();
    disk.damage(&last, |bytes| {
        let text = b"record 98 ";
        let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
        bytes[at - FRAME_HEADER_LEN..at].fill(0);
    });
    let recovered = open(&disk).unwrap().recovered;
    let cut = recovered.cut.expect("a cut");
    assert_eq!((recovered.head.0, cut.torn.frames), (97, 2));
    let recovered = open(&disk).unwrap().recovered;
    assert_eq!((recovered.head.0, recovered.cut), (97, None));
}

#[test]
fn damage_that_is_not_at_the_end_is_refused_by_file_and_offset() {
    let disk = MemDisk::default();
    hundred(&disk);
    let first = segments(&disk).remove(0);
    disk.damage(&first, |bytes| bytes[700] ^= 4);
    let error = open(&disk).err().expect("a corrupt log").to_string();
    assert!(error.contains(first.to_str().unwrap()), "{error}");
    assert!(error.contains("corrupt at offset 6"), "{error}");
    disk.damage(&first, |bytes| bytes[700] ^= 4);
    open(&disk).expect("the damage is undone");
}

/// Story: no later record of its segment told that the damaged one was durable, so the error named
/// neither file nor offset: "records 12 to 91 are missing".
#[test]
fn a_hole_at_the_end_of_a_segment_that_is_not_the_last_is_refused() {
    let disk = MemDisk::default();
    hundred(&disk);
    let first = segments(&disk).remove(0);
    disk.damage(&first, |bytes| {
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        bytes[end] ^= 1;
    });
    let error = open(&disk).err().expect("a hole").to_string();
    assert!(error.contains(first.to_str().unwrap()), "{error}");
    assert!(error.contains("corrupt at offset "), "{error}");
}

#[test]
fn a_missing_segment_is_refused_by_its_records() {
    for missing in [0, 2] {
        let disk = MemDisk::default();
        hundred(&disk);
        let path = segments(&disk).remove(missing);
        disk.remove(&path).unwrap();
        let error = open(&disk).err().expect("a missing segment");
        assert!(matches!(error, LogError::Missing { .. }), "{error}");
    }
}

#[test]
fn a_crash_in_the_middle_of_a_truncation_leaves_a_good_log() {
    let disk = MemDisk::default();
    hundred(&disk);
    let all = segments(&disk);
    let kept = disk.read(&all[0]).unwrap();
    let running = open(&disk).unwrap();
    running.log.truncate(mark(90));
    running.append(101..=101);
    running.wait_durable(101);
    running.log.stop();
    // The removal of the oldest segment was lost in the crash; the removals of the others were not.
    disk.create(&all[0]).unwrap().write_at(&kept, 0).unwrap();
    let recovered = open(&disk).unwrap().recovered;
    assert_eq!(recovered.records, records(90..=101));
}

#[test]
fn a_segment_of_a_newer_format_or_under_a_wrong_name_is_refused() {
    let disk = MemDisk::default();
    hundred(&disk);
    let path = segments(&disk).remove(1);
    disk.damage(&path, |bytes| bytes[8] += 1);
    let error = open(&disk).err().expect("a newer format").to_string();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("newer version"), "{error}");
    // The checksum does not cover the format.
    disk.damage(&path, |bytes| bytes[8] -= 2);
    let error = open(&disk).err().expect("an older format").to_string();
    assert!(error.contains("older version") && error.contains("formats 10 to 10"), "{error}");
    disk.damage(&path, |bytes| bytes[8] += 1);
    disk.rename(&path, &dir().join("log-00000000000000000002.seg")).unwrap();
    let error = open(&disk).err().expect("a wrong name");
    assert!(matches!(error, LogError::Misnamed { .. }), "{error}");
}

#[test]
fn a_full_disk_ends_the_log_with_a_clear_error_and_loses_nothing_that_was_durable() {
    let disk = MemDisk::default();
    let running = open(&disk).unwrap();
    disk.set_room(Some(3 * SEGMENT_BYTES));
    (1..=1_000).for_each(|position| running.append([position]));
    let (durable, error) = running.wait_failed();
    let message = error.to_string();
    assert!(message.contains("The disk is full") && message.contains("/log/"), "{message}");
    assert!(durable > 20, "{durable}");
    running.append(1_001..=1_002);
    assert!(running.events.try_recv().is_err(), "a report after the log was stopped");
    drop(running);
    disk.set_room(None);
    let recovered = open(&disk).unwrap().recovered;
    assert!(recovered.head.0 >= durable);
    assert_eq!(recovered.records, records(1..=recovered.head.0));
}

#[test]
fn where_a_whole_segment_has_no_room_a_smaller_one_is_made() {
    const RECORD_LEN: usize = 64 << 10;
    let disk = MemDisk::default();
    let options = LogOptions { segment_bytes: 64 << 20, ..options(&dir()) };
    // Segments of 4 and 8 MiB fit, but the next one of 16 MiB does not.
    disk.set_room(Some(17 << 20));
    let running = open_with(&disk, &options).unwrap();
    let record = Bytes::from(vec![7; RECORD_LEN]);
    for position in 1..=400 {
        let append = Append { position: LogPosition(position), record: vec![record.clone()] };
        running.log.append(&mut vec![append]);
    }
    let (durable, error) = running.wait_failed();
    assert!(error.to_string().contains("The disk is full"), "{error}");
    assert!(durable as usize * RECORD_LEN > 15 << 20, "{durable} records, and there was room");
}

#[test]
fn a_failed_sync_is_never_tried_again() {
    let disk = MemDisk::default();
    let running = open(&disk).unwrap();
    running.append(1..=10);
    running.wait_durable(10);
    disk.set_fails_sync(true);
    running.append(11..=11);
    let (_, error) = running.wait_failed();
    assert!(error.to_string().contains("can't sync"), "{error}");
    disk.set_fails_sync(false);
    running.append(12..=12);
    running.log.stop();
    assert_eq!(open(&disk).unwrap().recovered.head.0, 11, "record 12 was not accepted");
}

#[test]
fn without_durability_nothing_is_written_and_everything_is_reported() {
    let disk = MemDisk::default();
    let options = LogOptions { durability: Durability::Memory, ..options(&dir()) };
    let running = open_with(&disk, &options).unwrap();
    running.append(1..=10);
    running.wait_durable(10);
    running.log.stop();
    assert_eq!(disk.paths(), Vec::<PathBuf>::new());
}

#[test]
fn with_os_durability_groups_are_not_synced_and_survive_the_process() {
    let disk = MemDisk::default();
    let options = LogOptions { durability: Durability::Os, ..options(&dir()) };
    let running = open_with(&disk, &options).unwrap();
    running.append(1..=1);
    running.wait_durable(1);
    disk.set_fails_sync(true);
    (2..=10).for_each(|position| running.append([position]));
    running.wait_durable(10);
    drop(running);
    disk.set_fails_sync(false);
    assert_eq!(open_with(&disk, &options).unwrap().recovered.records, records(1..=10));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Repeated crashes with torn sectors: all durable records survive, the surviving records are a
    /// prefix, and the log continues.
    #[test]
    fn what_was_durable_survives_any_number_of_crashes(
        seed: u64,
        runs in prop::collection::vec((1_u64..60, any::<bool>(), any::<bool>()), 1..8),
    ) {
        let disk = MemDisk::default();
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut durable, mut below) = (0, 0);
        for (count, waits, truncates) in runs {
            let running = open(&disk).unwrap();
            let head = running.recovered.head.0;
            prop_assert!(head >= durable, "lost {durable}, has {head}");
            let first = running.recovered.mark.below.0.max(1);
            prop_assert!(first <= below.max(1));
            prop_assert_eq!(&running.recovered.records, &records(first..=head));
            for position in head + 1..=head + count {
                running.append([position]);
            }
            durable = head;
            if waits {
                running.wait_durable(head + count);
                durable = head + count;
            }
            if truncates {
                below = durable;
                running.log.truncate(mark(below));
            }
            disk.crash(&mut rng);
            drop(running);
            disk.crash(&mut rng);
        }
    }
}
