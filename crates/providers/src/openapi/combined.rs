//! Schemas that are combined of others, looked through each once: a document may combine them in circles, and in fans
//! whose paths are more than anybody can follow.

use std::collections::HashSet;

use serde_json::Value;

use super::document::{Document, Part};

/// Schemas and properties that are looked at for one body.
const MAX_STEPS: usize = 100_000;

/// What may still be looked at for one body.
pub(super) struct Steps(usize);

impl Steps {
    /// All that one body may take.
    pub(super) const fn new() -> Self {
        Self(MAX_STEPS)
    }

    /// Takes steps, which are the document's too.
    fn take(&mut self, document: &Document, count: usize) -> Result<(), String> {
        document.budget.look(count)?;
        let left = self.0.checked_sub(count);
        self.0 = left.ok_or_else(|| format!("its body is combined of more than {MAX_STEPS} schemas and properties"))?;
        Ok(())
    }
}

/// A schema and those that it is combined of under `keys`, in the order of the document, each once.
///
/// # Errors
/// A reference that leads nowhere, or that they are too many.
pub(super) fn combined<'d>(
    document: &'d Document,
    schema: Part<'d>,
    keys: &[&str],
    steps: &mut Steps,
) -> Result<Vec<Part<'d>>, String> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let mut waiting = vec![schema];
    while let Some(part) = waiting.pop() {
        steps.take(document, 1)?;
        let schema = document.follow(part)?;
        let key: *const Value = schema.value;
        if !seen.insert(key) {
            continue;
        }
        found.push(schema);
        // The first of them is the next that is taken.
        let inside: Vec<_> = keys.iter().filter_map(|key| schema.get(key)).flat_map(Part::items).collect();
        steps.take(document, inside.len())?;
        waiting.extend(inside.into_iter().rev());
    }
    Ok(found)
}

/// The properties of a schema and of those that it is combined of; of one name the first.
///
/// # Errors
/// As [`combined`].
pub(super) fn properties<'d>(
    document: &'d Document,
    schema: Option<Part<'d>>,
    steps: &mut Steps,
) -> Result<Vec<(String, Part<'d>)>, String> {
    let Some(schema) = schema else { return Ok(Vec::new()) };
    let (mut found, mut names) = (Vec::new(), HashSet::new());
    for schema in combined(document, schema, &["allOf", "anyOf", "oneOf"], steps)? {
        let stated = schema.get("properties");
        for (name, property) in stated.into_iter().flat_map(Part::members) {
            steps.take(document, 1)?;
            if names.insert(name) {
                found.push((name.clone(), property));
            }
        }
    }
    Ok(found)
}
