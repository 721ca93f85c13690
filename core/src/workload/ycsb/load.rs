//! The program that loads rows.

use super::super::rng::WorkloadRng;
use super::super::{bounded, ended, malformed};
use super::{COUNTER_LEN, LOAD_BYTES_MAX, LOAD_ROWS_MAX, Op, ROW_END, ROWS, VALUE_LEN_MAX, key};
use crate::codec::{DecodeError, Reader, Writer};
use crate::txn::{Context, Footprint, LockMode, Procedure, RangeLock, Stop};
use crate::value::Value;

/// Writes rows `start .. end` with random values that begin with a counter of 0.
#[derive(Clone, Copy, Debug)]
pub struct Load;

pub(super) struct LoadArgs {
    pub start: u64,
    pub end: u64,
    pub value_len: u32,
    pub seed: u64,
}

impl LoadArgs {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut args = Vec::new();
        args.put_varint(self.start);
        args.put_varint(self.end);
        args.put_varint(self.value_len.into());
        args.put_u64(self.seed);
        args
    }

    fn decode(args: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(args);
        let start = bounded(from.varint("start")?, 0, ROW_END, "start")?;
        let end = bounded(from.varint("end")?, start, start + LOAD_ROWS_MAX, "end")?;
        bounded(end, start, ROW_END, "end")?;
        let value_len = from.varint("value length")?;
        let value_len =
            bounded(value_len, COUNTER_LEN as u64, VALUE_LEN_MAX, "value length")? as u32;
        bounded((end - start) * u64::from(value_len), 0, LOAD_BYTES_MAX, "size of a load")?;
        let seed = from.u64("seed")?;
        ended(from, "load arguments")?;
        Ok(Self { start, end, value_len, seed })
    }
}

impl Procedure for Load {
    fn name(&self) -> &str {
        "ycsb_load"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let args = LoadArgs::decode(args).map_err(malformed)?;
        let mut value = Vec::with_capacity(args.value_len as usize);
        for row in args.start..args.end {
            value.clear();
            value.put_u64(0);
            WorkloadRng::of(args.seed, &[row])
                .bytes(args.value_len as usize - COUNTER_LEN, &mut value);
            cx.put(ROWS, key(row), Value::copy_from(&value))?;
        }
        Ok(Vec::new())
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = LoadArgs::decode(args) else { return Some(Footprint::default()) };
        if args.start == args.end {
            return Some(Footprint::default());
        }
        let range = Op::range(args.start, args.end - args.start);
        let lock = RangeLock { table: ROWS, range, mode: LockMode::Write };
        Some(Footprint::new(Vec::new(), vec![lock]))
    }

    fn is_bulk(&self, _: &[u8]) -> bool {
        true
    }
}
