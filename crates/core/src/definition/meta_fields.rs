//! Separates the meta fields of a tool's schema from its parameters.

use serde_json::{Map, Value, json};

use super::ToolDefinition;
use crate::identity::tool_id::ToolId;
use crate::model::call_meta::{ACTIVITY, DELEGATE, META_FIELDS, OUTPUT, TOOL};

/// A meta field of a schema that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadMetaField {
    /// Its name.
    pub field: &'static str,
    /// The fault, and the remedy.
    pub why: String,
}

impl ToolDefinition {
    /// Moves the meta fields out of the properties of `parameters`: `_output` becomes the output schema, an `_activity`
    /// or `_delegate` with a single value becomes that of the tool, and the others go to `call_fields`. Schemas without
    /// meta fields do not change.
    ///
    /// # Errors
    /// [`BadMetaField`] for a field that contradicts the definition.
    pub fn lift_meta_fields(&mut self) -> Result<(), BadMetaField> {
        let Some(parameters) = &mut self.parameters else { return Ok(()) };
        let fields = take_fields(parameters);
        let defs = parameters.get("$defs").cloned();
        self.provider_schema.iter_mut().for_each(|schema| drop(take_fields(schema)));
        for (field, schema) in fields {
            let fixed = schema.get("const").and_then(Value::as_str);
            let differs = |what: &str, other: &str| BadMetaField {
                field,
                why: format!("says `{what}`, and the tool is otherwise defined with `{other}`: leave one of them out"),
            };
            match (field, fixed) {
                (TOOL, None) => {}
                (TOOL, Some(name)) => {
                    let bare = ToolId::foreign(self.id.namespace(), name);
                    let is_bare = bare.is_ok_and(|bare| bare.name() == self.id.name());
                    if !is_bare && ![self.id.as_str(), self.id.without_version()].contains(&name) {
                        return Err(differs(name, self.id.name()));
                    }
                }
                (OUTPUT, _) => {
                    let output = with_defs(schema, defs.as_ref());
                    if self.output_schema.as_ref().is_some_and(|other| *other != output) {
                        let why = "stands beside another output schema: leave one of them out".into();
                        return Err(BadMetaField { field, why });
                    }
                    self.output_schema = Some(output);
                }
                (ACTIVITY, Some(name)) => {
                    if let Some(other) = self.activity.as_deref().filter(|other| *other != name) {
                        return Err(differs(name, other));
                    }
                    self.activity = Some(name.to_owned());
                }
                (DELEGATE, Some(name)) => {
                    if let Some(other) = self.delegate.as_ref().filter(|other| *other != name) {
                        return Err(differs(name, &other.to_string()));
                    }
                    self.delegate = Some(name.into());
                }
                (field, _) => drop(self.call_fields.insert(field.to_owned(), schema)),
            }
        }
        Ok(())
    }
}

/// Removes the meta fields from an object schema.
fn take_fields(schema: &mut Value) -> Vec<(&'static str, Value)> {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return Vec::new() };
    let taken: Vec<_> =
        META_FIELDS.iter().filter_map(|field| Some((*field, properties.shift_remove(*field)?))).collect();
    if !taken.is_empty()
        && let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut)
    {
        required.retain(|name| !taken.iter().any(|(field, _)| name == field));
    }
    taken
}

/// `schema` with the definitions that it may refer to.
fn with_defs(mut schema: Value, defs: Option<&Value>) -> Value {
    if let (Some(object), Some(defs)) = (schema.as_object_mut(), defs)
        && !object.contains_key("$defs")
        && Value::Object(object.clone()).to_string().contains("\"#/$defs/")
    {
        object.insert("$defs".into(), defs.clone());
    }
    schema
}

/// Adds properties to an object schema, of which `required` are required. Their definitions move to the schema's own,
/// for references.
#[must_use]
pub fn with_properties(mut schema: Value, fields: Map<String, Value>, required: &[&str]) -> Value {
    if !schema.is_object() {
        schema = json!({"type": "object", "additionalProperties": true});
    }
    let Some(object) = schema.as_object_mut() else { return schema };
    let (mut properties, mut defs) = (Map::new(), Map::new());
    for (name, mut field) in fields {
        if let Some(Value::Object(own)) = field.as_object_mut().and_then(|field| field.shift_remove("$defs")) {
            defs.extend(own);
        }
        properties.insert(name, field);
    }
    if !defs.is_empty()
        && let Value::Object(known) = object.entry("$defs").or_insert_with(|| json!({}))
    {
        for (name, one) in defs {
            known.entry(name).or_insert(one);
        }
    }
    if let Value::Object(known) = object.entry("properties").or_insert_with(|| json!({})) {
        known.extend(properties);
    }
    if !required.is_empty()
        && let Value::Array(known) = object.entry("required").or_insert_with(|| json!([]))
    {
        known.extend(required.iter().map(|name| Value::from(*name)));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifted(parameters: Value) -> Result<ToolDefinition, BadMetaField> {
        let id = ToolId::parse("tools:judge@1.0.0").expect("id");
        let mut definition = ToolDefinition::new(id, "", Some(parameters));
        definition.lift_meta_fields().map(|()| definition)
    }

    #[test]
    fn meta_fields_leave_the_parameters() {
        let parameters = json!({
            "type": "object",
            "$defs": {"score": {"type": "number"}},
            "properties": {
                "_tool": {"type": "string", "const": "judge"},
                "text": {"type": "string"},
                "_id": {"type": "string"},
                "_activity": {"const": "grade"},
                "_scopes": {"type": "array", "items": {"enum": ["state"]}},
                "_output": {"$ref": "#/$defs/score"},
            },
            "required": ["_tool", "text", "_output"],
        });
        let definition = lifted(parameters).expect("lifted");
        let left = definition.parameters.expect("parameters");
        assert_eq!(left["properties"], json!({"text": {"type": "string"}, "_id": {"type": "string"}}));
        assert_eq!(left["required"], json!(["text"]));
        let output = json!({"$ref": "#/$defs/score", "$defs": {"score": {"type": "number"}}});
        assert_eq!(definition.output_schema, Some(output));
        assert_eq!(definition.activity.as_deref(), Some("grade"));
        assert_eq!(definition.call_fields.keys().collect::<Vec<_>>(), ["_scopes"]);
    }

    #[test]
    fn contradictions_are_refused() {
        let fault = |field: &str, schema: Value| {
            lifted(json!({"type": "object", "properties": {field: schema}})).map(|_| ()).map_err(|bad| bad.field)
        };
        assert_eq!(fault("_tool", json!({"const": "other"})), Err("_tool"));
        assert_eq!(fault("_tool", json!({"type": "string"})), Ok(()));
        let id = ToolId::parse("tools:judge@1.0.0").expect("id");
        let schema = json!({"type": "object", "properties": {"_output": {}, "_activity": {"const": "a"}}});
        let mut definition = ToolDefinition::new(id, "", Some(schema));
        definition.activity = Some("b".into());
        assert_eq!(definition.clone().lift_meta_fields().map_err(|bad| bad.field), Err("_activity"));
        definition.output_schema = Some(json!({"type": "string"}));
        assert_eq!(definition.lift_meta_fields().map_err(|bad| bad.field), Err("_output"));
    }

    #[test]
    fn shown_fields_bring_their_definitions() {
        let output = json!({"$ref": "#/$defs/score", "$defs": {"score": {"type": "number"}}});
        let fields = Map::from_iter([("_output".to_owned(), output)]);
        assert_eq!(
            with_properties(json!({"type": "object"}), fields, &["_output"]),
            json!({
                "type": "object",
                "$defs": {"score": {"type": "number"}},
                "properties": {"_output": {"$ref": "#/$defs/score"}},
                "required": ["_output"],
            })
        );
    }
}
