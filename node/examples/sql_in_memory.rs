//! SQL over a socket without a cluster: `cargo run -p pangea-node --example sql_in_memory -- 5433`,
//! then `psql -h localhost -p 5433`. All data is lost at the end.

use std::error::Error;

use pangea_node::pgwire::serve;
use pangea_sql::memory::MemoryEngine;
use tokio::net::TcpListener;

fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args().nth(1).unwrap_or_else(|| "5433".to_owned()).parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        println!("postgres://{}", listener.local_addr()?);
        serve(listener, std::sync::Arc::new(MemoryEngine::new()), std::future::pending()).await?;
        Ok(())
    })
}
