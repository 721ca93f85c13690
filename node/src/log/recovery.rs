//! Recovery: reads a log, and finds the position for the next record.
//!
//! Segments are read in the order of their first records, and each must continue where the previous
//! one ended. Only the last one may end in a [torn](pangea_core::log::Torn) tail, because a segment
//! is completely durable before the next is written. The tail is overwritten with zeros and synced
//! before anything else happens, so that it is gone after a second crash.
//!
//! A gap between segments is valid only if a [mark](pangea_core::log::Mark) discarded everything
//! before it. A crash has then interrupted the removal of old segments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pangea_core::ids::LogPosition;
use pangea_core::log::{Item, Mark, SegmentError, SegmentHeader, SegmentScan, Torn};

use super::{LogError, segment_first, segment_name};
use crate::disk::{Disk, DiskError};

/// The recovered contents of a log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// The records that were not discarded, in order.
    pub records: Vec<(LogPosition, Bytes)>,
    /// The position of the last record, discarded or not. Position 0 if there was never one.
    pub head: LogPosition,
    /// The mark of the discarded records.
    pub mark: Mark,
    /// The tail that was cut off.
    pub cut: Option<Cut>,
}

/// The torn tail that was cut off a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The last segment's file.
    pub path: PathBuf,
    /// The end of its complete records.
    pub offset: usize,
    /// The bytes found there instead of zeros.
    pub torn: Torn,
}

/// A segment that is no longer written to.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    pub path: PathBuf,
    pub len: u64,
    /// The first position after the segment.
    pub end: LogPosition,
}

/// The segment that is written to.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub path: PathBuf,
    pub header: SegmentHeader,
    pub len: u64,
    /// The offset of the next frame.
    pub offset: u64,
}

/// The files of a log, ready for appends.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    pub sealed: Vec<Sealed>,
    pub active: Option<Active>,
    pub head: LogPosition,
    pub mark: Mark,
}

/// Reads the log in `dir`, and cuts off a torn tail.
pub(super) fn recover(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(Recovered, Tail), LogError> {
    disk.create_dir(dir).map_err(DiskError::new("make directory", dir))?;
    let names = disk.list(dir).map_err(DiskError::new("list", dir))?;
    // The names have a fixed width, so their order is the order of the records.
    let firsts: Vec<_> = names.iter().filter_map(|name| segment_first(name)).collect();
    let mut recovered = Recovered::default();
    let mut tail = Tail::default();
    let mut gap = None;
    // Where the previous segment is damaged, if it is.
    let mut damage = None;
    for (index, &first) in firsts.iter().enumerate() {
        let path = dir.join(segment_name(first));
        let expected = LogPosition(recovered.head.0 + 1);
        if first != expected {
            // The records before the gap must not be needed, which the mark must confirm below.
            let missing = LogError::Missing { dir: dir.to_owned(), from: expected, to: first };
            gap = Some((damage.unwrap_or(missing), first));
            recovered.records.clear();
        }
        let is_last = index + 1 == firsts.len();
        damage = read_segment(disk, path, first, is_last, &mut recovered, &mut tail)?;
    }
    if let Some((error, to)) = gap
        && recovered.mark.below < to
    {
        return Err(error);
    }
    let below = recovered.mark.below;
    recovered.records.retain(|(position, _)| *position >= below);
    tail.head = recovered.head;
    tail.mark = recovered.mark;
    Ok((recovered, tail))
}

/// Adds a segment to the recovered state. If its tail is torn although it is not the last segment,
/// returns the error that describes the damage. It is one if the next segment does not continue
/// there.
fn read_segment(
    disk: &Arc<dyn Disk>,
    path: PathBuf,
    first: LogPosition,
    is_last: bool,
    recovered: &mut Recovered,
    tail: &mut Tail,
) -> Result<Option<LogError>, LogError> {
    let bytes = Bytes::from(disk.read(&path).map_err(DiskError::new("read", &path))?);
    let len = bytes.len() as u64;
    let wrong = |error| LogError::Segment { path: path.clone(), error };
    let mut scan = SegmentScan::open(bytes).map_err(wrong)?;
    if scan.header().first != first {
        return Err(LogError::Misnamed { path, first: scan.header().first });
    }
    let end = loop {
        match scan.advance().map_err(wrong)? {
            Item::Record { position, record } => recovered.records.push((position, record)),
            Item::Mark(mark) => recovered.mark = mark,
            Item::End(end) => break end,
        }
    };
    let next = scan.next_position();
    recovered.head = LogPosition(next.0 - 1);
    if !is_last {
        let error = SegmentError::Corrupt { offset: end.offset, position: next };
        let damage = end.torn.map(|_| LogError::Segment { path: path.clone(), error });
        tail.sealed.push(Sealed { path, len, end: next });
        return Ok(damage);
    }
    let offset = end.offset as u64;
    if let Some(torn) = end.torn {
        cut_off(disk.as_ref(), &path, end.offset, torn)?;
        recovered.cut = Some(Cut { path: path.clone(), offset: end.offset, torn });
    }
    tail.active = Some(Active { path, header: scan.header(), len, offset });
    Ok(None)
}

/// Overwrites a torn tail with zeros.
fn cut_off(disk: &dyn Disk, path: &Path, offset: usize, torn: Torn) -> Result<(), DiskError> {
    let mut file = disk.open(path).map_err(DiskError::new("open", path))?;
    file.write_at(&vec![0; torn.len], offset as u64)
        .map_err(DiskError::new("cut the torn tail off", path))?;
    file.sync().map_err(DiskError::new("sync", path))
}
