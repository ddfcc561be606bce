//! What a server may ask the client of a call, and what a client must offer for it.

use serde_json::{Map, Value, json};

/// Asks a person.
pub const ELICIT: &str = "elicitation/create";
/// Asks a model.
pub const SAMPLE: &str = "sampling/createMessage";
/// Asks for the client's folders.
pub const ROOTS: &str = "roots/list";

/// The capabilities that this request needs and `capabilities` (MCP's `ClientCapabilities`) do not have, in the form of
/// `requiredCapabilities` (MCP 2026-07-28, error -32021); `None` where nothing is missing.
#[must_use]
pub fn missing(capabilities: &Map<String, Value>, method: &str, params: &Value) -> Option<Value> {
    let has = |key: &str| capabilities.get(key).and_then(Value::as_object);
    let uses = |key: &str| params.get(key).is_some_and(|value| !value.is_null());
    match method {
        ELICIT => {
            let is_url = params.get("mode").and_then(Value::as_str) == Some("url");
            let mode = if is_url { "url" } else { "form" };
            // An empty object stands for forms: there was nothing else when it was introduced.
            let offered =
                has("elicitation").is_some_and(|modes| modes.contains_key(mode) || (modes.is_empty() && !is_url));
            (!offered).then(|| json!({"elicitation": {mode: {}}}))
        }
        SAMPLE => {
            let Some(offered) = has("sampling") else { return Some(json!({"sampling": {}})) };
            let tools = uses("tools") || uses("toolChoice");
            (tools && !offered.contains_key("tools")).then(|| json!({"sampling": {"tools": {}}}))
        }
        ROOTS => has("roots").is_none().then(|| json!({"roots": {}})),
        _ => Some(json!({})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_asked_only_what_it_offers() {
        let check = |capabilities: Value, method: &str, params: Value, expect: Value| {
            let capabilities = capabilities.as_object().expect("object");
            let missing = missing(capabilities, method, &params).unwrap_or_default();
            assert_eq!(missing, expect, "{capabilities:?} {method} {params}");
        };
        check(json!({}), ROOTS, json!({}), json!({"roots": {}}));
        check(json!({"roots": {"listChanged": true}}), ROOTS, json!({}), json!(null));
        check(json!({"elicitation": {}}), ELICIT, json!({"message": "m"}), json!(null));
        check(json!({"elicitation": {}}), ELICIT, json!({"mode": "url"}), json!({"elicitation": {"url": {}}}));
        check(json!({"elicitation": {"url": {}}}), ELICIT, json!({}), json!({"elicitation": {"form": {}}}));
        check(json!({"elicitation": {"url": {}}}), ELICIT, json!({"mode": "url"}), json!(null));
        check(json!({}), SAMPLE, json!({}), json!({"sampling": {}}));
        check(json!({"sampling": {}}), SAMPLE, json!({"messages": []}), json!(null));
        check(json!({"sampling": {}}), SAMPLE, json!({"tools": []}), json!({"sampling": {"tools": {}}}));
        check(json!({"sampling": {"tools": {}}}), SAMPLE, json!({"tools": []}), json!(null));
        check(json!({"roots": {}}), "tools/list", json!({}), json!({}));
    }
}
