//! `pangea sql`: a prompt for SQL at any PostgreSQL URL, and the parts of it that the demo uses.

mod lines;
mod shell;

use std::io::IsTerminal;

use crate::failure::Failure;
pub use lines::{Line, Lines};
pub use shell::{Shell, Statement};

/// A prompt for SQL at a PostgreSQL URL.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea sql postgres://pangea@127.0.0.1:5432/pangea
  pangea sql postgres://pangea@127.0.0.1:5432/pangea -c 'SELECT 1'
  pangea sql postgres://pangea@127.0.0.1:5432/pangea < schema.sql

Statements end with a semicolon; the last one of a script need not. \\q on a line of its own or
Ctrl-D leaves.")]
pub struct Arguments {
    /// Where to connect: postgres://user@host:port/database
    #[arg(value_name = "URL")]
    url: String,
    /// Run these statements and end
    #[arg(short, long, value_name = "SQL")]
    command: Option<String>,
}

/// Runs the prompt.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Err(error) = arguments.url.parse::<tokio_postgres::Config>() {
        return Err(Failure::Usage(format!("{:?} is no PostgreSQL URL: {error}", arguments.url)));
    }
    let runtime = crate::runtime(1)?;
    let result = runtime.block_on(async {
        let mut shell = Shell::new(arguments.url.clone());
        match &arguments.command {
            Some(sql) => shell.run(sql).await,
            None => prompt(&mut shell).await,
        }
    });
    // A reader of stdin may still block.
    runtime.shutdown_background();
    result
}

/// Reads statements and runs them until stdin ends. At a terminal an error is shown and that is
/// all; in a script it is the end.
async fn prompt(shell: &mut Shell) -> Result<(), Failure> {
    let is_terminal = std::io::stdin().is_terminal();
    shell.connect().await?;
    let mut lines = Lines::new()?;
    let mut statement = Statement::default();
    loop {
        let prompt = if statement.is_empty() { "pangea=> " } else { "pangea-> " };
        match lines.read(prompt).await {
            // A script's last statement needs no semicolon, as in psql. At a terminal it was left.
            Line::End => {
                let rest = statement.rest().filter(|_| !is_terminal);
                return match rest {
                    Some(sql) => shell.run(&sql).await,
                    None => Ok(()),
                };
            }
            Line::Cancelled => statement = Statement::default(),
            Line::Text(text) if text.trim() == "\\q" => return Ok(()),
            Line::Text(text) => {
                let Some(sql) = statement.add(&text) else { continue };
                match shell.run(&sql).await {
                    Err(error) if is_terminal => eprintln!("{error}"),
                    result => result?,
                }
            }
        }
    }
}
