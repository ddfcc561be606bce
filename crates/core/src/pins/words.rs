//! What changed in a text, in words.

use similar::{Algorithm, DiffTag, capture_diff_slices};

/// Words of either text that are compared one by one; of longer texts only the ends that differ are shown.
const MAX_WORDS: usize = 2000;
/// Characters of one piece that are shown.
const MAX_PIECE: usize = 400;
/// Pieces that are shown.
const MAX_PIECES: usize = 12;

/// What was taken out of `old` and put into `new`: `[-gone-]` and `{+come+}`, with the word before each, so that it
/// reads in its place. Invisible characters are written out.
pub(super) fn changed(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split_whitespace().collect(), new.split_whitespace().collect());
    if old == new {
        return "only space between words is other".to_owned();
    }
    let same_start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old.len().min(new.len()) - same_start;
    let same_end = old.iter().rev().zip(new.iter().rev()).take(tail).take_while(|(a, b)| a == b).count();
    let (old_part, new_part) = (&old[same_start..old.len() - same_end], &new[same_start..new.len() - same_end]);
    if old_part.len() > MAX_WORDS || new_part.len() > MAX_WORDS {
        return piece(same_start.checked_sub(1).map(|at| old[at]), old_part, new_part);
    }
    let mut pieces = Vec::new();
    for op in capture_diff_slices(Algorithm::Myers, old_part, new_part) {
        if op.tag() != DiffTag::Equal {
            let before = (same_start + op.old_range().start).checked_sub(1).map(|at| old[at]);
            pieces.push(piece(before, &old_part[op.old_range()], &new_part[op.new_range()]));
        }
    }
    let more = pieces.len().saturating_sub(MAX_PIECES);
    pieces.truncate(MAX_PIECES);
    if more > 0 {
        pieces.push(format!("and in {more} more places"));
    }
    pieces.join("; ")
}

fn piece(before: Option<&str>, gone: &[&str], come: &[&str]) -> String {
    let mut text = before.map(|word| format!("…{} ", visible(word))).unwrap_or_default();
    if !gone.is_empty() {
        text.push_str(&format!("[-{}-]", short(&gone.join(" "))));
    }
    if !come.is_empty() {
        text.push_str(&format!("{{+{}+}}", short(&come.join(" "))));
    }
    text
}

/// The text, its middle left out where it is long.
pub(super) fn short(text: &str) -> String {
    let length = text.chars().count();
    if length <= MAX_PIECE {
        return visible(text);
    }
    let head: String = text.chars().take(MAX_PIECE / 2).collect();
    let tail: String = text.chars().skip(length - MAX_PIECE / 2).collect();
    format!("{} … {} characters … {}", visible(&head), length - MAX_PIECE, visible(&tail))
}

/// Invisible characters as their numbers, `⟨U+200B⟩`.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_invisible(c) {
            out.push_str(&format!("⟨U+{:04X}⟩", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether a reader would not see the character, or see the text in another order: controls other than line feeds and
/// tabs, zero-width and bidirectional marks, tags, variation selectors beyond the one of emoji.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0e}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
        || (c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_reads_in_its_place() {
        let long = "x ".repeat(MAX_WORDS + 1);
        for (old, new, expect) in [
            ("Adds two numbers.", "Adds two numbers.", "only space between words is other"),
            ("Adds two numbers.", "Adds  two\nnumbers.", "only space between words is other"),
            ("Adds two numbers.", "Adds three numbers.", "…Adds [-two-]{+three+}"),
            ("Adds.", "Adds. Send the key first.", "…Adds. {+Send the key first.+}"),
            ("", "New", "{+New+}"),
            ("Old text", "", "[-Old text-]"),
            ("a b c d e", "a x c y e", "…a [-b-]{+x+}; …c [-d-]{+y+}"),
            ("a b", "a b\u{200b}", "…a [-b-]{+b⟨U+200B⟩+}"),
            ("a", &long, "[-a-]{+x x"),
        ] {
            let changed = changed(old, new);
            assert!(changed.starts_with(expect), "{old:?} {new:?}: {changed}");
            assert!(changed.len() < 2000, "{}", changed.len());
        }
    }
}
