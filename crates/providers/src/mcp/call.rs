//! One call: what goes out, and what its result means.

use serde_json::{Map, Value};
use toolwright_core::catalogue::ProviderCall;
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::passthrough::RESULT_FIELDS;
use toolwright_mcp::message::RpcError;
use toolwright_mcp::revision::{Era, LOG_LEVEL};

use super::connection::Connection;
use super::handshake::modern_meta;
use super::inbox::{Caller, Purpose};
use super::peer::{AskError, Request};

/// `_meta` key under which a call's idempotency key goes along.
const IDEMPOTENCY_KEY: &str = "io.github.toolwright/idempotency-key";
/// Longest piece of an unknown block that is shown, in characters.
const EXCERPT: usize = 500;

/// Runs one call on a connection of the server called `server`. Dropping the future cancels it there.
///
/// # Errors
/// [`ErrorKind::ExecutionError`] for what the server answers as an error, [`ErrorKind::TransportError`]
/// for a lost or senseless answer, retryable if nothing was sent.
pub(super) async fn run(
    connection: &Connection,
    server: &str,
    call: ProviderCall<'_>,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let mut params = Map::with_capacity(3);
    params.insert("name".to_owned(), call.raw_name.into());
    if call.arguments.is_object() {
        params.insert("arguments".to_owned(), call.arguments);
    }
    params.insert("_meta".to_owned(), meta(connection.server().era, Some(call.idempotency_key), context).into());
    let request = Request {
        name: Some(call.raw_name),
        purpose: Purpose::Call(Caller::from(context)),
        ..Request::house("tools/call")
    };
    match connection.ask(request, &mut params).await {
        Ok(result) => output(result).map_err(|reason| transport(server, &reason)),
        Err(error) => Err(tool_error(server, call.raw_name, error)),
    }
}

/// What a request says beside its parameters: what the client of the call said, then what is ours to say.
fn meta(era: Era, idempotency_key: Option<&str>, context: &ToolContext) -> Map<String, Value> {
    let mut meta = context.client.meta();
    if let Some(key) = idempotency_key {
        meta.insert(IDEMPOTENCY_KEY.to_owned(), key.into());
    }
    if let Some(traceparent) = &context.traceparent {
        meta.insert("traceparent".to_owned(), (**traceparent).into());
    }
    if era == Era::Modern {
        meta.extend(modern_meta(context.client.capabilities()));
        if let Some(level) = context.client.log_level() {
            meta.insert(LOG_LEVEL.to_owned(), level.into());
        }
    }
    meta
}

/// A failed exchange with the server called `server`, as the error of a call.
fn tool_error(server: &str, tool: &str, error: AskError) -> ToolError {
    match error {
        AskError::Rpc(RpcError { code, message, data }) => {
            let text = format!("MCP server {server} refused the call of {tool}: {message} (code {code})");
            let own = ProtocolError { code, message: message.clone().into_owned(), data: data.map(|data| *data) };
            ToolError::new(ErrorKind::ExecutionError, text).with_model_message(message.into_owned()).with_protocol(own)
        }
        AskError::Broken(reason) | AskError::Final(reason) => transport(server, &reason),
        AskError::Ended(_) => transport(server, "the connection is closed"),
        AskError::NotSent(reason) => transport(server, &reason).retryable(),
        AskError::Full => {
            let text = format!("MCP server {server} has too many calls in flight; call again when some have ended");
            ToolError::new(ErrorKind::LimitExceeded, text).retryable()
        }
    }
}

/// The connection to `server` failed a call.
pub(super) fn transport(server: &str, reason: &str) -> ToolError {
    let first_line = reason.lines().next().unwrap_or_default();
    ToolError::new(ErrorKind::TransportError, format!("MCP server {server}: {reason}"))
        .with_model_message(format!("the connection to the tool failed: {first_line}"))
}

/// Reads a `tools/call` result. Fields are moved, none is interpreted that need not be.
///
/// # Errors
/// Why it is not a result.
fn output(result: Value) -> Result<ToolOutput, String> {
    let Value::Object(mut result) = result else {
        return Err("its answer to tools/call is not an object".to_owned());
    };
    match result.shift_remove("resultType").as_ref().and_then(Value::as_str) {
        None | Some("complete") => {}
        Some("input_required") => {
            return Err("it asks for input in the middle of the call, which is not offered to it".to_owned());
        }
        Some(other) => {
            return Err(format!("it answers with a `{other}` in place of a result, which was not asked for"));
        }
    }
    let content = match result.shift_remove("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(blocks)) => blocks.into_iter().map(block).collect(),
        Some(_) => return Err("the content of its result is not a list".to_owned()),
    };
    let structured = result.shift_remove("structuredContent");
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
fn block(value: Value) -> ContentBlock {
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
    use serde_json::json;

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
        let output = output(result.clone()).expect("output");
        assert_eq!(serde_json::to_value(&output.content).expect("json"), content);
        assert_eq!(output.structured, Some(result["structuredContent"].clone()));
        assert!(output.is_error);
        assert_eq!(Value::Object(output.meta), result["_meta"]);
        assert_eq!(output.extras[RESULT_FIELDS], json!({"later": [1]}));
    }

    #[test]
    fn unknown_content_is_named_not_lost() {
        for (block, expect) in [
            (json!({"type": "video", "data": "x"}), "`video`"),
            (json!({"type": "text"}), "`text`"),
            (json!({"text": "no type"}), "`missing`"),
            (json!("bare"), "bare"),
        ] {
            let output = output(json!({"content": [block]})).expect("output");
            let text = output.content[0].as_text().expect("text");
            assert!(text.contains(expect) && text.contains("not known here"), "{text}");
        }
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for result in [json!(null), json!([1]), json!({"content": "text"}), json!({"resultType": "input_required"})] {
            assert!(output(result.clone()).is_err(), "{result}");
        }
        assert_eq!(output(json!({})).expect("empty"), ToolOutput::default());
    }
}
