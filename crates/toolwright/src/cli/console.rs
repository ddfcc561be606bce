//! The terminal as a source of lines. One thread reads it, so that a question that is withdrawn does
//! not swallow the next answer.

use tokio::sync::{Mutex, mpsc};

/// Lines typed ahead that are kept.
const AHEAD: usize = 64;

/// Lines of standard input, read from the first question on.
#[derive(Default)]
pub(crate) struct Console {
    lines: Mutex<Option<mpsc::Receiver<String>>>,
}

impl Console {
    /// Asks and waits for a line; `None` at the end of the input. Dropping the future withdraws the
    /// question.
    pub(crate) async fn ask(&self, prompt: &str) -> Option<String> {
        use std::io::Write as _;
        let mut lines = self.lines.lock().await;
        let receiver = lines.get_or_insert_with(read_lines);
        let mut screen = anstream::stderr();
        // A standard error that is gone leaves the question unasked; the answer may still come.
        let _ = write!(screen, "{prompt}");
        let _ = screen.flush();
        receiver.recv().await
    }

    /// Forgets what was typed before the question that comes next.
    pub(crate) async fn forget_typed_ahead(&self) {
        if let Some(receiver) = self.lines.lock().await.as_mut() {
            while receiver.try_recv().is_ok() {}
        }
    }
}

fn read_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    // Not a task: a read of the terminal cannot be stopped, and must not hold up the end.
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
