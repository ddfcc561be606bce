//! What other clients' keys of a server's entry mean here, for files that are pasted in and for those that are imported.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::check::check;
use super::node::{Data, Member, Node};
use super::schema;

/// What is said of a key: its name, the message and the remedy.
pub(super) type Tell<'a> = &'a mut dyn FnMut(&str, &str, &str);

/// Other names of a `type`, ours, and what it is.
const TYPES: [(&str, &str, &str); 3] = [
    ("streamable-http", "http", "Streamable HTTP, as other clients call it."),
    ("streamableHttp", "http", "Streamable HTTP, as other clients call it."),
    ("websocket", "ws", "WebSocket, as other clients call it."),
];
/// Other names of keys, and ours.
const NAMES: [(&str, &str); 3] = [("transport", "type"), ("server_url", "url"), ("http_url", "url")];
/// Other names of `tools_allowed`. An empty list of the last two allows nothing.
const ALLOWED: [&str; 3] = ["tools", "include_tools", "enabled_tools"];
/// Other names of `tools_denied`.
const DENIED: [&str; 2] = ["exclude_tools", "disabled_tools"];
/// Tools that another client approves by itself.
const APPROVED: [&str; 2] = ["always_allow", "auto_approve"];

/// Adds the keys of other clients to the schema of an entry.
pub(super) fn add_keys(entry: &mut Value) {
    let of = |kind: &str, said: &str| json!({"description": said, "type": [kind, "null"]});
    let texts = |said: &str| json!({"description": said, "type": "array", "items": {"type": "string"}});
    let Some(Value::Object(keys)) = entry.get_mut("properties") else { return };
    if let Some(Value::Array(kinds)) = keys.get_mut("type").and_then(|kind| kind.get_mut("oneOf")) {
        kinds.extend(TYPES.map(|(name, _, said)| json!({"description": said, "type": "string", "const": name})));
    }
    let mut kind = keys.get("type").cloned().unwrap_or_default();
    kind["description"] = "Other clients' word for `type`.".into();
    if let Some(tools) = keys.get_mut("tools") {
        let said = tools["description"].take();
        let mut shown = tools.take();
        shown["description"] = "How they are shown.".into();
        *tools = json!({"description": said, "anyOf": [shown, texts("Other clients' word for `tools_allowed`.")]});
    }
    keys.insert("disabled".into(), of("boolean", "Other clients' word for `enabled: false`."));
    keys.insert("transport".into(), kind);
    for key in ["server_url", "http_url"] {
        keys.insert(key.into(), of("string", "Other clients' word for `url`."));
    }
    for key in &ALLOWED[1..] {
        let said = "Another client's word for `tools_allowed`; an empty list allows nothing.";
        keys.insert((*key).into(), texts(said));
    }
    for key in DENIED {
        keys.insert(key.into(), texts("Another client's word for `tools_denied`."));
    }
    let said = "Other clients' word for `request_timeout`: numbers under 1000 are seconds, others milliseconds.";
    let mut timeout = of("integer", said);
    timeout["minimum"] = 0.into();
    keys.insert("timeout".into(), timeout);
    for key in APPROVED {
        let said = "Tools that another client approves by itself. Shown, never applied.";
        keys.insert(key.into(), json!({"description": said}));
    }
    // A note comes last.
    if let Some((key, note)) = keys.shift_remove_entry("description") {
        keys.insert(key, note);
    }
}

/// Says the same as `node`, the entry `name`, in our keys alone.
pub(super) fn in_our_keys(name: &str, node: &mut Node, tell: Tell<'_>) {
    if let Data::Map(members) = &mut node.data {
        members.retain(|member| member.value.data != Data::Null);
    }
    if node.take("disabled").is_some_and(|member| member.value.data == Data::Bool(true)) {
        node.set("enabled", Data::Bool(false));
    }
    for (theirs, ours) in NAMES {
        if let Some(member) = node.take(theirs)
            && node.get(ours).is_none()
        {
            node.set(ours, member.value.data);
        }
    }
    if let Some((_, ours, _)) = TYPES.iter().find(|(theirs, ..)| node.text_of("type") == Some(theirs)) {
        node.set("type", Data::Text((*ours).to_owned()));
    }
    tool_lists(node, tell);
    if let Some(Member { value: Node { data: Data::Number(number, _), .. }, .. }) = node.take("timeout")
        && node.get("request_timeout").is_none()
    {
        call_limit(number.as_u64().unwrap_or_default(), node, tell);
    }
    for key in APPROVED {
        let listed = match node.take(key).map(|member| member.value.to_value()) {
            None => continue,
            Some(Value::Array(items)) if items.is_empty() => continue,
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            Some(other) => other.to_string(),
        };
        let message = format!("another client approves these by itself: {listed}; that is not applied here");
        tell(key, &message, &format!("to allow tools, add a rule under `policy.rules` with `namespace: {name}`"));
    }
}

fn tool_lists(node: &mut Node, tell: Tell<'_>) {
    let mut allowed = list(node, "tools_allowed").unwrap_or_default();
    let mut denied = list(node, "tools_denied").unwrap_or_default();
    for key in DENIED {
        denied.extend(list(node, key).unwrap_or_default());
    }
    for key in ALLOWED {
        let Some(listed) = list(node, key) else { continue };
        if listed.is_empty() && key != "tools" {
            denied.push(Node { at: node.at.clone(), data: Data::Text("*".to_owned()) });
        }
        if allowed.is_empty() {
            allowed = listed;
        } else {
            tell(key, "this list is another client's key; the one before it counts", "remove one of them");
        }
    }
    for (key, listed) in [("tools_allowed", allowed), ("tools_denied", denied)] {
        if !listed.is_empty() {
            node.set(key, Data::List(listed));
        }
    }
}

/// Takes a list out.
fn list(node: &mut Node, key: &str) -> Option<Vec<Node>> {
    if !matches!(node.get(key)?.value.data, Data::List(_)) {
        return None;
    }
    match node.take(key)?.value.data {
        Data::List(items) => Some(items),
        _ => None,
    }
}

fn call_limit(written: u64, node: &mut Node, tell: Tell<'_>) {
    let Some(read) = timeout(written) else {
        tell("timeout", "0 is no limit that a call can keep; it is ignored", "remove it");
        return;
    };
    let text = toolwright_core::duration::format(read);
    let message = format!("{written} is another client's key; it is read as {text}");
    tell("timeout", &message, &format!("write `request_timeout: {text}`"));
    node.set("request_timeout", Data::Text(text));
}

/// Another client's `timeout` of one call: numbers under 1000 are seconds, others milliseconds. `None` for 0, which is no
/// limit that a call can keep.
pub(crate) fn timeout(written: u64) -> Option<Duration> {
    match written {
        0 => None,
        1..1000 => Some(Duration::from_secs(written)),
        _ => Some(Duration::from_millis(written)),
    }
}

/// Whether an entry of `mcpServers` with this key, in snake case, and this value is read without a word about it.
pub(crate) fn is_understood(key: &str, value: &Value) -> bool {
    let file: Arc<Path> = Arc::from(Path::new(""));
    let text = json!({"mcp_servers": {"entry": {key: value}}}).to_string();
    let Ok(mut node) = Node::parse(&text, &file) else { return false };
    let mut problems = Vec::new();
    check(&mut node, schema::checked(), &mut problems);
    problems.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_entry_takes_is_understood() {
        for (key, value, expect) in [
            ("lazy", json!(true), true),
            ("request_timeout", json!("5s"), true),
            ("tools", json!(["search"]), true),
            ("lazy", json!("perhaps"), false),
            ("request_timeout", json!("soon"), false),
            ("settings", json!({"a": 1}), false),
        ] {
            assert_eq!(is_understood(key, &value), expect, "{key}: {value}");
        }
    }
}
