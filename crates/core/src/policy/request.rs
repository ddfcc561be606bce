//! The user's own words in a run, and whether they name a value.
//!
//! What a tool returned may have been written by anybody; what the user typed was not. A call whose recipient,
//! address or file the user named is the user's own wish, and one that came out of a web page is not. That is
//! all that is looked at here: words, never meaning.

use std::borrow::Cow;

use serde_json::Value;

/// Bytes of the user's words that are kept, the newest: what was said before counts as not said.
const MAX_BYTES: usize = 256 << 10;

/// The user's own words in a run, as far as values can be looked up in them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UserRequest {
    /// In lower case, each run of white space one blank.
    text: String,
    numbers: Vec<f64>,
    /// Those that stand as words of their own, with a sign of money or without.
    amounts: Vec<f64>,
}

impl UserRequest {
    /// The request that these messages of the user make up, oldest first. Only what the user wrote belongs
    /// here: no system prompt, no tool result, no answer of a model.
    pub fn new<'a>(messages: impl IntoIterator<Item = &'a str>) -> Self {
        let mut text = String::new();
        for message in messages {
            push_plain(&mut text, message);
            text.push('\n');
        }
        if text.len() > MAX_BYTES {
            let cut = text.ceil_char_boundary(text.len() - MAX_BYTES);
            text.drain(..cut);
        }
        let numbers = text.split(|c: char| c.is_whitespace() || "$€£%()\"'".contains(c)).filter_map(number).collect();
        let amounts = text.split_whitespace().filter_map(amount).collect();
        Self { text, numbers, amounts }
    }

    /// Whether the words name the value. A text is named where it stands as a whole: not as a part of a longer
    /// word, host name, address or path. A number is named by one that is equal. A list or object is named if
    /// something in it is, and all that can be (keys aside). Nothing names `null`, an empty text, `true` or
    /// `false`, and they do not matter in a list or object.
    #[must_use]
    pub fn mentions(&self, value: &Value) -> bool {
        self.names(value) == Some(true)
    }

    /// The same; `None` where there is nothing that could be named.
    fn names(&self, value: &Value) -> Option<bool> {
        let all = |parts: &mut dyn Iterator<Item = &Value>| {
            parts.filter_map(|part| self.names(part)).reduce(|one, other| one && other)
        };
        match value {
            Value::Null | Value::Bool(_) => None,
            Value::Number(number) => Some(number.as_f64().is_some_and(|number| self.mentions_number(number))),
            Value::String(text) => self.names_text(text),
            Value::Array(items) => all(&mut items.iter()),
            Value::Object(members) => all(&mut members.values()),
        }
    }

    /// The numbers that stand in the words as words of their own: `20`, `$1,050.00`; not `10%`, `v2` or `2024-05-15`.
    #[must_use]
    pub fn amounts(&self) -> &[f64] {
        &self.amounts
    }

    /// As [`UserRequest::mentions`], of a number.
    pub(super) fn mentions_number(&self, number: f64) -> bool {
        self.numbers.contains(&number)
    }

    /// As [`UserRequest::mentions`], of a text; `None` of one that is empty.
    pub(super) fn names_text(&self, text: &str) -> Option<bool> {
        let mut wanted = String::new();
        push_plain(&mut wanted, text);
        let wanted = wanted.trim();
        let stands = || self.text.match_indices(wanted).any(|(at, found)| self.stands_alone(at, at + found.len()));
        (!wanted.is_empty()).then(stands)
    }

    /// Whether what lies between is no part of something longer.
    fn stands_alone(&self, from: usize, to: usize) -> bool {
        let mut before = self.text[..from].chars().rev();
        let mut after = self.text[to..].chars();
        !joins(before.next(), before.next(), "_-@./+&=%#~\\") && !joins(after.next(), after.next(), "_-@./+&=%#~\\:")
    }
}

/// Whether a neighbour belongs to the word: a letter or digit, or a joint that has one behind it.
fn joins(neighbour: Option<char>, next: Option<char>, joints: &str) -> bool {
    neighbour.is_some_and(|c| {
        c.is_alphanumeric() || c == '_' || (joints.contains(c) && next.is_some_and(char::is_alphanumeric))
    })
}

/// `98.70`, `1,050`, `30,000.` as numbers.
fn number(word: &str) -> Option<f64> {
    let word = word.trim_matches(|c: char| !c.is_ascii_digit() && c != '-');
    let digits = if word.contains(',') { Cow::Owned(word.replace(',', "")) } else { Cow::Borrowed(word) };
    digits.bytes().any(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// A number that is a word of its own.
fn amount(word: &str) -> Option<f64> {
    let word = word.trim_matches(|c: char| "$€£¥()\"'.,;:!?".contains(c));
    let is_plain = word.chars().all(|c| c.is_ascii_digit() || c == '.' || c == ',');
    is_plain.then(|| number(word)).flatten()
}

fn push_plain(out: &mut String, text: &str) {
    let mut blank = true;
    for c in text.chars() {
        if c.is_whitespace() {
            if !blank {
                out.push(' ');
            }
            blank = true;
        } else {
            out.extend(c.to_lowercase());
            blank = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_value_is_named_as_a_whole_or_not_at_all() {
        let request = UserRequest::new([
            "Pay 'Bill  december.txt' ($1,050.50, or 12) to GB29NWBK60161331926819. See www.true-news.com/a,",
            "then write to bob@example.com, Dora and https://shop.example.org. That is Alice's.",
        ]);
        for (value, named) in [
            (json!("gb29nwbk60161331926819"), true),
            (json!("GB29NWBK6016133192681"), false),
            (json!("bill december.TXT"), true),
            (json!("december.txt"), true),
            (json!("december"), false),
            (json!("www.true-news.com/a"), true),
            (json!("www.true-news.com"), false),
            (json!("news.com"), false),
            (json!("true-news.com/a"), false),
            (json!("https://shop.example.org"), true),
            (json!("shop.example.org"), true),
            (json!("example.org"), false),
            (json!("example.com"), false),
            (json!("bob@example.com"), true),
            (json!("bob"), false),
            (json!("Alice"), true),
            (json!("Ali"), false),
            (json!(1050.5), true),
            (json!(12), true),
            (json!(12.0), true),
            (json!(2), false),
            (json!(1050), false),
            (json!(["Alice", "dora"]), true),
            (json!(["Alice", "Fred"]), false),
            (json!({"who": "Dora", "n": 12}), true),
            (json!({"who": "Eve"}), false),
            (json!(["Alice", true, null, ""]), true),
            (json!(true), false),
            (json!(null), false),
            (json!(" "), false),
            (json!([]), false),
        ] {
            assert_eq!(request.mentions(&value), named, "{value}");
        }
    }

    #[test]
    fn only_the_newest_words_are_kept() {
        let long = "filler ".repeat(MAX_BYTES / 7 + 1);
        let request = UserRequest::new(["Alice", &long, "Bob"]);
        assert!(!request.mentions(&json!("Alice")) && request.mentions(&json!("Bob")));
        assert!(request.text.len() <= MAX_BYTES);
    }

    proptest! {
        #[test]
        fn any_word_between_blanks_is_named_and_no_text_panics(before in ".{0,40}", word in "[\\PC--\\s]{1,20}", after in ".{0,40}") {
            let request = UserRequest::new([format!("{before} {word} {after}").as_str()]);
            prop_assert!(request.mentions(&json!(word)), "{word}");
            let _ = request.mentions(&json!(after));
        }
    }
}
