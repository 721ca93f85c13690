//! Pangea's command line.
//!
//! | command | purpose | module |
//! |---|---|---|
//! | `start` | one node of a cluster | `start` |
//! | `demo` | a cluster on this machine, and a prompt | `demo` |
//! | `bench` | a cluster on this machine under load, measured and checked | `bench` |
//! | `calibrate` | a cluster on this machine whose costs are measured | `calibrate` |
//! | `advise` | recommends a protocol and settings for a workload in given regions | `advise` |
//! | `torture` | a cluster on this machine under faults, with the clients' observations checked | `torture` |
//! | `sim` | a cluster in virtual time, under faults | `sim` |
//! | `check` | checks a recorded history of any database against a model | `check` |
//! | `sql` | a prompt at any PostgreSQL URL | `sql` |
//! | `lab` | regions on this machine for any software | `lab` |
//!
//! An error is one line on stderr that includes the remedy. The exit code is 0 on success, 1 if
//! something failed, including a check, 2 if the command is invalid, 3 if a node was stopped and
//! has not written its last checkpoint, and 130 if the command was interrupted.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use pangea_core::txn::Procedure;

use crate::failure::Failure;
use crate::{advise, bench, calibrate, check, demo, lab, protocol, sim, sql, start, torture};

/// One database in every region: PostgreSQL-compatible, geo-replicated, serializable.
#[derive(Debug, Parser)]
#[command(name = "pangea", version, propagate_version = true)]
#[command(
    after_help = "Try it:\n  pangea demo          three regions on this machine, and a prompt"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Start(start::Arguments),
    Demo(demo::Arguments),
    Bench(Box<bench::CommandLine>),
    Calibrate(Box<calibrate::Arguments>),
    Advise(advise::Arguments),
    Torture(torture::Arguments),
    Sim(Box<sim::Arguments>),
    Check(check::Arguments),
    Sql(sql::Arguments),
    Lab(lab::Arguments),
}

/// Runs the command that the program was started with, with more procedures than `pangea` has.
pub fn run_with(procedures: Vec<Arc<dyn Procedure>>) -> ExitCode {
    protocol::add_procedures(procedures);
    run()
}

/// Runs the command that the program was started with.
pub fn run() -> ExitCode {
    let parsed = Arguments::command().version(version()).try_get_matches();
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) if error.kind() == ErrorKind::ValueValidation => {
            warn(in_plain_words(&error.to_string()).trim_end());
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    if std::env::args_os().any(|word| is_former_option(&word.to_string_lossy())) {
        warn("pangea: --peer is now --baseline; the former name still works");
    }
    let result = match arguments.command {
        Command::Start(arguments) => start::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Calibrate(arguments) => calibrate::run(&arguments),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Torture(arguments) => torture::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Sql(arguments) => sql::run(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // As of a program that ends by the signal of a broken pipe.
        Err(failure @ Failure::NoReader) => failure.exit_code(),
        Err(failure) => {
            warn(&format!("pangea: {failure}"));
            failure.exit_code()
        }
    }
}

/// Replaces what a parser of numbers says by what a user may write.
fn in_plain_words(error: &str) -> String {
    let of_parser = [
        ("invalid digit found in string", "expected a whole number"),
        ("cannot parse integer from empty string", "expected a whole number"),
        ("number too large to fit in target type", "the number is too large"),
        ("number too small to fit in target type", "the number is too small"),
        ("invalid float literal", "expected a number"),
    ];
    let line = |line: &str| {
        let line = of_parser.iter().fold(line.to_owned(), |it, (from, to)| it.replace(from, to));
        let Some((before, range)) = line.split_once(" is not in ") else { return line };
        let Some((least, most)) = range.split_once("..") else { return line };
        let most = most.strip_prefix('=').unwrap_or(most);
        let (before, _) = before.rsplit_once(": ").unwrap_or((before, ""));
        let no_limits = ["", "9223372036854775807", "18446744073709551615"];
        match no_limits.contains(&most) {
            true => format!("{before}: expected a number, at least {least}"),
            false => format!("{before}: expected a number from {least} to {most}"),
        }
    };
    error.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The release, and what else must be the same on all nodes of a cluster.
fn version() -> &'static str {
    let registry = protocol::registry();
    let (release, code) = (env!("CARGO_PKG_VERSION"), registry.code());
    let count = registry.names().count();
    // It is needed until the process ends.
    format!("{release} (code {code}, {count} procedures)").leak()
}

/// Returns whether a word of the command line is an option by its former name.
fn is_former_option(word: &str) -> bool {
    word == "--peer" || word.starts_with("--peer=")
}

/// Writes a line to stdout.
///
/// # Errors
/// [`Failure::NoReader`] if nobody reads it any more, as in `pangea torture | head -1`.
pub(crate) fn say(line: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let said = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    said.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::NoReader,
        _ => Failure::failed("can't write to stdout", error),
    })
}

/// Writes a line to stderr. Errors are ignored, because they could not be reported.
pub(crate) fn warn(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes warnings about what a command will do to stderr.
pub(crate) fn warn_all(warnings: &[String]) {
    warnings.iter().for_each(|warning| warn(&format!("warning: {warning}")));
}

/// Creates a runtime for commands that communicate with nodes. The nodes do nearly all of the work.
pub(crate) fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    runtime.map_err(|error| Failure::failed("can't start threads", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_numbers_are_in_plain_words() {
        let said = |words: &[&str]| {
            let parsed = Arguments::command().try_get_matches_from(words);
            let error = parsed.expect_err("a wrong number");
            assert_eq!(error.kind(), ErrorKind::ValueValidation);
            in_plain_words(&error.to_string()).lines().next().unwrap().to_owned()
        };
        for (option, value, expected) in [
            ("--clients", "0", "expected a number from 1 to 256"),
            ("--memory-mb", "0", "expected a number, at least 1"),
            ("--seed", "x", "expected a whole number"),
            ("--seed", "99999999999999999999", "the number is too large"),
        ] {
            let line = said(&["pangea", "torture", option, value]);
            assert!(line.starts_with(&format!("error: invalid value '{value}'")), "{line}");
            assert!(line.ends_with(&format!("': {expected}")), "{line}");
        }
    }

    #[test]
    fn options_have_their_former_names() {
        let line = |option| ["pangea", "bench", "--workload", "ycsb-a", option, "etcd"];
        for option in ["--baseline", "--peer"] {
            let parsed = Arguments::try_parse_from(line(option));
            let Command::Bench(bench) = parsed.expect("an option").command else { panic!("bench") };
            assert!(format!("{bench:?}").contains("baseline: Some(Etcd)"), "{bench:?}");
        }
        assert!(is_former_option("--peer=etcd") && !is_former_option("--peers"));
    }

    #[test]
    fn the_command_line_is_consistent_and_every_command_shows_examples() {
        let mut command = Arguments::command();
        command.build();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands().filter(|it| it.get_name() != "help") {
            let help = subcommand.clone().render_long_help().to_string();
            let name = format!("pangea {} ", subcommand.get_name());
            assert!(help.contains("Examples:") && help.contains(&name), "{help}");
        }
    }
}
