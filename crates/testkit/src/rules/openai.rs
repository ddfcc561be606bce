//! OpenAI: rules for functions of both APIs, strict or not.

use serde_json::{Map, Value};

use super::common::{json_schema, known, name, objects, string, unique};
use super::walk::nodes;
use super::{Report, openai_pattern, openai_strict, rules};

rules! { ALL:
    TOOL = "openai/tool",
        "a function has the fields of its API's reference, with their types, and no others",
        "openai-python types/chat/chat_completion_function_tool_param.py, types/shared_params/function_definition.py, \
         types/responses/function_tool_param.py";
    COUNT = "openai/tool-count",
        "a request has at most 128 functions",
        "https://developers.openai.com/api/reference (`tools`: «A max of 128 functions are supported»)";
    NAME = "openai/name",
        "a name is 1 to 64 of a-z, A-Z, 0-9, `_` and `-`",
        "openai-python types/shared_params/function_definition.py `name`";
    ROOT_OBJECT = "openai/root-object",
        "`parameters` says `\"type\": \"object\"`",
        "https://developers.openai.com/api/docs/guides/structured-outputs#supported-schemas; 400 «schema must have \
         type 'object' …» (langchain-ai/langchainjs#9804)";
    ROOT_COMBINATOR = "openai/root-combinator",
        "`parameters` has no `oneOf`, `anyOf`, `allOf`, `enum` or `not` at its root",
        "400 «schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level» \
         (langchain-ai/langchainjs#9804, nspady/google-calendar-mcp#39)";
    ROOT_PROPERTIES = "openai/root-properties",
        "`parameters` has `properties`, if only empty ones",
        "400 «In context=(), object schema missing properties»";
    ARRAY_ITEMS = "openai/array-items",
        "a schema of type array has `items`, also beside other types and beside `prefixItems`",
        "400 «array schema missing items» (sigoden/aichat#1049, campfirein/byterover-cli#42, PrefectHQ/fastmcp#2464)";
}

rules! { RESPONSES:
    STRICT_SAID = "openai-responses/strict-said",
        "a function of the Responses API says `parameters` and `strict`: left out, it would mean strict",
        "openai-python types/responses/function_tool_param.py (both `Required`); \
         https://developers.openai.com/api/docs/guides/migrate-to-responses";
    TOOL_SEARCH = "openai-responses/tool-search",
        "a tool search that the client executes says what it does and takes, and there is one at most",
        "https://developers.openai.com/api/docs/guides/tools-tool-search; openai-python \
         types/responses/tool_search_tool_param.py";
    NAMESPACE = "openai-responses/namespace",
        "a namespace has a name, a description and functions",
        "openai-python types/responses/namespace_tool_param.py";
}

const MOST_FUNCTIONS: usize = 128;
const LONGEST_NAME: usize = 64;
const NOT_AT_ROOT: [&str; 5] = ["oneOf", "anyOf", "allOf", "enum", "not"];

/// Checks the tools of a Chat Completions request.
pub(super) fn check_chat(tools: &[Value], report: &mut Report) {
    let mut functions = Vec::new();
    for (path, tool) in objects(tools, "", report) {
        if is_other(tool) {
            continue;
        }
        report.leave();
        is_function(tool, &path, report);
        known(&TOOL, tool, &["type", "function"], &path, report);
        let path = format!("{path}/function");
        let Some(function) = tool.get("function").and_then(Value::as_object) else {
            report.add(&TOOL, path, "missing, or not an object");
            continue;
        };
        report.enter(function);
        known(&TOOL, function, &["name", "description", "parameters", "strict"], &path, report);
        check_function(function, &path, report);
        functions.push((path, function));
    }
    check_all(&functions, report);
}

/// Checks the tools of a Responses request.
pub(super) fn check_responses(tools: &[Value], report: &mut Report) {
    const FIELDS: [&str; 9] = [
        "type",
        "name",
        "description",
        "parameters",
        "strict",
        "async",
        "allowed_callers",
        "defer_loading",
        "output_schema",
    ];
    let mut functions = Vec::new();
    let mut searches = 0;
    let mut entries = Vec::new();
    for (path, tool) in objects(tools, "", report) {
        match tool.get("type").and_then(Value::as_str) {
            Some("tool_search") => {
                searches += 1;
                check_search(tool, &path, searches, report);
            }
            Some("namespace") => entries.extend(check_namespace(tool, &path, report)),
            _ => entries.push((path, tool)),
        }
    }
    for (path, function) in entries {
        if is_other(function) {
            continue;
        }
        report.enter(function);
        is_function(function, &path, report);
        known(&TOOL, function, &FIELDS, &path, report);
        for field in ["parameters", "strict"] {
            if !function.contains_key(field) {
                report.add(&STRICT_SAID, &path, format!("`{field}` is missing"));
            }
        }
        check_function(function, &path, report);
        functions.push((path, function));
    }
    check_all(&functions, report);
}

/// Checks the `number`th tool search.
fn check_search(tool: &Map<String, Value>, path: &str, number: usize, report: &mut Report) {
    report.leave();
    known(&TOOL_SEARCH, tool, &["type", "execution", "description", "parameters"], path, report);
    if number > 1 {
        report.add(&TOOL_SEARCH, path, "another tool search");
    }
    if tool.get("execution").is_none_or(|execution| execution != "client") {
        return;
    }
    if tool.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
        report.add(&TOOL_SEARCH, path, "the description is missing");
    }
    if tool.get("parameters").is_none_or(|schema| schema["type"] != "object") {
        report.add(&TOOL_SEARCH, path, "`parameters` is no schema of an object");
    }
}

/// Checks a namespace and returns its tools.
fn check_namespace<'a>(
    space: &'a Map<String, Value>,
    path: &str,
    report: &mut Report,
) -> Vec<(String, &'a Map<String, Value>)> {
    report.enter(space);
    name(&NAMESPACE, space.get("name"), path, LONGEST_NAME, "_-", report);
    if space.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
        report.add(&NAMESPACE, path, "the description is missing");
    }
    match space.get("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty()) {
        Some(tools) => objects(tools, &format!("{path}/tools"), report),
        None => {
            report.add(&NAMESPACE, path, "there are no functions");
            Vec::new()
        }
    }
}

/// Whether `tool` is not a function: a custom tool or one of the API's own.
fn is_other(tool: &Map<String, Value>) -> bool {
    tool.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "function")
}

fn is_function(tool: &Map<String, Value>, path: &str, report: &mut Report) {
    if !tool.get("type").is_some_and(Value::is_string) {
        report.add(&TOOL, format!("{path}/type"), "missing, or not a string");
    }
}

fn check_function(function: &Map<String, Value>, path: &str, report: &mut Report) {
    name(&NAME, function.get("name"), path, LONGEST_NAME, "_-", report);
    string(&TOOL, function.get("description"), format!("{path}/description"), report);
    let strict = match function.get("strict") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(strict)) => *strict,
        Some(_) => {
            report.add(&TOOL, format!("{path}/strict"), "not a boolean");
            false
        }
    };
    let path = format!("{path}/parameters");
    match function.get("parameters") {
        None | Some(Value::Null) => {}
        Some(schema @ Value::Object(root)) => {
            check_root(root, &path, report);
            if json_schema(schema, &path, report) {
                check_arrays(schema, &path, report);
                openai_pattern::check(schema, &path, report);
                if strict {
                    openai_strict::check(schema, &path, report);
                }
            }
        }
        Some(_) => report.add(&TOOL, path, "not an object"),
    }
}

fn check_root(root: &Map<String, Value>, path: &str, report: &mut Report) {
    if root.get("type").is_none_or(|kind| kind != "object") {
        report.add(&ROOT_OBJECT, path, "the root's type is not \"object\"");
    }
    for keyword in NOT_AT_ROOT.into_iter().filter(|keyword| root.contains_key(*keyword)) {
        report.add(&ROOT_COMBINATOR, path, format!("`{keyword}` at the root"));
    }
    if !root.contains_key("properties") {
        report.add(&ROOT_PROPERTIES, path, "the root has no `properties`");
    }
}

fn check_arrays(schema: &Value, path: &str, report: &mut Report) {
    for node in nodes(schema, path) {
        if node.is("array") && node.get("items").is_none() {
            report.add(&ARRAY_ITEMS, node.path, "an array without `items`");
        }
    }
}

fn check_all(functions: &[(String, &Map<String, Value>)], report: &mut Report) {
    unique(functions.iter().map(|(path, function)| (path.clone(), function.get("name"))), report);
    if functions.len() > MOST_FUNCTIONS {
        report.add(&COUNT, "", format!("{} functions", functions.len()));
    }
}
