//! What the model is to say.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::Asked;

/// An answer, in no API's form.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Text, calls, or both.
    Answer {
        /// Text; empty for none.
        text: String,
        /// Names and arguments. Over OpenAI Responses a name that no function has is a call of the tool search,
        /// where the request offers one to the client.
        calls: Vec<(String, Value)>,
    },
    /// A failure, in the API's own error shape.
    Error {
        /// HTTP status.
        status: u16,
        /// The API's code or type; empty for the usual one of the status.
        code: String,
        /// In words.
        message: String,
        /// Seconds for a `retry-after` header.
        retry_after: Option<u64>,
    },
}

impl Reply {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Answer { text: text.into(), calls: Vec::new() }
    }

    /// Calls without text.
    pub fn calls<N: Into<String>>(calls: Vec<(N, Value)>) -> Self {
        Self::text_and_calls("", calls)
    }

    /// Text, then calls.
    pub fn text_and_calls<N: Into<String>>(text: impl Into<String>, calls: Vec<(N, Value)>) -> Self {
        Self::Answer {
            text: text.into(),
            calls: calls.into_iter().map(|(name, arguments)| (name.into(), arguments)).collect(),
        }
    }

    /// A failure with the usual code of its status.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        Self::Error { status, code: String::new(), message: message.into(), retry_after: None }
    }
}

/// What goes wrong while an answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks after this many frames of the stream (an event, or a line).
    CutAfter(usize),
    /// The stream ends in good order after this many frames, as if it were complete.
    EndAfter(usize),
    /// Nothing more is sent after this many frames, for a minute.
    HangAfter(usize),
    /// The API's error event takes the place of the rest after this many frames.
    ErrorAfter(usize),
    /// The bytes trickle, this many at a time with this pause between.
    Drip(usize, Duration),
}

type Make = Box<dyn Fn(&Asked) -> Reply + Send + Sync>;
type Expectation = Box<dyn Fn(&Asked) -> bool + Send + Sync>;
/// Counts the tokens of a request.
pub(super) type Count = Box<dyn Fn(&Asked) -> u64 + Send + Sync>;

/// One answer of the script, with what it expects of the request.
pub struct Turn {
    make: Make,
    expectations: Vec<(String, Expectation)>,
    pub(super) fault: Option<Fault>,
    pub(super) delay: Duration,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("fault", &self.fault).field("delay", &self.delay).finish_non_exhaustive()
    }
}

impl From<Reply> for Turn {
    fn from(reply: Reply) -> Self {
        Self::computed(move |_| reply.clone())
    }
}

impl Turn {
    /// Whatever `make` says to the request.
    pub fn computed(make: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), expectations: Vec::new(), fault: None, delay: Duration::ZERO }
    }

    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Reply::text(text).into()
    }

    /// Calls without text.
    pub fn calls<N: Into<String>>(calls: Vec<(N, Value)>) -> Self {
        Reply::calls(calls).into()
    }

    /// Text, then calls.
    pub fn text_and_calls<N: Into<String>>(text: impl Into<String>, calls: Vec<(N, Value)>) -> Self {
        Reply::text_and_calls(text, calls).into()
    }

    /// A failure with the usual code of its status.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        Reply::error(status, message).into()
    }

    /// Demands something of the request. Where it does not hold, this and every later request gets HTTP
    /// 500 with `what`, and [`super::ScriptedModel::failures`] has it.
    #[must_use]
    pub fn expecting(
        mut self,
        what: impl Into<String>,
        holds: impl Fn(&Asked) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.expectations.push((what.into(), Box::new(holds)));
        self
    }

    /// Goes wrong while it is sent. Only streams have faults.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// Waits before the first byte.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub(super) fn answer(&self, asked: &Asked) -> Result<Reply, String> {
        match self.expectations.iter().find(|(_, holds)| !holds(asked)) {
            Some((what, _)) => Err(format!("the request does not meet the script's expectation: {what}")),
            None => Ok((self.make)(asked)),
        }
    }
}

/// The turns, one a request.
#[derive(Default)]
pub struct Script {
    pub(super) turns: Vec<Turn>,
    pub(super) repeat: bool,
    pub(super) count: Option<Count>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("turns", &self.turns).field("repeat", &self.repeat).finish_non_exhaustive()
    }
}

impl From<Vec<Turn>> for Script {
    fn from(turns: Vec<Turn>) -> Self {
        Self { turns, ..Self::default() }
    }
}

impl Script {
    /// Answers every request with the text of its last user message.
    #[must_use]
    pub fn echo() -> Self {
        Self::from(vec![Turn::computed(|asked| Reply::text(asked.last_user_text()))]).repeating()
    }

    /// Begins again when it is at its end; without this, a request too many is a failure.
    #[must_use]
    pub fn repeating(mut self) -> Self {
        self.repeat = true;
        self
    }

    /// Reports as the tokens of each request what `count` says, and not 10.
    #[must_use]
    pub fn counting(mut self, count: impl Fn(&Asked) -> u64 + Send + Sync + 'static) -> Self {
        self.count = Some(Box::new(count));
        self
    }

    /// Reads `{"turns": [{"text"} | {"calls": [{"name", "arguments"}], "text"?} | {"error": {"status",
    /// "message", "code"?, "retry_after"?}}], "loop"?, "delay_ms"?}`. In a text, `{{results}}` stands for
    /// the text of the last tool results and `{{user}}` for that of the last user message.
    ///
    /// # Errors
    /// Says what is wrong with the JSON.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let written: WrittenScript =
            serde_json::from_str(text).map_err(|error| format!("the script is not understood: {error}"))?;
        let delay = Duration::from_millis(written.delay_ms);
        let turns = written.turns.into_iter().map(|turn| turn.into_turn().with_delay(delay)).collect();
        Ok(Self { turns, repeat: written.repeat, ..Self::default() })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenScript {
    turns: Vec<WrittenTurn>,
    #[serde(default, rename = "loop")]
    repeat: bool,
    #[serde(default)]
    delay_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTurn {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<WrittenCall>,
    error: Option<WrittenError>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCall {
    name: String,
    arguments: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenError {
    status: u16,
    message: String,
    #[serde(default)]
    code: String,
    retry_after: Option<u64>,
}

impl WrittenTurn {
    fn into_turn(self) -> Turn {
        if let Some(WrittenError { status, message, code, retry_after }) = self.error {
            return Reply::Error { status, code, message, retry_after }.into();
        }
        let calls: Vec<(String, Value)> = self.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        let text = self.text;
        Turn::computed(move |asked| {
            let text =
                text.replace("{{results}}", &asked.last_result_text()).replace("{{user}}", &asked.last_user_text());
            Reply::text_and_calls(text, calls.clone())
        })
    }
}
