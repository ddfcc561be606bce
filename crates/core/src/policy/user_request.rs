//! The user's own words in a run, and whether they name a value.
//!
//! Anybody may have written the text that a tool returned; the user's own words are trusted. A call whose recipient,
//! address or file the user named is the user's wish; a value that came from a web page is not. Only
//! words are compared, not meaning.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::pointer::push;

/// Bytes of the user's words that are kept, newest first; older words are ignored.
const MAX_BYTES: usize = 256 << 10;

/// Places that [`UserRequest::places`] finds at most, and values that it looks up.
const MAX_PLACES: usize = 64;
const MAX_VALUES: usize = 512;

/// The user's own words in a run, for looking up values.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UserRequest {
    /// Lower case, with each run of white space as one blank.
    text: String,
    numbers: Vec<f64>,
    /// Numbers that are separate words, with or without a currency sign.
    amounts: Vec<f64>,
}

impl UserRequest {
    /// Builds it from the user's messages, oldest first. Only the user's own text belongs
    /// here: no system prompt, tool result or model answer.
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

    /// The numbers that are separate words: `20`, `$1,050.00`; not `10%`, `v2` or `2024-05-15`.
    #[must_use]
    pub fn amounts(&self) -> &[f64] {
        &self.amounts
    }

    /// Whether an equal number occurs in the words.
    pub(super) fn names_number(&self, number: f64) -> bool {
        self.numbers.contains(&number)
    }

    /// Whether the words contain a text as a whole, not as part of a longer word, host name, address or
    /// path. `None` for an empty text.
    #[must_use]
    pub fn names_text(&self, text: &str) -> Option<bool> {
        let mut plain_text = String::new();
        push_plain(&mut plain_text, text);
        let plain_text = plain_text.trim();
        let stands = || self.text.match_indices(plain_text).any(|(at, found)| self.is_whole(at, at + found.len()));
        (!plain_text.is_empty()).then(stands)
    }

    /// Returns JSON pointers to the texts and numbers in the arguments that the words name; the first 64.
    #[must_use]
    pub fn places(&self, arguments: &Value) -> Vec<String> {
        let (mut places, mut left) = (Vec::new(), MAX_VALUES);
        self.look(arguments, &mut String::new(), &mut places, &mut left);
        places
    }

    fn look(&self, value: &Value, place: &mut String, places: &mut Vec<String>, left: &mut usize) {
        let length = place.len();
        let mut below = |step: &str, value: &Value| {
            push(place, step);
            self.look(value, place, places, left);
            place.truncate(length);
        };
        match value {
            Value::Object(members) => members.iter().for_each(|(name, member)| below(name, member)),
            Value::Array(items) => items.iter().enumerate().for_each(|(at, item)| below(&at.to_string(), item)),
            _ if *left == 0 || places.len() == MAX_PLACES => {}
            Value::String(text) => {
                *left -= 1;
                if self.names_text(text) == Some(true) {
                    places.push(place.clone());
                }
            }
            Value::Number(number) => {
                *left -= 1;
                if number.as_f64().is_some_and(|number| self.names_number(number)) {
                    places.push(place.clone());
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Whether the range is not part of something longer.
    fn is_whole(&self, from: usize, to: usize) -> bool {
        let mut before = self.text[..from].chars().rev();
        let mut after = self.text[to..].chars();
        !joins(before.next(), before.next(), "_-@./+&=%#~\\") && !joins(after.next(), after.next(), "_-@./+&=%#~\\:")
    }
}

/// Whether a neighbour belongs to the word: a letter or digit, or a joint followed by one.
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

/// Reads a number that is a separate word.
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

    #[test]
    fn only_the_newest_text_is_kept() {
        let long = "filler ".repeat(MAX_BYTES / 7 + 1);
        let request = UserRequest::new(["Alice", &long, "Bob"]);
        assert!(request.names_text("Alice") == Some(false) && request.names_text("Bob") == Some(true));
        assert!(request.text.len() <= MAX_BYTES);
    }

    #[test]
    fn named_values_are_found_by_their_places() {
        let request = UserRequest::new(["Order 6 bottles of lemonade for Ada, please"]);
        let arguments = serde_json::json!({
            "article": "Lemonade", "quantity": 6, "to": ["ada", {"a/b": "lemon"}], "paid": true, "note": "", "at": "mall",
        });
        assert_eq!(request.places(&arguments), ["/article", "/quantity", "/to/0"]);
        assert_eq!(request.places(&serde_json::json!(vec!["ada"; 100])).len(), MAX_PLACES);
    }

    proptest! {
        #[test]
        fn any_word_is_reported(before in ".{0,40}", word in "[\\PC--\\s]{1,20}", after in ".{0,40}") {
            let request = UserRequest::new([format!("{before} {word} {after}").as_str()]);
            prop_assert_eq!(request.names_text(&word), Some(true), "{}", word);
            let _ = request.names_text(&after);
        }
    }
}
