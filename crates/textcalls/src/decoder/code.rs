//! What of the text is code: blocks between fences, spans between backticks.

/// Where the text stands, as Markdown has it.
#[derive(Debug)]
pub(super) struct Code {
    /// The length of the fence of the open block.
    fence: usize,
    /// Whether only spaces stand on this line.
    line_blank: bool,
    /// The number of backticks that opened a span on this line.
    span: usize,
    /// Backticks at the end.
    ticks: usize,
}

impl Code {
    /// At the beginning of a line, outside of code.
    pub(super) fn new() -> Self {
        Self { fence: 0, line_blank: true, span: 0, ticks: 0 }
    }

    /// Takes text.
    pub(super) fn take(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let line = memchr::memrchr(b'\n', bytes).map(|end| &bytes[end + 1..]);
        let is_blank = line.unwrap_or(bytes).iter().all(|byte| *byte == b' ');
        self.line_blank = is_blank && (line.is_some() || self.line_blank);
        if line.is_some() {
            (self.span, self.ticks) = (0, 0);
        }
        let mut rest = line.unwrap_or(bytes);
        while !rest.is_empty() {
            let run = rest.iter().take_while(|byte| **byte == b'`').count();
            self.ticks += run;
            rest = &rest[run..];
            if !rest.is_empty() {
                self.end_run();
                rest = &rest[memchr::memchr(b'`', rest).unwrap_or(rest.len())..];
            }
        }
    }

    /// Other text follows backticks.
    fn end_run(&mut self) {
        if self.span == 0 {
            self.span = self.ticks;
        } else if self.span == self.ticks {
            self.span = 0;
        }
        self.ticks = 0;
    }

    /// Something that is no text has been read.
    pub(super) fn interrupt(&mut self) {
        self.line_blank = false;
        (self.span, self.ticks) = (0, 0);
    }

    /// Whether only spaces stand on this line.
    pub(super) fn line_blank(&self) -> bool {
        self.line_blank
    }

    /// Whether a marker that comes next is quoted: right after backticks that open a span or, unless it is a
    /// `control` token, in a block.
    pub(super) fn quotes(&self, control: bool) -> bool {
        (self.ticks > 0 && self.span == 0) || (self.fence > 0 && !control)
    }

    /// Takes a run of backticks that may be a fence, and the character after it.
    pub(super) fn fence(&mut self, run: &str, after: Option<char>) {
        let begins_line = self.line_blank;
        self.take(run);
        if !begins_line {
            return;
        }
        if self.fence == 0 {
            self.fence = run.len();
        } else if run.len() >= self.fence && !after.is_some_and(char::is_alphanumeric) {
            self.fence = 0;
        }
        (self.span, self.ticks) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_inside_a_code_span_is_quoted() {
        for (text, expect) in [
            ("", false),
            ("a `", true),
            ("a ``", true),
            ("a `b`", false),
            ("a ``b`", false),
            ("`b` and `", true),
            ("a `b\n", false),
            ("a `b\n`", true),
        ] {
            for size in 1..=text.len().max(1) {
                let mut code = Code::new();
                text.as_bytes().chunks(size).for_each(|piece| code.take(std::str::from_utf8(piece).expect("ASCII")));
                assert_eq!(code.quotes(true), expect, "{text:?} by {size}");
            }
        }
    }
}
