//! What a command printed, bounded: the beginning, the end, and the number of bytes in all.

use std::collections::VecDeque;

use toolwright_core::output::CUT;

/// Most bytes that are kept of the end.
const TAIL: usize = 1024 * 1024;

/// Collects a byte stream of any length: whole as long as it fits the cap, then its two ends.
#[derive(Debug)]
pub(super) struct Capture {
    max: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    /// Keeps up to `max` bytes whole.
    pub(super) fn new(max: usize) -> Self {
        Self { max, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    /// Whether it is still whole with so many more bytes.
    pub(super) fn fits(&self, more: usize) -> bool {
        self.total + more as u64 <= self.max as u64
    }

    /// Everything, for as long as it is whole.
    pub(super) fn whole(&self) -> &[u8] {
        &self.head
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(self.max - self.head.len()));
        self.head.extend_from_slice(first);
        let keep = self.max.min(TAIL);
        self.tail.extend(&rest[rest.len().saturating_sub(keep)..]);
        let excess = self.tail.len().saturating_sub(keep);
        self.tail.drain(..excess);
    }

    /// Bytes taken so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// All of it as text, where it is whole; says what could not be shown.
    pub(super) fn into_text(self) -> String {
        readable(&self.head)
    }

    /// Beginning and end as text within some `room` bytes; between them, how much is missing and `why`.
    pub(super) fn into_ends(mut self, room: usize, why: &str) -> String {
        let tail = after_a_cut(self.tail.make_contiguous());
        let mut room = room;
        if std::str::from_utf8(whole_characters(&self.head)).is_err() || std::str::from_utf8(tail).is_err() {
            // Each byte that is no text takes three as text.
            room /= 3;
        }
        let head = whole_characters(&self.head[..self.head.len().min(room * 2 / 3)]);
        let tail = after_a_cut(&tail[tail.len().saturating_sub(room / 3)..]);
        if is_binary(head) || is_binary(tail) {
            return format!("[binary data, {} bytes, not shown]", self.total);
        }
        let cut = self.total - (head.len() + tail.len()) as u64;
        let total = self.total;
        format!("{}\n{CUT}{cut} of {total} bytes here{why} …]\n{}", readable(head), readable(tail))
    }
}

/// Bytes as text. Data that is clearly no text is only mentioned.
fn readable(bytes: &[u8]) -> String {
    if is_binary(bytes) {
        return format!("[binary data, {} bytes, not shown]", bytes.len());
    }
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.contains(&0) && std::str::from_utf8(bytes).is_err()
}

/// Without the character that the end cuts in two.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

/// Without the rest of a character that the beginning cuts in two.
fn after_a_cut(bytes: &[u8]) -> &[u8] {
    let rest = bytes.iter().take(3).take_while(|&&byte| byte & 0xC0 == 0x80).count();
    &bytes[rest..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(max: usize, chunks: &[&[u8]]) -> Capture {
        let mut capture = Capture::new(max);
        chunks.iter().for_each(|chunk| capture.push(chunk));
        capture
    }

    #[test]
    fn what_fits_is_kept_whole() {
        let check = |chunks: &[&[u8]], expect: &str| assert_eq!(collect(100, chunks).into_text(), expect);
        check(&[], "");
        check(&["ä".as_bytes().split_at(1).0, "ä".as_bytes().split_at(1).1], "ä");
        check(&[&[b'x'; 99], b"y"], &format!("{}y", "x".repeat(99)));
        check(&[b"a\xffb"], "a\u{fffd}b");
        check(&[b"a\0b"], "a\0b");
        check(&[b"\x7fELF\0\xff"], "[binary data, 6 bytes, not shown]");
    }

    #[test]
    fn what_does_not_fit_keeps_both_ends_and_counts_the_rest() {
        let text = collect(600, &[b"begin", &[b'x'; 5000], b"end"]).into_ends(300, ", since");
        assert!(text.starts_with("beginxx") && text.ends_with("xxend"), "{text}");
        assert!(text.contains("[… toolwright cut 4708 of 5008 bytes here, since …]"), "{text}");
        // Characters that a cut would halve go.
        let text = collect(600, &["ä".repeat(3001).as_bytes(), b"!"]).into_ends(301, "");
        assert!(!text.contains('\u{fffd}') && text.ends_with("ä!"), "{text}");
        let text = collect(600, &[&[0xff; 5000]]).into_ends(300, "");
        assert!(text.len() < 500, "{}", text.len());
        let text = collect(600, &[&[0, 0xff].repeat(4000)]).into_ends(300, "");
        assert_eq!(text, "[binary data, 8000 bytes, not shown]");
    }

    #[test]
    fn one_piece_may_be_longer_than_all_that_is_kept() {
        let capture = collect(10, &[&[b'x'; 100_000]]);
        assert_eq!((capture.head.len(), capture.tail.len(), capture.total()), (10, 10, 100_000));
        assert!(!capture.fits(1) && collect(10, &[b"12345"]).fits(5));
    }
}
