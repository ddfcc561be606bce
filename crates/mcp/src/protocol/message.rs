//! JSON-RPC 2.0 messages: parsing and writing.

use std::borrow::Cow;
use std::cell::OnceCell;

use bytes::Bytes;
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};
use toolwright_core::json;

use crate::protocol::batch::is_batch;
use crate::protocol::strict::{Object, ReadableId, object};

/// Id of a request, or a progress token, which have the same form. It is returned exactly as received, because its
/// sender compares it literally.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    /// An integer of 64 bits.
    Number(Number),
    /// A text.
    Text(String),
    /// JSON of any other number, or of a text with half a surrogate pair: it would lose by being read.
    Exact(Box<str>),
}

impl<'de> Deserialize<'de> for Id {
    /// Only from JSON text: a [`Value`] may already have lost precision.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?.get();
        match json.as_bytes().first() {
            Some(b'"') => Ok(serde_json::from_str(json).map_or_else(|_| Self::Exact(json.into()), Self::Text)),
            Some(b'-' | b'0'..=b'9') => {
                let whole = json.parse::<u64>().map(Number::from);
                let whole = whole.or_else(|_| json.parse::<i64>().map(Number::from)).ok();
                // Not another number, but another text.
                let whole = whole.filter(|_| json != "-0");
                Ok(whole.map_or_else(|| Self::Exact(json.into()), Self::Number))
            }
            _ => Err(D::Error::custom("an id is a text or a number")),
        }
    }
}

impl Serialize for Id {
    /// As JSON text; a [`Value`] may lose precision.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => text.serialize(serializer),
            Self::Exact(json) => {
                serde_json::from_str::<&RawValue>(json).map_err(S::Error::custom)?.serialize(serializer)
            }
        }
    }
}

/// The origin of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorAuthor {
    /// This program.
    Us,
    /// Another party, whose error is passed on: its code is defined there.
    #[default]
    Source,
}

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    /// Code.
    pub code: i64,
    /// Message, for people.
    pub message: Cow<'static, str>,
    /// Further data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<Value>>,
    /// Its origin. Not serialised; a parsed error comes from another party.
    #[serde(skip)]
    pub author: ErrorAuthor,
}

impl RpcError {
    /// Invalid JSON.
    pub const PARSE: i64 = -32700;
    /// Not a valid request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method does not exist.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Wrong parameters.
    pub const INVALID_PARAMS: i64 = -32602;
    /// A failure of the server.
    pub const INTERNAL: i64 = -32603;
    /// MCP 2026-07-28: headers and body disagree.
    pub const HEADER_MISMATCH: i64 = -32020;
    /// MCP 2026-07-28: the request needs a client capability that was not declared.
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// MCP 2026-07-28: the protocol version is not served.
    pub const UNSUPPORTED_VERSION: i64 = -32022;
    /// MCP 2025-11-25: the client's user must open a page first.
    pub const PAGES_REQUIRED: i64 = -32042;
    /// MCP up to 2025-11-25: the resource does not exist (2026-07-28 uses [`RpcError::INVALID_PARAMS`]).
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// A bound was reached; try again. From the range for implementations.
    pub const BUSY: i64 = -32000;

    /// An error of our own without data.
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None, author: ErrorAuthor::Us }
    }

    /// Wrong parameters.
    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Self::INVALID_PARAMS, message)
    }

    /// The error for an unknown method.
    #[must_use]
    pub fn method_not_found(method: &str) -> Self {
        let quoted_method: String = method.chars().take(100).collect();
        Self::new(Self::METHOD_NOT_FOUND, format!("this server has no method `{quoted_method}`"))
    }
}

/// The parameters of all served methods; each method reads its own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Params {
    #[serde(rename = "_meta", deserialize_with = "object")]
    /// `_meta` of the protocol.
    pub meta: Meta,
    /// `tools/call`, and the methods that name a thing.
    pub name: Option<String>,
    /// `resources/*`.
    pub uri: Option<String>,
    /// `tools/call`.
    pub arguments: Option<Value>,
    /// Lists.
    pub cursor: Option<Value>,
    /// `initialize`.
    pub protocol_version: Option<String>,
    /// `initialize`.
    pub capabilities: Option<Map<String, Value>>,
    /// `notifications/cancelled`.
    pub request_id: Option<Id>,
    /// `subscriptions/listen`.
    pub notifications: Option<Filter>,
    /// `logging/setLevel`.
    pub level: Option<String>,
    /// The answers of a request that is repeated after `input_required` (2026-07-28).
    pub input_responses: Option<Value>,
    /// The state in that answer, to be sent back with the responses.
    pub request_state: Option<String>,
    /// Requests a task for the call (2025-11-25).
    pub task: Option<Value>,
    /// `tasks/*`.
    pub task_id: Option<String>,
}

/// The part of `_meta` that is read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Under which progress is wanted.
    #[serde(rename = "progressToken")]
    pub progress_token: Option<Id>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// Revision of a modern request.
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    pub protocol_version: Option<String>,
    /// Capabilities of the client of a modern request.
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    pub client_capabilities: Option<Map<String, Value>>,
    /// Minimum level of log messages that a modern request wants; no messages without it.
    #[serde(rename = "io.modelcontextprotocol/logLevel")]
    pub log_level: Option<String>,
}

/// The wanted notifications of a subscription (2026-07-28, `SubscriptionFilter`).
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Filter {
    /// Changes of the list of tools.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tools_list_changed: bool,
    /// Changes of the list of prompts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prompts_list_changed: bool,
    /// Changes of the list of resources.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resources_list_changed: bool,
    /// Changes of these resources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_subscriptions: Vec<String>,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Its id.
    pub id: Id,
    /// Its method.
    pub method: String,
    /// The parsed parameters.
    pub params: Box<Params>,
    /// The raw parameters, to pass on.
    pub raw: Option<Box<RawValue>>,
}

/// A message from a client.
#[derive(Debug)]
pub enum Message {
    /// A request, which needs a response.
    Request(Request),
    /// A notification, which gets no response.
    Notification {
        /// Its method.
        method: String,
        /// The parsed parameters.
        params: Box<Params>,
        /// The raw parameters, to pass on.
        raw: Option<Box<RawValue>>,
    },
    /// A response to our request.
    Response(Response),
}

/// An answer to a request of ours.
#[derive(Debug)]
pub struct Response {
    /// The request's id; errors about unreadable messages have none.
    pub id: Option<Id>,
    /// The result, or the error.
    pub outcome: Result<Value, RpcError>,
}

/// A message that is refused, with its id if known.
#[derive(Debug)]
pub struct RefusedMessage {
    /// The id that it shows.
    pub id: Option<Id>,
    /// The error to send.
    pub error: RpcError,
}

/// The methods with parameters of type [`Params`].
const METHODS: [&str; 20] = [
    "initialize",
    "ping",
    "server/discover",
    "subscriptions/listen",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "tasks/list",
    "tasks/get",
    "tasks/result",
    "tasks/cancel",
    "tasks/update",
];

#[derive(Deserialize)]
struct Envelope<'a> {
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(default)]
    id: ReadableId,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The error for an invalid message, or invalid JSON.
pub(crate) fn unreadable(error: &serde_json::Error) -> RefusedMessage {
    let error = if error.is_data() {
        RpcError::new(RpcError::INVALID_REQUEST, format!("not a JSON-RPC message: {error}"))
    } else {
        RpcError::new(RpcError::PARSE, format!("not JSON: {error}"))
    };
    RefusedMessage { id: None, error }
}

/// Parses a single message, not a batch.
///
/// # Errors
/// [`RefusedMessage`] with the fault.
pub fn parse(bytes: &[u8]) -> Result<Message, RefusedMessage> {
    let refuse = |id, code, message: String| Err(RefusedMessage { id, error: RpcError::new(code, message) });
    if is_batch(bytes) {
        // Serde would accept an array of the fields in order.
        return refuse(None, RpcError::INVALID_REQUEST, "an array is no JSON-RPC message".into());
    }
    let room = OnceCell::new();
    let envelope: Envelope<'_> = json::read(bytes, &room).map_err(|error| unreadable(&error))?;
    let (id, is_null) = match envelope.id {
        ReadableId::Is(id) => (Some(id), false),
        ReadableId::Null => (None, true),
        ReadableId::Absent => (None, false),
    };
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return refuse(id, RpcError::INVALID_REQUEST, "`jsonrpc` must be \"2.0\"".into());
    }
    let Some(method) = envelope.method else {
        return if envelope.result.is_some() || envelope.error.is_some() {
            let broken =
                |error: serde_json::Error| RpcError::new(RpcError::INTERNAL, format!("a broken answer: {error}"));
            let outcome = match (envelope.result, envelope.error) {
                (_, Some(error)) => Err(read(error).unwrap_or_else(broken)),
                (Some(result), None) => read(result).map_err(broken),
                (None, None) => Ok(Value::Null),
            };
            Ok(Message::Response(Response { id, outcome }))
        } else {
            refuse(id, RpcError::INVALID_REQUEST, "there is neither a method nor a result".into())
        };
    };
    // A notification has no id and gets no response.
    if is_null && !method.starts_with("notifications/") {
        return refuse(
            None,
            RpcError::INVALID_REQUEST,
            "the id of a request is a text or a number, and not null".into(),
        );
    }
    let raw = envelope.params.map(ToOwned::to_owned);
    let params = match envelope.params.map(read::<Object<Box<Params>>>).transpose() {
        Ok(params) => params.map(|Object(params)| params).unwrap_or_default(),
        Err(error) if id.is_some() && METHODS.contains(&method.as_str()) => {
            return refuse(id, RpcError::INVALID_PARAMS, format!("the params of {method}: {error}"));
        }
        // A notification is never answered (JSON-RPC 2.0, section 4.1), and parameters of other methods are not
        // checked.
        Err(_) => Box::new(Params { meta: envelope.params.map(meta_of).unwrap_or_default(), ..Params::default() }),
    };
    Ok(match id {
        Some(id) => Message::Request(Request { id, method, params, raw }),
        None => Message::Notification { method, params, raw },
    })
}

/// Reads the `_meta` of unknown parameters, as far as possible.
fn meta_of(params: &RawValue) -> Meta {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ParamsMeta {
        #[serde(rename = "_meta", deserialize_with = "object")]
        meta: Meta,
    }
    serde_json::from_str::<Object<ParamsMeta>>(params.get()).map(|Object(known)| known.meta).unwrap_or_default()
}

/// Reads a part of a message, as [`json::read`] does.
///
/// # Errors
/// It has not the form of a `T`.
pub fn read<T: DeserializeOwned>(part: &RawValue) -> serde_json::Result<T> {
    json::read(part.get().as_bytes(), &OnceCell::new())
}

/// A response around a result that is JSON already.
#[must_use]
pub fn result(id: &Id, result: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(result.len() + 64);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    write_json(&mut out, id);
    out.extend_from_slice(br#","result":"#);
    out.extend_from_slice(result);
    out.push(b'}');
    out.into()
}

/// An error response; without an id when the request did not show one.
#[must_use]
pub fn error(id: Option<&Id>, error: &RpcError) -> Bytes {
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
#[must_use]
pub fn request(id: &Id, method: &str, params: &impl Serialize) -> Bytes {
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
#[must_use]
pub fn notification(method: &str, params: Option<&impl Serialize>) -> Bytes {
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
#[must_use]
pub fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_json(&mut out, value);
    out
}

/// Appends a value as JSON text; `null` if it has none (maps with other keys than text or numbers).
pub fn write_json(out: &mut Vec<u8>, value: &impl Serialize) {
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
    fn messages_are_parsed_by_kind() {
        let text = r#"{"method":"tools/call","params":{"name":"t","arguments":{"a":1},"_meta":{"progressToken":"p"}},"jsonrpc":"2.0","id":0}"#;
        let Ok(Message::Request(request)) = parse(text.as_bytes()) else { panic!("request") };
        assert_eq!(request.params.name.as_deref(), Some("t"));
        assert_eq!(request.params.meta.progress_token, Some(Id::Text("p".into())));
        assert!(matches!(
            parse(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
            Ok(Message::Notification { .. })
        ));
        let answer = parse(br#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#);
        let Ok(Message::Response(Response { id: Some(Id::Number(_)), outcome: Ok(result) })) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(result, serde_json::json!({"a": 1}));
        let refused = parse(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#);
        assert!(matches!(refused, Ok(Message::Response(Response { outcome: Err(_), .. }))));
    }

    #[test]
    fn broken_messages_are_refused_with_their_id() {
        let seven = || Some(Id::Number(7.into()));
        refused("{", RpcError::PARSE, None);
        refused("[]", RpcError::INVALID_REQUEST, None);
        refused(r#" ["2.0",7,"ping",null,null,null]"#, RpcError::INVALID_REQUEST, None);
        refused(r#"{"id":7,"method":"ping"}"#, RpcError::INVALID_REQUEST, seven());
        refused(r#"{"jsonrpc":"2.0","id":7}"#, RpcError::INVALID_REQUEST, seven());
        refused(
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":1}}"#,
            RpcError::INVALID_PARAMS,
            seven(),
        );
    }

    #[test]
    fn parameters_that_are_not_known_are_no_mistake() {
        for text in [
            r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"level":3}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"name":{}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}"#,
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":{}}}"#,
        ] {
            assert!(matches!(parse(text.as_bytes()), Ok(Message::Notification { raw: Some(_), .. })), "{text}");
        }
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"own/x","params":{"uri":5,"_meta":{"progressToken":"t"}}}"#;
        let Ok(Message::Request(request)) = parse(text.as_bytes()) else { panic!("a request") };
        assert_eq!((&*request.method, request.params.meta.progress_token), ("own/x", Some(Id::Text("t".into()))));
    }

    #[test]
    fn unreadable_bytes_become_replacement_characters() {
        let cut = r#""cut \ud83d""#;
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"t","arguments":{{"a":{cut}}}}}}}"#
        );
        let Ok(Message::Request(request)) = parse(text.as_bytes()) else { panic!("a request") };
        assert_eq!(request.params.arguments, Some(serde_json::json!({"a": "cut \u{fffd}"})));
        let answer = parse(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"a":{cut}}}}}"#).as_bytes());
        let Ok(Message::Response(Response { outcome: Ok(result), .. })) = answer else { panic!("{answer:?}") };
        assert_eq!(result["a"], "cut \u{fffd}");
        let broken = parse(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"caf\xc3\"}");
        let Ok(Message::Request(request)) = broken else { panic!("{broken:?}") };
        assert_eq!(request.method, "caf\u{fffd}");
        // An unparsable message is refused with its id.
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for beyond in [deep.as_str(), "1e400"] {
            let text = format!(r#"{{"params":{{"arguments":{beyond}}},"method":"tools/call","jsonrpc":"2.0","id":7}}"#);
            refused(&text, RpcError::INVALID_PARAMS, Some(Id::Number(7.into())));
        }
    }

    #[test]
    fn ids_are_returned_unchanged() {
        for id in [
            "7",
            "-9223372036854775808",
            "18446744073709551615",
            "340282366920938463463374607431768211455",
            "1.50",
            "1E3",
            "1e400",
            "-0",
            r#""aé\"""#,
            r#""\ud83d""#,
        ] {
            let text =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m","params":{{"_meta":{{"progressToken":{id}}}}}}}"#);
            let Ok(Message::Request(request)) = parse(text.as_bytes()) else { panic!("{id}") };
            assert_eq!(request.params.meta.progress_token.as_ref(), Some(&request.id), "{id}");
            let answer = result(&request.id, b"{}");
            assert_eq!(answer, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        }
        let read = |json: &str| serde_json::from_str::<Id>(json).ok();
        assert_ne!(read("1"), read("1.0"));
        assert_eq!(read("1"), Some(Id::Number(1.into())));
        assert_eq!(read(r#""a\u00e9""#), Some(Id::Text("aé".into())));
        for other in ["null", "true", "{}", "[1]"] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn errors_without_known_requests_have_no_id() {
        let text = error(None, &RpcError::new(RpcError::PARSE, "x"));
        assert_eq!(text, r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}"#);
        assert_eq!(result(&Id::Text("a".into()), b"{}"), r#"{"jsonrpc":"2.0","id":"a","result":{}}"#);
    }
}
