//! Checks and corrects lists of servers (tools, prompts, resources). A client parses a list as a whole: one invalid
//! field makes it refuse the entire list. Here each field is made valid for the strictest official SDK (`ToolSchema` of
//! TypeScript, `Tool` of Python, and so on), or removed.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use toolwright_core::catalogue::ListKind;
use toolwright_core::schema::wrapped;

use crate::protocol::revision::Era;

/// Mistakes that are named in one line of the log.
const NAMED: usize = 5;

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

/// Whether a schema's `type` allows objects, which arguments always are.
#[must_use]
pub fn takes_objects(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(only)) => only == "object",
        Some(Value::Array(any)) => any.iter().any(|one| one == "object"),
        _ => true,
    }
}

/// Returns an output schema for clients of `era`: up to 2025-11-25 other schemas than objects are wrapped in
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
    if era == Era::Modern || is_object { value } else { wrapped::wrap_value(value) }
}

/// Corrects another field of a tool; `None` if no part of it is valid. Unknown fields stay.
#[must_use]
pub fn field<'a>(key: &str, value: &'a Value) -> Option<Cow<'a, Value>> {
    match key {
        "annotations" => valid_part(value, |key, value| match key {
            "title" => value.is_string(),
            "readOnlyHint" | "destructiveHint" | "idempotentHint" | "openWorldHint" => value.is_boolean(),
            _ => true,
        }),
        "execution" => valid_part(value, |key, value| match key {
            "taskSupport" => matches!(value.as_str(), Some("required" | "optional" | "forbidden")),
            _ => true,
        }),
        "icons" => icons(value),
        "_meta" => value.is_object().then_some(Cow::Borrowed(value)),
        _ => Some(Cow::Borrowed(value)),
    }
}

/// Corrects a page of a list for all clients: items with unique names or addresses, and the cursor.
/// Items without a name or address are removed. Returns the corrections, by item, for [`mistakes_warning`].
#[must_use]
pub fn page(kind: ListKind, page: &mut Map<String, Value>) -> Vec<String> {
    let mut mended = Vec::new();
    let mut of_page = Vec::new();
    match page.get_mut(kind.list_key()) {
        Some(Value::Array(items)) => items.retain_mut(|listed| {
            let name = listed.get(kind.item_key()).and_then(Value::as_str).map(str::to_owned);
            let (Some(name), Some(fields)) = (name, listed.as_object_mut()) else {
                mended.push(mistake("an item without a key", &[kind.item_key()]));
                return false;
            };
            let wrong = item(kind, fields);
            if !wrong.is_empty() {
                mended.push(mistake(&name, &wrong));
            }
            true
        }),
        _ => {
            page.insert(kind.list_key().to_owned(), Value::Array(Vec::new()));
            of_page.push(kind.list_key());
        }
    }
    for (key, is_sound) in [("nextCursor", Value::is_string as fn(&Value) -> bool), ("_meta", Value::is_object)] {
        if page.get(key).is_some_and(|value| !is_sound(value)) {
            page.shift_remove(key);
            of_page.push(key);
        }
    }
    if !of_page.is_empty() {
        mended.push(mistake("the list itself", &of_page));
    }
    mended
}

/// Corrects a prompt, resource or template for all clients. A missing `name` is replaced with the address.
/// Returns the corrected fields.
fn item(kind: ListKind, item: &mut Map<String, Value>) -> Vec<String> {
    let mut wrong = Vec::new();
    item.retain(|key, value| {
        let is_kept = |is_sound: bool| if is_sound { FieldCheck::Sound } else { FieldCheck::LeftOut };
        let fate = match key.as_str() {
            "name" | "title" | "description" | "mimeType" => is_kept(value.is_string()),
            "size" => is_kept(value.is_i64() || value.is_u64()),
            "annotations" => fix(value, shown_to),
            "arguments" if kind == ListKind::Prompts => fix(value, arguments),
            "icons" => fix(value, icons),
            "_meta" => is_kept(value.is_object()),
            _ => FieldCheck::Sound,
        };
        if fate != FieldCheck::Sound {
            wrong.push(key.clone());
        }
        fate != FieldCheck::LeftOut
    });
    if !item.contains_key("name")
        && let Some(address) = item.get(kind.item_key()).cloned()
    {
        item.insert("name".into(), address);
        if !wrong.iter().any(|key| key == "name") {
            wrong.push("name".to_owned());
        }
    }
    wrong
}

/// How a field was handled.
#[derive(PartialEq, Eq)]
enum FieldCheck {
    Sound,
    Mended,
    LeftOut,
}

/// Replaces a value with the output of `sound`.
fn fix(value: &mut Value, sound: impl Fn(&Value) -> Option<Cow<'_, Value>>) -> FieldCheck {
    let mended = match sound(value) {
        None => return FieldCheck::LeftOut,
        Some(Cow::Borrowed(_)) => return FieldCheck::Sound,
        Some(Cow::Owned(mended)) => mended,
    };
    *value = mended;
    FieldCheck::Mended
}

/// Describes an item's invalid fields, for [`mistakes_warning`].
#[must_use]
pub fn mistake(name: &str, fields: &[impl AsRef<str>]) -> String {
    let fields: Vec<&str> = fields.iter().map(AsRef::as_ref).collect();
    format!("{name:.100} ({})", fields.join(", "))
}

/// Formats the operator's warning about a server with corrected lists; `what` names the kind of items. `None` without a
/// [`mistake`].
#[must_use]
pub fn mistakes_warning(server: &str, what: &str, mistakes: &[String]) -> Option<String> {
    let (count, named) = (mistakes.len(), mistakes.get(..NAMED).unwrap_or(mistakes).join(", "));
    let line = || {
        format!(
            "{server} lists {count} of its {what} in a form that MCP does not allow; clients get them \
        repaired: {named}"
        )
    };
    (count > 0).then(line)
}

/// Corrects `Annotations`.
fn shown_to(value: &Value) -> Option<Cow<'_, Value>> {
    valid_part(value, |key, value| match key {
        "audience" => {
            let is_role = |role: &Value| matches!(role.as_str(), Some("user" | "assistant"));
            value.as_array().is_some_and(|roles| roles.iter().all(is_role))
        }
        "priority" => value.as_f64().is_some_and(|priority| (0.0..=1.0).contains(&priority)),
        "lastModified" => value.as_str().is_some_and(is_moment),
        _ => true,
    })
}

/// Whether this is an ISO 8601 time as the SDKs read it: date, `T`, time to the second, zone.
fn is_moment(text: &str) -> bool {
    let digits = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text.bytes().zip(shape.bytes()).all(|(is, of)| if of == b'0' { is.is_ascii_digit() } else { is == of })
    };
    let Some((second, rest)) = text.split_at_checked(19) else { return false };
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if zone.len() == fraction.len() {
                return false;
            }
            zone
        }
        None => rest,
    };
    let parts =
        |range: std::ops::Range<usize>| second.get(range).and_then(|part| part.parse::<u8>().ok()).unwrap_or(99);
    digits(second, "0000-00-00T00:00:00")
        && (1..=12).contains(&parts(5..7))
        && (1..=31).contains(&parts(8..10))
        && parts(11..13) < 24
        && parts(14..16) < 60
        && parts(17..19) < 60
        && (zone == "Z" || digits(zone, "+00:00") || digits(zone, "-00:00"))
}

/// A prompt's arguments.
fn arguments(value: &Value) -> Option<Cow<'_, Value>> {
    named(value, "name", |key, value| match key {
        "title" | "description" => value.is_string(),
        "required" => value.is_boolean(),
        _ => true,
    })
}

/// Returns the names of a tool's fields that are corrected here.
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

/// Removes fields that `is_sound` rejects from an object.
fn valid_part(value: &Value, is_sound: impl Fn(&str, &Value) -> bool) -> Option<Cow<'_, Value>> {
    let fields = value.as_object()?;
    if fields.iter().all(|(key, value)| is_sound(key, value)) {
        return Some(Cow::Borrowed(value));
    }
    let mut sound = fields.clone();
    sound.retain(|key, value| is_sound(key, value));
    Some(Cow::Owned(Value::Object(sound)))
}

fn icons(value: &Value) -> Option<Cow<'_, Value>> {
    named(value, "src", |key, value| match key {
        "mimeType" => value.is_string(),
        "sizes" => value.as_array().is_some_and(|sizes| sizes.iter().all(Value::is_string)),
        "theme" => matches!(value.as_str(), Some("light" | "dark")),
        _ => true,
    })
}

/// Keeps the objects of a list with a text under `key`, without fields that `is_sound` rejects.
fn named<'a>(value: &'a Value, key: &str, is_sound: impl Fn(&str, &Value) -> bool) -> Option<Cow<'a, Value>> {
    let all = value.as_array()?;
    let sound: Vec<Cow<'_, Value>> = all
        .iter()
        .filter(|one| one.get(key).is_some_and(Value::is_string))
        .filter_map(|one| valid_part(one, &is_sound))
        .collect();
    if sound.len() == all.len() && sound.iter().all(|icon| matches!(icon, Cow::Borrowed(_))) {
        return Some(Cow::Borrowed(value));
    }
    Some(Cow::Owned(sound.into_iter().map(Cow::into_owned).collect()))
}

/// Corrects the keywords at the root of a schema that clients read; `None` if they are valid.
/// The schema accepts the same values, as far as it had a meaning.
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
            // A schema may be `true` or `false`, which not every client reads; any other non-object has no meaning.
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
    fn input_schemas_are_repaired_into_object_schemas() {
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
    fn older_clients_get_results_and_schemas_as_objects() {
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
    fn malformed_tool_fields_are_repaired_or_dropped() {
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
    fn malformed_prompts_and_resources_are_repaired() {
        let check = |kind: ListKind, given: Value, expect: Value| {
            let mut found = given.as_object().cloned().expect("object");
            let wrong = item(kind, &mut found);
            assert_eq!(Value::Object(found), expect, "{given}");
            assert_eq!(wrong.is_empty(), given == expect, "{wrong:?}");
        };
        let malformed = json!({
            "uri": "a:b", "name": null, "title": 1, "description": null, "mimeType": null, "size": "9", "later": null,
            "annotations": null, "icons": null, "_meta": null,
        });
        check(ListKind::Resources, malformed, json!({"uri": "a:b", "later": null, "name": "a:b"}));
        check(ListKind::Templates, json!({"uriTemplate": "a:{b}"}), json!({"uriTemplate": "a:{b}", "name": "a:{b}"}));
        let annotations = json!({"audience": ["user", "all"], "priority": 2, "lastModified": "today", "later": 1});
        check(
            ListKind::Resources,
            json!({"uri": "a:b", "name": "b", "size": 1.5, "annotations": annotations}),
            json!({"uri": "a:b", "name": "b", "annotations": {"later": 1}}),
        );
        let arguments = json!([{"name": "a", "required": null}, {"required": true}, "b", {"name": "c", "later": 1}]);
        check(
            ListKind::Prompts,
            json!({"name": "p", "arguments": arguments, "icons": [{"src": "i", "sizes": "any"}]}),
            json!({"name": "p", "arguments": [{"name": "a"}, {"name": "c", "later": 1}], "icons": [{"src": "i"}]}),
        );
        check(ListKind::Prompts, json!({"name": "p", "arguments": null}), json!({"name": "p"}));
        let annotations = json!({"audience": ["user"], "priority": 0.5, "lastModified": "2025-01-12T15:00:58.1Z"});
        let sound = json!({"uri": "a:b", "name": "b", "size": 5, "arguments": null, "annotations": annotations});
        check(ListKind::Resources, sound.clone(), sound);
    }

    #[test]
    fn repaired_pages_name_their_faults() {
        let check = |kind: ListKind, given: Value, expect: Value, mistakes: &[&str]| {
            let mut found = given.as_object().cloned().expect("object");
            assert_eq!(page(kind, &mut found), mistakes, "{given}");
            assert_eq!(Value::Object(found), expect, "{given}");
        };
        let sound = json!({"later": null, "prompts": [{"name": "p"}], "nextCursor": "", "_meta": {}});
        check(ListKind::Prompts, sound.clone(), sound, &[]);
        check(
            ListKind::Resources,
            json!({"resources": [{"uri": "a:b", "title": null}, {"name": "n"}, null], "nextCursor": null, "_meta": null}),
            json!({"resources": [{"uri": "a:b", "name": "a:b"}]}),
            &[
                "a:b (title, name)",
                "an item without a key (uri)",
                "an item without a key (uri)",
                "the list itself (nextCursor, _meta)",
            ],
        );
        let nothing = json!({"resourceTemplates": []});
        check(
            ListKind::Templates,
            json!({"resourceTemplates": null}),
            nothing,
            &["the list itself (resourceTemplates)"],
        );
    }

    #[test]
    fn warnings_name_some_mistakes_and_count_all() {
        let mistakes: Vec<String> = (0..7).map(|at| mistake(&at.to_string(), &["x", "y"])).collect();
        let expect = "s lists 7 of its prompts in a form that MCP does not allow; clients get them repaired: \
                      0 (x, y), 1 (x, y), 2 (x, y), 3 (x, y), 4 (x, y)";
        assert_eq!(mistakes_warning("s", "prompts", &mistakes).as_deref(), Some(expect));
        assert_eq!(
            (mistakes_warning("s", "prompts", &[]), mistake(&"é".repeat(200), &["x"]).chars().count()),
            (None, 104)
        );
    }

    #[test]
    fn moments_are_those_that_the_sdks_read() {
        for (text, expect) in [
            ("2025-01-12T15:00:58Z", true),
            ("2025-01-12T15:00:58.123456+02:00", true),
            ("2025-01-12T15:00:58-02:00", true),
            ("2025-01-12T15:00:58", false),
            ("2025-01-12T15:00:58.Z", false),
            ("2025-01-12 15:00:58Z", false),
            ("2025-13-12T15:00:58Z", false),
            ("2025-01-12T25:00:58Z", false),
            ("2025-01-12", false),
            ("äääääääääääääääääää", false),
        ] {
            assert_eq!(is_moment(text), expect, "{text}");
        }
    }

    #[test]
    fn errors_name_the_faulty_fields() {
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
