//! A client's session: a prepared CALL of each procedure.

use std::fmt::Write;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Params, Row, Statement, Value};
use pangea_core::workload::Workload;
use pangea_core::workload::tpcc::args::{PaymentArgs, Who};
use pangea_core::workload::ycsb::OPS_PER_TXN;

use crate::calls::{NewOrder, Work, Ycsb};
use crate::failure::Failure;
use crate::session::{Attempt, encode_values};

/// ER_LOCK_DEADLOCK: a deadlock, or a write set that failed certification.
const DEADLOCK: u16 = 1213;
/// ER_LOCK_WAIT_TIMEOUT: the procedure has rolled back.
const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// Errors of a node that is leaving its cluster or shutting down; the commit may be in progress.
/// ER_UNKNOWN_COM_ERROR, ER_SERVER_SHUTDOWN, ER_ERROR_DURING_COMMIT, ER_QUERY_INTERRUPTED,
/// ER_CONNECTION_KILLED.
const NOT_KNOWN: [u16; 5] = [1047, 1053, 1180, 1317, 1927];

/// A session with the prepared statements of a workload.
pub(crate) struct Session {
    conn: Conn,
    statements: Statements,
}

#[derive(Clone)]
enum Statements {
    Ycsb(Statement),
    Tpcc { new_order: Statement, payment: Statement },
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    pub async fn open(mut conn: Conn, workload: &Workload) -> Result<Self, Failure> {
        let mut prepare = async |procedure: &str, params: usize| {
            let text = format!("CALL {procedure}({})", vec!["?"; params].join(", "));
            let prepared = conn.prep(&text).await;
            prepared.map_err(|error| Failure::failed(text, error))
        };
        let statements = match workload {
            Workload::Ycsb(_) => Statements::Ycsb(prepare("ycsb", 2 * OPS_PER_TXN).await?),
            _ => Statements::Tpcc {
                new_order: prepare("tpcc_new_order", 7).await?,
                payment: prepare("tpcc_payment", 8).await?,
            },
        };
        Ok(Self { conn, statements })
    }

    pub async fn run(&mut self, work: &Work<'_>) -> Attempt {
        let (statement, params) = match (work, &self.statements) {
            (Work::Ycsb(work), Statements::Ycsb(statement)) => (statement, ycsb(work)),
            (Work::NewOrder(work), Statements::Tpcc { new_order, .. }) => {
                (new_order, new_order_params(work))
            }
            (Work::Payment(work), Statements::Tpcc { payment, .. }) => (payment, pay(work)),
            (Work::Ycsb(_), Statements::Tpcc { .. })
            | (Work::NewOrder(_) | Work::Payment(_), Statements::Ycsb(_)) => {
                let message = "the session is for another workload";
                return Attempt::Aborted(Attempt::abort("42883", message));
            }
        };
        let statement = statement.clone();
        match self.call(&statement, params).await {
            Ok(row) => Attempt::Committed(match work {
                Work::Ycsb(work) => values_read(row, work.reads.len()),
                Work::NewOrder(_) | Work::Payment(_) => Vec::new(),
            }),
            Err(error) => attempt_of(&error),
        }
    }

    /// Returns the row that a procedure selects. The rest of the result is read too, because the
    /// commit comes after the row.
    async fn call(
        &mut self,
        statement: &Statement,
        params: Vec<Value>,
    ) -> Result<Option<Row>, Error> {
        let mut result = self.conn.exec_iter(statement, Params::Positional(params)).await?;
        let row = result.collect::<Row>().await?.pop();
        result.drop_result().await?;
        Ok(row)
    }
}

/// The parameters: ids, then values. A NULL value means a read, and a NULL id no operation.
fn ycsb(work: &Ycsb<'_>) -> Vec<Value> {
    let reads = work.reads.iter().map(|id| (Value::Int(*id), Value::NULL));
    let writes = work.writes.iter().map(|(id, value)| (Value::Int(*id), Value::from(*value)));
    let mut ops: Vec<(Value, Value)> = reads.chain(writes).collect();
    ops.resize(OPS_PER_TXN, (Value::NULL, Value::NULL));
    let (mut ids, values): (Vec<Value>, Vec<Value>) = ops.into_iter().unzip();
    ids.extend(values);
    ids
}

fn values_read(row: Option<Row>, reads: usize) -> Vec<u8> {
    let values = row.map(Row::unwrap).unwrap_or_default();
    let bytes = values.iter().take(reads).map(|value| match value {
        Value::Bytes(bytes) => &bytes[..],
        _ => &[],
    });
    encode_values(bytes)
}

fn new_order_params(work: &NewOrder) -> Vec<Value> {
    let args = &work.args;
    let mut packed = String::with_capacity(18 * work.lines.len());
    for (number, line) in &work.lines {
        let (item, supply, quantity) = (line.item, line.supply.0, line.quantity);
        write!(packed, "{number:02}{item:07}{supply:07}{quantity:02}")
            .expect("writing to a string does not fail");
    }
    vec![
        args.district.warehouse.0.into(),
        args.district.number.into(),
        args.customer.into(),
        args.entry.seconds.into(),
        u8::from(work.is_all_local).into(),
        work.lines.len().into(),
        packed.into(),
    ]
}

fn pay(args: &PaymentArgs<'_>) -> Vec<Value> {
    let (number, name) = match args.who {
        Who::Number(number) => (Value::from(number), Value::NULL),
        Who::LastName(name) => (Value::NULL, Value::from(name)),
    };
    vec![
        args.district.warehouse.0.into(),
        args.district.number.into(),
        args.customer_district.warehouse.0.into(),
        args.customer_district.number.into(),
        number,
        name,
        args.amount.into(),
        args.date.seconds.into(),
    ]
}

fn attempt_of(error: &Error) -> Attempt {
    let Error::Server(known) = error else { return Attempt::Lost(error.to_string()) };
    match known.code {
        DEADLOCK => Attempt::Undone(Attempt::abort("40001", &known.message)),
        LOCK_WAIT_TIMEOUT => Attempt::Undone(Attempt::abort("55P03", &known.message)),
        code if NOT_KNOWN.contains(&code) => Attempt::Lost(known.to_string()),
        _ => Attempt::Aborted(Attempt::abort(&known.state, &known.message)),
    }
}
