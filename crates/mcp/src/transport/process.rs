//! The child process of a stdio server: its standard error, its end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use toolwright_sandbox::SupervisedChild;

/// How long a server may take to end once its input is closed, and again once it is asked to end.
/// Together they stay well below a second, the time that the whole program has.
const GRACE: Duration = Duration::from_millis(300);
/// How long its last words may take to arrive after its end.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Lines of standard error that are kept, and how much of each, in bytes.
const KEPT_LINES: usize = 20;
const KEPT_LINE: usize = 500;

/// A running server process. Dropping it ends the process tree.
pub(crate) struct Process {
    end: watch::Receiver<Option<String>>,
    lines: Arc<LastLines>,
    stop: CancellationToken,
}

impl Process {
    /// Watches `child`, whose input and output belong to the transport.
    pub(crate) fn watch(mut child: SupervisedChild, server: Arc<str>) -> Self {
        let lines = Arc::new(LastLines::default());
        let stderr = child.stderr.take();
        let drained = Arc::clone(&lines);
        let drain = tokio::spawn(async move {
            if let Some(stderr) = stderr {
                drained.drain(stderr, &server).await;
            }
        });
        let (sender, end) = watch::channel(None);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            let exit = tokio::select! {
                exit = child.wait() => exit,
                () = stopped.cancelled() => match tokio::time::timeout(GRACE, child.wait()).await {
                    Ok(exit) => exit,
                    Err(_) => child.terminate(GRACE).await,
                },
            };
            // A grandchild that left the tree may hold the pipe.
            let _ = tokio::time::timeout(LAST_WORDS, drain).await;
            sender.send_replace(Some(match exit {
                Ok(exit) => exit.to_string(),
                Err(error) => format!("in an unknown way: {error}"),
            }));
        });
        Self { end, lines, stop }
    }

    /// How it ended and what it last said, waiting at most `bound` for its end; `reason` is why the connection ended,
    /// where that was not the end of the process.
    pub(crate) async fn epitaph(&self, bound: Duration, reason: &str) -> String {
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(bound, end.wait_for(Option::is_some)).await;
        let how = match ended {
            Ok(Ok(exit)) => format!("the server process ended ({})", exit.as_deref().unwrap_or("unknown")),
            _ => format!("{reason}; its process still runs"),
        };
        match self.lines.text() {
            lines if lines.is_empty() => how,
            lines => with_last_words(&how, &lines),
        }
    }

    /// What it last said on standard error.
    pub(crate) fn last_lines(&self) -> String {
        self.lines.text()
    }

    /// Ends it: a grace, then a signal, then another. Its input should be closed already.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        // The watching task bounds it; an error means that the task is gone, and the child with it.
        let _ = self.end.clone().wait_for(Option::is_some).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What happened, and on lines of their own what the server said before. The first line stands by itself:
/// models get no more than that.
pub(crate) fn with_last_words(what: &str, lines: &str) -> String {
    format!("{what}\nits last words on standard error:\n{lines}")
}

/// The last lines of a stream that is always drained.
#[derive(Default)]
struct LastLines {
    lines: Mutex<VecDeque<String>>,
}

impl LastLines {
    async fn drain(&self, mut stream: impl AsyncRead + Unpin, server: &str) {
        let mut buffer = vec![0; 8192];
        let mut line = Vec::new();
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            for &byte in &buffer[..count] {
                if byte == b'\n' {
                    self.push(&mut line, server);
                } else if line.len() < KEPT_LINE {
                    line.push(byte);
                }
            }
        }
        self.push(&mut line, server);
    }

    fn push(&self, line: &mut Vec<u8>, server: &str) {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        line.clear();
        if text.is_empty() {
            return;
        }
        tracing::debug!(server, "{text}");
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(text);
    }

    fn text(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_kept_and_bounded() {
        let mut text: String = (0..100).map(|n| format!("line {n}\n")).collect();
        text.push_str(&"x".repeat(10_000));
        let lines = LastLines::default();
        lines.drain(text.as_bytes(), "s").await;
        let kept = lines.text();
        assert_eq!(kept.lines().count(), KEPT_LINES);
        assert!(kept.starts_with("line 81\n") && kept.ends_with(&"x".repeat(KEPT_LINE)));
        assert!(kept.len() < KEPT_LINES * (KEPT_LINE + 1));
    }
}
