//! Bounded walks over the schemas of a document: combined schemas, bytes, discriminators and required properties.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::openapi::document::{Document, DocumentPart, of_text};
use crate::openapi::schema::{Direction, Schemas};
use crate::openapi::schema::{is_bytes, only_type};

/// The most schemas and properties that are examined for one body.
const MAX_STEPS: usize = 100_000;

/// The remaining steps for one body.
pub(super) struct StepBudget(usize);

impl StepBudget {
    /// Creates the full number for one body.
    pub(super) const fn new() -> Self {
        Self(MAX_STEPS)
    }

    /// Takes steps, which also count for the document.
    fn take(&mut self, document: &Document, count: usize) -> Result<(), String> {
        document.budget.look(count)?;
        let left = self.0.checked_sub(count);
        self.0 = left.ok_or_else(|| format!("its body is combined of more than {MAX_STEPS} schemas and properties"))?;
        Ok(())
    }
}

/// Returns a schema and those that it combines under `keys`, in the order of the document, each once.
///
/// # Errors
/// A reference cannot be resolved, or there are too many.
pub(super) fn combined<'d>(
    document: &'d Document,
    schema: DocumentPart<'d>,
    keys: &[&str],
    steps: &mut StepBudget,
) -> Result<Vec<DocumentPart<'d>>, String> {
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
        // The first of them is taken next.
        let inside: Vec<_> = keys.iter().filter_map(|key| schema.get(key)).flat_map(DocumentPart::items).collect();
        steps.take(document, inside.len())?;
        waiting.extend(inside.into_iter().rev());
    }
    Ok(found)
}

/// Returns the properties of a schema and of those that it combines; of equal names the first.
///
/// # Errors
/// As [`combined`].
pub(super) fn properties<'d>(
    document: &'d Document,
    schema: Option<DocumentPart<'d>>,
    steps: &mut StepBudget,
) -> Result<Vec<(String, DocumentPart<'d>)>, String> {
    let Some(schema) = schema else { return Ok(Vec::new()) };
    let (mut found, mut names) = (Vec::new(), HashSet::new());
    for schema in combined(document, schema, &["allOf", "anyOf", "oneOf"], steps)? {
        let stated = schema.get("properties");
        for (name, property) in stated.into_iter().flat_map(DocumentPart::members) {
            steps.take(document, 1)?;
            if names.insert(name) {
                found.push((name.clone(), property));
            }
        }
    }
    Ok(found)
}

/// Whether the values of a schema are bytes. A list counts as its items, and `null` is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainsBytes {
    /// No value is.
    Never,
    /// Some values are.
    Sometimes,
    /// All values are.
    Always,
}

/// Properties found in a schema.
#[derive(Debug, Default)]
struct SchemaFindings<'d> {
    bytes: bool,
    others: bool,
    media: Option<&'d str>,
}

/// Returns whether values of a schema are bytes, and their declared media type.
///
/// # Errors
/// A reference cannot be resolved, or it takes too long.
pub(super) fn bytes_of<'d>(
    document: &'d Document,
    schema: DocumentPart<'d>,
) -> Result<(ContainsBytes, Option<&'d str>), String> {
    let mut found = SchemaFindings::default();
    look(document, schema, &mut HashSet::new(), &mut found)?;
    let bytes = match (found.bytes, found.others) {
        (false, _) => ContainsBytes::Never,
        (true, true) => ContainsBytes::Sometimes,
        (true, false) => ContainsBytes::Always,
    };
    Ok((bytes, found.media))
}

fn look<'d>(
    document: &'d Document,
    schema: DocumentPart<'d>,
    seen: &mut HashSet<*const Value>,
    found: &mut SchemaFindings<'d>,
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
            waiting.extend(schema.get(list).into_iter().flat_map(DocumentPart::items));
        }
        waiting.extend(schema.get("items").filter(|items| items.value.is_object()));
        // A schema of annotations only adds no value, as beside a reference.
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

/// Returns whether a `string` type beside binary branches is about these.
pub(super) fn applies_to_branches(schema: &Value) -> bool {
    only_type(schema) == Some("string") && ["anyOf", "oneOf", "allOf"].iter().any(|key| schema.get(*key).is_some())
}

impl<'d> Schemas<'d> {
    /// Restricts the discriminator in each branch to its own values, because the schemas' names do not. A branch's own
    /// declaration of that property has precedence. Responses are unchanged, and so is the branch for unknown or
    /// missing values (OpenAPI 3.2, `defaultMapping`).
    pub(super) fn discriminate(&self, out: &mut Map<String, Value>, part: DocumentPart<'d>) -> Result<(), String> {
        let Some(discriminator) = part.get("discriminator") else { return Ok(()) };
        let Some(name) = discriminator.text("propertyName") else { return Ok(()) };
        if matches!(self.direction, Direction::Response) {
            return Ok(());
        }
        let mapped = mapped(discriminator);
        let default = discriminator.text("defaultMapping");
        for key in ["oneOf", "anyOf"] {
            let Some(Value::Array(converted)) = out.get_mut(key) else { continue };
            for (branch, stated) in converted.iter_mut().zip(part.get(key).into_iter().flat_map(DocumentPart::items)) {
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

/// Returns the values of a discriminator by their target, each with its position in the mapping.
fn mapped(discriminator: DocumentPart<'_>) -> HashMap<&str, Vec<(usize, &str)>> {
    let mut mapped: HashMap<&str, Vec<(usize, &str)>> = HashMap::new();
    let mapping = discriminator.get("mapping").into_iter().flat_map(DocumentPart::members);
    for (at, (value, target)) in mapping.enumerate() {
        if let Some(target) = target.value.as_str() {
            mapped.entry(target).or_default().push((at, value));
        }
    }
    mapped
}

/// Returns the discriminator values for the schema of this reference: the mapped ones, else its name.
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

/// Returns the name of the schema of this reference.
fn last(reference: &str) -> &str {
    reference.rsplit(['/', '#']).next().unwrap_or_default()
}

impl<'d> Schemas<'d> {
    /// Returns a property of a schema, or of its `allOf` schemas that were not `seen`.
    ///
    /// # Errors
    /// It takes too long.
    pub(super) fn property(
        &self,
        part: DocumentPart<'d>,
        name: &str,
        seen: &mut HashSet<*const Value>,
    ) -> Result<Option<DocumentPart<'d>>, String> {
        let mut waiting = vec![part];
        while let Some(part) = waiting.pop() {
            if !self.is_unvisited(part, seen)? {
                continue;
            }
            if !self.await_target(part, &mut waiting) {
                continue;
            }
            let own = part.get("properties").and_then(|properties| properties.get(name));
            if own.is_some() {
                return Ok(own);
            }
            self.push_all_of(part, &mut waiting)?;
        }
        Ok(None)
    }

    /// Returns whether a schema was not `seen`, which takes a step.
    fn is_unvisited(&self, part: DocumentPart<'d>, seen: &mut HashSet<*const Value>) -> Result<bool, String> {
        self.document.budget.look(1 + part.text("$ref").map_or(0, of_text))?;
        let key: *const Value = part.value;
        Ok(seen.insert(key))
    }

    /// Adds the target of a schema's reference. Returns whether the keywords beside it apply too.
    fn await_target(&self, part: DocumentPart<'d>, waiting: &mut Vec<DocumentPart<'d>>) -> bool {
        let Some(reference) = part.text("$ref") else { return true };
        waiting.extend(self.document.target(part.file, reference).ok());
        self.document.version.has_json_schema()
    }

    /// Adds the `allOf` schemas of a schema, the first to be taken next.
    fn push_all_of(&self, part: DocumentPart<'d>, waiting: &mut Vec<DocumentPart<'d>>) -> Result<(), String> {
        let Some(all) = part.get("allOf") else { return Ok(()) };
        let from = waiting.len();
        self.document.budget.look(all.value.as_array().map_or(0, Vec::len))?;
        waiting.extend(all.items());
        if let Some(added) = waiting.get_mut(from..) {
            added.reverse();
        }
        Ok(())
    }

    /// Returns whether a schema, itself or by `allOf`, requires a property that only the enclosing schemas declare and
    /// that does not apply in this direction: as a shared definition it would still require it.
    pub(super) fn asks_for_hidden(&self, target: DocumentPart<'d>) -> Result<bool, String> {
        if self.wholes.is_empty() {
            return Ok(false);
        }
        let (mut waiting, mut seen, mut known) = (vec![target], HashSet::new(), HashSet::new());
        while let Some(part) = waiting.pop() {
            if !self.is_unvisited(part, &mut seen)? {
                continue;
            }
            if !self.await_target(part, &mut waiting) {
                continue;
            }
            for name in self.names_required(part)? {
                if known.insert(name)
                    && self.property(target, name, &mut HashSet::new())?.is_none()
                    && self.is_hidden_by_enclosing(name, &mut HashSet::new())?
                {
                    return Ok(true);
                }
            }
            self.push_all_of(part, &mut waiting)?;
        }
        Ok(false)
    }

    /// Returns whether a property of the enclosing schemas does not apply in this direction.
    fn is_hidden_by_enclosing(&self, name: &str, seen: &mut HashSet<*const Value>) -> Result<bool, String> {
        for whole in self.wholes.iter().rev() {
            if let Some(property) = self.property(*whole, name, seen)? {
                return Ok(self.is_hidden(property));
            }
        }
        Ok(false)
    }

    /// Returns the names in `required`, each once.
    fn names_required(&self, part: DocumentPart<'d>) -> Result<Vec<&'d str>, String> {
        let names = part.value.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        self.document.budget.look(names.len())?;
        let mut seen = HashSet::new();
        Ok(names.iter().filter_map(Value::as_str).filter(|name| seen.insert(*name)).collect())
    }

    /// Returns whether a property does not apply in this direction.
    pub(super) fn is_hidden(&self, schema: DocumentPart<'d>) -> bool {
        let mark = match self.direction {
            Direction::Request => "readOnly",
            Direction::Response => "writeOnly",
        };
        let is_marked = |part: DocumentPart<'_>| part.value.get(mark).and_then(Value::as_bool) == Some(true);
        is_marked(schema) || self.document.follow(schema).is_ok_and(is_marked)
    }

    /// Writes `required` without left-out properties of any schema that this combines or is combined in.
    pub(super) fn required(&self, out: &mut Map<String, Value>, part: DocumentPart<'d>) -> Result<(), String> {
        let mut kept = Vec::new();
        for name in self.names_required(part)? {
            let own = part.get("properties").and_then(|properties| properties.get(name));
            let mut seen = HashSet::new();
            let property = match own {
                Some(own) => Some(own),
                None => self.property(part, name, &mut seen)?,
            };
            let is_hidden = match property {
                Some(property) => self.is_hidden(property),
                None => self.is_hidden_by_enclosing(name, &mut seen)?,
            };
            if !is_hidden {
                self.document.budget.take(1 + of_text(name))?;
                kept.push(Value::from(name));
            }
        }
        if !kept.is_empty() {
            out.insert("required".into(), kept.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::Origin;
    use super::super::schema::Binary;
    use super::*;
    use serde_json::json;

    #[test]
    fn required_names_are_searched_once_within_bounds() {
        let convert = |item: Value, names: Vec<String>| {
            // The item that hides `a` is the last of many.
            let mut items = vec![item; 400];
            items.push(json!({"$ref": "#/components/schemas/H"}));
            let schemas = json!({
                "S": {"allOf": items, "required": names},
                "E": {"type": "object"},
                "H": {"properties": {"a": {"readOnly": true}}},
            });
            let text = json!({"openapi": "3.0.3", "components": {"schemas": schemas}}).to_string();
            let document = Document::read(&text, Origin::File("a.json".into())).expect("a document");
            document.budget.look(19_950_000).expect("fewer than there are");
            let schema = document.root().get("components").and_then(|all| all.get("schemas")?.get("S")).expect("S");
            Schemas::new(&document, Direction::Request, 50_000).convert(schema, Binary::Text)
        };
        for item in [json!({}), json!({"$ref": "#/components/schemas/E"})] {
            let same = convert(item.clone(), vec!["a".to_owned(); 20_000]).expect("looked for once");
            assert_eq!(same.get("required"), None, "{item}");
            let refused = convert(item, (0..100).map(|name| name.to_string()).collect()).expect_err("too many");
            assert!(refused.contains("steps"), "{refused}");
        }
    }
}
