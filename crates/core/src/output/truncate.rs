//! Shortening a text.

use super::json;

/// How the line begins that stands where a text was cut.
pub const CUT: &str = "[… toolwright cut ";

/// At most some `max` bytes of `text`, with a marker that says who cut how much. JSON stays valid JSON: long
/// strings are shortened first, then long arrays and objects. Of other text head and tail are kept.
#[must_use]
pub fn truncate(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    json::thin(text, max).unwrap_or_else(|| head_and_tail(text, max))
}

/// Head and tail of `text` within some `max` bytes, with a line between them that says how much is
/// missing. UTF-8 safe; a text that fits is returned whole.
#[must_use]
pub fn head_and_tail(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(max * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - max / 3);
    // Whole lines read better, where one ends near enough.
    let head = text[..head].rfind('\n').filter(|&end| end * 2 > head).map_or(head, |end| end + 1);
    let tail = text[tail..]
        .find('\n')
        .map(|n| tail + n + 1)
        .filter(|&start| (text.len() - start) * 2 > text.len() - tail)
        .unwrap_or(tail);
    let cut = tail - head;
    format!("{}\n{CUT}{cut} of {} bytes here …]\n{}", text[..head].trim_end_matches('\n'), text.len(), &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_marker_says_how_much() {
        let text = "line\n".repeat(1000);
        let cut = truncate(&text, 300);
        assert!(cut.starts_with("line\n") && cut.ends_with("line\n"));
        let kept = cut.matches("line").count();
        let marker = format!("toolwright cut {} of 5000 bytes", 5000 - kept * 5);
        assert!(cut.contains(&marker), "{cut}");
    }

    proptest! {
        #[test]
        fn cutting_is_utf8_safe_and_bounded(text in "\\PC{0,400}", max in 0usize..300) {
            let cut = truncate(&text, max);
            prop_assert!(cut.len() <= max + 80 || cut == text);
            if text.len() <= max { prop_assert_eq!(cut, text); }
        }
    }
}
