//! A client's session: a prepared call of a function for each procedure.

use pangea_core::workload::Workload;
use pangea_core::workload::tpcc::args::{PaymentArgs, Who};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Statement};

use crate::calls::{NewOrder, Work, Ycsb};
use crate::failure::Failure;
use crate::session::{Attempt, encode_values};

/// A session with the prepared statements of a workload.
pub(crate) struct Session {
    client: Client,
    statements: Statements,
}

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
    pub async fn open(config: &Config, workload: &Workload) -> Result<Self, Failure> {
        let client = super::connect(config).await?;
        let prepare = async |text: &str| {
            let prepared = client.prepare(text).await;
            prepared.map_err(|error| Failure::failed(text, error))
        };
        let statements = match workload {
            Workload::Ycsb(_) => Statements::Ycsb(prepare("SELECT ycsb($1, $2, $3)").await?),
            _ => Statements::Tpcc {
                new_order: prepare("SELECT tpcc_new_order($1, $2, $3, $4, $5, $6, $7, $8, $9)")
                    .await?,
                payment: prepare("SELECT tpcc_payment($1, $2, $3, $4, $5, $6, $7, $8)").await?,
            },
        };
        Ok(Self { client, statements })
    }

    pub async fn run(&mut self, work: &Work<'_>) -> Attempt {
        let ran = match (work, &self.statements) {
            (Work::Ycsb(work), Statements::Ycsb(statement)) => self.ycsb(statement, work).await,
            (Work::NewOrder(work), Statements::Tpcc { new_order, .. }) => {
                self.new_order(new_order, work).await
            }
            (Work::Payment(work), Statements::Tpcc { payment, .. }) => {
                self.payment(payment, work).await
            }
            (Work::Ycsb(_), Statements::Tpcc { .. })
            | (Work::NewOrder(_) | Work::Payment(_), Statements::Ycsb(_)) => {
                let message = "the session is for another workload";
                return Attempt::Aborted(Attempt::abort("42883", message));
            }
        };
        match ran {
            Ok(result) => Attempt::Committed(result),
            Err(error) => attempt_of(&error),
        }
    }

    async fn row(
        &self,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, tokio_postgres::Error> {
        self.client.query_one(statement, params).await
    }

    async fn ycsb(
        &self,
        statement: &Statement,
        work: &Ycsb<'_>,
    ) -> Result<Vec<u8>, tokio_postgres::Error> {
        let rows: Vec<i64> = work.writes.keys().copied().collect();
        let values: Vec<&[u8]> = work.writes.values().copied().collect();
        let row = self.row(statement, &[&work.reads, &rows, &values]).await?;
        let read: Option<Vec<Option<&[u8]>>> = row.try_get(0)?;
        let read = read.unwrap_or_default();
        Ok(encode_values(read.into_iter().map(Option::unwrap_or_default)))
    }

    async fn new_order(
        &self,
        statement: &Statement,
        work: &NewOrder,
    ) -> Result<Vec<u8>, tokio_postgres::Error> {
        let args = &work.args;
        let lines = &work.lines;
        let numbers: Vec<i16> = lines.iter().map(|(number, _)| *number).collect();
        let items: Vec<i32> = lines.iter().map(|(_, line)| line.item as i32).collect();
        let supplies: Vec<i32> = lines.iter().map(|(_, line)| line.supply.0 as i32).collect();
        let quantities: Vec<i16> = lines.iter().map(|(_, line)| line.quantity.into()).collect();
        let (warehouse, district) = (args.district.warehouse.0 as i32, district(args.district));
        let (customer, entry) = (args.customer as i32, i64::from(args.entry.seconds));
        let is_all_local = i16::from(work.is_all_local);
        self.row(
            statement,
            &[
                &warehouse,
                &district,
                &customer,
                &entry,
                &is_all_local,
                &numbers,
                &items,
                &supplies,
                &quantities,
            ],
        )
        .await
        .map(|_| Vec::new())
    }

    async fn payment(
        &self,
        statement: &Statement,
        args: &PaymentArgs<'_>,
    ) -> Result<Vec<u8>, tokio_postgres::Error> {
        let to = args.district;
        let by = args.customer_district;
        let (number, name) = match args.who {
            Who::Number(number) => (Some(number as i32), None),
            Who::LastName(name) => (None, Some(String::from_utf8_lossy(name))),
        };
        let (to_warehouse, to_district) = (to.warehouse.0 as i32, district(to));
        let (by_warehouse, by_district) = (by.warehouse.0 as i32, district(by));
        let (amount, date) = (i64::from(args.amount), i64::from(args.date.seconds));
        self.row(
            statement,
            &[
                &to_warehouse,
                &to_district,
                &by_warehouse,
                &by_district,
                &number,
                &name,
                &amount,
                &date,
            ],
        )
        .await
        .map(|_| Vec::new())
    }
}

fn district(district: pangea_core::workload::tpcc::tables::District) -> i16 {
    district.number.into()
}

fn attempt_of(error: &tokio_postgres::Error) -> Attempt {
    let Some(known) = error.as_db_error() else { return Attempt::Lost(error.to_string()) };
    let code = known.code();
    let abort = Attempt::abort(code.code(), known.message());
    if *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED {
        return Attempt::Undone(abort);
    }
    // The server failed or ended the session: the commit may be in its log.
    match &code.code()[..2] {
        "08" | "57" | "58" | "XX" => Attempt::Lost(known.to_string()),
        _ => Attempt::Aborted(abort),
    }
}
