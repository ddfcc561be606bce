//! Reads JSON as models write it. Valid JSON is read unchanged; only broken JSON is repaired.

pub mod canonical;
mod lossy;
pub mod pointer;
mod repair;
mod tokens;

use std::borrow::Cow;

use serde_json::Value;

pub use lossy::{read, replace_lone_surrogates};

/// Nesting depth that is followed. Lossless parsing allows one more level; but consecutive objects
/// are put into an array, and repaired text must be JSON that others can read back.
pub const MAX_DEPTH: usize = 126;
/// Layers of escaping that are removed from a text like `{\"a\": 1}`.
const MAX_LAYERS: usize = 3;

/// Result of reading a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Repaired {
    /// The value.
    pub value: Value,
    /// The text was not JSON: the value is the likeliest reading.
    pub repaired: bool,
    /// JSON Pointer into `value` to the innermost object or array that was open where the text ended: it may be
    /// incomplete. `None` for a text that was not cut, and for several objects in a row.
    pub cut: Option<String>,
}

/// Why a text has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableJson {
    /// Only white space and comments.
    #[error("there is no value in the text")]
    Empty,
    /// More than [`MAX_DEPTH`] nested containers.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A number is larger than any float.
    #[error("a number in it is out of range")]
    OutOfRange,
    /// The reading took more steps than a text of this length deserves.
    #[error("too broken to mend")]
    TooBroken,
}

/// Reads `text`: without loss if it is JSON, else by repairing it in one pass.
///
/// Repairs code fences and prose around the first object or array, missing and superfluous commas,
/// colons, quotes and brackets, other quotation marks, unquoted names and texts, Python's and
/// JavaScript's literals, comments, ellipses, function calls around a value, raw line breaks and quotes
/// in strings, one layer of escaping, and a missing end. Consecutive objects, as in JSON
/// lines, become an array. `NaN`, infinities and `undefined` become null.
///
/// # Errors
/// [`UnreadableJson`] if there is no value, or it is nested too deeply.
pub fn repair(text: &str) -> Result<Repaired, UnreadableJson> {
    let mut text = Cow::Borrowed(text);
    for layer in 0..=MAX_LAYERS {
        match serde_json::from_str(&text) {
            Ok(value) => return Ok(Repaired { value, repaired: layer > 0, cut: None }),
            Err(error) if is_out_of_range(&error) => return Err(UnreadableJson::OutOfRange),
            Err(_) => {}
        }
        if layer == MAX_LAYERS || !is_escaped(&text) {
            break;
        }
        text = Cow::Owned(tokens::unescape(&text));
    }
    repair::read(&text).map(|(value, cut)| Repaired { value, repaired: true, cut })
}

/// Like [`repair()`], for a text that is only one object or array: `None` if there is anything
/// around it, or a value would have to be invented.
pub(crate) fn repair_container(text: &str) -> Option<Repaired> {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => Some(Repaired { value, repaired: false, cut: None }),
        Err(error) if is_out_of_range(&error) => None,
        Err(_) => repair::read_whole(text).map(|value| Repaired { value, repaired: true, cut: None }),
    }
}

/// Whether the text is JSON except for a number outside the range of floats.
fn is_out_of_range(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("number out of range")
}

/// Returns the JSON Schema type of `value`; every number is a `number`.
#[must_use]
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether containers are nested deeper than `levels`. Looks no deeper than that, so any value is safe.
pub(crate) fn nests_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| nests_deeper(item, levels - 1)),
        Value::Object(members) => levels == 0 || members.values().any(|member| nests_deeper(member, levels - 1)),
        _ => false,
    }
}

/// Whether the text's own quotes are escaped, as in JSON taken from a JSON string.
fn is_escaped(text: &str) -> bool {
    text.find('"').is_some_and(|quote| text[..quote].ends_with('\\'))
}

/// Describes why a text is not JSON: the position, then what was expected there, as in
/// `line 1, column 8: expected a value`.
#[must_use]
pub fn fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = text.strip_suffix(&place).unwrap_or(&text);
    let what = match message {
        "EOF while parsing a value" => "the text ends where a value is expected",
        "EOF while parsing an object" => "the text ends inside an object: expected `,` or `}`",
        "EOF while parsing a list" => "the text ends inside an array: expected `,` or `]`",
        "EOF while parsing a string" => "the text ends inside a string: expected `\"`",
        "expected value" => "expected a value",
        "expected ident" => "expected a value: `true`, `false`, `null`, a number, or a text in double quotes",
        "key must be a string" => "expected a name in double quotes",
        "trailing comma" => "expected another member after the comma",
        "trailing characters" => "expected nothing more: the value has ended",
        "invalid escape" => "expected an escape that JSON knows after `\\`",
        said if said.starts_with("control character") => {
            "expected no line break or tab in a string: write `\\n` or `\\t`"
        }
        said => said,
    };
    if error.line() == 0 {
        what.to_owned()
    } else {
        format!("line {}, column {}: {what}", error.line(), error.column())
    }
}

#[cfg(test)]
mod tests;
