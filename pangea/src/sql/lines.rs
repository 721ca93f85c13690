//! Lines from whoever sits at the terminal, with editing and history, or from a script, read on a
//! thread of their own so that everything else goes on meanwhile.
//!
//! While a line is edited, what else there is to show goes above it. The editor has a printer for
//! that, but with it forgets keys that came several at a time until the next one is pressed. So the
//! line is drawn again here, from what the editor tells a highlighter and a hinter of it.

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

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end. What was pasted may have several.
    Text(String),
    /// Ctrl-C: what was typed so far is not wanted.
    Cancelled {
        /// Whether nothing was typed.
        is_empty: bool,
    },
    /// Ctrl-D, or the end of the file.
    End,
}

/// Reads lines.
pub struct Lines {
    prompts: mpsc::Sender<String>,
    lines: Receiver<Line>,
    is_asked: bool,
    /// The terminal as it was, for an end in the middle of a line: the editor has changed it then.
    terminal: Option<Termios>,
    sight: Sight,
}

impl Lines {
    /// Starts the thread that reads.
    ///
    /// # Errors
    /// When there is no terminal that can be used, or no thread.
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

    /// Whether somebody sits there.
    pub fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Whether a line is being read.
    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Gives a line that is being edited another prompt.
    ///
    /// # Errors
    /// When there is nobody to show it to any more.
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

    /// Shows a prompt and begins to read a line, unless one is being read.
    pub fn ask(&mut self, prompt: &str) {
        if !self.is_asked {
            let is_edited = self.is_terminal() && std::io::stdout().is_terminal();
            let width = prompt.chars().count();
            *self.sight.lock() =
                Seen { prompt: prompt.to_owned(), width, is_edited, ..Seen::default() };
            // Where the thread has ended, so does the wait for its line.
            self.is_asked = self.prompts.send(prompt.to_owned()).is_ok();
        }
    }

    /// Waits for the line that was asked for. May be dropped and asked for again.
    pub async fn next(&mut self) -> Line {
        let line = self.lines.recv().await.unwrap_or(Line::End);
        self.is_asked = false;
        line
    }

    /// Shows a text on stdout, above the line that is being edited.
    ///
    /// # Errors
    /// When there is nobody to show it to any more.
    pub fn show(&mut self, text: &str) -> Result<(), Failure> {
        self.print(text, &mut std::io::stdout())
    }

    /// Shows a text on stderr, above the line that is being edited.
    ///
    /// # Errors
    /// When there is nobody to show it to any more.
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
    Failure::failed("can't write what there is to show", error)
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal {
            // A terminal that has gone needs nothing.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, terminal);
        }
    }
}

/// What both sides know of the line that is being edited.
#[derive(Clone, Default)]
struct Sight(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// The prompt as it should be by now.
    prompt: String,
    /// The width of the prompt that was asked with, with which the editor reckons.
    width: usize,
    /// Whether a line is on the screen and edited there.
    is_edited: bool,
    line: String,
    /// Where the cursor is in the line, in bytes.
    cursor: usize,
}

impl Seen {
    /// The prompt in the width that the first one had.
    fn fitting_prompt(&self) -> Option<String> {
        let (prompt, width) = (&self.prompt, self.width);
        (prompt.chars().count() <= width).then(|| format!("{prompt:width$}"))
    }

    /// What takes the line off the screen, and what draws it again.
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

    // Told of each move of the cursor. Nothing is highlighted.
    fn highlight_char(&self, line: &str, cursor: usize, _: CmdKind) -> bool {
        self.look(line, cursor);
        false
    }
}

impl Hinter for Sight {
    type Hint = String;

    // Told of each change of the line. There are no hints.
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
                // A line that is not remembered is still a line.
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
            // What can't be read has nothing more.
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
