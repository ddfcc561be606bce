//! From what a model wrote as arguments to an object that fits a schema (SPEC section 6).

use serde_json::{Map, Value};

use crate::catalogue::{Entry, Origin};
use crate::json::repair;
use crate::schema::{CompiledSchema, Violation, fill_defaults};

/// Arguments as they arrived.
#[derive(Debug, Clone, PartialEq)]
pub enum RawArguments {
    /// Text that should be JSON, as model APIs give it.
    Text(String),
    /// Already a value, as MCP and the command line give it.
    Value(Value),
}

/// What was done to the arguments on the way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Provenance {
    /// They were absent, null or an empty text, and became `{}`.
    pub emptied: bool,
    /// They were JSON inside a JSON string.
    pub unwrapped: bool,
    /// They were broken JSON and were mended.
    pub repaired: bool,
    /// Defaults of the schema were added.
    pub defaulted: bool,
    /// JSON Pointers to the values that had the wrong type and were given the right one.
    pub coerced: Vec<String>,
}

/// An object beside a schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The object: valid if there are no violations, else as it was written, with defaults.
    pub arguments: Value,
    /// What was done to it.
    pub provenance: Provenance,
    /// What is wrong with it.
    pub violations: Vec<Violation>,
}

impl Fitted {
    /// Fits `raw` to the schema of `entry`: parsed, filled with defaults if the tool is our own,
    /// validated, and coerced where it failed. A tool without a working schema takes any object.
    ///
    /// # Errors
    /// Why there is no object in `raw`, as the end of a sentence that begins with the arguments.
    pub fn to(entry: &Entry, raw: RawArguments) -> Result<Self, String> {
        let mut provenance = Provenance::default();
        let mut arguments = parse(raw, &mut provenance)?;
        if entry.tool.origin() == Origin::Own
            && let Some(schema) = &entry.definition().parameters
        {
            provenance.defaulted = fill_defaults(schema, &mut arguments);
        }
        Ok(match entry.tool.schema() {
            Ok(Some(schema)) => fit(schema, arguments, provenance),
            Ok(None) | Err(_) => Self { arguments, provenance, violations: Vec::new() },
        })
    }
}

/// Validates `value`, and coerces what fails.
#[must_use]
pub fn fit(schema: &CompiledSchema, value: Value, mut provenance: Provenance) -> Fitted {
    if schema.is_valid(&value) {
        return Fitted { arguments: value, provenance, violations: Vec::new() };
    }
    match schema.coerce(&value) {
        Some(coerced) => {
            provenance.coerced = coerced.paths;
            Fitted { arguments: coerced.value, provenance, violations: Vec::new() }
        }
        None => {
            let violations = schema.violations(&value);
            Fitted { arguments: value, provenance, violations }
        }
    }
}

/// An object, its JSON text, or JSON text inside a JSON string; what is broken is mended.
fn parse(raw: RawArguments, provenance: &mut Provenance) -> Result<Value, String> {
    let mut value = match raw {
        RawArguments::Value(value) => value,
        RawArguments::Text(text) if text.trim().is_empty() => Value::Null,
        RawArguments::Text(text) => read(&text, provenance)?,
    };
    if let Value::String(text) = &value {
        if text.trim().is_empty() {
            value = Value::Null;
        } else if text.trim_start().starts_with(['{', '"', '`'])
            && let Ok(inner) = repair(text)
            && inner.value.is_object()
        {
            value = inner.value;
            provenance.unwrapped = true;
            provenance.repaired |= inner.repaired;
        }
    }
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => {
            provenance.emptied = true;
            Ok(Value::Object(Map::new()))
        }
        other => Err(format!("must be a JSON object, not {}", kind_of(&other))),
    }
}

/// Reads JSON, mended if need be. What had to be mended and is no container was no JSON at all.
fn read(text: &str, provenance: &mut Provenance) -> Result<Value, String> {
    let not_json = |why: &dyn std::fmt::Display| format!("are not JSON: {why}; write one JSON object");
    let error = match serde_json::from_str(text) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let mended = repair(text).map_err(|unreadable| not_json(&unreadable))?;
    let container = match &mended.value {
        Value::String(inner) => inner.trim_start().starts_with('{'),
        other => other.is_object() || other.is_array(),
    };
    if !container {
        return Err(not_json(&error));
    }
    provenance.repaired = true;
    Ok(mended.value)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "an array",
        Value::String(_) => "a string",
        Value::Number(_) => "a number",
        Value::Bool(_) => "a boolean",
        Value::Null => "null",
        Value::Object(_) => "an object",
    }
}
