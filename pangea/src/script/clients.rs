//! The calls of clients: the transaction, and the numbers from which all its values are drawn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pangea_core::codec::{DecodeError, Reader, Writer};
use pangea_core::time::Timestamp;
use pangea_core::workload::{Call, Client};

use super::Script;
use super::draw::Draw;
use super::value::Value;
use crate::load_generator::{Calls, RetriedAborts};

/// The generator of one client's calls.
#[derive(Debug)]
pub struct Clients {
    script: Arc<Script>,
    client: Client,
    sequence: i64,
}

/// The identity and location of a client, as variables report them.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The number of the client and of its region, and the totals of both.
    pub client: Client,
    /// The name of the region.
    pub region: String,
}

impl ClientIdentity {
    /// Returns the values of [`super::BUILT_IN`].
    pub(super) fn values(&self) -> Vec<Value> {
        let Client { index, clients, regions } = self.client;
        let number = |number: u32| Value::Int(number.into());
        vec![
            number(index),
            number(clients),
            Value::Text(self.region.clone()),
            number(self.client.region()),
            number(regions),
        ]
    }
}

/// The numbers of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub client: u32,
    pub sequence: i64,
    pub seed: u64,
    pub now_us: i64,
}

impl Numbers {
    pub fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(28);
        out.put_u32(self.client);
        out.put_u64(self.sequence.cast_unsigned());
        out.put_u64(self.seed);
        out.put_u64(self.now_us.cast_unsigned());
        out.into()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        Ok(Self {
            client: reader.u32("client")?,
            sequence: reader.u64("sequence")?.cast_signed(),
            seed: reader.u64("seed")?,
            now_us: reader.u64("time")?.cast_signed(),
        })
    }

    pub fn draw(self, values: Vec<Value>) -> Draw {
        Draw::new(values, self.seed, self.sequence, self.now_us)
    }
}

impl Clients {
    /// Creates a client that has made no calls.
    pub fn new(script: Arc<Script>, client: Client) -> Self {
        Self { script, client, sequence: 0 }
    }
}

impl Calls for Clients {
    fn next(&mut self, rng: &mut fastrand::Rng, now: Timestamp) -> Call {
        let transactions = &self.script.transactions;
        let all: u64 = transactions.iter().map(|it| u64::from(it.weight)).sum();
        let mut left = rng.u64(0..all);
        let drawn = transactions.iter().find(|it| match left.checked_sub(it.weight.into()) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        let name = drawn.expect("the number is below the sum").name;
        self.sequence += 1;
        let numbers = Numbers {
            client: self.client.index,
            sequence: self.sequence,
            seed: rng.u64(..),
            now_us: now.us.cast_signed(),
        };
        Call { procedure: name, args: numbers.encode(), label: name, is_read_only: false }
    }
}

/// Retried attempts by kind of transaction and SQLSTATE, shared by all sessions.
#[derive(Debug, Default)]
pub struct Retries(Mutex<BTreeMap<(&'static str, String), u64>>);

impl Retries {
    pub(super) fn count(&self, name: &'static str, code: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((name, code.to_owned())).or_default() += 1;
    }

    /// Returns the counts so far and resets them.
    pub fn take(&self) -> Vec<RetriedAborts> {
        let counts = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let retried = |((kind, code), count)| RetriedAborts { kind: Some(kind), code, count };
        counts.into_iter().map(retried).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_come_as_often_as_their_weights_say_and_numbers_return() {
        let text = "-- transaction a weight 3\nselect 1;\n-- transaction b\nselect 2;\n";
        let script = Script::parse("s.sql".as_ref(), text, &[]).unwrap();
        let mut clients = Clients::new(Arc::new(script), Client::new(2, 3, 3));
        let mut rng = fastrand::Rng::with_seed(1);
        let at = Timestamp::from_us(77);
        let calls: Vec<Call> = (0..4_000).map(|_| clients.next(&mut rng, at)).collect();
        let of_a = calls.iter().filter(|call| call.label == "a").count();
        assert!((2_850..3_150).contains(&of_a), "{of_a}");
        let numbers = Numbers::decode(&calls[9].args).unwrap();
        assert_eq!((numbers.client, numbers.sequence, numbers.now_us), (2, 10, 77));
        assert_ne!(numbers.seed, Numbers::decode(&calls[8].args).unwrap().seed);
        assert!(Numbers::decode(&calls[9].args[..20]).is_err());
    }
}
