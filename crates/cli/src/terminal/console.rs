//! Reads from the terminal: lines, on one thread and only on request, and signals from keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;
use toolwright::Toolwright;
use toolwright::core::{Cancel, CancelCause, SessionId};

use crate::exit::Exit;
use crate::terminal::screen::{is_interactive, say};

/// The most lines of the history.
const HISTORY: usize = 1000;

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TypedLine {
    Line(String),
    /// Ctrl-C in an edited line.
    Interrupted,
    /// The end of the input.
    End,
}

/// How a line is read.
enum ReadMode {
    Plain,
    /// With a line editor that has this prompt and keeps a history in this file.
    Edited(String, PathBuf),
}

struct Reader {
    wanted: std::sync::mpsc::Sender<ReadMode>,
    lines: mpsc::Receiver<TypedLine>,
    /// Whether it reads for a withdrawn question. The line then answers the next one.
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
        match self.read(prompt, ReadMode::Plain).await {
            TypedLine::Line(line) => Some(line),
            TypedLine::Interrupted | TypedLine::End => None,
        }
    }

    /// Like [`Console::ask`], with a line editor. Both ends must be a terminal.
    pub(crate) async fn edit(&self, prompt: &str, history: &Path) -> TypedLine {
        self.read(prompt, ReadMode::Edited(prompt.to_owned(), history.to_owned())).await
    }

    async fn read(&self, prompt: &str, mode: ReadMode) -> TypedLine {
        use std::io::Write as _;
        let mut reader = self.reader.lock().await;
        let reader = reader.get_or_insert_with(start);
        // An editor writes its own prompt, unless the thread is already in a plain read.
        if reader.is_reading || matches!(mode, ReadMode::Plain) {
            let mut screen = anstream::stderr();
            // If standard error is closed, the question is lost; an answer may still arrive.
            let _ = write!(screen, "{prompt}");
            let _ = screen.flush();
        }
        let is_plain = matches!(mode, ReadMode::Plain);
        if !reader.is_reading && reader.wanted.send(mode).is_err() {
            return TypedLine::End;
        }
        reader.is_reading = true;
        let typed = reader.lines.recv().await.unwrap_or(TypedLine::End);
        reader.is_reading = false;
        if is_plain && typed == TypedLine::End && is_interactive() {
            // Ctrl-D leaves the cursor after the question.
            say("");
        }
        typed
    }

    /// Discards input typed before the next question.
    pub(crate) async fn discard_typed_ahead(&self) {
        if let Some(reader) = self.reader.lock().await.as_mut()
            && reader.lines.try_recv().is_ok()
        {
            reader.is_reading = false;
        }
        // Without a terminal there is no typed input.
        #[cfg(unix)]
        let _ = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
    }
}

/// Restores the terminal to its state at creation, which an editor that is interrupted within a line does not.
pub(crate) struct TerminalGuard {
    #[cfg(unix)]
    settings: Option<rustix::termios::Termios>,
}

impl TerminalGuard {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(unix)]
            settings: rustix::termios::tcgetattr(std::io::stdin()).ok(),
        }
    }
}

impl Drop for TerminalGuard {
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
    // Not a task: a read of the terminal cannot be stopped, and must not delay the exit.
    std::thread::spawn(move || {
        let mut editor = None;
        for mode in wants {
            let typed = match mode {
                ReadMode::Plain => plain(),
                ReadMode::Edited(prompt, history) => edited(&mut editor, &prompt, &history),
            };
            if sender.blocking_send(typed).is_err() {
                break;
            }
        }
    });
    Reader { wanted, lines, is_reading: false }
}

fn plain() -> TypedLine {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => TypedLine::Line(line.trim_end_matches(['\n', '\r']).to_owned()),
        _ => TypedLine::End,
    }
}

fn edited(editor: &mut Option<Editor<(), FileHistory>>, prompt: &str, history: &Path) -> TypedLine {
    if editor.is_none() {
        let config = Config::builder().max_history_size(HISTORY).map(|builder| builder.build());
        *editor = config.and_then(Editor::with_config).ok();
        if let Some(editor) = editor {
            // The first time there is no history.
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
            TypedLine::Line(line)
        }
        Err(ReadlineError::Interrupted) => TypedLine::Interrupted,
        Err(_) => TypedLine::End,
    }
}

/// How long a server may take to end before a person at a terminal is told the reason.
const QUIET: Duration = Duration::from_secs(2);

/// The effect of a signal while something runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSignal {
    /// Work is cancelled; a second signal ends the process at once.
    Cancel,
    /// Nothing more is started, and running work ends by itself; a second signal ends the process at once.
    Finish,
    /// The server shuts down; a second signal ends the process at once.
    ShutDown,
}

/// Cancels `cancel` at the first signal, until the watch is aborted. If the process is ended at once, watchers end its
/// children.
pub(crate) fn watch(cancel: Cancel, action: OnSignal) -> AbortHandle {
    let watch = tokio::spawn(async move {
        let cause = next_signal().await;
        let cause = if action == OnSignal::ShutDown { CancelCause::Shutdown } else { cause };
        cancel.cancel(cause);
        match action {
            OnSignal::Cancel => say("cancelling; once more to stop at once"),
            OnSignal::Finish => say("finishing what runs; once more to stop at once"),
            // A server that shuts down as requested prints nothing, unless somebody waits for it.
            OnSignal::ShutDown => {
                tokio::select! {
                    _ = next_signal() => std::process::exit(i32::from(Exit::Cancelled.code())),
                    () = tokio::time::sleep(QUIET) => {}
                }
                if is_interactive() {
                    say("calls are still running and get their time; once more to stop at once");
                }
            }
        }
        next_signal().await;
        std::process::exit(i32::from(Exit::Cancelled.code()));
    });
    watch.abort_handle()
}

/// At a terminal, Ctrl-\ (SIGQUIT) turns the running calls of a session into background jobs. Only the person can do
/// this, never the model.
pub(crate) fn background_on_sigquit(app: &Arc<Toolwright>, session: &SessionId) {
    if !is_interactive() {
        return;
    }
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut quit) = signal(SignalKind::quit()) else { return };
        let (app, session) = (Arc::clone(app), session.clone());
        tokio::spawn(async move {
            while quit.recv().await.is_some() {
                match app.executor().promote_all(&session) {
                    0 => say("no call is running"),
                    count => say(format_args!(
                        "{count} running calls continue in the background; `toolwright jobs ls` lists them"
                    )),
                }
            }
        });
    }
}

/// Waits for the next signal.
pub(crate) async fn next_signal() -> CancelCause {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            return tokio::select! {
                _ = tokio::signal::ctrl_c() => CancelCause::User,
                _ = terminate.recv() => CancelCause::Shutdown,
            };
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        // Without signals nothing is cancelled this way.
        std::future::pending::<()>().await;
    }
    CancelCause::User
}
