//! Discriminators: what tells the branches of a schema apart.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::super::budget::of_text;
use super::super::document::Part;
use super::{Direction, Schemas};

impl<'d> Schemas<'d> {
    /// Says in each branch which values of the discriminator are its own, as the names of schemas do not. What a branch
    /// says of that property itself goes first; responses are left as they are stated, and so is the branch for values that
    /// no other has, and for none (OpenAPI 3.2, `defaultMapping`).
    pub(super) fn discriminate(&self, out: &mut Map<String, Value>, part: Part<'d>) -> Result<(), String> {
        let Some(discriminator) = part.get("discriminator") else { return Ok(()) };
        let Some(name) = discriminator.text("propertyName") else { return Ok(()) };
        if matches!(self.direction, Direction::Response) {
            return Ok(());
        }
        let mapped = mapped(discriminator);
        let default = discriminator.text("defaultMapping");
        for key in ["oneOf", "anyOf"] {
            let Some(Value::Array(converted)) = out.get_mut(key) else { continue };
            for (branch, stated) in converted.iter_mut().zip(part.get(key).into_iter().flat_map(Part::items)) {
                let Some(reference) = stated.text("$ref") else { continue };
                if default.is_some_and(|default| [reference, last(reference)].contains(&default)) {
                    continue;
                }
                let Some(property) = self.property(stated, name, &mut HashSet::new())? else { continue };
                let is_settled = self
                    .document
                    .follow(property)
                    .map_or(true, |schema| schema.get("enum").is_some() || schema.get("const").is_some());
                if !is_settled && !self.is_hidden(property) {
                    let values = values(&mapped, reference);
                    let texts = values.iter().map(|value| 1 + of_text(value)).sum::<usize>();
                    self.document.budget.take(texts + 2 * of_text(name))?;
                    let own = json!({"properties": {name: {"enum": values}}, "required": [name]});
                    *branch = json!({"allOf": [branch.take(), own]});
                }
            }
        }
        Ok(())
    }
}

/// The values of a discriminator by what they are mapped to, each with its place in the mapping.
fn mapped(discriminator: Part<'_>) -> HashMap<&str, Vec<(usize, &str)>> {
    let mut mapped: HashMap<&str, Vec<(usize, &str)>> = HashMap::new();
    let mapping = discriminator.get("mapping").into_iter().flat_map(Part::members);
    for (at, (value, target)) in mapping.enumerate() {
        if let Some(target) = target.value.as_str() {
            mapped.entry(target).or_default().push((at, value));
        }
    }
    mapped
}

/// The values of a discriminator that stand for the schema of this reference: those that are mapped to it, else its name.
fn values<'m>(mapped: &HashMap<&str, Vec<(usize, &'m str)>>, reference: &'m str) -> Vec<&'m str> {
    let last = last(reference);
    let mut meant: Vec<_> = mapped.get(reference).into_iter().flatten().copied().collect();
    if last != reference {
        meant.extend(mapped.get(last).into_iter().flatten().copied());
    }
    if meant.is_empty() {
        return vec![last];
    }
    meant.sort_unstable();
    meant.into_iter().map(|(_, value)| value).collect()
}

/// The name of the schema of this reference.
fn last(reference: &str) -> &str {
    reference.rsplit(['/', '#']).next().unwrap_or_default()
}
