//! A procedure that executes the commands in its arguments, and counts its runs.
//!
//! Commands, separated by semicolons: `get k`, `put k v`, `add k n`, `plus k n`, `del k`,
//! `scan from to`, `follow k v`, `trap`, `abort`. The command `follow` puts `v` at the key that is
//! the value of `k`, and `plus` adds without reading. It returns the values read, separated by
//! spaces; `-` stands for an absent value.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pangea_core::ids::TableId;
use pangea_core::key::{Direction, Key, KeyRange};
use pangea_core::txn::{
    Abort, Adder, Context, Footprint, LockMode, PointLock, Procedure, Program, Registry, Scan,
    SqlState, Stop,
};
use pangea_core::value::Value;

pub const TABLE: TableId = TableId(7);

/// The number of procedure runs on one node.
#[derive(Clone, Default)]
pub struct Runs(Arc<AtomicU64>);

impl Runs {
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Script {
    name: &'static str,
    runs: Runs,
}

pub fn registry(runs: &Runs) -> Registry {
    let script = |name| -> Arc<dyn Procedure> { Arc::new(Script { name, runs: runs.clone() }) };
    Registry::new([script("declared"), script("look"), script("script"), script("spread")])
}

/// The procedures of a later version: one more, whose name is the first in their order.
pub fn newer_registry(runs: &Runs) -> Registry {
    let script = |name| -> Arc<dyn Procedure> { Arc::new(Script { name, runs: runs.clone() }) };
    let names = ["added", "declared", "look", "script", "spread"];
    Registry::new(names.map(script))
}

pub fn program(name: &str, script: &str) -> Program {
    let procedure = registry(&Runs::default()).id(name).expect("the procedure is registered");
    Program::Call { procedure, args: Bytes::copy_from_slice(script.as_bytes()) }
}

impl Procedure for Script {
    fn name(&self) -> &str {
        self.name
    }

    fn is_read_only(&self, _: &[u8]) -> bool {
        self.name == "look"
    }

    fn adders(&self) -> Vec<Arc<dyn Adder>> {
        vec![Arc::new(Plus)]
    }

    fn is_footprint_certain(&self) -> bool {
        self.name == "spread"
    }

    /// The procedure `spread` only puts rows, on any shards.
    fn is_divisible(&self, _: &[u8]) -> bool {
        self.name == "spread"
    }

    /// The footprint of the procedures `declared` and `spread`; the others declare none. Panics in
    /// `trap`.
    fn footprint(&self, args: &[u8]) -> Option<Footprint> {
        assert!(!args.starts_with(b"trap"), "a bug in a procedure");
        let script = std::str::from_utf8(args).expect("scripts are UTF-8");
        let lock = |command: &str| {
            let mut words = command.split_whitespace();
            let mode = match words.next() {
                Some("get") => LockMode::Shared,
                Some("put" | "del") => LockMode::Write,
                Some("add") => LockMode::Exclusive,
                _ => panic!("a footprint is declared for single keys: {command}"),
            };
            let key = Key::from(words.next().expect("a key").as_bytes());
            PointLock { table: TABLE, key, mode }
        };
        let locks = || script.split(';').map(lock).collect();
        ["declared", "spread"].contains(&self.name).then(|| Footprint::new(locks(), Vec::new()))
    }

    fn run(&self, args: &[u8], cx: &mut dyn Context) -> Result<Vec<u8>, Stop> {
        self.runs.0.fetch_add(1, Ordering::Relaxed);
        let script = std::str::from_utf8(args).expect("scripts are UTF-8");
        let mut read = Vec::new();
        for command in script.split(';') {
            let words: Vec<&str> = command.split_whitespace().collect();
            match words[..] {
                ["get", key] => read.push(text(cx.get(TABLE, key.as_bytes())?)),
                ["put", key, value] => put(cx, key, value)?,
                ["add", key, more] => {
                    let before: i64 = text(cx.get(TABLE, key.as_bytes())?).parse().unwrap_or(0);
                    let more: i64 = more.parse().expect("a number");
                    put(cx, key, &(before + more).to_string())?;
                }
                ["plus", key, more] => {
                    if !cx.add(TABLE, Key::from(key.as_bytes()), &Plus, more.as_bytes())? {
                        read.push("-".to_owned());
                    }
                }
                ["follow", key, value] => {
                    let key = text(cx.get(TABLE, key.as_bytes())?);
                    put(cx, &key, value)?;
                }
                ["del", key] => cx.delete(TABLE, Key::from(key.as_bytes()))?,
                ["scan", from, to] => {
                    let range = KeyRange { start: from.into(), end: Some(to.into()) };
                    let scan = Scan { table: TABLE, range, direction: Direction::Forward };
                    cx.scan(&scan, &mut |key, value| {
                        let key = String::from_utf8_lossy(key);
                        read.push(format!("{key}={}", String::from_utf8_lossy(value)));
                        ControlFlow::Continue(())
                    })?;
                }
                ["trap"] => {}
                ["abort"] => {
                    return Err(Abort::new(SqlState::RAISE_EXCEPTION, "by the script").into());
                }
                _ => panic!("not a command: {command}"),
            }
        }
        Ok(read.join(" ").into_bytes())
    }
}

/// Adds a number to a number of up to three digits.
struct Plus;

impl Adder for Plus {
    fn name(&self) -> &str {
        "plus"
    }

    fn add(&self, row: &Value, amount: &[u8]) -> Result<Value, Abort> {
        let number = |bytes: &[u8]| -> u32 {
            String::from_utf8_lossy(bytes).parse().expect("scripts add to numbers")
        };
        match number(row) + number(amount) {
            sum @ ..1_000 => Ok(Value::copy_from(sum.to_string().as_bytes())),
            _ => Err(Abort::new(SqlState::RAISE_EXCEPTION, "the number has four digits")),
        }
    }
}

fn put(cx: &mut dyn Context, key: &str, value: &str) -> Result<(), Stop> {
    cx.put(TABLE, Key::from(key.as_bytes()), Value::copy_from(value.as_bytes()))
}

fn text(value: Option<Value>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| String::from_utf8_lossy(&value).into())
}
