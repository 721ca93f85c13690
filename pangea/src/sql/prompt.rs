//! The prompt: lines become statements, which run beside it, and commands.
//!
//! ```text
//!   lines ---> script ---> queue ---> shell, one statement at a time ---> answers
//!                  \
//!                   `----> commands: in their turn, or beside a statement that waits
//! ```
//!
//! For [`PATIENCE`] after a statement was sent nothing is read: nearly all are answered by then.
//! One that waits longer has the prompt beside it, and a command that may be done beside it is.
//! Everything else waits for its turn. A script has a line read in each such time, so that what
//! a command brought about comes before what stands behind it. Ctrl-C cancels what runs and drops
//! what waits behind it. What is said of a statement is shown when it comes, and of a script with
//! its line.

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

/// How long a statement may take before the prompt comes back beside it.
const PATIENCE: Duration = Duration::from_secs(1);
/// With so many statements behind one that waits no more lines are read.
const QUEUE_MAX: usize = 1_000;

/// When a command is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Also while a statement waits.
    Beside,
    /// When the statements before it are answered. Where somebody sits there it is refused while
    /// one of them waits.
    After,
    /// It ends the prompt: at once where somebody sits there, else in its turn.
    Quit,
}

/// What a prompt understands beside SQL.
pub trait Commands {
    /// Whether there is something to do while a statement waits.
    const IS_READ_BESIDE: bool;

    /// What the prompt begins with.
    fn name(&self) -> String;

    /// When a command is done.
    fn turn(&self, command: &str) -> Turn;

    /// Does a command that does not quit, and says what came of it.
    async fn run(&mut self, command: &str, shell: &mut Shell) -> Result<String, String>;
}

/// What is done about a script's statement that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterError {
    /// The rest is not done.
    Stop,
    /// The rest is done.
    GoOn,
}

/// How a prompt came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Somebody asked for it.
    Quit,
    /// Ctrl-C, with nothing to cancel.
    Interrupted,
    /// There are no more lines.
    NoMore {
        /// Whether there were any.
        had_lines: bool,
    },
}

/// Whoever types, and a server.
pub struct Prompt<'a, C> {
    commands: C,
    shell: Shell,
    lines: Lines,
    interrupts: &'a mut Interrupts,
    after_error: AfterError,
    script: Script,
    queue: VecDeque<Numbered>,
    /// The line that was read last, and the one that what runs ends at.
    line: u64,
    line_of_running: u64,
    /// Why what runs has failed, if it has.
    error: Option<String>,
    /// When the prompt comes back beside what runs.
    patient_until: Instant,
    /// How many statements and commands have failed.
    failed: u64,
    had_lines: bool,
}

/// A part of a script, and the line that it ends at.
struct Numbered {
    part: Part,
    line: u64,
}

/// What happens next.
enum Event {
    Shown(Shown),
    Answered,
    Line(Line),
    Interrupted,
    Waited,
}

impl<'a, C: Commands> Prompt<'a, C> {
    /// A prompt at stdin.
    ///
    /// # Errors
    /// When stdin can't be read.
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

    /// Whether somebody sits there.
    pub fn is_terminal(&self) -> bool {
        self.lines.is_terminal()
    }

    /// How many statements and commands of a script have failed.
    pub fn failed(&self) -> u64 {
        if self.lines.is_terminal() { 0 } else { self.failed }
    }

    /// Waits for a Ctrl-C.
    pub async fn interrupted(&mut self) {
        self.interrupts.received().await;
    }

    /// Reads and does until there is an end.
    ///
    /// # Errors
    /// When there is nobody to show anything to, or a script failed that stops then.
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
                // A script's last statement is still to be answered.
                Some(End::NoMore { .. }) if !self.lines.is_terminal() => end = ended,
                Some(end) => {
                    self.shell_ends().await;
                    return Ok(end);
                }
                None => {}
            }
        }
    }

    /// Waits for something to happen.
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

    /// `us-east=> `, with psql's marks: `-` in a statement, `*` in a transaction, `!` in one that
    /// failed; and `..` where a statement waits.
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
        self.lines
            .warn("The statement waits. Ctrl-C cancels it; \\help and the like work beside it.")
    }

    /// Shows a part of an answer when it comes.
    fn show(&mut self, shown: Shown) -> Result<(), Failure> {
        let at_line = |text: &str| self.at_line(self.line_of_running, text);
        match shown {
            Shown::Result(text) => self.lines.show(&text),
            Shown::Notice(text) => self.lines.warn(&at_line(&text)),
            Shown::Error(error) => {
                let error = at_line(&error);
                // Where it is the end, it is said there.
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
                // A script's last statement needs no semicolon, as in psql. At a terminal it was
                // left.
                let rest = std::mem::take(&mut self.script).rest();
                if let Some(sql) = rest.filter(|_| !self.lines.is_terminal()) {
                    self.queue.push_back(Numbered { part: Part::Sql(sql), line: self.line });
                }
                return Ok(Some(End::NoMore { had_lines }));
            }
        };
        self.had_lines = true;
        if !self.lines.is_terminal() {
            // The statement that waits may go on after each command that a script has beside it.
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

    /// What is complete with a line. As in psql, somebody who sits there may ask for help or leave
    /// in a word.
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
        self.lines.warn("A statement was begun. Ctrl-C drops it; a semicolon ends it.")?;
        Ok(self.script.add(line))
    }

    /// Does a part of a line, or has it wait. What stands behind something else on its line has its
    /// turn after that.
    async fn on_part(&mut self, part: Part, is_first: bool) -> Result<Option<End>, Failure> {
        let is_free = !self.shell.is_running() && self.queue.is_empty();
        if let Part::Command(command) = &part {
            match self.commands.turn(command) {
                Turn::Beside if is_free || is_first => {
                    self.run_command(command, self.line).await?;
                    return Ok(None);
                }
                // Whoever sits there would wait for something that may never come.
                Turn::After if self.shell.is_running() && self.lines.is_terminal() => {
                    let name = self.commands.name();
                    self.lines.warn(&format!(
                        "A statement still waits in {name}: {command} is not done. Ctrl-C cancels \
                         the statement; then try again."
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

    /// A word about a script, with the line that it is about as psql has it.
    fn at_line(&self, line: u64, text: &str) -> String {
        match self.lines.is_terminal() {
            true => text.to_owned(),
            false => format!("<stdin>:{line}: {text}"),
        }
    }

    /// Ctrl-C: cancels what runs, or what was typed, or ends the prompt where there is neither.
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
                "There is no answer, so the connection was given up. Whether the statement takes \
                 effect is not known.",
            )?,
        }
        if dropped > 0 {
            self.lines.warn(&format!("What was to come after it is dropped: {dropped} in all."))?;
        }
        Ok(None)
    }

    /// Whoever quits does not want the answer to what runs.
    async fn shell_ends(&mut self) {
        if self.shell.is_running() {
            self.shell.cancel().await;
            self.shell.give_up();
        }
    }
}
