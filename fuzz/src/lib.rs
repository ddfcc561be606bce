//! What the targets share: readings of the fuzzer's bytes, and what may be said of any result.

pub mod decoded;
mod generate;
pub mod tools;

use std::borrow::Cow;

use serde_json::Value;

/// The first bytes of an input, as parameters, and the rest. Missing ones are zero.
pub fn parameters<const N: usize>(data: &[u8]) -> ([usize; N], &[u8]) {
    let mut parameters = [0; N];
    let taken = data.len().min(N);
    for (parameter, byte) in parameters.iter_mut().zip(data) {
        *parameter = usize::from(*byte);
    }
    (parameters, &data[taken..])
}

/// Text of any bytes.
pub fn text(data: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(data)
}

/// The text in pieces of about so many bytes.
pub fn pieces(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let piece;
        (piece, rest) = rest.split_at(rest.ceil_char_boundary(bytes));
        (!piece.is_empty()).then_some(piece)
    })
}

/// JSON of any bytes. After a zero byte they steer a generator of schemas; else they are the text of the
/// value, mended if need be, so that a mutation of JSON is JSON again.
pub fn json(data: &[u8]) -> Option<Value> {
    match data {
        [0, choices @ ..] => Some(generate::schema(choices)),
        written => toolwright_core::json::repair(&text(written)).ok().map(|read| read.value),
    }
}

/// A schema, a line, and an instance of it: any JSON, or, after a zero byte, one that the schema may well allow.
pub fn schema_and_instance(data: &[u8]) -> Option<(Value, Value)> {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let schema = json(&data[..end])?;
    let instance = match data.get(end + 1..).unwrap_or_default() {
        [0, choices @ ..] => generate::instance_of(&schema, choices),
        written => json(written).unwrap_or_default(),
    };
    Some((schema, instance))
}

/// Whether two values are equal, up to the last digit of a float: `serde_json` reads those to within one unit.
pub fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (one.as_f64(), other.as_f64()) {
            (Some(a), Some(b)) if one.is_f64() && other.is_f64() => (a - b).abs() <= a.abs() * 1e-15,
            _ => one == other,
        },
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|((key, one), (name, other))| key == name && same(one, other))
        }
        _ => one == other,
    }
}
