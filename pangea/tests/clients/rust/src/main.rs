//! `clients DRIVER PORT`: typical uses of a database by Rust applications.

mod with_sqlx;
mod with_tokio_postgres;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [driver, port] = &arguments[..] else { panic!("clients DRIVER PORT") };
    let url = format!("postgres://pangea@127.0.0.1:{port}/pangea");
    match driver.as_str() {
        "sqlx" => with_sqlx::run(&url).await,
        "tokio-postgres" => with_tokio_postgres::run(&url).await,
        other => panic!("no driver {other}"),
    }
    println!("ok");
}
