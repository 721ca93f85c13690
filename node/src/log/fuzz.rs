//! Fuzzing of recovery, with segments that are almost valid.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use pangea_core::ids::SnapshotVersion;
use pangea_core::log::{FrameHeader, Kind, SEGMENT_HEADER_LEN, SegmentHeader};

use super::*;
use crate::disk::DiskFile;
use crate::fuzzing::{Outcome, Target, run, size};

type Files = Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>;

/// The part of a disk that recovery uses.
#[derive(Clone, Debug, Default)]
struct MemoryDisk(Files);

#[derive(Debug)]
struct MemoryFile(Files, PathBuf);

fn with<R>(files: &Files, path: &Path, f: impl FnOnce(&mut Vec<u8>) -> R) -> io::Result<R> {
    let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
    files.get_mut(path).map(f).ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl Disk for MemoryDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
    fn list(&self, _dir: &Path) -> io::Result<Vec<String>> {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(files.keys().map(|path| path.file_name().unwrap().to_str().unwrap().into()).collect())
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        with(&self.0, path, |bytes| bytes.clone())
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(MemoryFile(self.0.clone(), path.to_owned())))
    }
    fn create(&self, _path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn remove(&self, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn lock(&self, _path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        with(&self.0, &self.1, |bytes| bytes.len() as u64)
    }
    fn read_at(&mut self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn write_at(&mut self, new: &[u8], offset: u64) -> io::Result<()> {
        let at = offset as usize;
        with(&self.0, &self.1, |bytes| bytes[at..at + new.len()].copy_from_slice(new))
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The separator between the segments of an input.
const BETWEEN: &[u8] = b"|next|";

/// Consecutive segments, each with a mark that discards the records below `below`.
fn segments(firsts: &[u64], records: u64, below: u64) -> Vec<u8> {
    let segment = |&first: &u64| {
        let salt = first * 7;
        let mut bytes = SegmentHeader { salt, first: LogPosition(first) }.encode();
        let mut put = |kind, position, payload| {
            let header = FrameHeader { kind, position: LogPosition(position), synced: 32 };
            header.encode(salt, &[payload], &mut bytes);
        };
        let mark = Mark { below: LogPosition(below), checkpoint: SnapshotVersion(2) };
        put(Kind::Mark, first - 1, mark.encode());
        (first..first + records)
            .for_each(|at| put(Kind::Record, at, Bytes::from_static(b"record")));
        bytes.resize(bytes.len() + 40, 0);
        bytes
    };
    firsts.iter().map(segment).collect::<Vec<_>>().join(BETWEEN)
}

fn split(mut input: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some(at) = input.windows(BETWEEN.len()).position(|window| window == BETWEEN) {
        parts.push(&input[..at]);
        input = &input[at + BETWEEN.len()..];
    }
    parts.push(input);
    parts
}

/// Corrects the checksums of the segments and of all frames that the lengths lead to.
fn mend(input: &mut [u8]) {
    let mended = split(input).into_iter().map(|part| {
        let mut bytes = part.to_vec();
        if bytes.len() < SEGMENT_HEADER_LEN {
            return bytes;
        }
        let crc = crc32c::crc32c(&bytes[16..SEGMENT_HEADER_LEN]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        let salt = crc32c::crc32c(&bytes[16..24]);
        let mut at = SEGMENT_HEADER_LEN;
        while let Some(length) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
            let len = (u32::from_le_bytes(*length) as usize).max(8);
            let Some(frame) = bytes.get_mut(at..at + len) else { break };
            let crc = crc32c::crc32c_append(crc32c::crc32c_append(salt, &frame[..4]), &frame[8..]);
            frame[4..8].copy_from_slice(&crc.to_le_bytes());
            at += len;
        }
        bytes
    });
    let mended = mended.collect::<Vec<_>>().join(BETWEEN);
    input.copy_from_slice(&mended);
}

fn look(input: &[u8]) -> Outcome {
    let dir = Path::new("log");
    // The files are named by the positions in their headers, so that recovery gets past the check
    // of the names.
    let named = split(input).into_iter().enumerate().map(|(at, bytes)| {
        let first = bytes.get(24..).and_then(|rest| rest.first_chunk().copied());
        let first = first.map_or(at as u64, u64::from_le_bytes);
        (dir.join(segment_name(LogPosition(first))), bytes.to_vec())
    });
    let disk = MemoryDisk(Arc::new(Mutex::new(named.collect())));
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let (recovered, tail) = match recovery::recover(&disk, dir) {
        Ok(recovered) => recovered,
        Err(error) => return Outcome::refused(error.to_string()),
    };
    assert_eq!((tail.head, tail.mark), (recovered.head, recovered.mark));
    let positions = recovered.records.iter().map(|(position, _)| position.0);
    let last = positions.clone().next_back().unwrap_or(recovered.head.0);
    let first = (last + 1).saturating_sub(recovered.records.len() as u64);
    assert!(positions.eq(first..first + recovered.records.len() as u64), "records have no gaps");
    // A second recovery finds no torn tail.
    let again = recovery::recover(&disk, dir).expect("the records were recovered before").0;
    assert_eq!(again, Recovered { cut: None, ..recovered.clone() });
    Outcome::taken((size(recovered.records.len()), recovered.cut.is_some(), tail.sealed.len()))
}

#[test]
fn recovery_of_a_log() {
    run(Target {
        name: "log-recovery",
        seeds: vec![
            segments(&[1], 3, 1),
            segments(&[1, 4, 7], 3, 2),
            segments(&[1, 9], 3, 10),
            segments(&[50], 0, 50),
        ],
        mend,
        look,
        bytes_max: 16 << 10,
        bytes_per_byte: 64,
    });
}
