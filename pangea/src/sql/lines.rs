//! Lines from whoever sits at the terminal, with editing and history, read on a thread of their own
//! so that everything else goes on meanwhile.

use std::sync::mpsc;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::failure::Failure;

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end.
    Text(String),
    /// Ctrl-C: what was typed so far is not wanted.
    Cancelled,
    /// Ctrl-D, or the end of the file.
    End,
}

/// Reads lines.
pub struct Lines {
    prompts: mpsc::Sender<String>,
    lines: Receiver<Line>,
    /// The terminal as it was, for an end in the middle of a line: the editor has changed it then.
    terminal: Option<Termios>,
}

impl Lines {
    /// Starts the thread that reads.
    ///
    /// # Errors
    /// When there is no terminal that can be used, or no thread.
    pub fn new() -> Result<Self, Failure> {
        let cant = |error: &dyn std::fmt::Display| Failure::failed("can't read stdin", error);
        let terminal = tcgetattr(std::io::stdin()).ok();
        let editor = DefaultEditor::new().map_err(|error| cant(&error))?;
        let (prompts, wanted) = mpsc::channel();
        let (sender, lines) = channel(1);
        let thread = std::thread::Builder::new().name("lines".to_owned());
        let thread = thread.spawn(move || read_lines(editor, &wanted, &sender));
        thread.map_err(|error| cant(&error))?;
        Ok(Self { prompts, lines, terminal })
    }

    /// Shows a prompt and waits for a line.
    pub async fn read(&mut self, prompt: &str) -> Line {
        match self.prompts.send(prompt.to_owned()) {
            Ok(()) => self.lines.recv().await.unwrap_or(Line::End),
            Err(_) => Line::End,
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal {
            // A terminal that has gone needs nothing.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, terminal);
        }
    }
}

fn read_lines(mut editor: DefaultEditor, prompts: &mpsc::Receiver<String>, lines: &Sender<Line>) {
    while let Ok(prompt) = prompts.recv() {
        let line = match editor.readline(&prompt) {
            Ok(text) => {
                // A line that is not remembered is still a line.
                let _ = editor.add_history_entry(&text);
                Line::Text(text)
            }
            Err(ReadlineError::Interrupted) => Line::Cancelled,
            Err(_) => Line::End,
        };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}
