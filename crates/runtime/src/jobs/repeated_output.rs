//! Removes from a result the output that the job has already logged.

use std::collections::VecDeque;

/// Bytes of a result's beginning, line ends not counted, that are looked for at the end of a log.
const MAX_SOUGHT: usize = 1 << 20;

/// Looks in the lines of a log for the beginning of a result. Line ends do not count: each report ends a line of the
/// log, also one that ended within a line of the output.
#[derive(Debug)]
pub(super) struct Repeated<'a> {
    result: &'a str,
    /// The beginning of the result without line ends.
    sought: Vec<u8>,
    /// For each length of a beginning of `sought`, the longest shorter one that it ends with (Knuth, Morris, Pratt).
    shorter: Vec<usize>,
    /// The length of the longest beginning of `sought` that the lines so far end with.
    matched: usize,
    /// Bytes of the lines so far.
    read: usize,
    /// Where lines began, as far back as `sought` reaches.
    begins: VecDeque<usize>,
    /// Empty lines at the end.
    blank: usize,
    /// Whether all that is sought stood there, from the beginning of a line on.
    was_whole: bool,
}

impl<'a> Repeated<'a> {
    pub(super) fn new(result: &'a str) -> Self {
        let sought: Vec<u8> = result.bytes().filter(|byte| *byte != b'\n').take(MAX_SOUGHT).collect();
        let shorter = vec![0; sought.len() + 1];
        let mut it =
            Self { result, sought, shorter, matched: 0, read: 0, begins: VecDeque::new(), blank: 0, was_whole: false };
        let mut matched = 0;
        for at in 1..it.sought.len() {
            matched = it.longer(matched, it.sought[at]);
            it.shorter[at + 1] = matched;
        }
        it
    }

    /// The length of the longest beginning that ends with `byte`, where one of `matched` bytes came before it.
    fn longer(&self, mut matched: usize, byte: u8) -> usize {
        loop {
            match self.sought.get(matched) {
                Some(next) if *next == byte => return matched + 1,
                _ if matched == 0 => return 0,
                _ => matched = self.shorter[matched],
            }
        }
    }

    /// Takes the next line of the log, without its end.
    pub(super) fn line(&mut self, line: &str) {
        if line.is_empty() {
            self.blank += 1;
            return;
        }
        self.blank = 0;
        self.begins.push_back(self.read);
        for byte in line.bytes() {
            self.matched = self.longer(self.matched, byte);
            self.read += 1;
            self.was_whole |= self.matched > 0 && self.matched == self.sought.len() && self.begins_before(self.matched);
        }
        let reach = self.read.saturating_sub(self.sought.len());
        while self.begins.front().is_some_and(|begin| *begin < reach) {
            self.begins.pop_front();
        }
    }

    /// Whether a line began before the last `matched` bytes.
    fn begins_before(&self, matched: usize) -> bool {
        self.begins.binary_search(&(self.read - matched)).is_ok()
    }

    /// Whether the lines so far have all of the result anywhere, or as much of it as is looked for. Of an empty one they
    /// have none.
    pub(super) fn was_whole(&self) -> bool {
        self.was_whole
    }

    /// How much of the result's beginning, line ends not counted, the log ends with.
    pub(super) fn matched(&self) -> usize {
        self.matched
    }

    /// The same, from the beginning of a line on.
    fn told(&self) -> usize {
        let mut matched = self.matched;
        while matched > 0 && !self.begins_before(matched) {
            matched = self.shorter[matched];
        }
        matched
    }

    /// What of the result the log does not end with. A line that it has in part is there as a whole.
    pub(super) fn rest(&self) -> &'a str {
        self.beyond(self.told())
    }

    /// What of the result comes behind the first `told` bytes, line ends not counted. A line that these end in is there
    /// as a whole.
    pub(super) fn beyond(&self, told: usize) -> &'a str {
        let Some(last) = told.checked_sub(1) else { return self.result };
        let mut counted = self.result.bytes().enumerate().filter(|(_, byte)| *byte != b'\n');
        let end = counted.nth(last).map_or(self.result.len(), |(at, _)| at + 1);
        let (had, rest) = self.result.split_at(self.result.floor_char_boundary(end));
        if rest.is_empty() {
            return rest;
        }
        let Some(mut rest) = rest.strip_prefix('\n') else {
            return &self.result[had.rfind('\n').map_or(0, |at| at + 1)..];
        };
        for _ in 0..self.blank {
            rest = rest.strip_prefix('\n').unwrap_or(rest);
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_log_ends_with_is_left_out_of_the_result() {
        for (log, result, expect) in [
            (&[][..], "a\nb", "a\nb"),
            (&["a", "b", "c"], "a\nb\nc\n", ""),
            (&["a"], "a\nb\nc\n", "b\nc\n"),
            (&["a", "b"], "a\nb\nexit code 1", "exit code 1"),
            (&["an earlier attempt", "a"], "a\nb", "b"),
            (&["a", "a", "b"], "a\nb", ""),
            (&["a", "b", "a"], "a\nb\na\nc", "c"),
            (&["a", "b", "a", "b", "c"], "a\nb\na\nb\nc\nd", "d"),
            (&["a", "b"], "b\na", "a"),
            (&["x"], "a\nb", "a\nb"),
            // Reports that ended within a line.
            (&["ab", "cd"], "abcd\nef", "ef"),
            (&[".", ".", "."], "... done", "... done"),
            (&["Down"], "one\nDownloaded", "one\nDownloaded"),
            (&["one", "Down"], "one\nDownloaded", "Downloaded"),
            // Where a line of the log does not begin, nothing of the result was said.
            (&["sea"], "a\nb", "a\nb"),
            (&["a", ""], "a\n\nb", "b"),
            (&["a", "", ""], "a\n\nb", "b"),
            (&["a"], "a\n\nb", "\nb"),
            (&["é"], "éé\n", "éé\n"),
            (&["a"], "", ""),
        ] {
            let mut repeated = Repeated::new(result);
            log.iter().for_each(|line| repeated.line(line));
            assert_eq!(repeated.rest(), expect, "{log:?} {result:?}");
        }
    }

    #[test]
    fn a_long_result_is_looked_for_in_time_and_bounds() {
        let lines = 3 * MAX_SOUGHT / 2;
        let result = "a\n".repeat(lines);
        let mut repeated = Repeated::new(&result);
        for _ in 0..lines {
            repeated.line("a");
        }
        assert!(repeated.begins.len() <= MAX_SOUGHT + 1);
        assert_eq!(repeated.rest().len(), 2 * (lines - MAX_SOUGHT));
    }
}
