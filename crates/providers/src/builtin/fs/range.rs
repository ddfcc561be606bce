//! A range of lines, taken out of a file that goes by.

use toolwright_core::content::ContentBlock;

/// Bytes of text in one range, however many lines are asked for.
pub(super) const MAX_TEXT: usize = 1024 * 1024;

/// Collects the lines from `first` on, at most `limit` of them and [`MAX_TEXT`] bytes.
#[derive(Debug)]
pub(super) struct LineRange {
    first: u64,
    last: u64,
    numbered: bool,
    text: Vec<u8>,
    /// Number of the line that goes by.
    line: u64,
    at_line_start: bool,
    cut: Cut,
}

/// Whether the text stops before the range does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    None,
    /// Inside this line, which is too long.
    Inside(u64),
}

impl LineRange {
    pub(super) fn new(first: u64, limit: u64, numbered: bool) -> Self {
        let last = first.saturating_add(limit - 1);
        Self { first, last, numbered, text: Vec::new(), line: 0, at_line_start: true, cut: Cut::None }
    }

    /// Takes the next piece of the file: a line with its end, or a part of a line.
    pub(super) fn take(&mut self, piece: &[u8]) {
        let starts_line = self.at_line_start;
        self.at_line_start = piece.ends_with(b"\n");
        self.line += u64::from(starts_line);
        if self.line < self.first || self.line > self.last || self.cut == Cut::Inside(self.line) {
            return;
        }
        let room = MAX_TEXT.saturating_sub(self.text.len());
        if piece.len() <= room {
            if self.numbered && starts_line {
                self.text.extend_from_slice(format!("{:>6}\t", self.line).as_bytes());
            }
            self.text.extend_from_slice(piece);
        } else if starts_line && self.line > self.first {
            // This line is for the next call.
            self.last = self.line - 1;
        } else {
            self.text.extend_from_slice(&piece[..room]);
            self.last = self.line;
            self.cut = Cut::Inside(self.line);
        }
    }

    /// Whether nothing that follows can belong to the range.
    pub(super) fn is_complete(&self) -> bool {
        self.line > self.last || (self.line == self.last && self.at_line_start)
    }

    /// Lines that went by, the last of which may have no end.
    pub(super) fn lines(&self) -> u64 {
        self.line
    }

    /// The text, and in a block of its own what a reader must know about it. `total` is the number of
    /// lines of the file, if it is known. A whole file is only its text.
    pub(super) fn into_blocks(self, total: Option<u64>) -> Vec<ContentBlock> {
        if total == Some(0) {
            return vec![ContentBlock::text("[the file is empty]")];
        }
        let mut notes = Vec::new();
        let last = self.last.min(self.line);
        match total {
            Some(total) if self.first == 1 && last == total => {}
            Some(total) if last == total => {
                notes.push(format!("lines {} to {last} of {total}; this is the end", self.first))
            }
            _ => {
                let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
                notes.push(format!("lines {} to {last}{of}; read on with \"offset\": {}", self.first, last + 1));
            }
        }
        if let Cut::Inside(line) = self.cut {
            notes.push(format!("toolwright cut line {line}, which is too long for a result of 1 MiB"));
        }
        let text = String::from_utf8(self.text).unwrap_or_else(|error| {
            notes.push("the file is not UTF-8: bytes that are no text are shown as \u{fffd}".to_owned());
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        });
        let mut blocks = vec![ContentBlock::text(text)];
        if !notes.is_empty() {
            blocks.push(ContentBlock::text(format!("[{}]", notes.join("; "))));
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::content::joined_text;

    fn check(text: &str, first: u64, limit: u64, expect: &str) {
        let mut range = LineRange::new(first, limit, false);
        text.as_bytes().split_inclusive(|&byte| byte == b'\n').for_each(|line| range.take(line));
        let total = range.lines();
        assert_eq!(joined_text(&range.into_blocks(Some(total))), expect);
    }

    #[test]
    fn ranges_say_which_lines_they_are() {
        check("a\nb\n", 1, 2000, "a\nb\n");
        check("a\r\nb", 1, 2, "a\r\nb");
        check("", 1, 10, "[the file is empty]");
        check("a\nb\nc\n", 1, 2, "a\nb\n\n[lines 1 to 2 of 3; read on with \"offset\": 3]");
        check("a\nb\nc\n", 2, 9, "b\nc\n\n[lines 2 to 3 of 3; this is the end]");
        check("a\nb\nc\n", 2, u64::MAX, "b\nc\n\n[lines 2 to 3 of 3; this is the end]");
    }

    #[test]
    fn the_text_is_bounded_at_a_line_or_inside_the_first_one() {
        let long = format!("{}\n", "x".repeat(MAX_TEXT - 10));
        check(
            &format!("a\n{long}b\nc\n{long}"),
            2,
            100,
            &format!("{long}b\nc\n\n[lines 2 to 4 of 5; read on with \"offset\": 5]"),
        );
        let longer = "x".repeat(MAX_TEXT + 10);
        check(
            &format!("{longer}\nb\n"),
            1,
            100,
            &format!(
                "{}\n[lines 1 to 1 of 2; read on with \"offset\": 2; toolwright cut line 1, which is too long for a result of 1 MiB]",
                &longer[..MAX_TEXT]
            ),
        );
    }

    #[test]
    fn a_line_that_comes_in_pieces_is_one_line() {
        let mut range = LineRange::new(1, 1, true);
        for piece in ["aa", "bb\n", "c"] {
            range.take(piece.as_bytes());
        }
        assert!(range.is_complete());
        assert_eq!(joined_text(&range.into_blocks(None)), "     1\taabb\n\n[lines 1 to 1; read on with \"offset\": 2]");
    }
}
