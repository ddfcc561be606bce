//! JSON-RPC 2.0 messages: parsing what arrives, writing what leaves.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// Id of a request, or a progress token: they have the same form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Id {
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
}

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<Value>>,
}

impl RpcError {
    pub(crate) const PARSE: i64 = -32700;
    pub(crate) const INVALID_REQUEST: i64 = -32600;
    pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
    pub(crate) const INVALID_PARAMS: i64 = -32602;
    pub(crate) const INTERNAL: i64 = -32603;
    /// MCP 2026-07-28: headers and body disagree.
    pub(crate) const HEADER_MISMATCH: i64 = -32020;
    /// MCP 2026-07-28: the request needs a client capability that was not declared.
    pub(crate) const MISSING_CAPABILITY: i64 = -32021;
    /// MCP 2026-07-28: the protocol version is not served.
    pub(crate) const UNSUPPORTED_VERSION: i64 = -32022;
    /// Of the range for implementations: a bound was reached; try again.
    pub(crate) const BUSY: i64 = -32000;

    pub(crate) fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Self::INVALID_PARAMS, message)
    }

    pub(crate) fn method_not_found(method: &str) -> Self {
        let shown: String = method.chars().take(100).collect();
        Self::new(Self::METHOD_NOT_FOUND, format!("this server has no method `{shown}`"))
    }
}

/// The parameters that any served method takes; each method reads its own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Params {
    #[serde(rename = "_meta")]
    pub(crate) meta: Meta,
    /// `tools/call`, and the methods that name a thing.
    pub(crate) name: Option<String>,
    /// `resources/*`.
    pub(crate) uri: Option<String>,
    /// `tools/call`.
    pub(crate) arguments: Option<Value>,
    /// Lists.
    pub(crate) cursor: Option<Value>,
    /// `initialize`.
    pub(crate) protocol_version: Option<String>,
    /// `initialize`.
    pub(crate) capabilities: Option<Map<String, Value>>,
    /// `notifications/cancelled`.
    pub(crate) request_id: Option<Id>,
    /// `subscriptions/listen`.
    pub(crate) notifications: Option<Filter>,
}

/// The part of `_meta` that is read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Meta {
    #[serde(rename = "progressToken")]
    pub(crate) progress_token: Option<Id>,
    pub(crate) traceparent: Option<String>,
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    pub(crate) protocol_version: Option<String>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    pub(crate) client_capabilities: Option<Map<String, Value>>,
}

/// What a subscription asks for.
#[derive(Debug, Default, Clone, Copy, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Filter {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tools_list_changed: bool,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: Id,
    pub(crate) method: String,
    pub(crate) params: Params,
}

/// A message from a client.
#[derive(Debug)]
pub(crate) enum Message {
    /// To be answered.
    Request(Request),
    /// Not to be answered.
    Notification { method: String, params: Params },
    /// An answer to what we asked.
    Response(Response),
}

/// A client's answer; without a result it is an error.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) id: Option<Id>,
    pub(crate) result: Option<Value>,
}

/// A message that cannot be taken, with the id to answer to if it shows one.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) id: Option<Id>,
    pub(crate) error: RpcError,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    jsonrpc: Option<Cow<'a, str>>,
    id: Option<Id>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<IgnoredAny>,
}

/// Parses one message. Batches are refused: no served revision but 2025-03-26 had them.
///
/// # Errors
/// [`Refused`] says what is wrong.
pub(crate) fn parse(bytes: &[u8]) -> Result<Message, Refused> {
    let refuse = |id, code, message: String| Err(Refused { id, error: RpcError::new(code, message) });
    let envelope: Envelope<'_> = match serde_json::from_slice(bytes) {
        Ok(envelope) => envelope,
        Err(error) if error.is_data() => {
            return refuse(None, RpcError::INVALID_REQUEST, format!("not a JSON-RPC message: {error}"));
        }
        Err(error) => return refuse(None, RpcError::PARSE, format!("not JSON: {error}")),
    };
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return refuse(envelope.id, RpcError::INVALID_REQUEST, "`jsonrpc` must be \"2.0\"".into());
    }
    let Some(method) = envelope.method else {
        return if envelope.result.is_some() || envelope.error.is_some() {
            let result = envelope.result.and_then(|raw| serde_json::from_str(raw.get()).ok());
            Ok(Message::Response(Response { id: envelope.id, result }))
        } else {
            refuse(envelope.id, RpcError::INVALID_REQUEST, "there is neither a method nor a result".into())
        };
    };
    let params = match envelope.params.map(|raw| serde_json::from_str(raw.get())).transpose() {
        Ok(params) => params.unwrap_or_default(),
        Err(error) => return refuse(envelope.id, RpcError::INVALID_PARAMS, format!("the params of {method}: {error}")),
    };
    Ok(match envelope.id {
        Some(id) => Message::Request(Request { id, method, params }),
        None => Message::Notification { method, params },
    })
}

/// A response around a result that is JSON already.
pub(crate) fn result(id: &Id, result: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(result.len() + 64);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    write_json(&mut out, id);
    out.extend_from_slice(br#","result":"#);
    out.extend_from_slice(result);
    out.push(b'}');
    out.into()
}

/// An error response; without an id when the request did not show one.
pub(crate) fn error(id: Option<&Id>, error: &RpcError) -> Bytes {
    #[derive(Serialize)]
    struct Response<'a> {
        jsonrpc: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a Id>,
        error: &'a RpcError,
    }
    to_json(&Response { jsonrpc: "2.0", id, error }).into()
}

/// A request of ours.
pub(crate) fn request(id: &Id, method: &str, params: &impl Serialize) -> Bytes {
    #[derive(Serialize)]
    struct Request<'a, P> {
        jsonrpc: &'static str,
        id: &'a Id,
        method: &'a str,
        params: &'a P,
    }
    to_json(&Request { jsonrpc: "2.0", id, method, params }).into()
}

/// A notification.
pub(crate) fn notification(method: &str, params: Option<&impl Serialize>) -> Bytes {
    #[derive(Serialize)]
    struct Notification<'a, P> {
        jsonrpc: &'static str,
        method: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        params: Option<&'a P>,
    }
    to_json(&Notification { jsonrpc: "2.0", method, params }).into()
}

/// JSON text of a value that has one: maps with text keys, and numbers.
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_json(&mut out, value);
    out
}

fn write_json(out: &mut Vec<u8>, value: &impl Serialize) {
    let before = out.len();
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        tracing::error!("a message could not be written as JSON: {error}");
        out.truncate(before);
        out.extend_from_slice(b"null");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, code: i64, id: Option<Id>) {
        let refused = parse(text.as_bytes()).expect_err("refused");
        assert_eq!((refused.error.code, refused.id), (code, id), "{text}");
    }

    #[test]
    fn messages_are_told_apart() {
        let text = r#"{"method":"tools/call","params":{"name":"t","arguments":{"a":1},"_meta":{"progressToken":"p"}},"jsonrpc":"2.0","id":0}"#;
        let Ok(Message::Request(request)) = parse(text.as_bytes()) else { panic!("request") };
        assert_eq!(request.params.name.as_deref(), Some("t"));
        assert_eq!(request.params.meta.progress_token, Some(Id::Text("p".into())));
        assert!(matches!(
            parse(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
            Ok(Message::Notification { .. })
        ));
        let answer = parse(br#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#);
        let Ok(Message::Response(Response { id: Some(Id::Number(_)), result: Some(result) })) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(result, serde_json::json!({"a": 1}));
        let refused = parse(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#);
        assert!(matches!(refused, Ok(Message::Response(Response { result: None, .. }))));
    }

    #[test]
    fn broken_messages_are_refused_with_their_id() {
        let seven = || Some(Id::Number(7.into()));
        refused("{", RpcError::PARSE, None);
        refused("[]", RpcError::INVALID_REQUEST, None);
        refused(r#"{"id":7,"method":"ping"}"#, RpcError::INVALID_REQUEST, seven());
        refused(r#"{"jsonrpc":"2.0","id":7}"#, RpcError::INVALID_REQUEST, seven());
        refused(
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":1}}"#,
            RpcError::INVALID_PARAMS,
            seven(),
        );
    }

    #[test]
    fn an_error_without_a_known_request_has_no_id() {
        let text = error(None, &RpcError::new(RpcError::PARSE, "x"));
        assert_eq!(text, r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}"#);
        assert_eq!(result(&Id::Text("a".into()), b"{}"), r#"{"jsonrpc":"2.0","id":"a","result":{}}"#);
    }
}
