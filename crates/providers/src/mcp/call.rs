//! One call: what goes out, and what its result means.

use std::pin::pin;

use serde_json::{Map, Value, json};
use toolwright_core::catalogue::ProviderCall;
use toolwright_core::content::ContentBlock;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::passthrough::RESULT_FIELDS;
use toolwright_mcp::revision::Era;

use super::exchange::{Exchange, Sent, What, transport};
use super::facts::Fact;
use super::params::Params;
use super::tasks;

/// Longest piece of an unknown block that is shown, in characters.
const EXCERPT: usize = 500;

/// Runs one call. Dropping the future cancels it at the server.
///
/// # Errors
/// As [`Exchange::run`].
pub(super) async fn run(
    exchange: Exchange<'_>,
    call: ProviderCall<'_>,
    fact: Option<&Fact>,
) -> Result<ToolOutput, ToolError> {
    let mut params = Params { name: Some(call.raw_name), ..Params::default() };
    let mut headers = Vec::new();
    if let Value::Object(arguments) = &call.arguments {
        headers = fact.map(|fact| fact.headers(arguments)).unwrap_or_default();
        params.arguments = Some(call.arguments);
    }
    if fact.is_some_and(|fact| fact.wants_task) && tasks::can_be_asked_for(exchange.connection.server()) {
        params.others.insert("task".to_owned(), json!({}));
    }
    let sent = Sent {
        method: "tools/call",
        what: What("the call of ", call.raw_name),
        name: Some(call.raw_name),
        headers,
        params,
        idempotency_key: Some(call.idempotency_key),
    };
    let result = pin!(exchange.run(sent)).await?;
    output(result, exchange.connection.server().era).map_err(|reason| transport(exchange.server, &reason))
}

/// Reads a `tools/call` result of a server of `era`. Fields are moved, none is interpreted that need not be.
///
/// # Errors
/// Why it is not a result.
fn output(result: Value, era: Era) -> Result<ToolOutput, String> {
    let Value::Object(mut result) = result else {
        return Err("its answer to tools/call is not an object".to_owned());
    };
    // Complete, or it would not have come here.
    result.shift_remove("resultType");
    let content = match result.shift_remove("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(blocks)) => blocks.into_iter().map(block).collect(),
        Some(_) => return Err("the content of its result is not a list".to_owned()),
    };
    // It is an object up to 2025-11-25: a null is what serialisers write for none.
    let structured = result.shift_remove("structuredContent").filter(|value| era == Era::Modern || !value.is_null());
    let is_error = result.shift_remove("isError").and_then(|value| value.as_bool()).unwrap_or(false);
    let meta = match result.shift_remove("_meta") {
        Some(Value::Object(meta)) => meta,
        _ => Map::new(),
    };
    let mut output = ToolOutput { content, structured, is_error, meta, extras: Map::new() };
    if !result.is_empty() {
        output.extras.insert(RESULT_FIELDS.to_owned(), Value::Object(result));
    }
    Ok(output)
}

/// A content block; one of an unknown type, or without what its type needs, becomes a text that says so.
pub(super) fn block(value: Value) -> ContentBlock {
    let has = |key: &str| value.get(key).is_some_and(Value::is_string);
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("missing").to_owned();
    let sound = match kind.as_str() {
        "text" => has("text"),
        "image" | "audio" => has("data") && has("mimeType"),
        "resource" => value.get("resource").is_some_and(Value::is_object),
        "resource_link" => has("uri") && has("name"),
        _ => false,
    };
    let mut fields = match value {
        Value::Object(fields) if sound => fields,
        other => return stand_in(&kind, &other),
    };
    fields.shift_remove("type");
    let mut take = |key: &str| match fields.shift_remove(key) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    match kind.as_str() {
        "text" => ContentBlock::Text { text: take("text"), extra: fields },
        "image" => ContentBlock::Image { data: take("data"), mime_type: take("mimeType"), extra: fields },
        "audio" => ContentBlock::Audio { data: take("data"), mime_type: take("mimeType"), extra: fields },
        "resource_link" => ContentBlock::Link { uri: take("uri"), name: take("name"), extra: fields },
        _ => ContentBlock::Resource { resource: fields.shift_remove("resource").unwrap_or_default(), extra: fields },
    }
}

fn stand_in(kind: &str, value: &Value) -> ContentBlock {
    let text = value.to_string();
    let excerpt: String = text.chars().take(EXCERPT).collect();
    let cut = if excerpt.len() < text.len() { format!(" … {} bytes in all", text.len()) } else { String::new() };
    ContentBlock::text(format!("[content of the type `{kind}`, which is not known here: {excerpt}{cut}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_passes_untouched() {
        let content = json!([
            {"type": "text", "text": "a", "annotations": {"priority": 0.1}, "_meta": {"k": 1}},
            {"type": "image", "data": "AA==", "mimeType": "image/png", "later": true},
            {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "a:b", "text": "t", "x": 1}, "y": 2},
            {"type": "resource_link", "uri": "a:b", "name": "n", "size": 12.0},
        ]);
        let result = json!({
            "resultType": "complete", "content": content, "structuredContent": {"z": 1, "a": null},
            "isError": true, "_meta": {"m": 0.1}, "later": [1],
        });
        let output = output(result.clone(), Era::Legacy).expect("output");
        assert_eq!(serde_json::to_value(&output.content).expect("json"), content);
        assert_eq!(output.structured, Some(result["structuredContent"].clone()));
        assert!(output.is_error);
        assert_eq!(Value::Object(output.meta), result["_meta"]);
        assert_eq!(output.extras[RESULT_FIELDS], json!({"later": [1]}));
    }

    #[test]
    fn a_structured_null_is_a_value_from_2026_07_28_on() {
        for (era, expect) in [(Era::Legacy, None), (Era::Modern, Some(Value::Null))] {
            let result = json!({"content": [], "structuredContent": null});
            assert_eq!(output(result, era).expect("output").structured, expect, "{era:?}");
        }
    }

    #[test]
    fn unknown_content_is_named_not_lost() {
        for (block, expect) in [
            (json!({"type": "video", "data": "x"}), "`video`"),
            (json!({"type": "text"}), "`text`"),
            (json!({"text": "no type"}), "`missing`"),
            (json!("bare"), "bare"),
        ] {
            let output = output(json!({"content": [block]}), Era::Legacy).expect("output");
            let text = output.content[0].as_text().expect("text");
            assert!(text.contains(expect) && text.contains("not known here"), "{text}");
        }
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for result in [json!(null), json!([1]), json!({"content": "text"})] {
            assert!(output(result.clone(), Era::Legacy).is_err(), "{result}");
        }
        assert_eq!(output(json!({}), Era::Legacy).expect("empty"), ToolOutput::default());
    }
}
