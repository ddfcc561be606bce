//! Rules that every API shares.

use std::collections::HashSet;

use jsonschema::Draft;
use serde_json::{Map, Value};

use super::walk::{nodes, resolve};
use super::{Report, Rule, rules};

rules! { ALL:
    TOOLS = "any/tools",
        "`tools` is an array of objects",
        "every API's reference of its request body";
    UNIQUE = "any/name-unique",
        "no two functions of a request have one name, or a call could mean either",
        "Anthropic: 400 «tools: Tool names must be unique.»; Gemini: 400 «Duplicate function declaration found»";
    LOCAL = "any/ref-local",
        "every `$ref` leads somewhere inside the same schema: no API fetches a remote one",
        "https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations; \
         openai-python lib/_pydantic.py resolve_ref; Gemini Schema.ref «a valid reference to a child of the root»";
}

rules! { JSON_SCHEMA:
    COMPILES = "any/schema-compiles",
        "a schema is valid by its own draft (2020-12 unless `$schema` says another) and compiles",
        "https://json-schema.org/draft/2020-12; OpenAI: 400 «Invalid schema for function …»; Anthropic's tool reference \
         (`input_schema`: JSON Schema draft 2020-12)";
}

/// Returns the entries of `tools` that are objects, with their positions.
pub(super) fn objects<'a>(
    tools: &'a [Value],
    path: &str,
    report: &mut Report,
) -> Vec<(String, &'a Map<String, Value>)> {
    let mut found = Vec::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let path = format!("{path}/{index}");
        match tool.as_object() {
            Some(tool) => found.push((path, tool)),
            None => report.add(&TOOLS, path, "not an object"),
        }
    }
    found
}

/// Reports every repeated name.
pub(super) fn unique<'a>(names: impl Iterator<Item = (String, Option<&'a Value>)>, report: &mut Report) {
    report.leave();
    let mut seen = HashSet::new();
    for (path, name) in names {
        if let Some(name) = name.and_then(Value::as_str)
            && !seen.insert(name)
        {
            report.add(&UNIQUE, path, format!("`{name}` is already the name of another tool"));
        }
    }
}

/// Reports `name` unless it is a string of 1 to `longest` characters, each an ASCII letter, a digit or in `marks`.
pub(super) fn name(rule: &Rule, name: Option<&Value>, path: &str, longest: usize, marks: &str, report: &mut Report) {
    let path = format!("{path}/name");
    let Some(name) = name.and_then(Value::as_str) else {
        return report.add(rule, path, "the name is missing or not a string");
    };
    if name.is_empty() || name.len() > longest {
        report.add(rule, &path, format!("`{name}` has {} bytes; 1 to {longest} are allowed", name.len()));
    }
    if let Some(odd) = name.chars().find(|char| !char.is_ascii_alphanumeric() && !marks.contains(*char)) {
        report.add(rule, &path, format!("`{name}` has {odd:?}; besides letters and digits only {marks:?} are allowed"));
    }
}

/// Reports every key of `object` that is not in `known`.
pub(super) fn known(rule: &Rule, object: &Map<String, Value>, known: &[&str], path: &str, report: &mut Report) {
    for key in object.keys().filter(|key| !known.contains(&key.as_str())) {
        report.add(rule, path, format!("unknown field `{key}`"));
    }
}

/// Reports `value` if it exists and is not a string.
pub(super) fn string(rule: &Rule, value: Option<&Value>, path: String, report: &mut Report) {
    if value.is_some_and(|value| !value.is_string()) {
        report.add(rule, path, "not a string");
    }
}

/// Reports `rule` if `schema` does not compile, and returns whether it does. `draft` takes precedence over `$schema`.
pub(super) fn compiles(rule: &Rule, schema: &Value, draft: Option<Draft>, path: &str, report: &mut Report) -> bool {
    let options = jsonschema::options();
    let options = match draft {
        Some(draft) => options.with_draft(draft),
        None => options,
    };
    match options.build(schema) {
        Ok(_) => true,
        Err(error) => {
            let at = error.instance_path().to_string();
            report.add(rule, format!("{path}{at}"), error.to_string());
            false
        }
    }
}

/// Reports every `$ref` of `schema` that does not resolve inside it.
pub(super) fn local_refs(schema: &Value, path: &str, report: &mut Report) -> bool {
    let before = report.breaches.len();
    for node in nodes(schema, path) {
        let Some(reference) = node.get("$ref") else { continue };
        if reference.as_str().is_none_or(|reference| resolve(schema, reference).is_none()) {
            report.add(&LOCAL, node.path, format!("{reference} leads nowhere inside the schema"));
        }
    }
    report.breaches.len() == before
}

/// Checks [`LOCAL`], and [`COMPILES`] if the references are sound. Returns whether both are kept.
pub(super) fn json_schema(schema: &Value, path: &str, report: &mut Report) -> bool {
    local_refs(schema, path, report) && compiles(&COMPILES, schema, None, path, report)
}
