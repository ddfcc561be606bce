//! Finds the part of a result that the job's log does not already contain.

use std::borrow::Cow;
use std::collections::VecDeque;

use toolwright_core::output::{Ends, shown_ends};

/// Compares the lines of a log with a result.
#[derive(Debug)]
pub(super) struct Unreported<'a> {
    result: Repeated<'a>,
    /// Of an output that did not fit, whose ends the result shows.
    ends: Option<Shown<'a>>,
}

#[derive(Debug)]
struct Shown<'a> {
    ends: Ends<'a>,
    head: Repeated<'a>,
    tail: Repeated<'a>,
}

impl<'a> Unreported<'a> {
    pub(super) fn new(result: &'a str) -> Self {
        let ends = shown_ends(result);
        let ends = ends.map(|ends| Shown { ends, head: Repeated::new(ends.head), tail: Repeated::new(ends.tail) });
        Self { result: Repeated::new(result), ends }
    }

    /// Takes the next line of the log, without its end.
    pub(super) fn line(&mut self, line: &str) {
        if let Some(Shown { head, tail, .. }) = &mut self.ends {
            head.line(line);
            tail.line(line);
        }
        self.result.line(line);
    }

    /// What the log does not have. Of an output of which it has the beginning or the end, that is not shown again: a log
    /// need not have what was printed at first.
    pub(super) fn rest(self) -> Cow<'a, str> {
        let Some(Shown { ends, head, tail }) = self.ends else { return Cow::Borrowed(self.result.rest()) };
        let Ends { words, head: beginning, mark, tail: shown } = ends;
        // The end may begin within a line. Where the log ends before that line does, something is missing.
        let (known, first) = (tail.matched(), shown.lines().next().unwrap_or_default());
        let (has_beginning, has_end) = (head.was_whole(), known >= first.len().max(1));
        if !has_beginning && !has_end {
            return Cow::Borrowed(self.result.rest());
        }
        let beginning = if has_beginning { "" } else { beginning };
        let rest = if has_end { tail.beyond(known) } else { shown };
        // What lies between may be in the log or not: where there are no words, nothing else tells of it.
        let mark = if has_beginning && has_end && !words.is_empty() { "" } else { mark };
        let said = [words, beginning, mark, rest.trim_start_matches('\n')];
        Cow::Owned(said.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
    }
}

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
    use toolwright_core::output::{CUT, Readers, cut_message, stored_message};
    use toolwright_core::store::StoredOutput;

    use super::*;

    fn lines(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("line {n} of what was printed")).collect()
    }

    fn beyond(log: &[String], result: &str) -> String {
        let mut beyond = Unreported::new(result);
        log.iter().for_each(|line| beyond.line(line));
        beyond.rest().into_owned()
    }

    fn stored(text: &str) -> String {
        let stored = StoredOutput { handle: "s/1".into(), bytes: text.len() as u64, lines: 1, tokens: 1 };
        stored_message(&stored, text, 4096, &Readers { read: Some("output__read".into()), ..Readers::default() })
    }

    #[test]
    fn the_end_of_an_output_may_begin_within_a_line() {
        let log: Vec<String> = (0..6).map(|n| format!("{n}: {}", "x".repeat(3000))).collect();
        let said = beyond(&log, &stored(&format!("{}\n", log.join("\n"))));
        assert!(said.contains("Handle: s/1") && !said.contains("xxx"), "{said}");
        let said = beyond(&log, &stored(&format!("{}\nexit code 3", log.join("\n"))));
        assert!(said.ends_with("exit code 3") && !said.contains("xxx"), "{said}");
    }

    #[test]
    fn of_an_output_that_was_stored_or_cut_nothing_is_shown_twice() {
        let log = lines(1000);
        let whole = log.join("\n");
        let said = beyond(&log, &stored(&whole));
        assert!(said.contains("Handle: s/1") && said.contains("output__read"), "{said}");
        assert!(!said.contains("of what was printed") && !said.contains(CUT), "{said}");
        let said = beyond(&log, &stored(&format!("{whole}\nexit code 3")));
        assert!(said.ends_with("exit code 3") && !said.contains("of what was printed"), "{said}");
        let said = beyond(&log, &cut_message(&whole, 4096, "no room"));
        assert!(said.contains(CUT) && said.contains("[toolwright cut this result"), "{said}");
        assert!(!said.contains("of what was printed"), "{said}");
    }

    #[test]
    fn a_log_that_lacks_the_beginning_has_the_end_shown_once() {
        let all = lines(1000);
        let said = beyond(&all[900..], &stored(&all.join("\n")));
        assert!(said.contains("Handle: s/1") && said.contains("line 0 of") && said.contains(CUT), "{said}");
        assert!(!said.contains("line 999 of"), "{said}");
    }

    #[test]
    fn what_the_log_does_not_have_is_shown() {
        let all = lines(1000);
        let result = stored(&all.join("\n"));
        // Another output than what it reported.
        assert_eq!(beyond(&["10 of 20".into()], &result), result);
        // The last lines were not reported, or more than these.
        let said = beyond(&all[..995], &result);
        assert!(
            said.contains("line 995 of") && said.contains("line 999 of") && !said.contains("line 994 of"),
            "{said}"
        );
        assert!(!said.contains(CUT), "{said}");
        let said = beyond(&all[..500], &result);
        assert!(!said.contains("line 0 of") && said.contains(CUT) && said.contains("line 999 of"), "{said}");
    }

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
