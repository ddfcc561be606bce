//! List results of LLM-backed tools, wrapped in an object because structured results are objects.

use serde_json::{Value, json};

use super::llm::LlmDefinition;

/// Key that wraps a list result.
const ITEMS: &str = "items";

impl LlmDefinition {
    /// Wraps list outputs, of the tool or a variant, in an object with the list under
    /// `items`.
    #[must_use]
    pub fn with_listed_output(mut self) -> Self {
        let own = self.output_schema.as_ref().is_some_and(is_list);
        for variant in &mut self.variants {
            let is_listed = variant.output_schema.as_ref().map_or(own, is_list);
            listed(variant.output_schema.as_mut(), variant.example.as_mut(), is_listed);
        }
        listed(self.output_schema.as_mut(), self.example.as_mut(), own);
        self
    }
}

/// Whether a schema describes a list, directly or through a local reference.
fn is_list(schema: &Value) -> bool {
    let referred = || schema["$ref"].as_str().and_then(|reference| schema.pointer(reference.strip_prefix('#')?));
    schema["type"] == "array" || referred().is_some_and(|referred| referred["type"] == "array")
}

/// Returns the list wrapped in an object, if the schema describes an object with only a list.
#[must_use]
pub(crate) fn as_listed(list: Value, schema: &Value) -> Option<Value> {
    let properties = schema["properties"].as_object().filter(|properties| properties.len() == 1)?;
    (list.is_array() && properties.contains_key(ITEMS)).then(|| json!({ITEMS: list}))
}

/// Wraps a list and its example in an object.
fn listed(schema: Option<&mut Value>, example: Option<&mut Value>, is_listed: bool) {
    if let Some(schema) = schema.filter(|_| is_listed) {
        let mut items = schema.take();
        let mut object = json!({"type": "object", "required": [ITEMS], "additionalProperties": false});
        // References use paths from the root.
        for key in SHARED {
            if let Some(shared) = items.as_object_mut().and_then(|items| items.shift_remove(key)) {
                object[key] = shared;
            }
        }
        moved(&mut items);
        for key in SHARED {
            object.get_mut(key).into_iter().for_each(moved);
        }
        object["properties"] = json!({ITEMS: items});
        *schema = object;
    }
    if let Some(example) = example.filter(|example| is_listed && example.is_array()) {
        *example = json!({ITEMS: example.take()});
    }
}

/// Keywords of a schema that stay at its root.
const SHARED: [&str; 3] = ["$schema", "$defs", "definitions"];

/// Adjusts references to the list's new place.
fn moved(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                let place = value.as_str().filter(|_| key == "$ref").and_then(|text| text.strip_prefix('#'));
                let stays = |place: &&str| !place.starts_with("/$defs/") && !place.starts_with("/definitions/");
                match place.filter(|place| place.is_empty() || place.starts_with('/')).filter(stays) {
                    Some(place) => *value = format!("#/properties/{ITEMS}{place}").into(),
                    None => moved(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(moved),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::llm::written;

    #[test]
    fn declared_lists_are_wrapped_in_objects() {
        let list = json!({"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}});
        let by_reference =
            json!({"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}});
        let object = json!({"type": "object", "properties": {"l": {"type": "array"}}});
        let variants = json!([
            {"id": "a", "outputSchema": by_reference, "outputExample": [[]]}, {"id": "b", "outputExample": ["x"]},
            {"id": "c", "outputSchema": object, "outputExample": {"l": []}},
        ]);
        let written = written(json!({"outputSchema": list, "outputExample": [[]], "variants": variants}));
        let definition = written.expect("a definition").with_listed_output();
        definition.check().expect("sound");
        let own = definition.output_schema.as_ref().expect("a schema");
        assert_eq!(own["properties"][ITEMS]["items"]["anyOf"][1], json!({"$ref": "#/properties/items"}));
        let schema = |at: usize| definition.variants[at].output_schema.as_ref();
        let (first, third) = (schema(0).expect("one"), schema(2).expect("one"));
        assert_eq!(
            (&first["properties"][ITEMS]["$ref"], &first["$defs"]["l"]["type"]),
            (&json!("#/$defs/l"), &json!("array"))
        );
        assert_eq!((schema(1), third), (None, &object));
        let examples: Vec<_> =
            definition.variants.iter().map(|variant| variant.example.clone().expect("one")).collect();
        assert_eq!(examples, [json!({"items": [[]]}), json!({"items": ["x"]}), json!({"l": []})]);
        assert_eq!(definition.example, Some(json!({"items": [[]]})));
    }
}
