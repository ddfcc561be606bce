//! Reads lines from the terminal. One thread reads, and only on request, so that the line editor and plain
//! questions can alternate.

use std::path::{Path, PathBuf};

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::sync::{Mutex, mpsc};

/// Lines of the history that are kept.
const HISTORY: usize = 1000;

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Typed {
    Line(String),
    /// Ctrl-C in an edited line.
    Interrupted,
    /// The end of the input.
    End,
}

/// How a line is read.
enum How {
    Plain,
    /// With an editor that has this prompt and keeps a history in this file.
    Edited(String, PathBuf),
}

struct Reader {
    wanted: std::sync::mpsc::Sender<How>,
    lines: mpsc::Receiver<Typed>,
    /// Whether it reads for a question that was withdrawn: what comes answers the next one.
    is_reading: bool,
}

/// Lines of standard input.
#[derive(Default)]
pub(crate) struct Console {
    reader: Mutex<Option<Reader>>,
}

impl Console {
    /// Asks and waits for a line; `None` at the end of the input. Dropping the future withdraws the question.
    pub(crate) async fn ask(&self, prompt: &str) -> Option<String> {
        match self.read(prompt, How::Plain).await {
            Typed::Line(line) => Some(line),
            Typed::Interrupted | Typed::End => None,
        }
    }

    /// As [`Console::ask`], with an editor for the line. Both ends must be a terminal.
    pub(crate) async fn edit(&self, prompt: &str, history: &Path) -> Typed {
        self.read(prompt, How::Edited(prompt.to_owned(), history.to_owned())).await
    }

    async fn read(&self, prompt: &str, how: How) -> Typed {
        use std::io::Write as _;
        let mut reader = self.reader.lock().await;
        let reader = reader.get_or_insert_with(start);
        // An editor writes its own prompt, unless the thread is in a plain read already.
        if reader.is_reading || matches!(how, How::Plain) {
            let mut screen = anstream::stderr();
            // A standard error that is gone leaves the question unasked; the answer may still come.
            let _ = write!(screen, "{prompt}");
            let _ = screen.flush();
        }
        if !reader.is_reading && reader.wanted.send(how).is_err() {
            return Typed::End;
        }
        reader.is_reading = true;
        let typed = reader.lines.recv().await.unwrap_or(Typed::End);
        reader.is_reading = false;
        typed
    }

    /// Forgets what was typed before the question that comes next.
    pub(crate) async fn forget_typed_ahead(&self) {
        if let Some(reader) = self.reader.lock().await.as_mut()
            && reader.lines.try_recv().is_ok()
        {
            reader.is_reading = false;
        }
        // Without a terminal there is nobody who types.
        #[cfg(unix)]
        let _ = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
    }
}

/// Puts the terminal back as it was when this was made: an editor that is left in the middle of a line does not.
pub(crate) struct KeptTerminal {
    #[cfg(unix)]
    settings: Option<rustix::termios::Termios>,
}

impl KeptTerminal {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(unix)]
            settings: rustix::termios::tcgetattr(std::io::stdin()).ok(),
        }
    }
}

impl Drop for KeptTerminal {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(settings) = &self.settings {
            let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, settings);
        }
    }
}

fn start() -> Reader {
    let (wanted, wants) = std::sync::mpsc::channel();
    let (sender, lines) = mpsc::channel(1);
    // Not a task: a read of the terminal cannot be stopped, and must not hold up the end.
    std::thread::spawn(move || {
        let mut editor = None;
        for how in wants {
            let typed = match how {
                How::Plain => plain(),
                How::Edited(prompt, history) => edited(&mut editor, &prompt, &history),
            };
            if sender.blocking_send(typed).is_err() {
                break;
            }
        }
    });
    Reader { wanted, lines, is_reading: false }
}

fn plain() -> Typed {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => Typed::Line(line.trim_end_matches(['\n', '\r']).to_owned()),
        _ => Typed::End,
    }
}

fn edited(editor: &mut Option<Editor<(), FileHistory>>, prompt: &str, history: &Path) -> Typed {
    if editor.is_none() {
        let config = Config::builder().max_history_size(HISTORY).map(|builder| builder.build());
        *editor = config.and_then(Editor::with_config).ok();
        if let Some(editor) = editor {
            // The first time there is none.
            let _ = editor.load_history(history);
        }
    }
    let Some(editor) = editor else { return plain() };
    match editor.readline(prompt) {
        Ok(line) => {
            let _ = editor.add_history_entry(line.as_str());
            if let Err(error) = editor.save_history(history) {
                tracing::warn!("the history of lines is not kept: {error}");
            }
            Typed::Line(line)
        }
        Err(ReadlineError::Interrupted) => Typed::Interrupted,
        Err(_) => Typed::End,
    }
}
