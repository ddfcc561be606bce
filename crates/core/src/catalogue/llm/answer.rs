//! Reads the answer of a model to an LLM-backed tool: as text, or as the JSON value in it.

use serde_json::Value;

use crate::json::repair_container;
use crate::model::{ModelResponse, StopReason};

/// Characters of an answer that cannot be read which the error carries.
pub const SHOWN_CHARACTERS: usize = 500;
/// Bound on the brackets of an answer that are tried as the start of its value.
const STARTS: usize = 64;

/// An answer that breaks the tool's contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// It has no text.
    #[error("the model answered nothing")]
    Empty,
    /// The model, or its provider's filter, refused.
    #[error("the model refused to answer{}", quoted_answer(.0))]
    Refused(String),
    /// The token limit cut it before its value was complete, or before it began (empty text).
    #[error("the answer was cut at its token limit before {}", cut(.0))]
    Cut(String),
    /// It contains no JSON of the wanted kind.
    #[error("the answer has no readable JSON in it; it began: {0}")]
    NoJson(String),
}

fn quoted_answer(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

fn cut(began: &str) -> String {
    if began.is_empty() {
        "it began: thinking has taken all of it".to_owned()
    } else {
        format!("it was complete; it began: {began}")
    }
}

/// Returns the text of an answer, without reasoning that some models write before it.
///
/// # Errors
/// [`AnswerError`] for a refusal, or if there is no text.
pub fn text(answer: &ModelResponse) -> Result<&str, AnswerError> {
    let text = without_reasoning(&answer.text).trim();
    if answer.stop == StopReason::Refusal {
        return Err(AnswerError::Refused(beginning(text)));
    }
    match (text, &answer.stop) {
        ("", StopReason::MaxTokens) => Err(AnswerError::Cut(String::new())),
        ("", _) => Err(AnswerError::Empty),
        _ => Ok(text),
    }
}

/// Returns the JSON value of an answer: the whole text, the content of a code fence, or the first balanced object or
/// array. Syntax is repaired, but nothing is invented. The value must be as `expected`.
///
/// # Errors
/// [`AnswerError`] with the first 500 characters of the text.
pub fn json(answer: &ModelResponse, expected: ExpectedJson) -> Result<Value, AnswerError> {
    let text = text(answer)?;
    let fits = |value: &Value| expected == ExpectedJson::Any || value.is_object();
    if let Some(value) = serde_json::from_str(text).ok().filter(fits) {
        return Ok(value);
    }
    let fenced = fences(text).find_map(|inside| serde_json::from_str(inside).ok().filter(fits));
    if let Some(value) = fenced.or_else(|| first_balanced(text, expected, &answer.stop)) {
        return Ok(value);
    }
    let excerpt = beginning(text);
    Err(if answer.stop == StopReason::MaxTokens { AnswerError::Cut(excerpt) } else { AnswerError::NoJson(excerpt) })
}

/// The accepted kinds of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedJson {
    /// Any value.
    Any,
    /// An object.
    Object,
}

fn beginning(text: &str) -> String {
    text.chars().take(SHOWN_CHARACTERS).collect()
}

/// The whole items, in order, of the list `member` in the text of an answer that was cut.
#[must_use]
pub fn whole_items(text: &str, member: &str) -> Vec<Value> {
    let list = text.split_once(&format!("\"{member}\"")).and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let Some(mut rest) = list.and_then(|rest| rest.trim_start().strip_prefix('[')) else { return Vec::new() };
    let mut items = Vec::new();
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        let end = rest.starts_with('{').then(|| balanced_end(rest)).flatten();
        let Some((item, after)) = end.map(|end| rest.split_at(end)) else { return items };
        let Ok(item) = serde_json::from_str(item) else { return items };
        items.push(item);
        rest = after;
    }
}

/// Removes a leading block of reasoning. An unclosed block is the whole text. If the server's
/// template opened the block, the text has only its end marker, on a separate line.
fn without_reasoning(text: &str) -> &str {
    const END: &str = "</think>";
    match text.trim_start().strip_prefix("<think>") {
        Some(rest) => rest.split_once(END).map_or("", |(_, answer)| answer),
        None => {
            let mut ends = text.match_indices(END).map(|(at, _)| text.split_at(at));
            let is_line = |(before, rest): &(&str, &str)| {
                let after = rest[END.len()..].trim_start_matches([' ', '\t', '\r']);
                (before.is_empty() || before.ends_with('\n')) && (after.is_empty() || after.starts_with('\n'))
            };
            ends.find(is_line).map_or(text, |(_, rest)| &rest[END.len()..])
        }
    }
}

/// Returns the contents of code fences, in order.
fn fences(text: &str) -> impl Iterator<Item = &str> {
    // Every second piece is inside a fence; the rest of the fence's line names a language.
    text.split("```").skip(1).step_by(2).map(|inside| match inside.split_once('\n') {
        Some((language, rest)) if language.trim().chars().all(char::is_alphanumeric) => rest.trim(),
        _ => inside.trim(),
    })
}

/// Returns the first part of a text that is a whole object or array. A part inside a container that was cut is not
/// accepted.
fn first_balanced(text: &str, expected: ExpectedJson, stop: &StopReason) -> Option<Value> {
    let is_start = |c: char| c == '{' || (c == '[' && expected == ExpectedJson::Any);
    let mut from = 0;
    for _ in 0..STARTS {
        let start = from + text[from..].find(is_start)?;
        from = start + 1;
        let Some(end) = balanced_end(&text[start..]) else {
            if *stop == StopReason::MaxTokens {
                return None;
            }
            continue;
        };
        let part = &text[start..start + end];
        if let Some(value) = serde_json::from_str(part).ok().or_else(|| Some(repair_container(part)?.value)) {
            return Some(value);
        }
    }
    None
}

/// Returns the end of the bracket that opens a text, past the closing one. Brackets in strings do not count.
fn balanced_end(text: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(text: &str, stop: StopReason) -> ModelResponse {
        ModelResponse { text: text.to_owned(), stop, ..ModelResponse::default() }
    }

    #[test]
    fn the_value_of_an_answer_is_found() {
        let long = "x".repeat(900);
        for (text, wanted, expect) in [
            (r#"{"a": 1}"#, ExpectedJson::Object, Ok(json!({"a": 1}))),
            (" \n[1, 2]\n", ExpectedJson::Any, Ok(json!([1, 2]))),
            ("```json\n{\"a\": 1}\n```", ExpectedJson::Object, Ok(json!({"a": 1}))),
            ("```\n[1]\n```", ExpectedJson::Any, Ok(json!([1]))),
            ("Here it is:\n```json\n{\"a\": \"`x`\"}\n```\nDone.", ExpectedJson::Object, Ok(json!({"a": "`x`"}))),
            ("Sure! {\"a\": \"}\\\"{\"} and {\"b\": 2}", ExpectedJson::Object, Ok(json!({"a": "}\"{"}))),
            ("as [asked]: {\"a\": [1, 2]}", ExpectedJson::Object, Ok(json!({"a": [1, 2]}))),
            ("{not this} {\"a\": 1,}", ExpectedJson::Object, Ok(json!({"a": 1}))),
            ("<think>{\"a\": 0}</think>\n{\"a\": 1}", ExpectedJson::Object, Ok(json!({"a": 1}))),
            ("Hm, {\"a\": 0}?\n</think>\n\n{\"a\": 1}", ExpectedJson::Object, Ok(json!({"a": 1}))),
            ("</think>\n{\"a\": 1}", ExpectedJson::Object, Ok(json!({"a": 1}))),
            (r#"{"a": "ends in </think> here"}"#, ExpectedJson::Object, Ok(json!({"a": "ends in </think> here"}))),
            ("42", ExpectedJson::Any, Ok(json!(42))),
            ("42", ExpectedJson::Object, Err(AnswerError::NoJson("42".to_owned()))),
            ("", ExpectedJson::Any, Err(AnswerError::Empty)),
            ("<think>never done", ExpectedJson::Any, Err(AnswerError::Empty)),
            (&long, ExpectedJson::Any, Err(AnswerError::NoJson(long[..500].to_owned()))),
            (&"[".repeat(5000), ExpectedJson::Any, Err(AnswerError::NoJson("[".repeat(500)))),
        ] {
            assert_eq!(json(&answer(text, StopReason::End), wanted), expect, "{text}");
        }
    }

    #[test]
    fn cut_and_refused_answers_are_reported() {
        let cut = json(&answer("{\"a\": [1, 2", StopReason::MaxTokens), ExpectedJson::Object);
        assert_eq!(cut, Err(AnswerError::Cut("{\"a\": [1, 2".to_owned())));
        for thought in ["", " \n", "<think>Let me see"] {
            let answer = answer(thought, StopReason::MaxTokens);
            let cut = text(&answer);
            assert_eq!(cut, Err(AnswerError::Cut(String::new())), "{thought:?}");
            let said = cut.expect_err("cut").to_string();
            assert_eq!(said, "the answer was cut at its token limit before it began: thinking has taken all of it");
        }
        // A part of a cut value is not the requested value.
        let list = "{\"facts\": [{\"a\": 1}, {\"a\": 2}, {\"a\"";
        let cut = json(&answer(list, StopReason::MaxTokens), ExpectedJson::Object);
        assert_eq!(cut, Err(AnswerError::Cut(list.to_owned())));
        let refused = json(&answer("{}", StopReason::Refusal), ExpectedJson::Object);
        assert_eq!(refused, Err(AnswerError::Refused("{}".to_owned())));
    }

    #[test]
    fn whole_items_of_a_cut_list_are_kept() {
        for (text, expect) in [
            (r#"{"facts": [{"a": "x]}"}, {"a": [2]}, {"a": "#, json!([{"a": "x]}"}, {"a": [2]}])),
            ("```json\n{ \"facts\" :\n[ {\"a\": 1}\n", json!([{"a": 1}])),
            (r#"{"facts": [{"a": 1}]"#, json!([{"a": 1}])),
            (r#"{"facts": [{"a"#, json!([])),
            (r#"{"facts"#, json!([])),
            (r#"{"other": [{"a": 1}"#, json!([])),
        ] {
            assert_eq!(Value::Array(whole_items(text, "facts")), expect, "{text}");
        }
    }
}
