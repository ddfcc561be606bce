//! A call, the check of its answer, and the limits and times of a load.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::Failure;

/// The placeholder of a call's number in its text.
const NUMBER: &str = "<number>";

/// Calls of an `echo`, each with a unique text, so that answers cannot be confused.
pub(super) struct Call {
    parts: Vec<String>,
    says: &'static str,
}

/// The `echo` tool to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EchoTool {
    /// The reference server's.
    Everything,
    /// The testkit server's.
    Testkit,
}

impl EchoTool {
    fn arguments(self) -> Value {
        let text = format!("hello {NUMBER}");
        match self {
            Self::Everything => json!({"message": text}),
            Self::Testkit => json!({"text": text}),
        }
    }

    fn says(self) -> &'static str {
        match self {
            Self::Everything => "Echo: hello ",
            Self::Testkit => "hello ",
        }
    }
}

impl Call {
    /// Creates MCP's `tools/call` of this tool.
    pub(super) fn mcp(tool: &str, echo: EchoTool) -> Self {
        let params = json!({"name": tool, "arguments": echo.arguments()});
        let text = format!(r#"{{"jsonrpc":"2.0","id":{NUMBER},"method":"tools/call","params":{params}}}"#);
        Self::of(&text, echo)
    }

    /// Creates the body of a call for `mcp-hub`'s own interface.
    pub(super) fn hub(server: &str, echo: EchoTool) -> Self {
        Self::of(&json!({"server_name": server, "tool": "echo", "arguments": echo.arguments()}).to_string(), echo)
    }

    fn of(text: &str, echo: EchoTool) -> Self {
        Self { parts: text.split(NUMBER).map(str::to_owned).collect(), says: echo.says() }
    }

    /// Returns the call with this number.
    pub(super) fn text(&self, number: u64) -> String {
        self.parts.join(&number.to_string())
    }

    /// Returns the number of the answered call; `None` if the message is no answer, an error if the answer is wrong.
    pub(super) fn answered(&self, message: &[u8]) -> Result<Option<u64>, Failure> {
        let reply: Reply<'_> = serde_json::from_slice(message)?;
        if reply.method.is_some() {
            return Ok(None);
        }
        if let Some(error) = reply.error {
            return Err(error.to_string().into());
        }
        let result = reply.result.ok_or("neither a result nor an error")?;
        let text = result.content.first().and_then(|block| block.text.as_deref()).unwrap_or_default();
        let said = text.strip_prefix(self.says).and_then(|number| number.parse().ok());
        match (said, reply.id) {
            (Some(number), None) => Ok(Some(number)),
            (Some(number), Some(id)) if id == number && !result.is_error => Ok(Some(number)),
            _ => {
                Err(format!("a wrong answer: {}", String::from_utf8_lossy(message.get(..300).unwrap_or(message)))
                    .into())
            }
        }
    }
}

#[derive(Deserialize)]
struct Reply<'a> {
    method: Option<Value>,
    id: Option<Value>,
    error: Option<Value>,
    #[serde(borrow)]
    result: Option<CallResult<'a>>,
}

#[derive(Deserialize)]
struct CallResult<'a> {
    #[serde(default, rename = "isError")]
    is_error: bool,
    #[serde(default, borrow)]
    content: Vec<Block<'a>>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

/// The limits of a load; the first one reached ends it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadLimit {
    pub(super) calls: usize,
    pub(super) time: Duration,
}

impl LoadLimit {
    /// Whether another call is made after `made` calls of a load that began at `started`.
    pub(super) fn continues(self, made: usize, started: Instant) -> bool {
        made < self.calls && started.elapsed() < self.time
    }
}

/// The times of a load.
#[derive(Default)]
pub(super) struct Times {
    /// The time of each call.
    pub(super) each: Vec<Duration>,
    /// The time from the first call to the last answer.
    pub(super) elapsed: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked() {
        let call = Call::mcp("a__echo", EchoTool::Everything);
        let check = |message: &str, expect: Result<Option<u64>, &str>| {
            let answered = call.answered(message.as_bytes()).map_err(|error| error.to_string());
            match (answered, expect) {
                (Ok(number), Ok(expected)) => assert_eq!(number, expected, "{message}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{message}: {error}"),
                (answered, _) => panic!("{message}: {answered:?}"),
            }
        };
        let right = r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"Echo: hello 7"}]}}"#;
        check(right, Ok(Some(7)));
        check(&right.replace(r#""id":7,"#, ""), Ok(Some(7)));
        check(&right.replace("hello 7", "hello 8"), Err("a wrong answer"));
        check(&right.replace("Echo: hello 7", "no"), Err("a wrong answer"));
        check(&right.replace(r#"{"content""#, r#"{"isError":true,"content""#), Err("a wrong answer"));
        check(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"broken"}}"#, Err("broken"));
        check(r#"{"jsonrpc":"2.0","id":7}"#, Err("neither"));
        check(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#, Ok(None));
        check("half a l", Err("expected"));
    }

    #[test]
    fn calls_have_their_number() {
        assert_eq!(
            Call::mcp("echo", EchoTool::Testkit).text(12),
            r#"{"jsonrpc":"2.0","id":12,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello 12"}}}"#
        );
        assert_eq!(
            Call::hub("s", EchoTool::Everything).text(3),
            r#"{"server_name":"s","tool":"echo","arguments":{"message":"hello 3"}}"#
        );
    }
}
