//! What a command printed, bounded: the beginning, the end, and the number of bytes between them.

use std::collections::VecDeque;

/// Bytes kept of each end.
const KEEP: usize = 1024 * 1024;

/// Collects a byte stream of any length in twice [`KEEP`] bytes.
#[derive(Debug, Default)]
pub(super) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    /// Takes the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(KEEP - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let excess = self.tail.len().saturating_sub(KEEP);
        self.tail.drain(..excess);
    }

    /// Bytes taken so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Everything as text; says what was cut and what could not be shown.
    pub(super) fn into_text(mut self) -> String {
        let cut = self.total - (self.head.len() + self.tail.len()) as u64;
        let tail: &[u8] = self.tail.make_contiguous();
        if cut == 0 {
            self.head.extend_from_slice(tail);
            return readable(&self.head);
        }
        format!(
            "{}\n[… toolwright cut {cut} of {} bytes here: it keeps 1 MiB of each end; write long output to a file …]\n{}",
            readable(&self.head),
            self.total,
            readable(tail),
        )
    }
}

/// Bytes as text. Data that is clearly no text is only mentioned.
fn readable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) if bytes.contains(&0) => format!("[binary data, {} bytes, not shown]", bytes.len()),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chunks: &[&[u8]]) -> String {
        let mut capture = Capture::default();
        chunks.iter().for_each(|chunk| capture.push(chunk));
        capture.into_text()
    }

    #[test]
    fn short_output_is_kept_whole() {
        assert_eq!(check(&[]), "");
        assert_eq!(check(&["ä".as_bytes().split_at(1).0, "ä".as_bytes().split_at(1).1]), "ä");
        assert_eq!(check(&[&b"x".repeat(KEEP), b"y"]), format!("{}y", "x".repeat(KEEP)));
        assert_eq!(check(&[b"a\xffb"]), "a\u{fffd}b");
        assert_eq!(check(&[b"a\0b"]), "a\0b");
        assert_eq!(check(&[b"\x7fELF\0\xff"]), "[binary data, 6 bytes, not shown]");
    }

    #[test]
    fn long_output_keeps_both_ends_and_counts_the_rest() {
        let text = check(&[b"begin", &b"x".repeat(3 * KEEP), b"end"]);
        assert!(text.starts_with("begin") && text.ends_with("end"));
        assert!(text.contains(&format!("toolwright cut {} of {} bytes", KEEP + 8, 3 * KEEP + 8)));
    }
}
