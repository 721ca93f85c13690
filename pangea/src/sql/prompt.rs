//! The prompt: input lines become commands, and statements that run concurrently with it.
//!
//! ```text
//!   lines ---> script ---> queue ---> shell, one statement at a time ---> results
//!                  \
//!                   `----> commands: queued, or concurrent with a running statement
//! ```
//!
//! For [`PATIENCE`] after a statement was sent, no input is read, because nearly all statements
//! complete within this time. If a statement takes longer, the prompt returns, and commands that
//! can run concurrently with a statement do so. All other input is queued.
//!
//! In a script, one line is read in each such interval, so that the effects of a command appear
//! before later lines are read. Ctrl-C cancels the running statement and discards the queue.
//! Replies to a statement are shown as they arrive; in a script, they are prefixed with the number
//! of the line.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::Shown;
use super::client::Status;
use super::lines::{Line, Lines};
use super::script::{Part, Script};
use super::shell::{Cancelled, Shell};
use crate::failure::Failure;
use crate::signals::Interrupts;

/// The time after which the prompt returns while a statement is running.
const PATIENCE: Duration = Duration::from_secs(1);
/// No more lines are read if this number of statements is queued.
const QUEUE_MAX: usize = 1_000;

/// The time at which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Immediately, also while a statement is running.
    Beside,
    /// After the previous statements. At a terminal, it is rejected while a statement is running.
    After,
    /// It ends the prompt: immediately at a terminal, otherwise after the previous statements.
    Quit,
}

/// The commands of a prompt, besides SQL.
pub trait Commands {
    /// Whether input is read while a statement is running.
    const IS_READ_BESIDE: bool;

    /// Returns the name at the start of the prompt.
    fn name(&self) -> String;

    /// The time at which a command runs.
    fn turn(&self, command: &str) -> Turn;

    /// Runs a command other than quit, and returns its output.
    async fn run(&mut self, command: &str, shell: &mut Shell) -> Result<String, String>;
}

/// The behavior if a statement of a script fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterError {
    /// The rest of the script is not run.
    Stop,
    /// The rest of the script is run.
    GoOn,
}

/// The reason why a prompt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The user quit.
    Quit,
    /// Ctrl-C, with no statement to cancel.
    Interrupted,
    /// The end of the input.
    NoMore {
        /// Whether there were any lines.
        had_lines: bool,
    },
}

/// A prompt for a user, connected to a server.
pub struct Prompt<'a, C> {
    commands: C,
    shell: Shell,
    lines: Lines,
    interrupts: &'a mut Interrupts,
    after_error: AfterError,
    script: Script,
    queue: VecDeque<Numbered>,
    /// The number of the last line read, and the number of the line at which the running statement
    /// ends.
    line: u64,
    line_of_running: u64,
    /// The error of the running statement, if it has failed.
    error: Option<String>,
    /// The time at which the prompt returns although a statement is running.
    patient_until: Instant,
    /// The number of failed statements and commands.
    failed: u64,
    had_lines: bool,
}

/// A part of a script, and the line that it ends at.
struct Numbered {
    part: Part,
    line: u64,
}

/// The next event.
enum Event {
    Shown(Shown),
    Answered,
    Line(Line),
    Interrupted,
    Waited,
}

impl<'a, C: Commands> Prompt<'a, C> {
    /// Creates a prompt that reads stdin.
    ///
    /// # Errors
    /// If stdin cannot be read.
    pub fn new(
        commands: C,
        shell: Shell,
        interrupts: &'a mut Interrupts,
        after_error: AfterError,
    ) -> Result<Self, Failure> {
        Ok(Self {
            commands,
            shell,
            lines: Lines::new()?,
            interrupts,
            after_error,
            script: Script::default(),
            queue: VecDeque::new(),
            line: 0,
            line_of_running: 0,
            error: None,
            patient_until: Instant::now(),
            failed: 0,
            had_lines: false,
        })
    }

    /// Returns whether stdin is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.lines.is_terminal()
    }

    /// Returns the number of failed statements and commands of a script.
    pub fn failed(&self) -> u64 {
        if self.lines.is_terminal() { 0 } else { self.failed }
    }

    /// Waits for a Ctrl-C.
    pub async fn interrupted(&mut self) {
        self.interrupts.received().await;
    }

    /// Reads input and runs it until the prompt ends.
    ///
    /// # Errors
    /// If the output is closed, or a script failed and stops at errors.
    pub async fn run(&mut self) -> Result<End, Failure> {
        let mut end = None;
        loop {
            while !self.shell.is_running() {
                let Some(Numbered { part, line }) = self.queue.pop_front() else { break };
                match part {
                    Part::Sql(sql) => self.start(sql, line),
                    Part::Command(command) => {
                        if self.commands.turn(&command) == Turn::Quit {
                            return Ok(End::Quit);
                        }
                        self.run_command(&command, line).await?;
                    }
                }
            }
            if let (false, Some(end)) = (self.shell.is_running(), end) {
                return Ok(end);
            }
            let ended = match self.event(end.is_none()).await {
                Event::Shown(shown) => {
                    self.show(shown)?;
                    None
                }
                Event::Answered => {
                    self.on_answered()?;
                    None
                }
                Event::Waited => {
                    self.say_that_it_waits()?;
                    None
                }
                Event::Interrupted => self.on_interrupt(true).await?,
                Event::Line(line) => self.on_line(line).await?,
            };
            match ended {
                // The last statement of a script is still running.
                Some(End::NoMore { .. }) if !self.lines.is_terminal() => end = ended,
                Some(end) => {
                    self.shell_ends().await;
                    return Ok(end);
                }
                None => {}
            }
        }
    }

    /// Waits for the next event.
    async fn event(&mut self, has_lines: bool) -> Event {
        let is_running = self.shell.is_running();
        let is_patient = is_running && Instant::now() < self.patient_until;
        let is_beside = C::IS_READ_BESIDE && !is_patient && self.queue.len() < QUEUE_MAX;
        let is_read = has_lines && (!is_running || is_beside || self.lines.is_asked());
        if is_read {
            let prompt = self.prompt();
            self.lines.ask(&prompt);
        }
        tokio::select! {
            biased;
            shown = self.shell.next(), if is_running => {
                shown.map_or(Event::Answered, Event::Shown)
            }
            () = self.interrupts.received() => Event::Interrupted,
            line = self.lines.next(), if is_read => Event::Line(line),
            () = tokio::time::sleep_until(self.patient_until), if is_patient => Event::Waited,
        }
    }

    /// `us-east=> `, with psql's marks: `-` within a statement, `*` in a transaction block, `!` in
    /// a failed one; and `..` while a statement is running.
    fn prompt(&self) -> String {
        let name = self.commands.name();
        if self.shell.is_running() {
            return format!("{name}..> ");
        }
        let transaction = match self.shell.status() {
            Status::Idle => "",
            Status::Open => "*",
            Status::Failed => "!",
        };
        format!("{name}{}{transaction}> ", self.script.mark())
    }

    fn start(&mut self, sql: String, line: u64) {
        self.patient_until = Instant::now() + PATIENCE;
        (self.line_of_running, self.error) = (line, None);
        self.shell.start(sql);
    }

    fn say_that_it_waits(&mut self) -> Result<(), Failure> {
        if !self.lines.is_terminal() || !C::IS_READ_BESIDE {
            return Ok(());
        }
        self.lines.warn(
            "The statement is still running. Ctrl-C cancels it; commands like \\help work in the \
             meantime.",
        )
    }

    /// Shows a part of a result.
    fn show(&mut self, shown: Shown) -> Result<(), Failure> {
        let at_line = |text: &str| self.at_line(self.line_of_running, text);
        match shown {
            Shown::Result(text) => self.lines.show(&text),
            Shown::Notice(text) => self.lines.warn(&at_line(&text)),
            Shown::Error(error) => {
                let error = at_line(&error);
                // If the script stops at errors, its end reports the error.
                let shown = if self.stops_at_errors() { Ok(()) } else { self.lines.warn(&error) };
                self.error.get_or_insert(error);
                shown
            }
        }
    }

    fn stops_at_errors(&self) -> bool {
        self.after_error == AfterError::Stop && !self.lines.is_terminal()
    }

    fn on_answered(&mut self) -> Result<(), Failure> {
        if let Some(error) = self.error.take() {
            self.failed += 1;
            if self.stops_at_errors() {
                return Err(Failure::Failed(error));
            }
        }
        // A line may be being edited.
        let prompt = self.prompt();
        self.lines.change_prompt(&prompt)
    }

    async fn on_line(&mut self, line: Line) -> Result<Option<End>, Failure> {
        let text = match line {
            Line::Text(text) => text,
            Line::Cancelled { is_empty } => return self.on_interrupt(is_empty).await,
            Line::End => {
                let had_lines = self.had_lines;
                // As in psql, the last statement of a script needs no semicolon. At a terminal it
                // is discarded.
                let rest = std::mem::take(&mut self.script).rest();
                if let Some(sql) = rest.filter(|_| !self.lines.is_terminal()) {
                    self.queue.push_back(Numbered { part: Part::Sql(sql), line: self.line });
                }
                return Ok(Some(End::NoMore { had_lines }));
            }
        };
        self.had_lines = true;
        if !self.lines.is_terminal() {
            // The running statement may make progress after each command that a script runs
            // concurrently.
            self.patient_until = Instant::now() + PATIENCE;
        }
        // An empty line counts, and may be within quotes.
        for line in text.split('\n') {
            self.line += 1;
            let mut is_first = true;
            for part in self.parts(line.trim_end_matches('\r'))? {
                if let Some(end) = self.on_part(part, is_first).await? {
                    return Ok(Some(end));
                }
                is_first = false;
            }
        }
        Ok(None)
    }

    /// Returns the parts that are complete with a line. As in psql, `help` and `quit` work as words
    /// at a terminal.
    fn parts(&mut self, line: &str) -> Result<Vec<Part>, Failure> {
        let word = line.trim().trim_end_matches(';').trim_end().to_ascii_lowercase();
        let command = match word.as_str() {
            "help" => "\\help",
            "quit" | "exit" => "\\q",
            _ => return Ok(self.script.add(line)),
        };
        if !self.lines.is_terminal() {
            return Ok(self.script.add(line));
        }
        if self.script.is_empty() {
            return Ok(vec![Part::Command(command.to_owned())]);
        }
        self.lines.warn("The statement is incomplete. Ctrl-C discards it; a semicolon ends it.")?;
        Ok(self.script.add(line))
    }

    /// Runs a part of a line or queues it. A command that follows another part on its line is
    /// queued after that part.
    async fn on_part(&mut self, part: Part, is_first: bool) -> Result<Option<End>, Failure> {
        let is_free = !self.shell.is_running() && self.queue.is_empty();
        if let Part::Command(command) = &part {
            match self.commands.turn(command) {
                Turn::Beside if is_free || is_first => {
                    self.run_command(command, self.line).await?;
                    return Ok(None);
                }
                // The statement may never complete, so an interactive user should not wait for it.
                Turn::After if self.shell.is_running() && self.lines.is_terminal() => {
                    let name = self.commands.name();
                    self.lines.warn(&format!(
                        "A statement is still running in {name}: {command} was not executed. \
                         Ctrl-C cancels the statement; then try again."
                    ))?;
                    return Ok(None);
                }
                Turn::Quit if is_free || is_first && self.lines.is_terminal() => {
                    return Ok(Some(End::Quit));
                }
                Turn::Beside | Turn::After | Turn::Quit => {}
            }
        }
        self.queue.push_back(Numbered { part, line: self.line });
        Ok(None)
    }

    async fn run_command(&mut self, command: &str, line: u64) -> Result<(), Failure> {
        match self.commands.run(command, &mut self.shell).await {
            Ok(text) => self.lines.show(&text),
            Err(error) => {
                self.failed += 1;
                let error = self.at_line(line, &error);
                if self.stops_at_errors() {
                    return Err(Failure::Failed(error));
                }
                self.lines.warn(&error)
            }
        }
    }

    /// Adds the line number to a message about a script, in psql's format.
    fn at_line(&self, line: u64, text: &str) -> String {
        match self.lines.is_terminal() {
            true => text.to_owned(),
            false => format!("<stdin>:{line}: {text}"),
        }
    }

    /// Handles Ctrl-C: cancels the running statement or discards the input. If there is neither, it
    /// ends the prompt.
    async fn on_interrupt(&mut self, is_empty: bool) -> Result<Option<End>, Failure> {
        if !self.lines.is_terminal() {
            return Ok(Some(End::Interrupted));
        }
        let had_begun = !std::mem::take(&mut self.script).is_empty();
        if !self.shell.is_running() {
            return Ok((is_empty && !had_begun).then_some(End::Interrupted));
        }
        let dropped = std::mem::take(&mut self.queue).len();
        match self.shell.cancel().await {
            Cancelled::Asked => self.lines.warn("Cancel request sent")?,
            Cancelled::GivenUp => self.lines.warn(
                "The server did not respond, so the connection was closed. It is not known whether \
                 the statement takes effect.",
            )?,
        }
        if dropped > 0 {
            self.lines
                .warn(&format!("The input queued after it was discarded: {dropped} in total."))?;
        }
        Ok(None)
    }

    /// The result of the running statement is not needed after quitting.
    async fn shell_ends(&mut self) {
        if self.shell.is_running() {
            self.shell.cancel().await;
            self.shell.give_up();
        }
    }
}
