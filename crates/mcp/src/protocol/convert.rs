//! Converts messages from one revision of the protocol to another.

use serde_json::{Map, Value, json};
use toolwright_core::content::ContentBlock;

use crate::protocol::message::RpcError;
use crate::protocol::revision::{Era, SERVER_INFO};

/// The revision without a capability for completions.
const BEFORE_COMPLETIONS: &str = "2024-11-05";
/// Methods with a cache lifetime in their results (2026-07-28, "Caching").
const CACHEABLE: [&str; 6] =
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "server/discover"];

/// Whether a method's result has a cache lifetime.
#[must_use]
pub fn is_cacheable(method: &str) -> bool {
    CACHEABLE.contains(&method)
}

/// Converts a server's result of `method`, in either era, for a client of `era`. Members common to both
/// eras stay unchanged.
pub fn result(era: Era, method: &str, result: &mut Map<String, Value>, server_info: &Value) {
    if era == Era::Legacy {
        for key in ["resultType", "ttlMs", "cacheScope"] {
            result.remove(key);
        }
        if let Some(Value::Object(meta)) = result.get_mut("_meta") {
            meta.remove(SERVER_INFO);
            if meta.is_empty() {
                result.remove("_meta");
            }
        }
        return;
    }
    result.entry("resultType").or_insert_with(|| "complete".into());
    if is_cacheable(method) {
        if !result.get("ttlMs").is_some_and(Value::is_u64) {
            result.insert("ttlMs".into(), 0.into());
        }
        if !matches!(result.get("cacheScope").and_then(Value::as_str), Some("public" | "private")) {
            result.insert("cacheScope".into(), "private".into());
        }
    }
    let meta = result.entry("_meta").or_insert_with(|| json!({}));
    if !meta.is_object() {
        *meta = json!({});
    }
    // We send the response, whoever produced the result.
    meta[SERVER_INFO] = server_info.clone();
}

/// Whether a request of 2026-07-28 may be answered with `input_required`, so that its client can be asked
/// ("Multi Round-Trip Requests", "Supported Requests").
#[must_use]
pub fn may_require_input(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// Converts the parameters of `elicitation/create` for a client of 2025-11-25, where a page has an id, which
/// 2026-07-28 removed. `id` makes a missing one.
pub fn name_page(params: &mut Value, id: impl FnOnce() -> String) {
    let is_page = params.get("mode").and_then(Value::as_str) == Some("url");
    if let Some(fields) = params.as_object_mut().filter(|_| is_page)
        && !fields.get("elicitationId").is_some_and(Value::is_string)
    {
        fields.insert("elicitationId".into(), id().into());
    }
}

/// Converts a server's error for `method` for a client of `era`. The eras report a missing
/// resource differently; `uri` is the requested one.
#[must_use]
pub fn error(era: Era, method: &str, uri: Option<&str>, error: RpcError) -> RpcError {
    if method != "resources/read" {
        return error;
    }
    let has_uri = error.data.as_ref().is_some_and(|data| data.get("uri").is_some());
    let code = match (era, error.code) {
        (Era::Modern, RpcError::RESOURCE_NOT_FOUND) => RpcError::INVALID_PARAMS,
        (Era::Legacy, RpcError::INVALID_PARAMS) if has_uri => RpcError::RESOURCE_NOT_FOUND,
        _ => return error,
    };
    let data = match (error.data, uri) {
        (None, Some(uri)) => Some(Box::new(json!({"uri": uri}))),
        (data, _) => data,
    };
    RpcError { code, data, ..error }
}

/// The error for a missing resource in `era`.
#[must_use]
pub fn no_resource(era: Era, uri: &str) -> RpcError {
    let code = match era {
        Era::Legacy => RpcError::RESOURCE_NOT_FOUND,
        Era::Modern => RpcError::INVALID_PARAMS,
    };
    RpcError { data: Some(Box::new(json!({"uri": uri}))), ..RpcError::new(code, "there is no such resource") }
}

/// Returns the capabilities that a gateway announces for servers with these: the supported ones, each set if
/// any server has it. Tool list changes are always announced, because policy can change the list too.
#[must_use]
pub fn server_capabilities<'a>(servers: impl Iterator<Item = &'a Map<String, Value>>) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert("tools".into(), json!({"listChanged": true}));
    for server in servers {
        for (part, flags) in [
            ("resources", &["subscribe", "listChanged"][..]),
            ("prompts", &["listChanged"]),
            ("completions", &[]),
            ("logging", &[]),
        ] {
            let Some(announced) = server.get(part).and_then(Value::as_object) else { continue };
            let ours = all.entry(part).or_insert_with(|| json!({}));
            for flag in flags {
                if announced.get(*flag).and_then(Value::as_bool) == Some(true) {
                    ours[*flag] = true.into();
                }
            }
        }
    }
    all
}

/// Returns the server capability that a method needs, and the flag within it; `None` if every server has the method.
#[must_use]
pub fn needs(method: &str) -> Option<(&'static str, Option<&'static str>)> {
    Some(match method {
        "resources/subscribe" | "resources/unsubscribe" => ("resources", Some("subscribe")),
        "resources/list" | "resources/templates/list" | "resources/read" => ("resources", None),
        "prompts/list" | "prompts/get" => ("prompts", None),
        "completion/complete" => ("completions", None),
        "logging/setLevel" => ("logging", None),
        _ => return None,
    })
}

/// Adds capabilities that servers of this revision may have without announcing them: 2024-11-05 has completion of
/// arguments, but its capability exists only since 2025-03-26.
pub fn unannounced(capabilities: &mut Map<String, Value>, version: &str) {
    let has = |part: &str| capabilities.get(part).is_some_and(Value::is_object);
    if version == BEFORE_COMPLETIONS
        && (has("prompts") || has("resources"))
        && !capabilities.contains_key("completions")
    {
        capabilities.insert("completions".into(), json!({}));
    }
}

/// Whether a server with these capabilities supports a method.
#[must_use]
pub fn has_method(capabilities: &Map<String, Value>, method: &str) -> bool {
    let Some((part, flag)) = needs(method) else { return true };
    let Some(announced) = capabilities.get(part).filter(|announced| announced.is_object()) else { return false };
    flag.is_none_or(|flag| announced.get(flag).and_then(Value::as_bool) == Some(true))
}

/// The first revision with audio.
const AUDIO: &str = "2025-03-26";
/// The first revision with links to resources, and with structured content.
const LINKS: &str = "2025-06-18";

/// Whether clients of this legacy revision support `structuredContent`; others use only the content.
#[must_use]
pub fn has_structured(version: &str) -> bool {
    // Revisions are dates: their text order is their time order.
    version >= LINKS
}

fn knows(version: &str, kind: &str) -> bool {
    match kind {
        "audio" => version >= AUDIO,
        "resource_link" => version >= LINKS,
        _ => true,
    }
}

/// Replaces each block that this legacy revision lacks with a line of text. The SDKs of such
/// clients accept a closed list of kinds, and refuse the whole result for one unknown block.
pub fn content(version: &str, blocks: &mut [ContentBlock]) {
    for block in blocks {
        let kind = match block {
            ContentBlock::Audio { .. } => "audio",
            ContentBlock::Link { .. } => "resource_link",
            _ => continue,
        };
        if !knows(version, kind) {
            *block = ContentBlock::text(block.placeholder());
        }
    }
}

/// Does the same as [`content`] for the messages of a result of `prompts/get`.
pub fn prompt(version: &str, result: &mut Map<String, Value>) {
    for message in result.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(block) = message.get_mut("content") else { continue };
        let Some(kind) = block.get("type").and_then(Value::as_str).filter(|kind| !knows(version, kind)) else {
            continue;
        };
        let unnamed = || format!("[{kind}, not shown]");
        let text =
            serde_json::from_value::<ContentBlock>(block.clone()).map_or_else(|_| unnamed(), |one| one.placeholder());
        *block = serde_json::json!({"type": "text", "text": text});
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(map) => map,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn first_revision_servers_complete_without_announcing() {
        for (version, announced, expect) in [
            ("2024-11-05", json!({"prompts": {}}), true),
            ("2024-11-05", json!({"resources": {}, "tools": {}}), true),
            ("2024-11-05", json!({"tools": {}}), false),
            ("2025-03-26", json!({"prompts": {}}), false),
            ("2025-03-26", json!({"prompts": {}, "completions": {}}), true),
        ] {
            let mut capabilities = object(announced);
            unannounced(&mut capabilities, version);
            assert_eq!(has_method(&capabilities, "completion/complete"), expect, "{version} {capabilities:?}");
        }
    }

    #[test]
    fn results_are_converted_to_the_clients_generation() {
        let info = json!({"name": "us"});
        for (era, method, given, expect) in [
            (
                Era::Modern,
                "prompts/list",
                json!({"prompts": [], "later": 1}),
                json!({"prompts": [], "later": 1, "resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": {SERVER_INFO: {"name": "us"}}}),
            ),
            (
                Era::Modern,
                "resources/read",
                json!({"contents": [], "ttlMs": 9, "cacheScope": "public", "_meta": {"a": 1, SERVER_INFO: {"name": "them"}}}),
                json!({"contents": [], "ttlMs": 9, "cacheScope": "public", "_meta": {"a": 1, SERVER_INFO: {"name": "us"}}, "resultType": "complete"}),
            ),
            (
                Era::Modern,
                "prompts/get",
                json!({"messages": []}),
                json!({"messages": [], "resultType": "complete", "_meta": {SERVER_INFO: {"name": "us"}}}),
            ),
            (
                Era::Modern,
                "prompts/list",
                json!({"prompts": [], "ttlMs": -1, "cacheScope": 7}),
                json!({"prompts": [], "ttlMs": 0, "cacheScope": "private", "resultType": "complete", "_meta": {SERVER_INFO: {"name": "us"}}}),
            ),
            (
                Era::Legacy,
                "prompts/list",
                json!({"resultType": "complete", "prompts": [], "ttlMs": 9, "cacheScope": "public", "_meta": {SERVER_INFO: {}}}),
                json!({"prompts": []}),
            ),
            (
                Era::Legacy,
                "resources/read",
                json!({"contents": [], "_meta": {"a": 1}}),
                json!({"contents": [], "_meta": {"a": 1}}),
            ),
        ] {
            let mut map = object(given.clone());
            result(era, method, &mut map, &info);
            assert_eq!(Value::Object(map), expect, "{era:?} {method} {given}");
        }
    }

    #[test]
    fn pages_get_ids_for_clients_needing_them() {
        for (given, expect) in [
            (json!({"mode": "url", "url": "u"}), json!({"mode": "url", "url": "u", "elicitationId": "made"})),
            (json!({"mode": "url", "elicitationId": null}), json!({"mode": "url", "elicitationId": "made"})),
            (json!({"mode": "url", "elicitationId": "own"}), json!({"mode": "url", "elicitationId": "own"})),
            (json!({"mode": "form"}), json!({"mode": "form"})),
            (json!(null), json!(null)),
        ] {
            let mut params = given.clone();
            name_page(&mut params, || "made".into());
            assert_eq!(params, expect, "{given}");
        }
    }

    #[test]
    fn missing_resources_use_the_clients_error_code() {
        let check = |era, method: &str, given: (i64, Option<Value>), expect: (i64, Option<Value>)| {
            let given_error = RpcError { data: given.1.map(Box::new), ..RpcError::new(given.0, "m") };
            let found = error(era, method, Some("a:b"), given_error);
            assert_eq!((found.code, found.data.map(|data| *data)), expect, "{era:?} {method}");
        };
        let uri = || Some(json!({"uri": "a:b"}));
        check(Era::Modern, "resources/read", (-32002, None), (-32602, uri()));
        check(Era::Modern, "resources/read", (-32002, Some(json!(1))), (-32602, Some(json!(1))));
        check(Era::Modern, "resources/read", (-32602, uri()), (-32602, uri()));
        check(Era::Legacy, "resources/read", (-32602, uri()), (-32002, uri()));
        check(Era::Legacy, "resources/read", (-32602, None), (-32602, None));
        check(Era::Modern, "prompts/get", (-32002, None), (-32002, None));
    }

    #[test]
    fn capabilities_are_what_one_of_the_servers_has() {
        let one =
            object(json!({"resources": {"subscribe": true}, "tools": {}, "logging": {}, "experimental": {"x": {}}}));
        let two =
            object(json!({"resources": {"listChanged": true, "subscribe": false}, "prompts": {}, "completions": {}}));
        for (servers, expect) in [
            (vec![], json!({"tools": {"listChanged": true}})),
            (vec![&one], json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}})),
            (
                vec![&one, &two],
                json!({"tools": {"listChanged": true}, "resources": {"subscribe": true, "listChanged": true}, "logging": {}, "prompts": {}, "completions": {}}),
            ),
        ] {
            assert_eq!(Value::Object(server_capabilities(servers.into_iter())), expect);
        }
    }

    #[test]
    fn announced_capabilities_decide_the_methods() {
        let server = object(json!({"resources": {"subscribe": false}, "prompts": {}, "logging": null}));
        for (method, expect) in [
            ("resources/read", true),
            ("resources/subscribe", false),
            ("prompts/get", true),
            ("completion/complete", false),
            ("logging/setLevel", false),
            ("tools/call", true),
        ] {
            assert_eq!(has_method(&server, method), expect, "{method}");
        }
    }

    #[test]
    fn clients_get_content_kinds_of_their_revision() {
        let sound = json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"});
        let link = json!({"type": "resource_link", "uri": "a:b", "name": "n"});
        let text = json!({"type": "text", "text": "t", "_meta": {"k": 1}});
        let no_sound = json!({"type": "text", "text": "[audio, audio/wav, 4 bytes of base64, not shown]"});
        let no_link = json!({"type": "text", "text": "[link to n: a:b]"});
        for (version, expect) in [
            ("2024-11-05", [&text, &no_sound, &no_link]),
            ("2025-03-26", [&text, &sound, &no_link]),
            ("2025-06-18", [&text, &sound, &link]),
            ("2025-11-25", [&text, &sound, &link]),
        ] {
            let given = json!([text, sound, link]);
            let mut blocks: Vec<ContentBlock> = serde_json::from_value(given.clone()).expect("blocks");
            content(version, &mut blocks);
            assert_eq!(serde_json::to_value(&blocks).expect("json"), json!(expect), "{version}");
            let messages = |blocks: Value| {
                let messages =
                    blocks.as_array().expect("a list").iter().map(|one| json!({"role": "user", "content": one}));
                json!({"messages": messages.collect::<Value>(), "description": "d"})
                    .as_object()
                    .cloned()
                    .expect("object")
            };
            let mut result = messages(given);
            prompt(version, &mut result);
            assert_eq!(result, messages(json!(expect)), "{version}");
            assert_eq!(has_structured(version), version >= "2025-06-18");
        }
        let mut broken = json!({"messages": [{"content": {"type": "audio"}}, {"content": 5}, 7]});
        prompt("2024-11-05", broken.as_object_mut().expect("object"));
        assert_eq!(broken["messages"][0]["content"]["text"], "[audio, not shown]");
    }
}
