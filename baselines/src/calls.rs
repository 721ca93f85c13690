//! A workload's calls, translated for other databases.
//!
//! The arguments are those of Pangea's procedures, byte for byte, and are converted to numbers and
//! strings here. Databases with locks work better if all transactions lock rows in one order.
//! Therefore writes and order lines are sorted, which does not change the outcome and avoids
//! deadlocks.

use std::collections::BTreeMap;

use pangea_core::codec::DecodeError;
use pangea_core::workload::tpcc::args::{Args, Line, NewOrderArgs, PaymentArgs};
use pangea_core::workload::ycsb::{self, Op};

/// A call with decoded arguments.
#[derive(Debug)]
pub(crate) enum Work<'a> {
    Ycsb(Ycsb<'a>),
    NewOrder(NewOrder),
    Payment(PaymentArgs<'a>),
}

/// Reads and blind writes of whole rows.
#[derive(Debug, Default)]
pub(crate) struct Ycsb<'a> {
    /// The rows to read, in the order of the call.
    pub reads: Vec<i64>,
    /// The rows to write, each once, in key order. The last write of a row wins.
    pub writes: BTreeMap<i64, &'a [u8]>,
}

/// An order. Its lines are sorted by the rows that they lock.
#[derive(Debug)]
pub(crate) struct NewOrder {
    pub args: NewOrderArgs,
    pub is_all_local: bool,
    /// The lines, with their numbers in the order, from 1.
    pub lines: Vec<(i16, Line)>,
}

impl<'a> Work<'a> {
    /// Decodes the arguments of a procedure.
    pub fn read(procedure: &str, args: &'a [u8]) -> Result<Self, DecodeError> {
        match procedure {
            "ycsb" => Ok(Self::Ycsb(read_ycsb(args)?)),
            "tpcc_new_order" => Ok(Self::NewOrder(read_new_order(args)?)),
            "tpcc_payment" => Ok(Self::Payment(PaymentArgs::decode(args)?)),
            _ => Err(DecodeError::new("procedure: expected ycsb, new-order or payment")),
        }
    }
}

fn read_ycsb(args: &[u8]) -> Result<Ycsb<'_>, DecodeError> {
    let mut work = Ycsb::default();
    for op in ycsb::operations(args)? {
        match op {
            Op::Read { row } => work.reads.push(row as i64),
            Op::Write { row, value } => drop(work.writes.insert(row as i64, value)),
            Op::Modify { .. } | Op::Scan { .. } => {
                return Err(DecodeError::new("operation: peers only read and write rows"));
            }
        }
    }
    Ok(work)
}

fn read_new_order(args: &[u8]) -> Result<NewOrder, DecodeError> {
    let args = NewOrderArgs::decode(args)?;
    let mut lines: Vec<(i16, Line)> = (1..).zip(args.lines().iter().copied()).collect();
    lines.sort_by_key(|(number, line)| (line.supply, line.item, *number));
    let is_all_local = lines.iter().all(|(_, line)| line.supply == args.district.warehouse);
    Ok(NewOrder { args, is_all_local, lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pangea_core::time::Timestamp;
    use pangea_core::workload::{Client, Settings, Workload};

    #[test]
    fn every_call_of_the_workloads_that_peers_have_can_be_read() {
        let settings = Settings { rows: 5, zipf: 0.9, ..Settings::default() };
        let (mut twice, mut unsorted) = (0, 0);
        for name in ["ycsb-a", "ycsb-b", "ycsb-c", "tpcc-nopay"] {
            let workload = Workload::named(name, &settings).expect("a workload");
            let mut generator = workload.generator(Client::new(0, 1, 1));
            let mut rng = fastrand::Rng::with_seed(1);
            for _ in 0..300 {
                let call = generator.next(&mut rng, Timestamp::default());
                match Work::read(call.procedure, &call.args).expect("the bytes can be decoded") {
                    Work::Ycsb(Ycsb { reads, writes }) => {
                        assert!(reads.len() + writes.len() <= ycsb::OPS_PER_TXN);
                        twice += ycsb::OPS_PER_TXN - reads.len() - writes.len();
                    }
                    Work::NewOrder(NewOrder { args, lines, .. }) => {
                        assert_eq!(lines.len(), args.line_count);
                        assert!(lines.is_sorted_by_key(|(_, line)| (line.supply, line.item)));
                        unsorted += usize::from(!lines.is_sorted_by_key(|(number, _)| number));
                    }
                    Work::Payment(_) => {}
                }
            }
        }
        assert!(twice > 0 && unsorted > 0, "{twice} {unsorted}");
    }

    #[test]
    fn a_call_that_peers_do_not_have_is_refused() {
        let workload = Workload::named("ycsb-f", &Settings::default()).expect("a workload");
        let mut generator = workload.generator(Client::new(0, 1, 1));
        let call = generator.next(&mut fastrand::Rng::with_seed(1), Timestamp::default());
        assert!(Work::read(call.procedure, &call.args).is_err());
        assert!(Work::read("bank_transfer", &[]).is_err());
    }
}
