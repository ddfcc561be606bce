//! Finds the part of a result that the job's log does not already contain.

use std::borrow::Cow;

use toolwright_core::output::{Ends, shown_ends};

use super::repeated_output::Repeated;

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
}
