//! Shortens text, keeping JSON valid, and formats it as HTML.

use serde_json::{Map, Value};

/// Start of the line that marks a cut.
pub const CUT: &str = "[… toolwright cut ";

/// Shortens `text` to about `max` bytes, with a marker that says how much was cut and by whom. JSON stays valid JSON:
/// long strings are shortened first, then long arrays and objects. Other text keeps head and tail.
#[must_use]
pub fn truncate(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    shrink_json(text, max).unwrap_or_else(|| head_and_tail(text, max))
}

/// Returns head and tail of `text` within about `max` bytes, with a line in between that says how much is
/// missing. UTF-8 safe; a text that fits is returned whole.
#[must_use]
pub fn head_and_tail(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(max * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - max / 3);
    // Cut at line ends if they are near enough.
    let head = text[..head].rfind('\n').filter(|&end| end * 2 > head).map_or(head, |end| end + 1);
    let tail = text[tail..]
        .find('\n')
        .map(|n| tail + n + 1)
        .filter(|&start| (text.len() - start) * 2 > text.len() - tail)
        .unwrap_or(tail);
    let cut = tail - head;
    format!("{}\n{CUT}{cut} of {} bytes here …]\n{}", text[..head].trim_end_matches('\n'), text.len(), &text[tail..])
}

/// Escapes text for HTML, in an element or a quoted attribute. Control characters become blanks, except line breaks and
/// tabs.
#[must_use]
pub fn html_escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Larger texts are not parsed.
const MAX_PARSED: usize = 16 * 1024 * 1024;
/// Bytes that a string may have, from round to round.
const STRINGS: [usize; 7] = [4096, 2048, 1024, 512, 256, 128, 64];
/// Items that an array or an object may have, once short strings are not enough.
const ITEMS: [usize; 8] = [256, 128, 64, 32, 16, 8, 4, 2];
/// Levels to keep, tried after few items did not suffice.
const LEVELS: [usize; 4] = [6, 4, 2, 1];

/// Limits of one round.
#[derive(Clone, Copy)]
struct Limits {
    string: usize,
    items: usize,
    levels: usize,
}

const NONE: Limits = Limits { string: usize::MAX, items: usize::MAX, levels: usize::MAX };

/// Returns the object or array `text` within `max` bytes: without white space if that suffices, else thinned by the
/// first sufficient one of ever narrower limits. `None` if it is neither, or does not get small enough.
fn shrink_json(text: &str, max: usize) -> Option<String> {
    if text.len() > MAX_PARSED || !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let whole: Value = serde_json::from_str(text).ok()?;
    let strings = STRINGS.map(|string| Limits { string, ..NONE });
    let items = ITEMS.map(|items| Limits { string: 64, items, ..NONE });
    let levels = LEVELS.map(|levels| Limits { string: 64, items: 2, levels });
    std::iter::once(NONE)
        .chain(strings)
        .chain(items)
        .chain(levels)
        .map(|limits| limits.apply(&whole, 0).to_string())
        .find(|thinned| thinned.len() <= max)
}

impl Limits {
    fn apply(self, value: &Value, level: usize) -> Value {
        match value {
            Value::String(text) => Value::String(self.string(text)),
            Value::Array(items) if level >= self.levels && !items.is_empty() => {
                Value::String(format!("[toolwright cut an array of {}]", items.len()))
            }
            Value::Object(entries) if level >= self.levels && !entries.is_empty() => {
                Value::String(format!("[toolwright cut an object of {}]", entries.len()))
            }
            Value::Array(items) => {
                let inside = |item: &Value| self.apply(item, level + 1);
                let (head, cut) = self.kept(items.len());
                let mut kept_items: Vec<Value> = items[..head].iter().map(inside).collect();
                if cut > 0 {
                    kept_items.push(Value::String(format!("[toolwright cut {cut} of {} items]", items.len())));
                    kept_items.extend(items[head + cut..].iter().map(inside));
                }
                Value::Array(kept_items)
            }
            Value::Object(entries) => {
                let inside = |(key, value): (&String, &Value)| (self.string(key), self.apply(value, level + 1));
                let (head, cut) = self.kept(entries.len());
                let mut kept_entries: Map<String, Value> = entries.iter().take(head).map(inside).collect();
                if cut > 0 {
                    let marker = format!("[toolwright cut {cut} of {} entries]", entries.len());
                    kept_entries.insert(marker, Value::Null);
                    kept_entries.extend(entries.iter().skip(head + cut).map(inside));
                }
                Value::Object(kept_entries)
            }
            other => other.clone(),
        }
    }

    /// Returns the number of items kept at the beginning, and of those omitted after them.
    fn kept(self, count: usize) -> (usize, usize) {
        if count <= self.items {
            return (count, 0);
        }
        let head = self.items.div_ceil(2);
        (head, count - self.items)
    }

    fn string(self, text: &str) -> String {
        // The marker needs some bytes itself.
        if text.len() <= self.string.saturating_add(40) {
            return text.to_owned();
        }
        let head = text.floor_char_boundary(self.string * 2 / 3);
        let tail = text.ceil_char_boundary(text.len() - self.string / 3);
        format!("{}[… toolwright cut {} of {} bytes …]{}", &text[..head], tail - head, text.len(), &text[tail..])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn cut_markers_give_the_size() {
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

    fn check(value: &Value, max: usize, expect: &[&str]) {
        let pretty = serde_json::to_string_pretty(value).expect("json");
        let thinned = shrink_json(&pretty, max).expect("thinned");
        assert!(thinned.len() <= max);
        serde_json::from_str::<Value>(&thinned).expect("still JSON");
        for part in expect {
            assert!(thinned.contains(part), "{part} in {thinned}");
        }
    }

    #[test]
    fn strings_go_first_then_items_then_levels() {
        check(&json!({"a": 1, "b": [1, 2]}), 20, &[r#"{"a":1,"b":[1,2]}"#]);
        let long = json!({"id": 7, "body": "é".repeat(4000), "tags": ["a", "b"]});
        check(&long, 2000, &[r#""id":7"#, r#"["a","b"]"#, "toolwright cut", "of 8000 bytes"]);
        let rows: Vec<Value> = (0..1000).map(|n| json!({"row": n, "name": "x"})).collect();
        check(&json!(rows), 500, &[r#"{"row":0,"#, "of 1000 items]", r#"{"row":999,"#]);
        let wide: Value = (0..500).map(|n| (format!("key{n}"), json!(n))).collect::<Map<_, _>>().into();
        check(&wide, 400, &["\"key0\":0", "of 500 entries]\":null", "\"key499\":499"]);
        let deep = (0..40).fold(json!(1), |inside, _| json!({"a": [inside, "x"], "b": {"c": 1}}));
        check(&deep, 300, &["[toolwright cut an"]);
    }

    #[test]
    fn only_objects_and_arrays_are_thinned() {
        for text in ["plain text", "{broken", "\"a string\"", "123456", "{\"a\":1}\n{\"a\":2}"] {
            assert_eq!(shrink_json(text, 3), None, "{text}");
        }
        assert_eq!(shrink_json(r#"[{"a":"b"}]"#, 3), None, "nothing is that small");
    }

    proptest! {
        #[test]
        fn sampled_json_is_valid_and_bounded(items in proptest::collection::vec(("\\PC{0,80}", 0i64..99), 0..40), max in 30usize..400) {
            let value: Vec<Value> = items.iter().map(|(text, n)| json!({"t": text, "n": n})).collect();
            if let Some(thinned) = shrink_json(&json!(value).to_string(), max) {
                prop_assert!(thinned.len() <= max);
                prop_assert!(serde_json::from_str::<Value>(&thinned).is_ok());
            }
        }
    }
}
