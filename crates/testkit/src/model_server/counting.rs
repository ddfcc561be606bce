//! The server's own tokenizer. It differs from four bytes a token as much as the tokenizers of real models do.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::Value;

use super::{RecordedRequest, WireApi};

/// The tokens that an API adds around each part of a request.
const FRAME: u64 = 3;
/// The tokens of an image.
const IMAGE: u64 = 1200;
/// The length in bytes from which a text without white space counts as data (images, signatures).
const DATA: usize = 4096;

/// Counts the tokens of a text: one for every seven letters begun, one for every three digits begun, one for every line
/// feed and for every other character that is not white space.
#[must_use]
pub fn tokens(text: &str) -> u64 {
    let (mut count, mut letters, mut digits) = (0, 0, 0);
    for c in text.chars() {
        letters = if c.is_ascii_alphabetic() { letters + 1 } else { 0 };
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        let begins = (letters > 0 && letters % 7 == 1) || (digits > 0 && digits % 3 == 1);
        let stands_alone = letters == 0 && digits == 0 && (c == '\n' || !c.is_whitespace());
        count += u64::from(begins || stands_alone);
    }
    count
}

/// Returns hash and tokens of each part of a request in the order in which a model reads them: tools, system prompt,
/// messages.
pub(super) fn parts(asked: &RecordedRequest) -> Vec<(u64, u64)> {
    let (system, messages) = match asked.api {
        WireApi::OpenAi | WireApi::Ollama => ("", "messages"),
        WireApi::Responses => ("instructions", "input"),
        WireApi::Anthropic => ("system", "messages"),
        WireApi::Gemini => ("systemInstruction", "contents"),
    };
    let mut parts = Vec::new();
    for key in ["tools", system, messages] {
        if let Some(value) = asked.body.get(key) {
            collect(value, key == "tools", &mut parts);
        }
    }
    parts
}

/// Returns the limit of the answer's tokens in a request, 0 if it has none.
pub(super) fn answer_limit(body: &Value) -> u64 {
    let given = ["max_completion_tokens", "max_tokens", "max_output_tokens"].iter().find_map(|key| body[*key].as_u64());
    let given = given.or_else(|| body["generationConfig"]["maxOutputTokens"].as_u64());
    given.or_else(|| body["options"]["num_predict"].as_u64()).unwrap_or_default()
}

fn collect(value: &Value, with_keys: bool, parts: &mut Vec<(u64, u64)>) {
    match value {
        Value::String(text) => {
            let is_data = text.len() >= DATA && !text.contains(char::is_whitespace);
            let tokens = if is_data { IMAGE } else { tokens(text) };
            parts.push((hash(text), tokens));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, with_keys, parts)),
        Value::Object(members) => {
            parts.push((hash("{"), FRAME));
            // Cache marks move between requests and are not read by a model.
            for (key, member) in members.iter().filter(|(key, _)| *key != "cache_control") {
                if with_keys {
                    parts.push((hash(key), tokens(key)));
                }
                collect(member, with_keys, parts);
            }
        }
        Value::Number(number) => parts.push((hash(&number.to_string()), 1)),
        Value::Bool(_) | Value::Null => {}
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_signs_are_tokens() {
        for (text, expect) in [
            ("", 0),
            ("The quick brown fox", 4),
            ("international", 2),
            ("2026-11-22", 6),
            ("{\"a\": [1, 20]}", 11),
            ("長い文", 3),
            ("a\n\nb", 4),
        ] {
            assert_eq!(tokens(text), expect, "{text}");
        }
    }
}
