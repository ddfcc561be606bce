//! Watches and stops the child process of a stdio server, and keeps its last lines of standard error.
//! `client/connection/connect.rs` starts it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolwright_sandbox::SupervisedChild;

use super::RequestId;

/// How long a server may take to end after its input is closed, and again after SIGTERM.
/// Together this is well below a second, the limit for the whole program.
const GRACE: Duration = Duration::from_millis(300);
/// How long to wait for the last output after its end.
const FINAL_OUTPUT_WAIT: Duration = Duration::from_millis(200);
/// Number of standard error lines that are kept, and bytes of each.
const KEPT_LINES: usize = 20;
const KEPT_LINE: usize = 500;

/// A running server process. Dropping it ends the process tree.
pub(crate) struct Process {
    end: watch::Receiver<Option<String>>,
    lines: Arc<LastLines>,
    stop: CancellationToken,
}

impl Process {
    /// Watches `child`, whose standard streams belong to the transport.
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
            let _ = tokio::time::timeout(FINAL_OUTPUT_WAIT, drain).await;
            sender.send_replace(Some(match exit {
                Ok(exit) => exit.to_string(),
                Err(error) => format!("in an unknown way: {error}"),
            }));
        });
        Self { end, lines, stop }
    }

    /// Describes how it ended, with its last output, waiting at most `bound` for its end; `reason` is why the
    /// connection ended, if that was not the end of the process.
    pub(crate) async fn end_reason(&self, bound: Duration, reason: &str) -> String {
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(bound, end.wait_for(Option::is_some)).await;
        let how = match ended {
            Ok(Ok(exit)) => format!("the server process ended ({})", exit.as_deref().unwrap_or("unknown")),
            _ => format!("{reason}; its process still runs"),
        };
        match self.lines.text() {
            lines if lines.is_empty() => how,
            lines => with_last_output(&how, &lines),
        }
    }

    /// Returns its last lines on standard error.
    pub(crate) fn last_lines(&self) -> String {
        self.lines.text()
    }

    /// Stops it: waits, then sends SIGTERM, then kills. Its input should be closed already.
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

/// Joins an event's description and the server's last output on separate lines. The first line must be complete in
/// itself: models get only that.
pub(crate) fn with_last_output(what: &str, lines: &str) -> String {
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

/// Bounds on lines and bytes without a message in between. A tool that prints the log of a long build
/// by mistake stays below; a server that only prints exceeds them within a second.
const MAX_LINES: u64 = 100_000;
const MAX_BYTES: u64 = 16 << 20;
/// Characters shown of the first line.
const EXCERPT: usize = 80;

/// Whether unreadable bytes were apparently meant as a JSON-RPC message or batch. Other
/// output, including log lines in JSON, is noise.
pub(crate) fn looks_like_message(line: &[u8]) -> bool {
    may_be_message(line) && memchr::memmem::find(line, b"\"jsonrpc\"").is_some()
}

/// Like [`looks_like_message`], given only the beginning of a line.
pub(crate) fn may_be_message(head: &[u8]) -> bool {
    let head = head.trim_ascii_start();
    let head = head.strip_prefix(b"[").map_or(head, <[u8]>::trim_ascii_start);
    head.starts_with(b"{")
}

/// Returns the request that a response answers, given only its beginning; `None` if the id does not precede the
/// result, or the line is something else.
pub(crate) fn id_of_head(head: &[u8]) -> Option<RequestId> {
    struct Fields<'a>(&'a Cell<Option<RequestId>>);
    impl<'de> Visitor<'de> for Fields<'_> {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a response")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            let mut id = None;
            while let Some(key) = map.next_key::<String>()? {
                match key.as_str() {
                    "id" => id = Some(map.next_value()?),
                    // Only here is the number complete, and the message known to be a response.
                    "result" | "error" => {
                        self.0.set(id);
                        return Ok(());
                    }
                    _ => drop(map.next_value::<IgnoredAny>()?),
                }
            }
            Ok(())
        }
    }
    let fields_found = Cell::new(None);
    // It ends in the middle, which is an error after all that counts.
    let _ = serde_json::Deserializer::from_slice(head).deserialize_map(Fields(&fields_found));
    fields_found.get()
}

/// Counts lines that are no messages.
#[derive(Debug, Default)]
pub(crate) struct StdoutNoise {
    count: AtomicU64,
    /// Lines and bytes since the last message.
    lines: AtomicU64,
    bytes: AtomicU64,
    first: OnceLock<String>,
}

impl StdoutNoise {
    /// Adds a line.
    pub(crate) fn add(&self, line: &[u8]) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.lines.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(line.len() as u64, Ordering::Relaxed);
        self.first.get_or_init(|| {
            let line_text = String::from_utf8_lossy(&line[..line.len().min(4 * EXCERPT)]);
            line_text.trim().chars().take(EXCERPT).collect()
        });
    }

    /// A message has come.
    pub(crate) fn interrupted(&self) {
        // Checked first, because usually there is nothing to reset.
        if self.lines.load(Ordering::Relaxed) != 0 {
            self.lines.store(0, Ordering::Relaxed);
            self.bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the bounds since the last message are exceeded.
    pub(crate) fn is_flood(&self) -> bool {
        self.lines.load(Ordering::Relaxed) > MAX_LINES || self.bytes.load(Ordering::Relaxed) > MAX_BYTES
    }

    /// Adds the number of such lines, if any, to the first line of a message.
    pub(crate) fn explain(&self, what: String) -> String {
        let (count, Some(first)) = (self.count.load(Ordering::Relaxed), self.first.get()) else { return what };
        let (head, rest) = what.split_at(what.find('\n').unwrap_or(what.len()));
        let lines = match count {
            1 => format!("a line that is no message, `{first}`"),
            _ => format!("{count} lines that are no messages, the first `{first}`"),
        };
        format!(
            "{head}; it sent {lines}: on standard output nothing but messages may be written, logs belong on standard error{rest}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_response_names_its_request() {
        for (head, expect) in [
            (r#"{"jsonrpc":"2.0","id":12,"result":{"content":[{"te"#, Some(12)),
            (r#" {"id": 7, "error": {"#, Some(7)),
            (r#"{"jsonrpc":"2.0","id":12"#, None),
            (r#"{"result":{"content":["#, None),
            (r#"{"jsonrpc":"2.0","id":12,"method":"x","params":{"result":"#, None),
            (r#"{"id":"12","result":{"#, None),
            (r#"[{"id":12,"result":{"#, None),
            ("listening", None),
        ] {
            assert_eq!(id_of_head(head.as_bytes()), expect, "{head}");
        }
    }

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

#[cfg(test)]
mod stdout_noise_tests {
    use super::*;

    #[test]
    fn noise_is_distinguished_from_broken_messages() {
        for (line, expect) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"te"#, true),
            (r#" [ {"jsonrpc":"2.0","id":7,"resu"#, true),
            (r#"{"result":{"x":nonsense},"jsonrpc":"2.0","id":7}"#, true),
            (r#"{"level":"info","id":7}"#, false),
            (r#"{"level":"info","message":"{\"jsonrpc\":\"2.0\"}"}"#, false),
            ("{'jsonrpc': '2.0'}", false),
            (r#"[INFO] {"jsonrpc":"2.0"}"#, false),
            (r#"sent {"jsonrpc":"2.0"}"#, false),
        ] {
            assert_eq!(looks_like_message(line.as_bytes()), expect, "{line}");
        }
    }

    #[test]
    fn first_lines_that_are_noise_are_reported() {
        let noise = StdoutNoise::default();
        assert_eq!(noise.explain("silent\nmore".into()), "silent\nmore");
        noise.add(b"Listening on stdio\n");
        let one = noise.explain("silent\nmore".into());
        assert!(one.starts_with("silent; it sent a line that is no message, `Listening on stdio`: "), "{one}");
        assert!(one.ends_with("standard error\nmore"), "{one}");
        noise.add(b"y");
        assert!(noise.explain("silent".into()).contains("2 lines"));
    }

    #[test]
    fn uninterrupted_noise_is_a_flood() {
        let noise = StdoutNoise::default();
        for lines in [MAX_LINES, MAX_LINES + 1] {
            noise.interrupted();
            (0..lines).for_each(|_| noise.add(b"y"));
            assert_eq!(noise.is_flood(), lines > MAX_LINES);
        }
        noise.interrupted();
        (0..17).for_each(|_| noise.add(&[b'y'; 1 << 20]));
        assert!(noise.is_flood());
    }
}
