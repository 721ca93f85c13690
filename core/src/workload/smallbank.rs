//! SmallBank (Alomari, Cahill, Fekete and Röhm, "The cost of serializability on platforms that use
//! snapshot isolation", ICDE 2008): customers with a savings and a checking account each.
//!
//! | transaction | effect |
//! |---|---|
//! | balance | reads both accounts of a customer |
//! | deposit | adds to the checking account |
//! | save, withdraw | adds to or takes from the savings account, unless its balance is too low |
//! | amalgamate | moves all money of a customer to the checking account of another |
//! | write-check | takes from the checking account, with a penalty if both balances together are too low |
//!
//! The five programs of the paper are equally frequent; half of the transactions on savings are
//! withdrawals. Nine of ten transactions use `hot` customers. Each program first looks its
//! customers up by name. Amounts are in cents, and those of the implementation in OLTP-Bench. As an
//! extension of the paper, penalties are counted, so that all money can be accounted for. The total
//! of the accounts follows from the number of committed transactions of each kind.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;

use super::check::{Report, Rows, Rule, Violation};
use super::commits::{Commits, plus};
use super::definition::{Definition, Facts, Generate};
use super::rng::WorkloadRng;
use super::{Call, Client, InvalidSettings, Settings, bounded, ended, malformed, setting};
use crate::codec::{DecodeError, Reader, Writer};
use crate::ids::TableId;
use crate::key::{Key, KeyRange};
use crate::time::Timestamp;
use crate::txn::{
    Abort, Context, Footprint, LockMode, PointLock, Procedure, RangeLock, SqlState, Stop,
};
use crate::value::Value;

/// Customer's name to number, big-endian.
pub const CUSTOMERS: TableId = TableId(33);
/// Number to cents, little-endian.
pub const SAVINGS: TableId = TableId(34);
/// Number to cents, little-endian.
pub const CHECKING: TableId = TableId(35);
/// Number to the count of penalties, little-endian; no row if there was none.
pub const PENALTIES: TableId = TableId(36);

/// The initial balance of each account.
const BALANCE_FIRST: i64 = 1_000_000;
const DEPOSIT: i64 = 130;
const SAVE: i64 = 2_020;
const CHECK: i64 = 500;
const PENALTY: i64 = 100;
/// The percentage of transactions that use hot customers.
const HOT_PERCENT: u64 = 90;
/// The number of customers that one load call creates.
const LOAD_CUSTOMERS: u64 = 2_500;
const CUSTOMERS_MAX: u64 = 100_000_000;

/// The workload.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallBank {
    customers: u32,
    hot: u32,
}

/// The kind of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Balance = 0,
    Deposit = 1,
    Save = 2,
    Withdraw = 3,
    Amalgamate = 4,
    WriteCheck = 5,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Balance,
        Self::Deposit,
        Self::Save,
        Self::Withdraw,
        Self::Amalgamate,
        Self::WriteCheck,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Balance => "balance",
            Self::Deposit => "deposit",
            Self::Save => "save",
            Self::Withdraw => "withdraw",
            Self::Amalgamate => "amalgamate",
            Self::WriteCheck => "write-check",
        }
    }

    /// The change of the total of all accounts.
    fn adds(self) -> i64 {
        match self {
            Self::Balance | Self::Amalgamate => 0,
            Self::Deposit => DEPOSIT,
            Self::Save => SAVE,
            Self::Withdraw => -SAVE,
            Self::WriteCheck => -CHECK,
        }
    }
}

impl SmallBank {
    /// Creates the workload with the numbers of customers and hot customers in the settings.
    ///
    /// # Errors
    /// If a number is less than two, or too large.
    pub fn new(settings: &Settings) -> Result<Self, InvalidSettings> {
        let Settings { customers, hot, .. } = *settings;
        setting("customers", customers.into(), 2, CUSTOMERS_MAX)?;
        setting("hot", hot.into(), 2, customers.into())?;
        Ok(Self { customers, hot })
    }

    fn next(&self, dice: &mut WorkloadRng) -> Call {
        let kind = match dice.below(5) {
            0 => Kind::Balance,
            1 => Kind::Deposit,
            2 if dice.percent(50) => Kind::Save,
            2 => Kind::Withdraw,
            3 => Kind::Amalgamate,
            _ => Kind::WriteCheck,
        };
        let among = if dice.percent(HOT_PERCENT) { self.hot } else { self.customers };
        let first = dice.below(among.into());
        let second = (first + dice.between(1, u64::from(among) - 1)) % u64::from(among);
        let second = if kind == Kind::Amalgamate { second } else { first };
        let args = Bytes::from(Args { kind, first, second }.encode());
        let is_read_only = kind == Kind::Balance;
        Call { procedure: "smallbank", args, label: kind.label(), is_read_only }
    }

    /// Bounds on the total of all accounts after these commits and this number of penalties.
    fn total(&self, commits: &Commits, penalties: i64) -> RangeInclusive<i64> {
        let first = 2 * i64::from(self.customers) * BALANCE_FIRST;
        let of_label = |label: &str| Kind::ALL.into_iter().find(|kind| kind.label() == label);
        let added = commits.sum(|label| of_label(label).map_or(0, Kind::adds));
        plus(added, first - penalties * PENALTY)
    }
}

impl Definition for SmallBank {
    const NAMES: &'static [&'static str] = &["smallbank"];

    type Generator = Self;

    fn named(_: &str, settings: &Settings) -> Result<Self, InvalidSettings> {
        Self::new(settings)
    }

    fn programs() -> Vec<Arc<dyn Procedure>> {
        vec![Arc::new(Run), Arc::new(Load)]
    }

    fn generator(&self, _: Client) -> Self {
        self.clone()
    }
}

impl Facts for SmallBank {
    fn name(&self) -> &'static str {
        "smallbank"
    }

    fn load_calls(&self) -> Vec<Call> {
        let all = u64::from(self.customers);
        let call = |start: u64| {
            let mut args = Vec::new();
            args.put_varint(start);
            args.put_varint(all.min(start + LOAD_CUSTOMERS));
            let (procedure, args) = ("smallbank_load", Bytes::from(args));
            Call { procedure, args, label: "load", is_read_only: false }
        };
        (0..all).step_by(LOAD_CUSTOMERS as usize).map(call).collect()
    }

    fn procedures(&self) -> Vec<&'static str> {
        vec!["smallbank"]
    }

    fn check(&self, rows: &dyn Rows) -> Result<Report, Violation> {
        let customers = i64::from(self.customers);
        let mut report = Report::default();
        let accounts = [(SAVINGS, "all savings"), (CHECKING, "all checking accounts")];
        for (table, place) in accounts {
            let sum = Sum::of(table, rows);
            let rule = Rule { rule: "SmallBank", place: &place };
            rule.equal(("unreadable accounts", sum.unreadable), ("allowed", 0))?;
            rule.equal(("accounts", sum.count), ("customers", customers))?;
            if table == SAVINGS {
                rule.equal(("overdrawn accounts", sum.negative), ("allowed", 0))?;
            }
            report.count(CENTS, sum.total);
        }
        let penalties = Sum::of(PENALTIES, rows);
        let rule = Rule { rule: "SmallBank", place: &"penalties" };
        rule.equal(("unreadable counts", penalties.unreadable), ("allowed", 0))?;
        report.count(PENALTIES_TAKEN, penalties.total);
        report.count("customers", customers);
        Ok(report)
    }

    fn check_commits(
        &self,
        rule: &Rule<'_>,
        fact: &dyn Fn(&str) -> i64,
        _: &dyn Rows,
        commits: &Commits,
    ) -> Result<(), Violation> {
        let expected = self.total(commits, fact(PENALTIES_TAKEN));
        let found = ("total of all accounts", fact(CENTS));
        rule.within(found, "loaded, plus deposits, minus payments", expected)
    }
}

impl Generate for SmallBank {
    fn next_call(&mut self, dice: &mut WorkloadRng, _: Timestamp) -> Call {
        self.next(dice)
    }
}

/// The name of the total of all accounts in a report.
const CENTS: &str = "cents";
/// The name of the number of penalties in a report.
const PENALTIES_TAKEN: &str = "penalties";

/// Sums over a table.
#[derive(Default)]
struct Sum {
    count: i64,
    total: i64,
    negative: i64,
    unreadable: i64,
}

impl Sum {
    fn of(table: TableId, rows: &dyn Rows) -> Self {
        let mut sum = Self::default();
        rows.scan(table, &KeyRange::all(), &mut |_, value| {
            sum.count += 1;
            match decode(value) {
                Ok(amount) => {
                    sum.total += amount;
                    sum.negative += i64::from(amount < 0);
                }
                Err(_) => sum.unreadable += 1,
            }
            ControlFlow::Continue(())
        });
        sum
    }
}

fn name(customer: u64) -> Key {
    Key::from(format!("customer {customer:09}").as_bytes())
}

fn number(customer: u32) -> Key {
    Key::from(&customer.to_be_bytes()[..])
}

fn decode(value: &[u8]) -> Result<i64, DecodeError> {
    let bytes = value.try_into().map_err(|_| DecodeError::new("amount"))?;
    Ok(i64::from_le_bytes(bytes))
}

fn encode(amount: i64) -> Value {
    Value::copy_from(&amount.to_le_bytes())
}

/// The arguments of [`Run`].
struct Args {
    kind: Kind,
    first: u64,
    second: u64,
}

impl Args {
    fn encode(&self) -> Vec<u8> {
        let mut args = vec![self.kind as u8];
        args.put_varint(self.first);
        args.put_varint(self.second);
        args
    }

    fn decode(args: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Reader::new(args);
        let kind = from.u8("kind of transaction")?;
        let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
        let kind = kind.ok_or_else(|| DecodeError::new("kind of transaction"))?;
        let mut customer = || bounded(from.varint("customer")?, 0, CUSTOMERS_MAX - 1, "customer");
        let (first, second) = (customer()?, customer()?);
        ended(from, "arguments")?;
        if (first == second) == (kind == Kind::Amalgamate) {
            return Err(DecodeError::new("customers: expected two, or the same one twice"));
        }
        Ok(Self { kind, first, second })
    }

    /// The locks on the accounts of its customers, whose numbers equal their names.
    fn locks(&self) -> Vec<PointLock> {
        use LockMode::{Exclusive, Shared};
        let (first, second) = (number(self.first as u32), number(self.second as u32));
        let mut locks: Vec<(TableId, Key, LockMode)> = match self.kind {
            Kind::Balance => vec![(SAVINGS, first.clone(), Shared), (CHECKING, first, Shared)],
            Kind::Deposit => vec![(CHECKING, first, Exclusive)],
            Kind::Save | Kind::Withdraw => vec![(SAVINGS, first, Exclusive)],
            Kind::Amalgamate => vec![
                (SAVINGS, first.clone(), Exclusive),
                (CHECKING, first, Exclusive),
                (CHECKING, second, Exclusive),
            ],
            Kind::WriteCheck => vec![
                (SAVINGS, first.clone(), Shared),
                (CHECKING, first.clone(), Exclusive),
                (PENALTIES, first, Exclusive),
            ],
        };
        locks.push((CUSTOMERS, name(self.first), Shared));
        if self.first != self.second {
            locks.push((CUSTOMERS, name(self.second), Shared));
        }
        let lock = |(table, key, mode)| PointLock { table, key, mode };
        locks.into_iter().map(lock).collect()
    }
}

/// One of the five programs, chosen by its arguments. Returns the resulting balances of the
/// accounts that it accessed.
#[derive(Clone, Copy, Debug)]
pub struct Run;

impl Run {
    fn customer(customer: u64, cx: &mut dyn Context) -> Result<Key, Stop> {
        let found = cx.get(CUSTOMERS, &name(customer))?;
        let found = found.ok_or_else(|| {
            let message = format!("customer {customer} does not exist");
            Stop::Abort(Abort::new(SqlState::NO_DATA_FOUND, message))
        })?;
        Ok(Key::from(&found[..]))
    }

    fn amount(table: TableId, customer: &Key, cx: &mut dyn Context) -> Result<i64, Stop> {
        match cx.get(table, customer)? {
            Some(value) => decode(&value).map_err(malformed),
            None if table == PENALTIES => Ok(0),
            None => Err(Abort::new(SqlState::NO_DATA_FOUND, "the account does not exist").into()),
        }
    }

    fn set(table: TableId, key: &Key, amount: i64, cx: &mut dyn Context) -> Result<(), Stop> {
        cx.put(table, key.clone(), encode(amount))
    }
}

impl Procedure for Run {
    fn name(&self) -> &str {
        "smallbank"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        let Args { kind, first, second } = Args::decode(args).map_err(malformed)?;
        let own = Self::customer(first, cx)?;
        let after = match kind {
            Kind::Balance => {
                vec![Self::amount(SAVINGS, &own, cx)?, Self::amount(CHECKING, &own, cx)?]
            }
            Kind::Deposit => {
                let checking = Self::amount(CHECKING, &own, cx)? + DEPOSIT;
                Self::set(CHECKING, &own, checking, cx)?;
                vec![checking]
            }
            Kind::Save | Kind::Withdraw => {
                let savings = Self::amount(SAVINGS, &own, cx)? + kind.adds();
                if savings < 0 {
                    let message = "insufficient balance in the savings account";
                    return Err(Abort::new(SqlState::RAISE_EXCEPTION, message).into());
                }
                Self::set(SAVINGS, &own, savings, cx)?;
                vec![savings]
            }
            Kind::Amalgamate => {
                let other = Self::customer(second, cx)?;
                let savings = Self::amount(SAVINGS, &own, cx)?;
                let all = savings + Self::amount(CHECKING, &own, cx)?;
                let theirs = Self::amount(CHECKING, &other, cx)? + all;
                Self::set(SAVINGS, &own, 0, cx)?;
                Self::set(CHECKING, &own, 0, cx)?;
                Self::set(CHECKING, &other, theirs, cx)?;
                vec![theirs]
            }
            Kind::WriteCheck => {
                let checking = Self::amount(CHECKING, &own, cx)?;
                let has_enough = Self::amount(SAVINGS, &own, cx)? + checking >= CHECK;
                let taken = if has_enough { CHECK } else { CHECK + PENALTY };
                if !has_enough {
                    let penalties = Self::amount(PENALTIES, &own, cx)? + 1;
                    Self::set(PENALTIES, &own, penalties, cx)?;
                }
                Self::set(CHECKING, &own, checking - taken, cx)?;
                vec![checking - taken]
            }
        };
        let mut result = Vec::with_capacity(8 * after.len());
        after.into_iter().for_each(|amount| result.put_u64(amount as u64));
        Ok(result)
    }

    fn is_footprint_certain(&self) -> bool {
        // The number of a customer could differ from the one in the name.
        false
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(args) = Args::decode(args) else { return Some(Footprint::default()) };
        Some(Footprint::new(args.locks(), Vec::new()))
    }

    fn is_read_only(&self, args: &[u8]) -> bool {
        Args::decode(args).is_ok_and(|args| args.kind == Kind::Balance)
    }
}

/// Creates customers and their accounts. The arguments are the first customer and the end.
#[derive(Clone, Copy, Debug)]
pub struct Load;

impl Load {
    fn decode(args: &[u8]) -> Result<std::ops::Range<u32>, DecodeError> {
        let from = &mut Reader::new(args);
        let start = bounded(from.varint("customer")?, 0, CUSTOMERS_MAX, "customer")?;
        let last = CUSTOMERS_MAX.min(start + LOAD_CUSTOMERS);
        let end = bounded(from.varint("customer")?, start, last, "customer")?;
        ended(from, "load arguments")?;
        Ok(start as u32..end as u32)
    }
}

impl Procedure for Load {
    fn name(&self) -> &str {
        "smallbank_load"
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        for customer in Self::decode(args).map_err(malformed)? {
            let own = number(customer);
            cx.put(CUSTOMERS, name(customer.into()), Value::copy_from(own.as_bytes()))?;
            Run::set(SAVINGS, &own, BALANCE_FIRST, cx)?;
            Run::set(CHECKING, &own, BALANCE_FIRST, cx)?;
        }
        Ok(Vec::new())
    }

    fn is_footprint_certain(&self) -> bool {
        true
    }

    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        let Ok(customers) = Self::decode(args) else { return Some(Footprint::default()) };
        let lock = |table, start: Key, end: Key| {
            let (start, end) = (start.as_bytes().to_vec(), Some(end.as_bytes().to_vec()));
            RangeLock { table, range: KeyRange { start, end }, mode: LockMode::Exclusive }
        };
        let (start, end) = (customers.start, customers.end);
        let locks = vec![
            lock(CUSTOMERS, name(start.into()), name(end.into())),
            lock(SAVINGS, number(start), number(end)),
            lock(CHECKING, number(start), number(end)),
        ];
        Some(Footprint::new(Vec::new(), locks))
    }

    fn is_bulk(&self, _: &[u8]) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;
    use crate::workload::tests::{Bench, small};

    fn run(bench: &mut Bench, kind: Kind, first: u64, second: u64) -> Result<Vec<i64>, SqlState> {
        let args = Args { kind, first, second }.encode();
        match bench.model.run(&Run, &args) {
            Ok(result) => {
                let amounts = result.chunks(8).map(|it| decode(it).expect("eight bytes"));
                Ok(amounts.collect())
            }
            Err(Stop::Abort(abort)) => Err(abort.code),
            Err(Stop::Interrupted) => panic!("the model does not interrupt"),
        }
    }

    #[test]
    fn each_program_does_what_the_paper_says() {
        let mut bench = Bench::new("smallbank", &small());
        let bench = &mut bench;
        assert_eq!(run(bench, Kind::Balance, 3, 3), Ok(vec![1_000_000, 1_000_000]));
        assert_eq!(run(bench, Kind::Deposit, 3, 3), Ok(vec![1_000_130]));
        assert_eq!(run(bench, Kind::Save, 3, 3), Ok(vec![1_002_020]));
        assert_eq!(run(bench, Kind::Withdraw, 4, 4), Ok(vec![997_980]));
        assert_eq!(run(bench, Kind::Amalgamate, 3, 4), Ok(vec![3_002_150]));
        assert_eq!(run(bench, Kind::Balance, 3, 3), Ok(vec![0, 0]));
        assert_eq!(run(bench, Kind::Withdraw, 3, 3), Err(SqlState::RAISE_EXCEPTION));
        assert_eq!(run(bench, Kind::WriteCheck, 4, 4), Ok(vec![3_001_650]));
        // Both balances together are too low.
        assert_eq!(run(bench, Kind::WriteCheck, 3, 3), Ok(vec![-600]));
        assert_eq!(run(bench, Kind::Save, 3, 3), Ok(vec![2_020]));
        assert_eq!(run(bench, Kind::WriteCheck, 3, 3), Ok(vec![-1_100]));
        let facts = bench.check().facts;
        assert_eq!(facts[PENALTIES_TAKEN], 1);
        let committed = [("deposit", 1), ("withdraw", 1), ("save", 2), ("write-check", 3)];
        let committed = committed.map(|(label, count)| (label.to_owned(), count)).into();
        let commits = Commits { committed, ..Commits::default() };
        let Workload::SmallBank(bank) = &bench.workload else {
            panic!("the workload is SmallBank")
        };
        assert_eq!(bank.total(&commits, 1), facts[CENTS]..=facts[CENTS]);
        assert_eq!(run(bench, Kind::Balance, 99_999, 99_999), Err(SqlState::NO_DATA_FOUND));
    }

    #[test]
    fn most_transactions_are_of_hot_customers_and_all_money_is_accounted_for() {
        let mut bench = Bench::new("smallbank", &Settings { customers: 1_000, ..small() });
        let Workload::SmallBank(bank) = bench.workload.clone() else {
            panic!("the workload is SmallBank")
        };
        let ended = bench.run_many(5_000);
        let committed =
            ended.iter().map(|(label, (count, _))| (label.to_string(), (*count).into()));
        let commits = Commits { committed: committed.collect(), ..Commits::default() };
        let facts = bench.check().facts;
        assert_eq!(bank.total(&commits, facts[PENALTIES_TAKEN]), facts[CENTS]..=facts[CENTS]);
        let mut dice = WorkloadRng::new(1);
        let calls = (0..1_000).map(|_| Args::decode(&bank.next(&mut dice).args));
        let hot = calls.filter(|args| args.as_ref().expect("well formed").first < 10).count();
        assert!((870..940).contains(&hot), "{hot}");
    }

    #[test]
    fn an_overdrawn_savings_account_is_a_violation() {
        let mut bench = Bench::new("smallbank", &small());
        bench.model.put(SAVINGS, number(1), Some(encode(-1)));
        let violation = bench.workload.check(&bench.model).expect_err("overdrawn");
        assert!(violation.to_string().contains("overdrawn"), "{violation}");
        bench.model.put(SAVINGS, number(1), None);
        let violation = bench.workload.check(&bench.model).expect_err("gone");
        assert_eq!(violation.left, ("accounts", 99));
    }
}
