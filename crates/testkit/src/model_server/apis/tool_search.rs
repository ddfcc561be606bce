//! Tool search of OpenAI Responses that the client executes (developers.openai.com/api/docs/guides/ tools-tool-search):
//! calls and outputs form pairs, and calls of loaded functions name the namespace.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::model_server::check::{Checked, ensure, filled, is_name, tool, word};

/// The namespaces of loaded functions by function name.
pub(in crate::model_server) type LoadedNamespaces<'a> = HashMap<&'a str, &'a str>;

/// Whether this entry of `tools` is a tool search for the client.
pub(in crate::model_server) fn is_search(shown: &Value) -> bool {
    shown["type"] == "tool_search" && shown["execution"] == "client"
}

/// Checks a tool search in `tools`.
pub(in crate::model_server) fn check_tool(shown: &Value, place: &str) -> Checked {
    word(shown, "description", place)?;
    tool("tool_search", &shown["parameters"], &mut Vec::new(), place)
}

/// Checks a search call and returns its call id.
pub(in crate::model_server) fn check_call<'a>(item: &'a Value, place: &str) -> Result<&'a str, String> {
    ensure(item["execution"] == "client", || format!("{place}.execution: must be 'client'"))?;
    ensure(item["arguments"].is_object(), || format!("{place}.arguments: must be an object"))?;
    word(item, "call_id", place)
}

/// Checks the output of a search and adds its functions to `loaded`.
pub(in crate::model_server) fn check_output<'a>(
    item: &'a Value,
    loaded: &mut LoadedNamespaces<'a>,
    place: &str,
) -> Checked {
    ensure(item["execution"] == "client", || format!("{place}.execution: must be 'client'"))?;
    let found = item["tools"].as_array().ok_or_else(|| format!("{place}.tools: must be an array"))?;
    for (at, space) in found.iter().enumerate() {
        let place = format!("{place}.tools[{at}]");
        ensure(space["type"] == "namespace", || format!("{place}.type: must be 'namespace'"))?;
        let name = word(space, "name", &place)?;
        ensure(is_name(name), || format!("{place}.name: illegal namespace"))?;
        word(space, "description", &place)?;
        let mut seen = Vec::new();
        for function in filled(space, "tools")? {
            ensure(function["type"] == "function", || format!("{place}.tools: must be functions"))?;
            ensure(function["strict"].is_boolean(), || format!("{place}.tools: strict is required"))?;
            ensure(function["defer_loading"] == true, || format!("{place}.tools: must be deferred"))?;
            let own = word(function, "name", &place)?;
            tool(own, &function["parameters"], &mut seen, &place)?;
            loaded.insert(own, name);
        }
    }
    Ok(())
}

/// Checks the namespace of a past call.
pub(in crate::model_server) fn check_namespace(item: &Value, name: &str, loaded: &LoadedNamespaces<'_>) -> Checked {
    match (item["namespace"].as_str(), loaded.get(name)) {
        (None, Some(_)) => {
            Err(format!("Missing namespace for function_call '{name}'. It does not exist in the default namespace."))
        }
        (given, known) => {
            ensure(given == known.copied(), || format!("Unknown namespace {given:?} of function_call '{name}'."))
        }
    }
}

/// Encodes a call of `name` in an answer to `body`: a search if no function has the name and a search is offered. A
/// function in a namespace, loaded by a search or shown by the request (as codex does), is called with the namespace.
pub(in crate::model_server) fn call(body: &Value, id: &str, call_id: &str, name: &str, arguments: &Value) -> Value {
    let outputs = body["input"].as_array().into_iter().flatten().filter(|item| item["type"] == "tool_search_output");
    let shown = body["tools"].as_array().into_iter().flatten().filter(|tool| tool["type"] == "namespace");
    let mut spaces = shown.chain(outputs.flat_map(|output| output["tools"].as_array().into_iter().flatten()));
    let holds = |tools: &Value| tools.as_array().into_iter().flatten().any(|tool| tool["name"] == name);
    let space = spaces.rfind(|space| holds(&space["tools"]));
    if space.is_none()
        && !holds(&body["tools"])
        && body["tools"].as_array().is_some_and(|all| all.iter().any(is_search))
    {
        return json!({
            "id": id, "type": "tool_search_call", "status": "completed", "execution": "client", "call_id": call_id,
            "arguments": arguments,
        });
    }
    let mut item = json!({
        "id": id, "type": "function_call", "status": "completed", "call_id": call_id, "name": name,
        "arguments": arguments.to_string(),
    });
    if let Some(space) = space {
        item["namespace"] = space["name"].clone();
    }
    item
}
