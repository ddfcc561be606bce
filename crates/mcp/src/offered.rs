//! What servers list of their tools, as every client takes it. A client reads a list as a whole: one field of one tool
//! that is not as the specification has it, and the list is refused with all tools in it. Here each field is what the
//! strictest of the official SDKs takes (`ToolSchema` of TypeScript, `Tool` of Python), or is left out.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use toolwright_core::schema::wrapped;

use crate::revision::Era;

/// An input schema: of an object, since arguments always are one.
#[must_use]
pub fn input_schema(schema: Option<&Value>) -> Cow<'_, Value> {
    match schema {
        Some(schema @ Value::Object(fields)) => {
            let mended = mended_root(fields);
            let is_of_object = wrapped::is_of_object(schema);
            match mended {
                None if is_of_object => Cow::Borrowed(schema),
                mended => {
                    let mut fields = mended.unwrap_or_else(|| fields.clone());
                    fields.insert("type".into(), "object".into());
                    Cow::Owned(Value::Object(fields))
                }
            }
        }
        _ => Cow::Owned(json!({"type": "object"})),
    }
}

/// Whether arguments, which are an object, may fit a schema as far as its `type` says.
#[must_use]
pub fn takes_objects(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(only)) => only == "object",
        Some(Value::Array(any)) => any.iter().any(|one| one == "object"),
        _ => true,
    }
}

/// An output schema, for clients of `era`: up to 2025-11-25 it is of an object, and one of anything else is put inside
/// one, as results are by [`structured`].
#[must_use]
pub fn output_schema(schema: &Value, era: Era) -> Cow<'_, Value> {
    let Some(fields) = schema.as_object() else { return Cow::Borrowed(schema) };
    let schema = mended_root(fields).map_or(Cow::Borrowed(schema), |fields| Cow::Owned(Value::Object(fields)));
    match era {
        Era::Modern => schema,
        Era::Legacy => match schema {
            Cow::Borrowed(schema) => wrapped::of_object(schema),
            Cow::Owned(schema) => Cow::Owned(wrapped::of_object(&schema).into_owned()),
        },
    }
}

/// A structured result of a tool with this output schema, for clients of `era`.
#[must_use]
pub fn structured(value: Value, schema: Option<&Value>, era: Era) -> Value {
    let is_object = value.is_object() && schema.is_none_or(wrapped::is_of_object);
    if era == Era::Modern || is_object { value } else { wrapped::around(value) }
}

/// Any other field of a tool; `None`: nothing in it is as it must be. Fields that no revision knows stay.
#[must_use]
pub fn field<'a>(key: &str, value: &'a Value) -> Option<Cow<'a, Value>> {
    match key {
        "annotations" => kept(value, |key, value| match key {
            "title" => value.is_string(),
            "readOnlyHint" | "destructiveHint" | "idempotentHint" | "openWorldHint" => value.is_boolean(),
            _ => true,
        }),
        "execution" => kept(value, |key, value| match key {
            "taskSupport" => matches!(value.as_str(), Some("required" | "optional" | "forbidden")),
            _ => true,
        }),
        "icons" => icons(value),
        "_meta" => value.is_object().then_some(Cow::Borrowed(value)),
        _ => Some(Cow::Borrowed(value)),
    }
}

/// What is wrong with how a server lists a tool, by the names of its fields: all that is mended here.
#[must_use]
pub fn mistakes(tool: &Map<String, Value>) -> Vec<&str> {
    let is_sound = |key: &str, value: &Value| match key {
        "inputSchema" => matches!(input_schema(Some(value)), Cow::Borrowed(_)),
        "outputSchema" => value.is_object() && matches!(output_schema(value, Era::Modern), Cow::Borrowed(_)),
        "title" | "description" => value.is_string(),
        key => matches!(field(key, value), Some(Cow::Borrowed(_))),
    };
    let mut wrong: Vec<&str> =
        tool.iter().filter(|(key, value)| !is_sound(key, value)).map(|(key, _)| key.as_str()).collect();
    if !tool.contains_key("inputSchema") {
        wrong.push("inputSchema");
    }
    wrong
}

/// An object without the fields that `is_sound` does not let through.
fn kept(value: &Value, is_sound: impl Fn(&str, &Value) -> bool) -> Option<Cow<'_, Value>> {
    let fields = value.as_object()?;
    if fields.iter().all(|(key, value)| is_sound(key, value)) {
        return Some(Cow::Borrowed(value));
    }
    let mut sound = fields.clone();
    sound.retain(|key, value| is_sound(key, value));
    Some(Cow::Owned(Value::Object(sound)))
}

fn icons(value: &Value) -> Option<Cow<'_, Value>> {
    let icons = value.as_array()?;
    let is_sound = |key: &str, value: &Value| match key {
        "mimeType" => value.is_string(),
        "sizes" => value.as_array().is_some_and(|sizes| sizes.iter().all(Value::is_string)),
        "theme" => matches!(value.as_str(), Some("light" | "dark")),
        _ => true,
    };
    let sound: Vec<Cow<'_, Value>> = icons
        .iter()
        .filter(|icon| icon.get("src").is_some_and(Value::is_string))
        .filter_map(|icon| kept(icon, is_sound))
        .collect();
    if sound.len() == icons.len() && sound.iter().all(|icon| matches!(icon, Cow::Borrowed(_))) {
        return Some(Cow::Borrowed(value));
    }
    Some(Cow::Owned(sound.into_iter().map(Cow::into_owned).collect()))
}

/// The fields of a schema with those keywords at its root mended that clients look at; `None` where nothing is wrong.
/// What it lets through stays the same, as far as it meant anything.
fn mended_root(fields: &Map<String, Value>) -> Option<Map<String, Value>> {
    let is_sound = |key: &str, value: &Value| match key {
        "$schema" => value.is_string(),
        "properties" => value.as_object().is_some_and(|all| all.values().all(Value::is_object)),
        "required" => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
        _ => true,
    };
    if fields.iter().all(|(key, value)| is_sound(key, value)) {
        return None;
    }
    let mut mended = fields.clone();
    mended.retain(|key, value| match (key.as_str(), value) {
        ("properties", Value::Object(properties)) => {
            // A schema may be `true` or `false`, which not every client reads; anything else means nothing.
            for schema in properties.values_mut().filter(|schema| !schema.is_object()) {
                *schema = if *schema == Value::Bool(false) { json!({"not": {}}) } else { json!({}) };
            }
            true
        }
        ("required", Value::Array(names)) => {
            names.retain(Value::is_string);
            true
        }
        (key, value) => is_sound(key, value),
    });
    Some(mended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_schemas_are_of_objects_and_have_what_clients_look_at_in_its_form() {
        let any = json!({"type": "object"});
        for (given, expect) in [
            (json!(null), any.clone()),
            (json!({}), any.clone()),
            (json!(true), any.clone()),
            (json!({"type": null}), any.clone()),
            (json!({"type": ["object", "null"], "x": 1}), json!({"type": "object", "x": 1})),
            (json!({"properties": {"a": {}}}), json!({"properties": {"a": {}}, "type": "object"})),
            (
                json!({"type": "object", "properties": {"a": true, "b": false, "c": "string", "d": {"x": null}}, "required": ["a", 1]}),
                json!({"type": "object", "properties": {"a": {}, "b": {"not": {}}, "c": {}, "d": {"x": null}}, "required": ["a"]}),
            ),
            (json!({"type": "object", "properties": null, "required": null, "$schema": 7}), any.clone()),
            (json!({"type": "object", "required": true, "properties": []}), any),
        ] {
            assert_eq!(*input_schema(Some(&given)), expect, "{given}");
        }
        assert_eq!(*input_schema(None), json!({"type": "object"}));
        let sound = json!({"type": "object", "properties": {"a": {"required": true}}, "required": [], "later": null});
        assert!(matches!(input_schema(Some(&sound)), Cow::Borrowed(_)));
    }

    #[test]
    fn results_that_are_no_objects_are_put_inside_one_for_older_clients_as_their_schemas_are() {
        let check = |schema: Option<Value>, value: Value, expect: Value| {
            assert_eq!(structured(value.clone(), schema.as_ref(), Era::Modern), value);
            assert_eq!(structured(value, schema.as_ref(), Era::Legacy), expect, "{schema:?}");
            let Some(schema) = schema else { return };
            assert_eq!(*output_schema(&schema, Era::Modern), schema);
            let shown = output_schema(&schema, Era::Legacy);
            assert_eq!(shown["type"], "object");
            assert_eq!(*shown == schema, wrapped::is_of_object(&schema), "{shown}");
        };
        let object = || json!({"a": 1});
        check(Some(json!({"type": "object"})), object(), object());
        check(Some(json!({"type": "array"})), json!([1]), json!({"result": [1]}));
        check(Some(json!({"anyOf": [{"type": "object"}]})), object(), json!({"result": object()}));
        check(Some(json!({"type": "null"})), Value::Null, json!({"result": null}));
        check(None, object(), object());
        check(None, json!("text"), json!({"result": "text"}));
    }

    #[test]
    fn other_fields_are_as_the_strictest_client_takes_them_or_left_out() {
        for (key, given, expect) in [
            ("annotations", json!(null), None),
            (
                "annotations",
                json!({"title": null, "readOnlyHint": "yes", "openWorldHint": true, "later": null}),
                Some(json!({"openWorldHint": true, "later": null})),
            ),
            ("execution", json!(null), None),
            ("execution", json!({"taskSupport": "maybe"}), Some(json!({}))),
            ("_meta", json!([]), None),
            ("_meta", json!({"a": null}), Some(json!({"a": null}))),
            ("icons", json!(null), None),
            (
                "icons",
                json!([{"src": "a", "sizes": "48x48", "theme": null}, {"src": 1}, "x", {"src": "b"}]),
                Some(json!([{"src": "a"}, {"src": "b"}])),
            ),
            ("later", json!(null), Some(json!(null))),
        ] {
            assert_eq!(field(key, &given).map(Cow::into_owned), expect, "{key} {given}");
        }
        let sound = json!([{"src": "a", "sizes": ["any"], "theme": "dark", "mimeType": "image/png", "later": 1}]);
        assert!(matches!(field("icons", &sound), Some(Cow::Borrowed(_))));
    }

    #[test]
    fn mistakes_are_named_by_their_fields() {
        let check = |tool: Value, expect: &[&str]| {
            assert_eq!(mistakes(tool.as_object().expect("object")), expect, "{tool}");
        };
        let schema = json!({"type": "object"});
        check(json!({"name": "a", "inputSchema": schema}), &[]);
        check(json!({"name": "a"}), &["inputSchema"]);
        check(
            json!({"name": "a", "title": null, "inputSchema": {}, "outputSchema": {"type": "array"}, "icons": null, "_meta": {}}),
            &["title", "inputSchema", "icons"],
        );
    }
}
