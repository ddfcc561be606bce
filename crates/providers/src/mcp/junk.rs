//! What a server sends that is no message, on one connection: where nothing else comes, that is why.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much of it may come without a message in between, in lines and in bytes. A tool that prints the log of a long build
/// by mistake stays below; a server that does nothing but print is over it within a second.
const MAX_LINES: u64 = 100_000;
const MAX_BYTES: u64 = 16 << 20;
/// What is shown of the first, in characters.
const EXCERPT: usize = 80;

/// Counts what is no message.
#[derive(Debug, Default)]
pub(super) struct Junk {
    count: AtomicU64,
    /// Lines and bytes since the last message.
    lines: AtomicU64,
    bytes: AtomicU64,
    first: OnceLock<String>,
}

impl Junk {
    /// Takes a line that is none.
    pub(super) fn add(&self, line: &[u8]) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.lines.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(line.len() as u64, Ordering::Relaxed);
        self.first.get_or_init(|| {
            let shown = String::from_utf8_lossy(&line[..line.len().min(4 * EXCERPT)]);
            shown.trim().chars().take(EXCERPT).collect()
        });
    }

    /// A message has come.
    pub(super) fn interrupted(&self) {
        // Looked at first: as a rule there is nothing to forget.
        if self.lines.load(Ordering::Relaxed) != 0 {
            self.lines.store(0, Ordering::Relaxed);
            self.bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Whether so much has come since the last message that none is to be expected any more.
    pub(super) fn is_flood(&self) -> bool {
        self.lines.load(Ordering::Relaxed) > MAX_LINES || self.bytes.load(Ordering::Relaxed) > MAX_BYTES
    }

    /// What happened, and on its first line that such came meanwhile, if it did.
    pub(super) fn explain(&self, what: String) -> String {
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
    fn what_is_no_message_is_told_on_the_first_line() {
        let junk = Junk::default();
        assert_eq!(junk.explain("silent\nmore".into()), "silent\nmore");
        junk.add(b"Listening on stdio\n");
        let one = junk.explain("silent\nmore".into());
        assert!(one.starts_with("silent; it sent a line that is no message, `Listening on stdio`: "), "{one}");
        assert!(one.ends_with("standard error\nmore"), "{one}");
        junk.add(b"y");
        assert!(junk.explain("silent".into()).contains("2 lines"));
    }

    #[test]
    fn a_flood_is_what_no_message_interrupts() {
        let junk = Junk::default();
        for lines in [MAX_LINES, MAX_LINES + 1] {
            junk.interrupted();
            (0..lines).for_each(|_| junk.add(b"y"));
            assert_eq!(junk.is_flood(), lines > MAX_LINES);
        }
        junk.interrupted();
        (0..17).for_each(|_| junk.add(&[b'y'; 1 << 20]));
        assert!(junk.is_flood());
    }
}
