//! Which schemas are of bytes: by themselves, in a branch beside `null`, in a list, or by what they refer to.

use std::collections::HashSet;

use serde_json::Value;

use super::document::{Document, Part};
use super::schema::{is_bytes, only_type};

/// Schemas that are looked at for one.
const MAX_STEPS: usize = 100_000;

/// Whether values of a schema are bytes. A list is what its items are, and `null` is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bytes {
    /// None is.
    Never,
    /// Some are, and others are not.
    Sometimes,
    /// All are.
    Always,
}

/// What there is in a schema.
#[derive(Debug, Default)]
struct Found<'d> {
    bytes: bool,
    others: bool,
    media: Option<&'d str>,
}

/// Whether values of a schema are bytes, and the media type that it says of them.
///
/// # Errors
/// A reference that leads nowhere, or that it takes too long.
pub(super) fn bytes_of<'d>(document: &'d Document, schema: Part<'d>) -> Result<(Bytes, Option<&'d str>), String> {
    let mut found = Found::default();
    look(document, schema, &mut HashSet::new(), &mut found)?;
    let bytes = match (found.bytes, found.others) {
        (false, _) => Bytes::Never,
        (true, true) => Bytes::Sometimes,
        (true, false) => Bytes::Always,
    };
    Ok((bytes, found.media))
}

fn look<'d>(
    document: &'d Document,
    schema: Part<'d>,
    seen: &mut HashSet<*const Value>,
    found: &mut Found<'d>,
) -> Result<(), String> {
    let mut waiting = vec![schema];
    while let Some(part) = waiting.pop() {
        document.budget.look(1)?;
        let schema = document.follow(part)?;
        let key: *const Value = schema.value;
        if !seen.insert(key) {
            continue;
        }
        if seen.len() > MAX_STEPS {
            return Err(format!("its body is combined of more than {MAX_STEPS} schemas"));
        }
        if is_bytes(schema.value) {
            found.bytes = true;
            found.media = found.media.or(schema.text("contentMediaType"));
            continue;
        }
        let before = waiting.len();
        for list in ["anyOf", "oneOf", "allOf", "prefixItems"] {
            waiting.extend(schema.get(list).into_iter().flat_map(Part::items));
        }
        waiting.extend(schema.get("items").filter(|items| items.value.is_object()));
        // What only describes is no value of its own, as beside a reference.
        let is_typed = ["type", "enum", "const", "properties", "additionalProperties"]
            .iter()
            .any(|key| schema.value.get(*key).is_some());
        let is_null =
            schema.text("type") == Some("null") || schema.value.get("enum") == Some(&Value::from(vec![Value::Null]));
        if waiting.len() == before && is_typed && !is_null {
            found.others = true;
        }
    }
    Ok(())
}

/// Whether what says `string` beside branches of bytes says it of them.
pub(super) fn is_said_of_branches(schema: &Value) -> bool {
    only_type(schema) == Some("string") && ["anyOf", "oneOf", "allOf"].iter().any(|key| schema.get(*key).is_some())
}
