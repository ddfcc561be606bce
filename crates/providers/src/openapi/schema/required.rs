//! Which properties are asked for: those that go this way, wherever a schema or what it is all of states them.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::super::budget::of_text;
use super::super::document::Part;
use super::{Direction, Schemas};

impl<'d> Schemas<'d> {
    /// A property of a schema, or of one of those that it is all of and that were not `seen`.
    ///
    /// # Errors
    /// That it takes too long.
    pub(super) fn property(
        &self,
        part: Part<'d>,
        name: &str,
        seen: &mut HashSet<*const Value>,
    ) -> Result<Option<Part<'d>>, String> {
        let mut waiting = vec![part];
        while let Some(part) = waiting.pop() {
            if !self.is_news(part, seen)? {
                continue;
            }
            if !self.await_target(part, &mut waiting) {
                continue;
            }
            let own = part.get("properties").and_then(|properties| properties.get(name));
            if own.is_some() {
                return Ok(own);
            }
            self.await_wholes(part, &mut waiting)?;
        }
        Ok(None)
    }

    /// Whether a schema was not `seen`, which takes a step.
    fn is_news(&self, part: Part<'d>, seen: &mut HashSet<*const Value>) -> Result<bool, String> {
        self.document.budget.look(1 + part.text("$ref").map_or(0, of_text))?;
        let key: *const Value = part.value;
        Ok(seen.insert(key))
    }

    /// Adds what a schema refers to; returns whether what stands beside that holds too.
    fn await_target(&self, part: Part<'d>, waiting: &mut Vec<Part<'d>>) -> bool {
        let Some(reference) = part.text("$ref") else { return true };
        waiting.extend(self.document.target(part.file, reference).ok());
        self.document.version.has_json_schema()
    }

    /// Adds those that a schema is all of, the first to be taken next.
    fn await_wholes(&self, part: Part<'d>, waiting: &mut Vec<Part<'d>>) -> Result<(), String> {
        let Some(all) = part.get("allOf") else { return Ok(()) };
        let from = waiting.len();
        self.document.budget.look(all.value.as_array().map_or(0, Vec::len))?;
        waiting.extend(all.items());
        if let Some(added) = waiting.get_mut(from..) {
            added.reverse();
        }
        Ok(())
    }

    /// Whether a schema asks, by itself or by what it is all of, for a property that only those around it say, and that does
    /// not go this way: as a definition, which others refer to, it would ask for it still.
    pub(super) fn asks_for_hidden(&self, target: Part<'d>) -> Result<bool, String> {
        if self.wholes.is_empty() {
            return Ok(false);
        }
        let (mut waiting, mut seen, mut known) = (vec![target], HashSet::new(), HashSet::new());
        while let Some(part) = waiting.pop() {
            if !self.is_news(part, &mut seen)? {
                continue;
            }
            if !self.await_target(part, &mut waiting) {
                continue;
            }
            for name in self.names_required(part)? {
                if known.insert(name)
                    && self.property(target, name, &mut HashSet::new())?.is_none()
                    && self.is_hidden_around(name, &mut HashSet::new())?
                {
                    return Ok(true);
                }
            }
            self.await_wholes(part, &mut waiting)?;
        }
        Ok(false)
    }

    /// Whether a property of those around the schema at hand does not go this way.
    fn is_hidden_around(&self, name: &str, seen: &mut HashSet<*const Value>) -> Result<bool, String> {
        for whole in self.wholes.iter().rev() {
            if let Some(property) = self.property(*whole, name, seen)? {
                return Ok(self.is_hidden(property));
            }
        }
        Ok(false)
    }

    /// The names in `required`, each once.
    fn names_required(&self, part: Part<'d>) -> Result<Vec<&'d str>, String> {
        let names = part.value.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        self.document.budget.look(names.len())?;
        let mut seen = HashSet::new();
        Ok(names.iter().filter_map(Value::as_str).filter(|name| seen.insert(*name)).collect())
    }

    /// Whether a property does not go this way.
    pub(super) fn is_hidden(&self, schema: Part<'d>) -> bool {
        let mark = match self.direction {
            Direction::Request => "readOnly",
            Direction::Response => "writeOnly",
        };
        let is_marked = |part: Part<'_>| part.value.get(mark).and_then(Value::as_bool) == Some(true);
        is_marked(schema) || self.document.follow(schema).is_ok_and(is_marked)
    }

    /// `required`, but for properties that are left out: those of any schema that this is all of, or is a part of.
    pub(super) fn required(&self, out: &mut Map<String, Value>, part: Part<'d>) -> Result<(), String> {
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
                None => self.is_hidden_around(name, &mut seen)?,
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
    use serde_json::json;

    use super::super::super::document::{Document, Origin};
    use super::super::Binary;
    use super::*;

    #[test]
    fn required_names_are_looked_for_once_each_and_within_bounds() {
        let convert = |item: Value, names: Vec<String>| {
            // The one that hides `a` is the last of many.
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
