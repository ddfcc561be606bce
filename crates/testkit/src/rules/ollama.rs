//! Ollama: rules of its parser. It reads a request into Go structs, and one value of a wrong type fails the request.
//! Values without a field in the structs are dropped silently, which is not a breach.

use serde_json::{Map, Value};

use super::common::{json_schema, objects, unique};
use super::walk::{escape, nodes};
use super::{Report, Rule, rules};

/// The Go structs of a request's tools.
const STRUCTS: &str = "ollama/ollama api/types.go Tool, ToolFunction, ToolFunctionParameters, ToolProperty";

rules! { ALL:
    TOOL = "ollama/tool",
        "a tool is `{\"type\": \"function\", \"function\": {…}}` with strings for type, name and description",
        STRUCTS;
    NAME = "ollama/name",
        "a function has a name (of any characters)",
        "https://docs.ollama.com/capabilities/tool-calling";
    PARAMETERS = "ollama/parameters",
        "`parameters` is an object whose `type` is \"object\"",
        "https://docs.ollama.com/api/chat (`tools`); api/types.go ToolFunctionParameters";
    REQUIRED = "ollama/required",
        "`required` is an array of strings",
        "api/types.go ToolFunctionParameters.Required";
    PROPERTIES = "ollama/properties",
        "`properties` is an object of objects: a property cannot be `true` or `false`",
        "api/types.go ToolPropertiesMap";
    PROPERTY_TYPE = "ollama/property-type",
        "a property's `type` is a string or an array of strings",
        "api/types.go PropertyType.UnmarshalJSON";
    DESCRIPTION = "ollama/property-description",
        "a property's `description` is a string",
        "api/types.go ToolProperty.Description";
    ENUM = "ollama/enum",
        "a property's `enum` is an array",
        "api/types.go ToolProperty.Enum";
    ANY_OF = "ollama/any-of",
        "a property's `anyOf` is an array of objects",
        "api/types.go ToolProperty.AnyOf";
}

/// A rule of `format`, and therefore not in [`ALL`].
const PATTERN: Rule = Rule {
    id: "ollama/format-pattern",
    says: "the schema of an answer has no `pattern`: the server's grammars have few of them",
    source: "500 «invalid JSON schema in format» (ollama/ollama#8185, #8325, #12726)",
};

/// Checks the `format` of a chat request.
pub(super) fn check_answer(format: &Value, path: &str, report: &mut Report) {
    for node in nodes(format, path).iter().filter(|node| node.get("pattern").is_some_and(Value::is_string)) {
        report.add(&PATTERN, &node.path, "invalid JSON schema in format");
    }
}

/// Checks the tools of a chat request.
pub(super) fn check(tools: &[Value], report: &mut Report) {
    let mut named = Vec::new();
    for (path, tool) in objects(tools, "", report) {
        report.leave();
        if get(tool, "type").is_none_or(|kind| kind != "function") {
            report.add(&TOOL, format!("{path}/type"), "not \"function\"");
        }
        let path = format!("{path}/function");
        let Some(function) = get(tool, "function").and_then(Value::as_object) else {
            report.add(&TOOL, path, "missing, or not an object");
            continue;
        };
        report.enter(function);
        if get(function, "name").and_then(Value::as_str).is_none_or(str::is_empty) {
            report.add(&NAME, format!("{path}/name"), "missing, empty or not a string");
        }
        text(&TOOL, function, "description", &path, report);
        check_parameters(function, &format!("{path}/parameters"), report);
        named.push((path, get(function, "name")));
    }
    unique(named.into_iter(), report);
}

/// Returns a field as Go finds it: by its name in any case. `null` leaves a field unchanged, so it counts as absent.
fn get<'a>(object: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    let (_, value) = object.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(field))?;
    (!value.is_null()).then_some(value)
}

fn text(rule: &Rule, object: &Map<String, Value>, field: &str, path: &str, report: &mut Report) {
    if get(object, field).is_some_and(|value| !value.is_string()) {
        report.add(rule, format!("{path}/{field}"), "not a string");
    }
}

fn is_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|values| values.iter().all(|value| value.is_string() || value.is_null()))
}

fn check_parameters(function: &Map<String, Value>, path: &str, report: &mut Report) {
    let Some((schema, root)) = get(function, "parameters").and_then(|schema| Some((schema, schema.as_object()?)))
    else {
        return report.add(&PARAMETERS, path, "missing, or not an object");
    };
    if get(root, "type").is_none_or(|kind| kind != "object") {
        report.add(&PARAMETERS, path, "the root's type is not \"object\"");
    }
    let before = report.breaches.len();
    if get(root, "required").is_some_and(|required| !is_texts(required)) {
        report.add(&REQUIRED, format!("{path}/required"), "not an array of strings");
    }
    check_properties(root, path, report);
    // A value that Go cannot read is usually no JSON Schema either; it is reported once.
    if report.breaches.len() == before {
        json_schema(schema, path, report);
    }
}

fn check_properties(root: &Map<String, Value>, path: &str, report: &mut Report) {
    let mut open = vec![(path.to_owned(), root)];
    while let Some((path, schema)) = open.pop() {
        let path = format!("{path}/properties");
        let properties = match get(schema, "properties") {
            None => continue,
            Some(Value::Object(properties)) => properties,
            Some(_) => {
                report.add(&PROPERTIES, path, "not an object");
                continue;
            }
        };
        let mut below: Vec<_> =
            properties.iter().map(|(name, value)| (format!("{path}/{}", escape(name)), value)).collect();
        while let Some((path, value)) = below.pop() {
            match value {
                Value::Null => {}
                Value::Object(property) => {
                    check_property(property, &path, report);
                    let any_of = get(property, "anyOf").and_then(Value::as_array).into_iter().flatten().enumerate();
                    below.extend(
                        any_of
                            .filter(|(_, value)| value.is_object())
                            .map(|(at, value)| (format!("{path}/anyOf/{at}"), value)),
                    );
                    open.push((path, property));
                }
                _ => report.add(&PROPERTIES, path, "a property that is not an object"),
            }
        }
    }
}

fn check_property(property: &Map<String, Value>, path: &str, report: &mut Report) {
    if get(property, "type").is_some_and(|kind| !kind.is_string() && !is_texts(kind)) {
        report.add(&PROPERTY_TYPE, format!("{path}/type"), "neither a string nor an array of strings");
    }
    text(&DESCRIPTION, property, "description", path, report);
    if get(property, "enum").is_some_and(|values| !values.is_array()) {
        report.add(&ENUM, format!("{path}/enum"), "not an array");
    }
    let is_list =
        |value: &Value| value.as_array().is_some_and(|all| all.iter().all(|each| each.is_object() || each.is_null()));
    if get(property, "anyOf").is_some_and(|any_of| !is_list(any_of)) {
        report.add(&ANY_OF, format!("{path}/anyOf"), "not an array of objects");
    }
}
