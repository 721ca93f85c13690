//! Bank accounts with a constant sum.
//!
//! Clients transfer money between two accounts, or read all of them. In a serializable database
//! every audit finds the same total, and no account is overdrawn.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::definition::{Definition, Facts, Generate};
use super::rng::WorkloadRng;
use super::{Call, Client, InvalidSettings, Reach, Settings, bounded, ended, malformed, setting};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Direction, Key, KeyRange};
use crate::time::Timestamp;
use crate::txn::{
    Abort, Context, Footprint, LockMode, PointLock, Procedure, RangeLock, SqlState, Stop,
};
use crate::value::Value;

/// Account number, big-endian, to balance, little-endian.
pub const ACCOUNTS: TableId = TableId(60);

/// The initial balance of each account.
const BALANCE_FIRST: u64 = 100;
/// The maximum amount of a transfer.
const AMOUNT_MAX: u64 = 10;
/// The percentage of transactions that are audits.
const AUDIT_PERCENT: u64 = 10;
/// The maximum number of accounts. An audit reads all of them at once.
const ACCOUNTS_MAX: u64 = 10_000;

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Bank {
    accounts: u32,
}

impl Bank {
    /// Creates the workload with the number of accounts in the settings.
    ///
    /// # Errors
    /// If the number is less than two, or too large.
    pub fn new(settings: &Settings) -> Result<Self, InvalidSettings> {
        setting("accounts", settings.accounts.into(), 2, ACCOUNTS_MAX)?;
        Ok(Self { accounts: settings.accounts })
    }

    /// The sum of all balances, which never changes.
    pub fn total(&self) -> u64 {
        u64::from(self.accounts) * BALANCE_FIRST
    }

    fn next(&self, dice: &mut WorkloadRng) -> Call {
        if dice.percent(AUDIT_PERCENT) {
            let (procedure, label) = ("bank_audit", "audit");
            // Some end at the last account instead of at the end of the table.
            let direction = if dice.percent(50) { Direction::Reverse } else { Direction::Forward };
            let rows = dice.percent(50).then_some(u64::from(self.accounts));
            let mut args = Vec::new();
            Reach { direction, rows }.encode(&mut args);
            return Call { procedure, args: Bytes::from(args), label, is_read_only: true };
        }
        let from = dice.below(self.accounts.into());
        let to = (from + dice.between(1, u64::from(self.accounts) - 1)) % u64::from(self.accounts);
        let mut args = Vec::new();
        args.put_varint(from);
        args.put_varint(to);
        args.put_varint(dice.between(1, AMOUNT_MAX));
        let (procedure, label) = ("bank_transfer", "transfer");
        Call { procedure, args: Bytes::from(args), label, is_read_only: false }
    }
}

impl Definition for Bank {
    const NAMES: &'static [&'static str] = &["bank"];

    type Generator = Self;

    fn named(_: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Transfer), Arc::new(Audit), Arc::new(Load)]
    }

    fn generator(&self, _: Client) -> Self {
        self.clone()
    }
}

impl Facts for Bank {
    fn name(&self) -> &'static str {
        "bank"
    }

    fn load_calls(&self) -> Vec<Call> {
        let mut args = Vec::new();
        args.put_varint(self.accounts.into());
        args.put_varint(BALANCE_FIRST);
        let (procedure, label) = ("bank_load", "load");
        vec![Call { procedure, args: Bytes::from(args), label, is_read_only: false }]
    }

    fn procedures(&self) -> Vec<&'static str> {
        vec!["bank_transfer", "bank_audit"]
    }

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        let rule = Rule { rule: "bank", place: &"all accounts" };
        let (mut count, mut total, mut overdrawn, mut unreadable) = (0, 0, 0, 0);
        rows.scan(ACCOUNTS, &KeyRange::all(), &mut |_, value| {
            let balance = decode_balance(value);
            count += 1;
            total += balance.as_ref().map_or(0, |balance| *balance);
            overdrawn += i64::from(balance.as_ref().is_ok_and(|balance| *balance < 0));
            unreadable += i64::from(balance.is_err());
            ControlFlow::Continue(())
        });
        rule.equal(("unreadable accounts", unreadable), ("allowed", 0))?;
        rule.equal(("accounts", count), ("loaded", self.accounts.into()))?;
        rule.equal(("the total", total), ("loaded", self.total() as i64))?;
        rule.equal(("overdrawn accounts", overdrawn), ("allowed", 0))?;
        let mut report = Report::default();
        report.count("accounts", count);
        report.count("total", total);
        Ok(report)
    }
}

impl Generate for Bank {
    fn next_call(&mut self, dice: &mut WorkloadRng, _: Timestamp) -> Call {
        self.next(dice)
    }
}

fn key(account: u32) -> Key {
    Key::from(&account.to_be_bytes()[..])
}

fn decode_balance(value: &[u8]) -> Result<i64, DecodeError> {
    let bytes = value.try_into().map_err(|_| DecodeError::new("balance"))?;
    Ok(i64::from_le_bytes(bytes))
}

fn encode_balance(balance: i64) -> Value {
    Value::copy_from(&balance.to_le_bytes())
}

fn account(from: &mut Reader<'_>) -> Result<u32, DecodeError> {
    Ok(bounded(from.varint("account")?, 0, ACCOUNTS_MAX - 1, "account")? as u32)
}

/// Moves money from one account to another. Returns both new balances, in the format of an audit.
/// Aborts with P0001 if the balance is too low.
#[derive(Clone, Copy, Debug)]
pub struct Transfer;

struct TransferArgs {
    from: u32,
    to: u32,
    amount: i64,
}

impl TransferArgs {
    fn decode(args: &[u8]) -> Result<Self, DecodeError> {
        let reader = &mut Reader::new(args);
        let (from, to) = (account(reader)?, account(reader)?);
        let amount = bounded(reader.varint("amount")?, 1, AMOUNT_MAX, "amount")? as i64;
        ended(reader, "transfer arguments")?;
        match from == to {
            true => Err(DecodeError::new("transfer: one account")),
            false => Ok(Self { from, to, amount }),
        }
    }
}

impl Procedure for Transfer {
    fn name(&self) -> &str {
        "bank_transfer"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let TransferArgs { from, to, amount } = TransferArgs::decode(args).map_err(malformed)?;
        let mut balance = |account: u32| match cx.get(ACCOUNTS, &key(account))? {
            Some(value) => decode_balance(&value).map_err(malformed),
            None => Err(no_account(account)),
        };
        let (before_from, before_to) = (balance(from)?, balance(to)?);
        if before_from < amount {
            let message = "insufficient balance";
            return Err(Abort::new(SqlState::RAISE_EXCEPTION, message).into());
        }
        let after = [(from, before_from - amount), (to, before_to + amount)];
        for (account, balance) in after {
            cx.put(ACCOUNTS, key(account), encode_balance(balance))?;
        }
        Ok(encode_balances(&after))
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = TransferArgs::decode(args) else { return Some(Footprint::default()) };
        let lock =
            |account| PointLock { table: ACCOUNTS, key: key(account), mode: LockMode::Exclusive };
        Some(Footprint::new(vec![lock(args.from), lock(args.to)], Vec::new()))
    }
}

fn no_account(account: u32) -> Stop {
    Abort::new(SqlState::NO_DATA_FOUND, format!("account {account} does not exist")).into()
}

/// Reads all accounts. Takes a [`Reach`], or nothing; [`decode_balances`] decodes the result.
#[derive(Clone, Copy, Debug)]
pub struct Audit;

impl Procedure for Audit {
    fn name(&self) -> &str {
        "bank_audit"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let reach = decode_reach(args).map_err(malformed)?;
        let mut found = Vec::new();
        let visited = reach.scan(cx, ACCOUNTS, KeyRange::all(), |key, value| {
            found.push(decode_row(key, value)?);
            Ok(())
        })?;
        visited.map_err(malformed)?;
        found.sort_unstable();
        Ok(encode_balances(&found))
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, _: &[u8]) -> Option<Footprint> {
        let all = RangeLock { table: ACCOUNTS, range: KeyRange::all(), mode: LockMode::Shared };
        Some(Footprint::new(Vec::new(), vec![all]))
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        true
    }
}

fn decode_reach(args: &[u8]) -> Result<Reach, DecodeError> {
    let from = &mut Reader::new(args);
    let reach = if from.is_empty() { Reach::ALL } else { Reach::decode(from)? };
    ended(from, "audit arguments").map(|()| reach)
}

fn decode_row(key: &[u8], value: &[u8]) -> Result<(u32, i64), DecodeError> {
    let account = key.try_into().map_err(|_| DecodeError::new("account"))?;
    Ok((u32::from_be_bytes(account), decode_balance(value)?))
}

fn encode_balances(balances: &[(u32, i64)]) -> Vec<u8> {
    let mut result = Vec::with_capacity(2 + 10 * balances.len());
    result.put_varint(balances.len() as u64);
    for &(account, balance) in balances {
        result.put_varint(account.into());
        result.put_u64(balance as u64);
    }
    result
}

/// The accounts and balances that an audit or a transfer returned.
///
/// # Errors
/// If the bytes are malformed.
pub fn decode_balances(result: &[u8]) -> Result<Vec<(u32, i64)>, DecodeError> {
    let from = &mut Reader::new(result);
    let rows = (0..from.count("balances")?)
        .map(|_| Ok((account(from)?, from.u64("balance")? as i64)))
        .collect::<Result<_, DecodeError>>()?;
    ended(from, "balances")?;
    Ok(rows)
}

/// Creates accounts. The arguments are their number and the balance of each.
#[derive(Clone, Copy, Debug)]
pub struct Load;

impl Load {
    fn decode(args: &[u8]) -> Result<(u32, i64), DecodeError> {
        let from = &mut Reader::new(args);
        let accounts = bounded(from.varint("accounts")?, 0, ACCOUNTS_MAX, "accounts")? as u32;
        let balance = bounded(from.varint("balance")?, 0, u32::MAX.into(), "balance")? as i64;
        ended(from, "load arguments")?;
        Ok((accounts, balance))
    }
}

impl Procedure for Load {
    fn name(&self) -> &str {
        "bank_load"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let (accounts, balance) = Self::decode(args).map_err(malformed)?;
        for account in 0..accounts {
            cx.put(ACCOUNTS, key(account), encode_balance(balance))?;
        }
        Ok(Vec::new())
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, _: &[u8]) -> Option<Footprint> {
        let all = RangeLock { table: ACCOUNTS, range: KeyRange::all(), mode: LockMode::Exclusive };
        Some(Footprint::new(Vec::new(), vec![all]))
    }

    fn is_bulk(&self, _: &[u8]) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::{Bench, small};

    fn args(numbers: &[u64]) -> Vec<u8> {
        let mut args = Vec::new();
        numbers.iter().for_each(|number| args.put_varint(*number));
        args
    }

    #[test]
    fn a_transfer_moves_money_and_an_audit_sees_it() {
        let mut bench = Bench::new("bank", &small());
        let result = bench.model.run(&Transfer, &args(&[3, 5, 10])).expect("the balance suffices");
        assert_eq!(decode_balances(&result), Ok(vec![(3, 90), (5, 110)]));
        let audit = bench.model.run(&Audit, &[]).expect("an audit commits");
        let balances = decode_balances(&audit).expect("well formed");
        assert_eq!(balances.len(), 100);
        assert_eq!((balances[3], balances[4], balances[5]), ((3, 90), (4, 100), (5, 110)));
        assert_eq!(balances.iter().map(|(_, balance)| balance).sum::<i64>(), 10_000);
    }

    #[test]
    fn money_that_is_not_there_is_not_moved() {
        let mut bench = Bench::new("bank", &small());
        for _ in 0..10 {
            bench.model.run(&Transfer, &args(&[0, 1, 10])).expect("the balance suffices");
        }
        let before = bench.model.clone();
        let stop = bench
            .model
            .run(&Transfer, &args(&[0, 1, 1]))
            .expect_err("the balance does not suffice");
        let Stop::Abort(abort) = stop else { panic!("{stop:?}") };
        assert_eq!(abort.code, SqlState::RAISE_EXCEPTION);
        assert!(bench.model == before);
        let stop = bench
            .model
            .run(&Transfer, &args(&[0, 100, 1]))
            .expect_err("the account does not exist");
        assert!(matches!(stop, Stop::Abort(abort) if abort.code == SqlState::NO_DATA_FOUND));
    }

    #[test]
    fn money_that_appears_or_goes_is_a_violation() {
        let bench = Bench::new("bank", &small());
        let check = |balances: &[(u32, i64)]| {
            let mut model = bench.model.clone();
            for (account, balance) in balances {
                model.put(ACCOUNTS, key(*account), Some(encode_balance(*balance)));
            }
            bench.workload.check(&model).map_err(|violation| violation.to_string())
        };
        let lost = "bank violated, all accounts: the total is 9999, loaded is 10000";
        assert_eq!(check(&[(1, 99)]), Err(lost.to_owned()));
        assert!(check(&[(1, 99), (2, 101)]).is_ok());
        assert!(check(&[(1, -1), (2, 201)]).expect_err("overdrawn").contains("overdrawn"));
    }
}
