//! Gemini: function declarations. Their schemas are checked by `gemini_schema` and `gemini_json`.

use serde_json::{Map, Value};

use super::common::{known, name, objects, unique};
use super::{Report, gemini_json, gemini_schema, rules};

rules! { ALL:
    DECLARATION = "gemini/declaration",
        "a declaration has the fields of FunctionDeclaration and no others",
        "python-genai types.py FunctionDeclaration; 400 «Unknown name …: Cannot find field»";
    NAME = "gemini/name",
        "a name is 1 to 64 of a-z, A-Z, 0-9, `_`, `.`, `:` and `-`, and starts with a letter or `_`",
        "https://ai.google.dev/api/caching#FunctionDeclaration (at most 64), python-genai types.py \
         FunctionDeclaration.name (how it starts), 400 «Invalid function name. Must start with a letter or an \
         underscore. […] with a maximum length of 64.» (kaitranntt/ccs#25)";
    DESCRIPTION = "gemini/description",
        "a declaration has a description",
        "googleapis google/ai/generativelanguage/v1beta/content.proto FunctionDeclaration.description (REQUIRED)";
    ONE_SCHEMA = "gemini/one-schema",
        "a declaration has `parameters` or `parametersJsonSchema`, not both",
        "python-genai types.py FunctionDeclaration.parameters_json_schema («mutually exclusive»)";
}

const FIELDS: [&str; 7] =
    ["name", "description", "parameters", "parametersJsonSchema", "response", "responseJsonSchema", "behavior"];
const LONGEST_NAME: usize = 64;

/// Checks the tools of a `generateContent` request.
pub(super) fn check(tools: &[Value], report: &mut Report) {
    let mut named = Vec::new();
    for (path, tool) in objects(tools, "", report) {
        let path = format!("{path}/functionDeclarations");
        let declarations = match tool.get("functionDeclarations") {
            None => continue,
            Some(Value::Array(declarations)) => declarations,
            Some(_) => {
                report.leave();
                report.add(&DECLARATION, path, "not an array");
                continue;
            }
        };
        for (path, declaration) in objects(declarations, &path, report) {
            report.enter(declaration);
            check_declaration(declaration, &path, report);
            named.push((path, declaration.get("name")));
        }
    }
    unique(named.into_iter(), report);
}

fn check_declaration(declaration: &Map<String, Value>, path: &str, report: &mut Report) {
    known(&DECLARATION, declaration, &FIELDS, path, report);
    name(&NAME, declaration.get("name"), path, LONGEST_NAME, "_.:-", report);
    let first = declaration.get("name").and_then(Value::as_str).and_then(|name| name.chars().next());
    if let Some(first) = first.filter(|first| first.is_ascii_digit() || ".:-".contains(*first)) {
        report.add(&NAME, format!("{path}/name"), format!("starts with {first:?}"));
    }
    if declaration.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
        report.add(&DESCRIPTION, format!("{path}/description"), "missing, empty or not a string");
    }
    let parameters = gemini_schema::set(declaration, "parameters");
    let json_schema = declaration.get("parametersJsonSchema");
    if parameters.is_some() && json_schema.is_some() {
        report.add(&ONE_SCHEMA, path, "`parameters` and `parametersJsonSchema`");
    }
    if let Some(schema) = parameters {
        gemini_schema::check(schema, &format!("{path}/parameters"), report);
    }
    if let Some(schema) = json_schema {
        gemini_json::check(schema, &format!("{path}/parametersJsonSchema"), report);
    }
}
