//! `pangea sql`: an SQL prompt for any PostgreSQL URL. The demo shares its parts.
//!
//! - [`script`]: splits the input into statements and commands;
//! - [`lines`]: reads the input;
//! - [`client`], [`login`]: a connection to a server, with all of its messages;
//! - [`shell`]: runs a statement concurrently with the prompt;
//! - [`answer`]: formats the results;
//! - [`prompt`]: combines these parts.

mod answer;
mod client;
mod lines;
mod login;
mod prompt;
mod script;
mod shell;

use crate::failure::Failure;
use crate::signals::Signals;
use answer::Shown;
pub use prompt::{AfterError, Commands, End, Prompt, Turn};
pub use shell::Shell;

/// Open an SQL prompt at a PostgreSQL URL.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea sql postgres://pangea@127.0.0.1:5432/pangea
  pangea sql postgres://pangea@127.0.0.1:5432/pangea -c 'SELECT 1'
  pangea sql postgres://pangea@127.0.0.1:5432/pangea < schema.sql

Statements end with a semicolon, which is optional for the last one of a script. \\q or Ctrl-D
exits; Ctrl-C cancels the running statement. A script ends at its first error, which is shown with
its line number, and the exit code is then 1.")]
pub struct Arguments {
    /// Server to connect to: postgres://user@host:port/database
    #[arg(value_name = "URL")]
    url: String,
    /// Run these statements and exit
    #[arg(short, long, value_name = "SQL")]
    command: Option<String>,
}

/// Runs the prompt.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let url = &arguments.url;
    let config: tokio_postgres::Config = url
        .parse()
        .map_err(|error| Failure::Usage(format!("{url:?} is not a PostgreSQL URL: {error}")))?;
    let runtime = crate::runtime(1)?;
    let result = runtime.block_on(async {
        let signals = Signals::new()?;
        let mut shell = Shell::new(config);
        shell.connect().await.map_err(Failure::Failed)?;
        match &arguments.command {
            Some(sql) => run_once(shell, sql, signals).await,
            None => run_prompt(shell, signals).await,
        }
    });
    // The thread that reads stdin may still block.
    runtime.shutdown_background();
    result
}

/// Runs the statements of `-c` in one simple query.
async fn run_once(mut shell: Shell, sql: &str, mut signals: Signals) -> Result<(), Failure> {
    shell.start(sql.to_owned());
    let mut failed = None;
    loop {
        let shown = tokio::select! {
            shown = shell.next() => shown,
            () = signals.received() => {
                shell.cancel().await;
                if !shell.is_running() {
                    return Err(interrupted());
                }
                continue;
            }
        };
        match shown {
            Some(Shown::Result(text)) => crate::say(&text)?,
            Some(Shown::Notice(text)) => crate::warn(&text),
            Some(Shown::Error(error)) => failed = failed.or(Some(error)),
            None => return failed.map_or(Ok(()), |error| Err(Failure::Failed(error))),
        }
    }
}

/// Reads statements and runs them until stdin ends. An error ends a script, but not an interactive
/// prompt.
async fn run_prompt(shell: Shell, mut signals: Signals) -> Result<(), Failure> {
    let interrupts = &mut signals.interrupts;
    let mut prompt = Prompt::new(QuitAlone, shell, interrupts, AfterError::Stop)?;
    loop {
        let end = tokio::select! {
            end = prompt.run() => end?,
            () = signals.ends.received() => return Err(interrupted()),
        };
        match end {
            End::Quit | End::NoMore { .. } => return Ok(()),
            // As in psql, Ctrl-C does not leave the prompt.
            End::Interrupted if prompt.is_terminal() => {}
            End::Interrupted => return Err(interrupted()),
        }
    }
}

fn interrupted() -> Failure {
    Failure::Interrupted("interrupted".to_owned())
}

/// The help text of the prompt.
const HELP: &str = "  \\q               exit
  \\help            show this text
  Ctrl-C           cancel the running statement
  Anything else is SQL and ends with a semicolon.";

/// The prompt's only command is `\q`.
struct QuitAlone;

impl Commands for QuitAlone {
    const IS_READ_BESIDE: bool = false;

    fn name(&self) -> String {
        "pangea".to_owned()
    }

    fn turn(&self, command: &str) -> Turn {
        match command {
            "\\q" | "\\quit" => Turn::Quit,
            _ => Turn::After,
        }
    }

    async fn run(&mut self, command: &str, _: &mut Shell) -> Result<String, String> {
        match command {
            "\\help" | "\\h" | "\\?" => Ok(HELP.to_owned()),
            _ => Err(format!("{command} is not a command; \\q exits, and anything else is SQL")),
        }
    }
}
