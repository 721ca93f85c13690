//! Reads lines from a terminal, with editing and history, or from a script. A separate thread reads
//! them, so that everything else continues.
//!
//! While a line is being edited, other output is shown above it. The editor has a printer for that,
//! but with it the editor loses keys that arrive together until the next key is pressed. Therefore
//! this module redraws the line, from the state that the editor passes to a highlighter and a
//! hinter.

use std::borrow::Cow;
use std::io::{BufRead, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::failure::Failure;

/// The result of reading a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line, without its line break. Pasted text may contain several lines.
    Text(String),
    /// Ctrl-C: the current input is discarded.
    Cancelled {
        /// Whether the input was empty.
        is_empty: bool,
    },
    /// Ctrl-D, or the end of the file.
    End,
}

/// The reader of lines.
pub struct Lines {
    prompts: mpsc::Sender<String>,
    lines: Receiver<Line>,
    is_asked: bool,
    /// The original settings of the terminal. They are restored if the program ends in the middle
    /// of a line, because the editor changes them.
    terminal: Option<Termios>,
    sight: Sight,
}

impl Lines {
    /// Starts the thread that reads.
    ///
    /// # Errors
    /// If the terminal cannot be used or the thread cannot be started.
    pub fn new() -> Result<Self, Failure> {
        let cant = |error: &dyn std::fmt::Display| Failure::failed("can't read stdin", error);
        let (prompts, wanted) = mpsc::channel();
        let (sender, lines) = channel(1);
        let thread = std::thread::Builder::new().name("lines".to_owned());
        let sight = Sight::default();
        let mut terminal = None;
        let started = if std::io::stdin().is_terminal() {
            terminal = tcgetattr(std::io::stdin()).ok();
            let mut editor = Editor::new().map_err(|error| cant(&error))?;
            editor.set_helper(Some(sight.clone()));
            let sight = sight.clone();
            thread.spawn(move || edit_lines(editor, &sight, &wanted, &sender))
        } else {
            thread.spawn(move || read_lines(&wanted, &sender))
        };
        started.map_err(|error| cant(&error))?;
        Ok(Self { prompts, lines, is_asked: false, terminal, sight })
    }

    /// Returns whether stdin is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Returns whether a line is being read.
    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Changes the prompt of a line that is being edited.
    ///
    /// # Errors
    /// If stdout is closed.
    pub fn change_prompt(&mut self, prompt: &str) -> Result<(), Failure> {
        let mut seen = self.sight.lock();
        if seen.prompt == prompt {
            return Ok(());
        }
        prompt.clone_into(&mut seen.prompt);
        let (begin, end) = seen.around();
        drop(seen);
        let mut stdout = std::io::stdout();
        let drawn = stdout.write_all((begin + &end).as_bytes()).and_then(|()| stdout.flush());
        drawn.map_err(cant_show)
    }

    /// Shows a prompt and starts to read a line, unless one is being read.
    pub fn ask(&mut self, prompt: &str) {
        if !self.is_asked {
            let is_edited = self.is_terminal() && std::io::stdout().is_terminal();
            let width = prompt.chars().count();
            *self.sight.lock() =
                Seen { prompt: prompt.to_owned(), width, is_edited, ..Seen::default() };
            // If the thread has ended, no line is awaited.
            self.is_asked = self.prompts.send(prompt.to_owned()).is_ok();
        }
    }

    /// Waits for the requested line. It is cancel-safe: the future may be dropped and created
    /// again.
    pub async fn next(&mut self) -> Line {
        let line = self.lines.recv().await.unwrap_or(Line::End);
        self.is_asked = false;
        line
    }

    /// Shows a text on stdout, above the line that is being edited.
    ///
    /// # Errors
    /// If stdout is closed.
    pub fn show(&mut self, text: &str) -> Result<(), Failure> {
        self.print(text, &mut std::io::stdout())
    }

    /// Shows a text on stderr, above the line that is being edited.
    ///
    /// # Errors
    /// If stderr is closed.
    pub fn warn(&mut self, text: &str) -> Result<(), Failure> {
        self.print(text, &mut std::io::stderr())
    }

    fn print(&mut self, text: &str, to: &mut dyn Write) -> Result<(), Failure> {
        let (begin, end) = self.sight.lock().around();
        let mut print = || {
            let mut stdout = std::io::stdout();
            stdout.write_all(begin.as_bytes())?;
            stdout.flush()?;
            writeln!(to, "{text}")?;
            to.flush()?;
            stdout.write_all(end.as_bytes())?;
            stdout.flush()
        };
        print().map_err(cant_show)
    }
}

fn cant_show(error: std::io::Error) -> Failure {
    Failure::failed("can't write the output", error)
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal {
            // Errors are ignored: a closed terminal needs no restoring.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, terminal);
        }
    }
}

/// The state of the line being edited, shared by both threads.
#[derive(Clone, Default)]
struct Sight(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// The current prompt.
    prompt: String,
    /// The width of the original prompt, which the editor uses for its layout.
    width: usize,
    /// Whether a line is on the screen and being edited.
    is_edited: bool,
    line: String,
    /// The position of the cursor in the line, in bytes.
    cursor: usize,
}

impl Seen {
    /// Returns the current prompt, padded to the width of the original one.
    fn fitting_prompt(&self) -> Option<String> {
        let (prompt, width) = (&self.prompt, self.width);
        (prompt.chars().count() <= width).then(|| format!("{prompt:width$}"))
    }

    /// Returns the escape sequences that erase the line and that draw it again.
    fn around(&self) -> (String, String) {
        let columns = tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col);
        self.around_in(usize::from(columns).max(1))
    }

    fn around_in(&self, columns: usize) -> (String, String) {
        if !self.is_edited {
            return (String::new(), String::new());
        }
        let before = self.line.get(..self.cursor).unwrap_or(&self.line);
        let cursor = self.width + before.chars().count();
        let end = self.width + self.line.chars().count();
        let up = |rows: usize| if rows > 0 { format!("\x1b[{rows}A") } else { String::new() };
        let prompt = self.fitting_prompt().unwrap_or_else(|| self.prompt.clone());
        let (line, rows) = (&self.line, end / columns - cursor / columns);
        let right = match cursor % columns {
            0 => String::new(),
            right => format!("\x1b[{right}C"),
        };
        let take_off = format!("{}\r\x1b[J", up(cursor / columns));
        (take_off, format!("{prompt}{line}{}\r{right}", up(rows)))
    }
}

impl Sight {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, line: &str, cursor: usize) {
        let mut seen = self.lock();
        line.clone_into(&mut seen.line);
        seen.cursor = cursor;
    }
}

impl Highlighter for Sight {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        self.lock().fitting_prompt().map_or(Cow::Borrowed(prompt), Cow::Owned)
    }

    // Called on each move of the cursor. Nothing is highlighted.
    fn highlight_char(&self, line: &str, cursor: usize, _: CmdKind) -> bool {
        self.look(line, cursor);
        false
    }
}

impl Hinter for Sight {
    type Hint = String;

    // Called on each change of the line. There are no hints.
    fn hint(&self, line: &str, cursor: usize, _: &Context<'_>) -> Option<String> {
        self.look(line, cursor);
        None
    }
}

impl Completer for Sight {
    type Candidate = String;
}

impl Validator for Sight {}

impl Helper for Sight {}

fn edit_lines(
    mut editor: Editor<Sight, DefaultHistory>,
    sight: &Sight,
    prompts: &mpsc::Receiver<String>,
    lines: &Sender<Line>,
) {
    while let Ok(prompt) = prompts.recv() {
        let read = editor.readline(&prompt);
        let is_empty = {
            let mut seen = sight.lock();
            seen.is_edited = false;
            seen.line.is_empty()
        };
        let line = match read {
            Ok(text) => {
                // A line that cannot be added to the history is still valid.
                let _ = editor.add_history_entry(&text);
                Line::Text(text)
            }
            Err(ReadlineError::Interrupted) => Line::Cancelled { is_empty },
            Err(_) => Line::End,
        };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

fn read_lines(prompts: &mpsc::Receiver<String>, lines: &Sender<Line>) {
    while prompts.recv().is_ok() {
        let mut bytes = Vec::new();
        let line = match std::io::stdin().lock().read_until(b'\n', &mut bytes) {
            Ok(len) if len > 0 => {
                let text = String::from_utf8_lossy(&bytes);
                Line::Text(text.trim_end_matches(['\n', '\r']).to_owned())
            }
            // A read error counts as the end of the input.
            _ => Line::End,
        };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_drawn_again_with_the_prompt_of_the_day_and_the_cursor_where_it_was() {
        let mut seen = Seen {
            prompt: "here=> ".to_owned(),
            width: 8,
            is_edited: true,
            line: "sélect".to_owned(),
            cursor: 3,
        };
        // Two letters, in three bytes, are before the cursor.
        let (take_off, draw) = seen.around_in(80);
        assert_eq!(take_off, "\r\x1b[J");
        assert_eq!(draw, "here=>  sélect\r\x1b[10C");
        // On the second of three rows.
        let (take_off, draw) = seen.around_in(6);
        assert_eq!(take_off, "\x1b[1A\r\x1b[J");
        assert_eq!(draw, "here=>  sélect\x1b[1A\r\x1b[4C");
        seen.is_edited = false;
        assert_eq!(seen.around_in(80), (String::new(), String::new()));
    }
}
