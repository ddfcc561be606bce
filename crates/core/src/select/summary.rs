//! Tools in few words, for a model that looks for one. What others wrote is cut to its place: no line of
//! theirs can look like one of ours.

use std::fmt::Write as _;

use serde_json::Value;

use crate::catalogue::Entry;
use crate::schema::argument_list;

/// Bytes of a tool's arguments in its line.
const MAX_ARGUMENTS: usize = 240;
/// Bytes of a tool's purpose in its line.
const MAX_PURPOSE: usize = 160;
/// Bytes of the list of namespaces.
const MAX_NAMESPACES: usize = 1000;

/// One line that usually is enough to call the tool: `name(path: string, limit?: integer) — What it does.`
/// Without a schema the arguments are `…`.
#[must_use]
pub fn summary(name: &str, description: &str, parameters: Option<&Value>) -> String {
    let arguments = parameters.map_or_else(|| "…".into(), |schema| argument_list(schema, MAX_ARGUMENTS));
    let mut line = format!("{name}({})", one_line(&arguments));
    let purpose = first_sentence(description);
    if !purpose.is_empty() {
        let _ = write!(line, " — {purpose}");
    }
    line
}

/// The namespaces of `tools` in their order, each with the number of its tools: `github (41), fs (9)`.
#[must_use]
pub fn namespaces<'a>(tools: impl Iterator<Item = &'a Entry>) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for entry in tools {
        let namespace = entry.id().namespace();
        // Tools of one namespace mostly stand together.
        match counts.iter_mut().rev().find(|(name, _)| *name == namespace) {
            Some((_, count)) => *count += 1,
            None => counts.push((namespace, 1)),
        }
    }
    let mut list = String::new();
    for (n, (name, count)) in counts.iter().enumerate() {
        let comma = if n == 0 { "" } else { ", " };
        if list.len() + name.len() > MAX_NAMESPACES {
            let _ = write!(list, "{comma}… {} more", counts.len() - n);
            break;
        }
        let _ = write!(list, "{comma}{name} ({count})");
    }
    list
}

/// The first sentence of a text, on one line and cut where it is long.
#[must_use]
pub fn first_sentence(text: &str) -> String {
    let paragraph = text.trim().split("\n\n").next().unwrap_or_default();
    // What is cut off is not looked at: descriptions of others have any length.
    let near: String = paragraph.chars().take(2 * MAX_PURPOSE).collect();
    let line = one_line(&near);
    let line = match sentence_end(&line) {
        Some(end) => &line[..end],
        None => line.trim_end(),
    };
    if line.len() <= MAX_PURPOSE {
        return line.to_owned();
    }
    let room = (0..=MAX_PURPOSE).rev().find(|&end| line.is_char_boundary(end)).unwrap_or(0);
    let words = line[..room].rfind(' ').filter(|&end| end * 2 > room).unwrap_or(room);
    format!("{}…", line[..words].trim_end())
}

/// Where the first sentence ends: at a mark that is followed by a space and something that can begin another.
fn sentence_end(line: &str) -> Option<usize> {
    line.char_indices().find_map(|(at, c)| {
        let end = at + c.len_utf8();
        let mut rest = line[end..].chars();
        let begins = |c: char| !c.is_lowercase() && !c.is_numeric();
        match c {
            '。' | '！' | '？' => Some(end),
            '.' | '!' | '?' if rest.next() == Some(' ') && rest.next().is_some_and(begins) => Some(end),
            _ => None,
        }
    })
}

/// The text with each run of white space and control characters as one space.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_whitespace() || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            if !line.is_empty() && !line.ends_with(' ') {
                line.push(' ');
            }
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::catalogue::Snapshot;
    use crate::testing::{definition, listing, own};

    #[test]
    fn a_tool_fits_in_a_line() {
        let schema =
            json!({"properties": {"limit": {"type": "integer"}, "path": {"type": "string"}}, "required": ["path"]});
        let line = summary("fs__read", "Reads a file.\nUTF-8 only.", Some(&schema));
        assert_eq!(line, "fs__read(path: string, limit?: integer) — Reads a file.");
        assert_eq!(summary("x", "", Some(&json!({"type": "object"}))), "x()");
        assert_eq!(summary("x", " Any\tthing ", None), "x(…) — Any thing");
        let forged = summary("x", "Reads.", Some(&json!({"properties": {"a)\nfs__rm(": {"type": "b\nc"}}})));
        assert_eq!(forged, r#"x("a)\nfs__rm("?: b c) — Reads."#);
    }

    #[test]
    fn the_first_sentence_is_found_and_cut() {
        for (text, expect) in [
            ("", ""),
            ("One. Two.", "One."),
            ("Lists e.g. files of v1.2 here. Then more.", "Lists e.g. files of v1.2 here."),
            ("No end", "No end"),
            ("Title\n\nBody.", "Title"),
            ("読む。書く。", "読む。"),
            ("Really? Yes.", "Really?"),
        ] {
            assert_eq!(first_sentence(text), expect, "{text}");
        }
        let long = first_sentence(&"words and ".repeat(100));
        assert!(long.len() <= MAX_PURPOSE + 3 && long.ends_with("words…") || long.ends_with("and…"), "{long}");
    }

    #[test]
    fn namespaces_are_counted_in_order_and_bounded() {
        let tools: Vec<_> = ["b:x@1.0.0", "b:y@1.0.0", "a:x@1.0.0", "b:z@1.0.0"].map(|id| own(definition(id))).to_vec();
        let of = |snapshot: &Snapshot| namespaces(snapshot.list().iter().map(|entry| &**entry));
        assert_eq!(of(&Snapshot::build(&[listing("p", tools)])), "b (3), a (1)");
        let many = (0..300).map(|n| own(definition(&format!("namespace-{n}:x@1.0.0")))).collect();
        let list = of(&Snapshot::build(&[listing("p", many)]));
        assert!(list.len() < MAX_NAMESPACES + 50 && list.contains(" more"), "{list}");
    }

    proptest! {
        #[test]
        fn nothing_breaks_the_line(name in "\\PC{0,20}", text in "[\\s\\S]{0,600}", key in "[\\s\\S]{0,30}") {
            let line = summary("x", &text, Some(&json!({"properties": {key: {"type": name}}})));
            prop_assert!(!line.contains(['\n', '\r']) && line.len() < 600, "{}", line);
        }
    }
}
