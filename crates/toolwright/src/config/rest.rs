//! From a written REST tool to the specification its provider takes.

use serde_json::{Value, json};
use toolwright_core::tool_id::ToolId;
use toolwright_providers::rest::{RestError, RestOptions, RestProvider, RestToolSpec};

use super::check::snake_case;
use super::fill::{Holds, Scope};
use super::node::Member;
use super::problem::{At, Problem, Severity};
use super::resolved::NamedRestTool;
use super::typed::{RestTool, Written};

/// Resolves one entry; `None`, with the reason among the problems, when it cannot be used.
pub(crate) fn resolve(member: &Member, written: &RestTool, scope: &mut Scope<'_>) -> Option<NamedRestTool> {
    let (at, entry) = (&member.at, format!("rest_tools.{}", member.key));
    let before = scope.problems.len();
    if let Err(error) = ToolId::format("rest", &member.key, "1.0.0") {
        scope.leave_out(at, &entry, error.to_string(), "rename the tool");
    }
    if let Some(queue) = &written.queue {
        scope.check_queue(at, &format!("{entry}.queue"), queue);
    }
    let mut tool = RestTool { enabled: None, ..written.clone() };
    scope.fill(at, &format!("{entry}.url"), &mut tool.url, Holds::Setting);
    for (name, Written(value)) in &mut tool.headers {
        scope.fill(at, &format!("{entry}.headers.{name}"), value, Holds::Pair(name));
    }
    for (name, value) in &mut tool.query {
        strings(value, &mut |text| scope.fill(at, &format!("{entry}.query.{name}"), text, Holds::Pair(name)));
    }
    if let Some(body) = &mut tool.body {
        strings(body, &mut |text| scope.fill(at, &format!("{entry}.body"), text, Holds::Argument));
    }
    if tool.parameters.is_none() {
        let used = parameters(&tool);
        if !used.is_empty() {
            let remedy = format!("add a JSON Schema with properties {}", used.join(", "));
            scope.leave_out(
                at,
                &entry,
                format!("`parameters` is missing: it must describe {}", used.join(", ")),
                &remedy,
            );
            return None;
        }
        tool.parameters = Some(json!({"type": "object", "properties": {}, "additionalProperties": false}));
    }
    let spec = serde_json::to_value(&tool).and_then(serde_json::from_value::<RestToolSpec>);
    let spec = match spec {
        Ok(spec) => RestToolSpec { written: serde_json::to_value(written).ok(), ..spec },
        Err(error) => {
            scope.leave_out(at, &entry, error.to_string(), "compare it with `toolwright config schema`");
            return None;
        }
    };
    if scope.problems.len() > before {
        return None;
    }
    // The provider compiles templates and schema; what it refuses is found here, with file and line.
    match RestProvider::new(vec![(member.key.clone(), spec.clone())], &RestOptions::default()) {
        Ok(provider) => {
            let warn = |text: &String| {
                Problem::new(Severity::Warning, at, &entry, text, "use it there, or take it out of `parameters`")
            };
            scope.problems.extend(provider.warnings().iter().map(warn));
            Some(NamedRestTool { name: member.key.clone(), spec })
        }
        Err(RestError::Field { field, reason, .. }) => {
            let at = place(member, &field);
            scope.leave_out(at, &format!("{entry}.{field}"), reason, remedy(&field));
            None
        }
        Err(error) => {
            scope.leave_out(at, &entry, error.to_string(), "compare it with `toolwright config schema`");
            None
        }
    }
}

/// Where a field of an entry was written, or what of its path was.
fn place<'m>(member: &'m Member, field: &str) -> &'m At {
    let mut found = member;
    for key in field.split('.') {
        match found.value.members().iter().find(|inner| inner.key == key || snake_case(&inner.key) == key) {
            Some(inner) => found = inner,
            None => break,
        }
    }
    &found.at
}

/// How a field is written.
fn remedy(field: &str) -> &'static str {
    match field.split('.').next().unwrap_or(field) {
        "url" => "write it like https://host/items/${parameters.id}, the placeholders in path and query",
        "method" => "write one of GET, HEAD, OPTIONS, POST, PUT, PATCH and DELETE",
        "headers" => "write text, with ${VAR} or ${parameters.x} where a value belongs",
        "query" => "write a text, a scalar, a list, or {value, style, explode}",
        "body" => "write JSON or a text, with ${parameters.x} where a value belongs",
        "parameters" => "write a JSON Schema of type object with a property for each placeholder",
        "output_schema" => "write a JSON Schema, or leave it out",
        "select" => "write names and positions after slashes, like /items/*/name",
        _ => "compare it with `toolwright config schema`",
    }
}

/// The arguments that a tool's placeholders name, each once.
fn parameters(tool: &RestTool) -> Vec<String> {
    let mut texts = vec![tool.url.clone()];
    texts.extend(tool.headers.values().map(|Written(value)| value.clone()));
    for mut value in tool.query.values().chain(&tool.body).cloned() {
        strings(&mut value, &mut |text| texts.push(text.clone()));
    }
    let mut names: Vec<String> = Vec::new();
    for text in &texts {
        for placeholder in text.split("${parameters.").skip(1) {
            let name = placeholder.split(['.', '}']).next().unwrap_or_default();
            if !name.is_empty() && names.iter().all(|have| have != name) {
                names.push(name.to_owned());
            }
        }
    }
    names
}

fn strings(value: &mut Value, each: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter_mut().for_each(|item| strings(item, each)),
        Value::Object(map) => map.values_mut().for_each(|item| strings(item, each)),
        _ => {}
    }
}
