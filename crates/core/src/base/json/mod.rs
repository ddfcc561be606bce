//! Reads JSON as models write it. Valid JSON is read unchanged; only broken JSON is repaired.

pub mod canonical;
mod lossy;
pub mod pointer;
mod repair;
mod tokens;

use std::borrow::Cow;

use serde_json::Value;

pub use lossy::{legible, read};

/// Containers inside containers that are followed. Lossless parsing takes one more; but objects one after
/// another are put into an array, and what was mended must be JSON that anyone can read back.
pub const MAX_DEPTH: usize = 126;
/// Layers of escaping that are taken off a text like `{\"a\": 1}`.
const MAX_LAYERS: usize = 3;

/// What a text says.
#[derive(Debug, Clone, PartialEq)]
pub struct Repaired {
    /// The value.
    pub value: Value,
    /// The text was not JSON: the value is the likeliest reading.
    pub repaired: bool,
    /// The innermost object or array that was open where the text ended, as a JSON Pointer into `value`:
    /// what is in it may not be all that was meant. `None` for a text that was not cut, and for several objects in
    /// a row.
    pub cut: Option<String>,
}

/// Why nothing can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// White space, comments or nothing.
    #[error("there is no value in the text")]
    Empty,
    /// More than [`MAX_DEPTH`] containers inside one another.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A number is larger than any float.
    #[error("a number in it is out of range")]
    OutOfRange,
    /// The reading took more steps than a text of this length deserves.
    #[error("too broken to mend")]
    TooBroken,
}

/// Reads `text`: without loss if it is JSON, else by mending it in one pass.
///
/// Mended are code fences and prose around the first object or array, missing and superfluous commas,
/// colons, quotes and brackets, other quotation marks, names and texts without any, Python's and
/// JavaScript's literals, comments, ellipses, function calls around a value, raw line breaks and quotes
/// in strings, a layer of escaping, and an end that never came. Objects one after another, as in JSON
/// lines, become an array, so that none is lost. `NaN`, infinities and `undefined` become null.
///
/// # Errors
/// [`Unreadable`] where there is no value, or too deep a one.
pub fn repair(text: &str) -> Result<Repaired, Unreadable> {
    let mut text = Cow::Borrowed(text);
    for layer in 0..=MAX_LAYERS {
        match serde_json::from_str(&text) {
            Ok(value) => return Ok(Repaired { value, repaired: layer > 0, cut: None }),
            Err(error) if is_out_of_range(&error) => return Err(Unreadable::OutOfRange),
            Err(_) => {}
        }
        if layer == MAX_LAYERS || !is_escaped(&text) {
            break;
        }
        text = Cow::Owned(tokens::unescape(&text));
    }
    repair::read(&text).map(|(value, cut)| Repaired { value, repaired: true, cut })
}

/// As [`repair`], for a text that is one object or array and nothing else: `None` where there is anything
/// around it, or a value would have to be made up.
pub(crate) fn repair_container(text: &str) -> Option<Repaired> {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => Some(Repaired { value, repaired: false, cut: None }),
        Err(error) if is_out_of_range(&error) => None,
        Err(_) => repair::read_whole(text).map(|value| Repaired { value, repaired: true, cut: None }),
    }
}

/// Whether it is JSON, but for a number that no float holds.
fn is_out_of_range(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("number out of range")
}

/// What JSON Schema calls the type of `value`; every number is a `number`.
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

/// Whether there are more than `levels` containers inside one another. Looks no deeper than that, so that no
/// value is too deep for it.
pub(crate) fn nests_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| nests_deeper(item, levels - 1)),
        Value::Object(members) => levels == 0 || members.values().any(|member| nests_deeper(member, levels - 1)),
        _ => false,
    }
}

/// Whether the quotes of the text itself are escaped, as in JSON that was taken out of a JSON string.
fn is_escaped(text: &str) -> bool {
    text.find('"').is_some_and(|quote| text[..quote].ends_with('\\'))
}

/// What is wrong with a text that is no JSON: the place, then what was expected there, as in
/// `line 1, column 8: expected a value`.
#[must_use]
pub fn fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let said = text.strip_suffix(&place).unwrap_or(&text);
    let what = match said {
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
