//! Wraps text to the width of the terminal.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr as _;

/// Columns that continued lines stand further to the right.
const HANGING: usize = 2;

/// The text in lines of at most `width` columns, broken between words; a longer word stays whole, as a path or an address
/// does that somebody copies. `None` is no terminal: the text stays as it is.
pub(crate) fn wrapped(text: &str, width: Option<usize>) -> Cow<'_, str> {
    match width {
        Some(width) if text.lines().any(|line| visible(line) > width) => {
            Cow::Owned(text.split('\n').map(|line| broken(line, width)).collect::<Vec<_>>().join("\n"))
        }
        _ => Cow::Borrowed(text),
    }
}

fn broken(line: &str, width: usize) -> Cow<'_, str> {
    if visible(line) <= width {
        return Cow::Borrowed(line);
    }
    let plain = anstream::adapter::strip_str(line).to_string();
    let indent = plain.len() - plain.trim_start_matches(' ').len() + HANGING;
    let indent = if indent > width / 2 { HANGING } else { indent };
    let (mut out, mut used, mut has_word) = (String::with_capacity(line.len() + 8), 0, false);
    for (number, word) in line.split(' ').enumerate() {
        let columns = visible(word);
        if number > 0 && has_word && columns > 0 && used + 1 + columns > width {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            (used, has_word) = (indent, false);
        } else if number > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += columns;
        has_word |= columns > 0;
    }
    Cow::Owned(out)
}

/// Columns of a text, whose styles take none.
fn visible(text: &str) -> usize {
    if text.contains('\u{1b}') { anstream::adapter::strip_str(text).to_string().width() } else { text.width() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::screen::{BOLD, WARN, styled};

    #[test]
    fn lines_break_between_words_and_keep_their_styles() {
        let text = format!("  {} was started {}", styled(BOLD, "server"), styled(WARN, "but it does not answer"));
        let shown = wrapped(&text, Some(24));
        let plain = anstream::adapter::strip_str(&shown).to_string();
        assert_eq!(plain, "  server was started but\n    it does not answer");
        assert_eq!(shown.replace("\n    ", " "), text, "nothing is lost");
        for whole in ["short", "a https://a.example/an/address/that/is/long"] {
            assert_eq!(wrapped(whole, None), whole);
        }
        assert_eq!(
            wrapped("see https://a.example/an/address now", Some(12)),
            "see\n  https://a.example/an/address\n  now"
        );
        assert_eq!(wrapped("日本語の 説明がここ", Some(12)), "日本語の\n  説明がここ");
    }
}
