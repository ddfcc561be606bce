//! Checks of requests that all APIs share.

use serde_json::Value;

use crate::rules::{ApiRules, check_answer};

/// The result of a check; the error is the message of the refusal.
pub(super) type Checked = Result<(), String>;

/// Whether `name` matches `[a-zA-Z0-9_-]{1,64}`.
pub(super) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

pub(super) fn ensure(holds: bool, refusal: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(refusal()) }
}

/// Returns the list at `key`, which must exist and not be empty.
pub(super) fn filled<'a>(body: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    body[key]
        .as_array()
        .filter(|items| !items.is_empty())
        .ok_or_else(|| format!("{key}: a non-empty array is required"))
}

/// Returns the text at `key`, which must exist and not be empty.
pub(super) fn word<'a>(value: &'a Value, key: &str, place: &str) -> Result<&'a str, String> {
    value[key]
        .as_str()
        .filter(|text| !text.is_empty())
        .ok_or_else(|| format!("{place}.{key}: a non-empty string is required"))
}

/// Checks a tool's name and root schema, and that the name is unique.
pub(super) fn tool(name: &str, schema: &Value, seen: &mut Vec<String>, place: &str) -> Checked {
    ensure(is_name(name), || format!("{place}.name: `{name}` does not match '^[a-zA-Z0-9_-]{{1,64}}$'"))?;
    ensure(!seen.iter().any(|other| other == name), || format!("{place}: tool names must be unique, `{name}` is not"))?;
    seen.push(name.to_owned());
    ensure(schema["type"] == "object", || {
        format!("{place}: schema must be a JSON Schema of 'type: \"object\"', got {}", schema["type"])
    })?;
    ensure(schema["properties"].is_object(), || format!("{place}: object schema missing properties"))?;
    for key in ["oneOf", "anyOf", "allOf", "enum", "not"] {
        ensure(schema.get(key).is_none(), || format!("{place}: schema may not have '{key}' at the top level"))?;
    }
    Ok(())
}

/// Checks that the API can enforce the schema of the answer.
pub(super) fn answer_schema(api: ApiRules, body: &Value) -> Checked {
    let breach = check_answer(api, body).into_iter().next();
    breach.map_or(Ok(()), |breach| Err(format!("Invalid schema: {}: {}", breach.path, breach.message)))
}

/// Whether a text in `messages` has the word that OpenAI requires for `json_object`.
pub(super) fn contains_json_word(messages: &[Value]) -> bool {
    let says = |value: &Value| value.as_str().is_some_and(|text| text.to_ascii_lowercase().contains("json"));
    messages.iter().any(|message| {
        let content = &message["content"];
        says(content) || content.as_array().into_iter().flatten().any(|part| says(&part["text"]))
    })
}

/// Whether `part` is a PDF in the form of the OpenAI APIs.
pub(super) fn is_file(part: &Value) -> bool {
    let data = part["file_data"].as_str().and_then(|url| url.strip_prefix("data:application/pdf;base64,"));
    part["filename"].is_string() && data.is_some_and(is_base64)
}

/// Whether `data` is base64 without line breaks.
pub(super) fn is_base64(data: &str) -> bool {
    use base64::Engine as _;
    !data.is_empty() && base64::engine::general_purpose::STANDARD.decode(data).is_ok()
}
