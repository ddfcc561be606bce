//! What a server prints that is no message, on one connection: where nothing else comes, that is why.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much of it may come without a message in between, in lines and in bytes. A tool that prints the log of a long build
/// by mistake stays below; a server that does nothing but print is over it within a second.
const MAX_LINES: u64 = 100_000;
const MAX_BYTES: u64 = 16 << 20;
/// What is shown of the first, in characters.
const EXCERPT: usize = 80;

/// Whether bytes that cannot be read were meant as a message: JSON-RPC, alone or in a batch, as far as it shows. Anything
/// else, log lines in JSON among it, is noise.
pub(crate) fn seems_message(line: &[u8]) -> bool {
    may_be_message(line) && memchr::memmem::find(line, b"\"jsonrpc\"").is_some()
}

/// The same of a line of which only the beginning is known.
pub(crate) fn may_be_message(head: &[u8]) -> bool {
    let head = head.trim_ascii_start();
    let head = head.strip_prefix(b"[").map_or(head, <[u8]>::trim_ascii_start);
    head.starts_with(b"{")
}

/// Counts what is no message.
#[derive(Debug, Default)]
pub(crate) struct StdoutNoise {
    count: AtomicU64,
    /// Lines and bytes since the last message.
    lines: AtomicU64,
    bytes: AtomicU64,
    first: OnceLock<String>,
}

impl StdoutNoise {
    /// Takes a line that is none.
    pub(crate) fn add(&self, line: &[u8]) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.lines.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(line.len() as u64, Ordering::Relaxed);
        self.first.get_or_init(|| {
            let shown = String::from_utf8_lossy(&line[..line.len().min(4 * EXCERPT)]);
            shown.trim().chars().take(EXCERPT).collect()
        });
    }

    /// A message has come.
    pub(crate) fn interrupted(&self) {
        // Looked at first: as a rule there is nothing to forget.
        if self.lines.load(Ordering::Relaxed) != 0 {
            self.lines.store(0, Ordering::Relaxed);
            self.bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Whether so much has come since the last message that none is to be expected any more.
    pub(crate) fn is_flood(&self) -> bool {
        self.lines.load(Ordering::Relaxed) > MAX_LINES || self.bytes.load(Ordering::Relaxed) > MAX_BYTES
    }

    /// What happened, and on its first line that such came meanwhile, if it did.
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
    fn noise_is_told_from_broken_messages() {
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
            assert_eq!(seems_message(line.as_bytes()), expect, "{line}");
        }
    }

    #[test]
    fn what_is_no_message_is_told_on_the_first_line() {
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
    fn a_flood_is_what_no_message_interrupts() {
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
