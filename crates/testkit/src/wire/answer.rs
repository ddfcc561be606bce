//! Answers to a request.

use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub(crate) struct RpcError {
    pub(super) code: i64,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    pub(crate) const PARSE: i64 = -32700;
    pub(crate) const INVALID_REQUEST: i64 = -32600;
    pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
    pub(crate) const INVALID_PARAMS: i64 = -32602;
    pub(crate) const INTERNAL: i64 = -32603;
    pub(crate) const BUSY: i64 = -32000;
    pub(crate) const SESSION_NOT_FOUND: i64 = -32001;
    /// The error code of 2025-11-25 and older for an unknown resource.
    pub(crate) const RESOURCE_NOT_FOUND: i64 = -32002;
    pub(crate) const HEADER_MISMATCH: i64 = -32020;
    pub(crate) const MISSING_CAPABILITY: i64 = -32021;
    pub(crate) const UNSUPPORTED_VERSION: i64 = -32022;
    /// The error code if the user must open pages first (2025-11-25).
    pub(crate) const PAGES_REQUIRED: i64 = -32042;

    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Self::INVALID_PARAMS, message)
    }

    pub(crate) fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub(crate) fn unknown_method(method: &str) -> Self {
        Self::new(Self::METHOD_NOT_FOUND, format!("method not found: {method}"))
    }

    /// Creates the error for a missing capability; `required` has the form of a client's capabilities.
    pub(crate) fn missing_capability(required: Value) -> Self {
        Self::new(Self::MISSING_CAPABILITY, "the client lacks a capability that this needs")
            .with_data(json!({"requiredCapabilities": required}))
    }

    /// Reads the error in a client's answer.
    pub(super) fn of_client(error: &Value) -> Self {
        Self {
            code: error.get("code").and_then(Value::as_i64).unwrap_or(Self::INTERNAL),
            message: error.get("message").and_then(Value::as_str).unwrap_or("the client refused").to_owned(),
            data: error.get("data").cloned(),
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the error object.
    pub(crate) fn to_value(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }

    /// Returns the whole message. An unknown id is left out, because MCP forbids `null` as an id.
    pub(super) fn into_message(self, id: Option<&Value>) -> Value {
        match id {
            Some(id) => json!({"jsonrpc": "2.0", "id": id, "error": self.to_value()}),
            None => json!({"jsonrpc": "2.0", "error": self.to_value()}),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Answer {
    Result(Value),
    Error(RpcError),
    /// No answer.
    Silence,
    /// The result is sent; then the process ends with this exit code.
    LastWords(Value, i32),
}

impl Answer {
    /// Creates a tool result of one text block.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Result(text_result(text))
    }

    /// Creates a tool result with a failure.
    pub(crate) fn failure(text: impl Into<String>) -> Self {
        let mut result = text_result(text);
        result["isError"] = json!(true);
        Self::Result(result)
    }

    /// Returns the message of this answer; `None` for silence.
    pub(super) fn into_message(self, id: &Value) -> Option<Value> {
        match self {
            Self::Result(result) | Self::LastWords(result, _) => {
                Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
            }
            Self::Error(error) => Some(error.into_message(Some(id))),
            Self::Silence => None,
        }
    }
}

impl From<RpcError> for Answer {
    fn from(error: RpcError) -> Self {
        Self::Error(error)
    }
}

pub(crate) fn text_result(text: impl Into<String>) -> Value {
    json!({"content": [{"type": "text", "text": text.into()}]})
}
