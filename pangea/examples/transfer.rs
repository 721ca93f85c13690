//! Transfers between accounts: a Rust procedure over SQL tables, in a three-node cluster within
//! this process.
//!
//! ```sh
//! cargo run --example transfer
//! ```

use pangea::{Cluster, Datum, Error, Sql, SqlProcedure, SqlType, Stop, raise};

/// Moves money from one account to another and returns the remaining balance of the first.
pub struct Transfer;

impl SqlProcedure for Transfer {
    fn name(&self) -> &str {
        "transfer"
    }

    fn params(&self) -> Vec<SqlType> {
        vec![SqlType::Int4, SqlType::Int4, SqlType::Int8]
    }

    fn columns(&self) -> Vec<(String, SqlType)> {
        vec![("balance".to_owned(), SqlType::Int8)]
    }

    fn run(&self, args: &[Datum], cx: &mut Sql<'_>) -> Result<Vec<Datum>, Stop> {
        let [from, to, amount] = args else { unreachable!("it has three parameters") };
        if !matches!(amount, Datum::Int(1..)) {
            return Err(raise("the amount must be positive"));
        }
        let take = "update account set balance = balance - $2
                    where id = $1 and balance >= $2 returning balance";
        let taken = cx.sql(take, &[from.clone(), amount.clone()])?;
        let Some(left) = taken.rows.into_iter().next() else {
            return Err(raise(format!("account {from:?} has insufficient funds")));
        };
        let give = "update account set balance = balance + $2 where id = $1";
        if cx.sql(give, &[to.clone(), amount.clone()])?.count == 0 {
            return Err(raise(format!("there is no account {to:?}")));
        }
        cx.sql("insert into transfer values ($1, $2, $3)", args)?;
        Ok(left)
    }
}

/// Starts three nodes with the procedure registered, and creates two accounts.
///
/// # Errors
/// If the cluster fails to start or a statement fails.
pub fn bank() -> Result<Cluster, Error> {
    let cluster = Cluster::builder().procedure(Transfer).start()?;
    let mut connection = cluster.connect(0)?;
    connection.query("create table account (id int primary key, balance bigint not null)", &[])?;
    connection.query("create table transfer (a int, b int, amount bigint)", &[])?;
    connection.query("insert into account values (1, 100), (2, 100)", &[])?;
    drop(connection);
    Ok(cluster)
}

/// Runs the transfers and returns the balances.
///
/// # Errors
/// If a statement fails.
pub fn transfers(cluster: &Cluster) -> Result<Vec<Vec<Datum>>, Error> {
    let mut connection = cluster.connect(1)?;
    let left = connection.call("transfer", &[Datum::Int(1), Datum::Int(2), Datum::Int(30)])?;
    assert_eq!(left, [Datum::Int(70)]);
    // The same procedure called in SQL, as any PostgreSQL client would.
    connection.query("call transfer(2, 1, 5 + 5)", &[])?;
    // A failed call has no effect.
    let too_much = [Datum::Int(1), Datum::Int(2), Datum::Int(1_000)];
    assert!(connection.call("transfer", &too_much).is_err());
    Ok(connection.query("select id, balance from account order by id", &[])?.rows)
}

/// Runs the example and prints how to connect with psql.
///
/// # Errors
/// If the cluster fails to start or a statement fails.
pub fn main() -> Result<(), Error> {
    let cluster = bank()?;
    for row in transfers(&cluster)? {
        println!("{row:?}");
    }
    println!("psql -h 127.0.0.1 -p {} -U pangea", cluster.sql_address(0).port());
    cluster.stop()
}
