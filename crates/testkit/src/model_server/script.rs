//! The script of model answers.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::RecordedRequest;
pub use super::fault::Fault;

/// A model answer, independent of the API.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Thoughts, text and calls.
    Answer(Answer),
    /// A failure, in the API's own error shape.
    Error {
        /// HTTP status.
        status: u16,
        /// The API's code or type; empty for the default of the status.
        code: String,
        /// The error message.
        message: String,
        /// The seconds of the `retry-after` header.
        retry_after: Option<u64>,
    },
}

/// The content of an answer, sent in this order: thoughts, text, calls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The thoughts as the API shows them, with the signature that has to come back; empty for none. In Chat
    /// Completions, which have no such field, the `reasoning_content` of compatible servers.
    pub thinking: String,
    /// Uses of the provider's own tools, before the text: blocks of Anthropic or items of OpenAI Responses, as the API
    /// sends them. The other APIs leave them out.
    pub native: Vec<Value>,
    /// The text, or the refusal if [`Answer::stop`] is one; empty for none.
    pub text: String,
    /// Names and arguments. Over OpenAI Responses, a name without a function is a call of the tool search if the
    /// request offers one to the client.
    pub calls: Vec<(String, Value)>,
    /// The stop reason.
    pub stop: Stop,
    /// The tokens used.
    pub tokens: Tokens,
}

/// The reason why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The answer is complete, or waits for results of its calls.
    #[default]
    Done,
    /// The token limit was reached.
    MaxTokens,
    /// The model refuses. Gemini reports it as its filter does; Ollama cannot report it.
    Refusal,
    /// The provider's filter ended it. Anthropic reports it as a refusal; Ollama cannot report it.
    Filtered,
}

/// The tokens that an answer used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tokens {
    /// Tokens of the prompt, including cached ones.
    pub input: u64,
    /// Tokens of the prompt that were read from the cache.
    pub cached: u64,
    /// Tokens of the prompt that were written to the cache; only Anthropic reports them.
    pub cache_written: u64,
    /// Tokens of the answer, including thoughts.
    pub output: u64,
    /// Tokens of the thoughts.
    pub thinking: u64,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { input: 10, cached: 0, cache_written: 0, output: 5, thinking: 0 }
    }
}

impl Reply {
    /// Creates a text answer.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Answer(Answer { text: text.into(), ..Answer::default() })
    }

    /// Creates an answer of calls without text.
    pub fn calls<N: Into<String>>(calls: Vec<(N, Value)>) -> Self {
        Self::text_and_calls("", calls)
    }

    /// Creates an answer of text, then calls.
    pub fn text_and_calls<N: Into<String>>(text: impl Into<String>, calls: Vec<(N, Value)>) -> Self {
        Self::Answer(Answer {
            text: text.into(),
            calls: calls.into_iter().map(|(name, arguments)| (name.into(), arguments)).collect(),
            ..Answer::default()
        })
    }

    /// Creates a failure with the default code of its status.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        Self::Error { status, code: String::new(), message: message.into(), retry_after: None }
    }
}

type MakeReply = Box<dyn Fn(&RecordedRequest) -> Reply + Send + Sync>;
type Expectation = Box<dyn Fn(&RecordedRequest) -> bool + Send + Sync>;
/// A function that counts the tokens of a request.
pub(super) type CountTokens = Box<dyn Fn(&RecordedRequest) -> u64 + Send + Sync>;

/// One answer of the script, with its expectations of the request.
pub struct Turn {
    make: MakeReply,
    expectations: Vec<(String, Expectation)>,
    pub(super) fault: Option<Fault>,
    pub(super) delay: Duration,
    pub(super) whole: bool,
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
    /// Creates a turn whose reply is the result of `make`.
    pub fn computed(make: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), expectations: Vec::new(), fault: None, delay: Duration::ZERO, whole: false }
    }

    /// Creates a turn with a text.
    pub fn text(text: impl Into<String>) -> Self {
        Reply::text(text).into()
    }

    /// Creates a turn with calls and no text.
    pub fn calls<N: Into<String>>(calls: Vec<(N, Value)>) -> Self {
        Reply::calls(calls).into()
    }

    /// Creates a turn with text, then calls.
    pub fn text_and_calls<N: Into<String>>(text: impl Into<String>, calls: Vec<(N, Value)>) -> Self {
        Reply::text_and_calls(text, calls).into()
    }

    /// Creates a turn with uses of the provider's own tools, then text and calls.
    pub fn native<N: Into<String>>(native: Vec<Value>, text: impl Into<String>, calls: Vec<(N, Value)>) -> Self {
        match Reply::text_and_calls(text, calls) {
            Reply::Answer(answer) => Reply::Answer(Answer { native, ..answer }).into(),
            error @ Reply::Error { .. } => error.into(),
        }
    }

    /// Creates a turn that fails with the default code of its status.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        Reply::error(status, message).into()
    }

    /// Adds an expectation of the request. If it is not met, this and every later request gets HTTP 500 with `what`,
    /// which [`super::ScriptedModel::failures`] also returns.
    #[must_use]
    pub fn expecting(
        mut self,
        what: impl Into<String>,
        holds: impl Fn(&RecordedRequest) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.expectations.push((what.into(), Box::new(holds)));
        self
    }

    /// Sets the fault while the answer is sent. Errors have no faults.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// Sets a delay before the first byte.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sends the whole answer even if a stream is requested, as some compatible servers do.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    pub(super) fn answer(&self, asked: &RecordedRequest) -> Result<Reply, String> {
        match self.expectations.iter().find(|(_, holds)| !holds(asked)) {
            Some((what, _)) => Err(format!("the request does not meet the script's expectation: {what}")),
            None => Ok((self.make)(asked)),
        }
    }
}

/// The turns, one for each request.
#[derive(Default)]
pub struct Script {
    pub(super) turns: Vec<Turn>,
    pub(super) repeat: bool,
    pub(super) faults: Vec<Fault>,
    pub(super) count: Option<CountTokens>,
    pub(super) aside: Option<String>,
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
    /// Creates a script that answers every request with the text of its last user message.
    #[must_use]
    pub fn echo() -> Self {
        Self::from(vec![Turn::computed(|asked| Reply::text(asked.last_user_text()))]).repeating()
    }

    /// Starts again after the last turn; without this, a request after the last turn is a failure.
    #[must_use]
    pub fn repeating(mut self) -> Self {
        self.repeat = true;
        self
    }

    /// Sets the faults of the first answers, one each. A fault that prevents an answer takes no turn of the script: the
    /// next request gets that answer.
    #[must_use]
    pub fn with_faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.faults.extend(faults);
        self
    }

    /// Reports the tokens of each request by `count` instead of 10.
    #[must_use]
    pub fn counting(mut self, count: impl Fn(&RecordedRequest) -> u64 + Send + Sync + 'static) -> Self {
        self.count = Some(Box::new(count));
        self
    }

    /// Reads `{"turns": [{"text"?, "calls"?: [{"name", "arguments"}], "thinking"?, "stop"?, "tokens"?} | {"error":
    /// {"status", "message", "code"?, "retry_after"?}}], "loop"?, "delay_ms"?, "faults"?, "aside"?}`, where `stop` is a
    /// [`Stop`] and `tokens` are [`Tokens`]. A turn may have `fault`, `whole` and `delay_ms` of its own; faults are
    /// written as [`Fault`] says. In a text, and in the strings of arguments, `{{results}}` stands for the text of the
    /// last tool results, `{{results:REGEX}}` for the match of the regular expression's first group there, `{{user}}`
    /// for the text of the last user message, and `{{tools}}` for the names of the offered tools. `aside` is for
    /// foreign clients: it answers requests without tools, which coding agents send to name a session and which take no
    /// turn; with it, no request is checked.
    ///
    /// # Errors
    /// A message about the JSON.
    pub fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(RawScript::into_script).map_err(not_understood)
    }

    /// Reads the same as [`Script::from_json`] from YAML.
    ///
    /// # Errors
    /// A message about the YAML.
    pub fn from_yaml(text: &str) -> Result<Self, String> {
        // `yes` and `no` are texts, as in all YAML that the project reads.
        let options = serde_saphyr::options! { strict_booleans: true };
        serde_saphyr::from_str_with_options(text, options).map(RawScript::into_script).map_err(not_understood)
    }
}

fn not_understood(error: impl fmt::Display) -> String {
    format!("the script is not understood: {error}")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScript {
    turns: Vec<RawTurn>,
    #[serde(default, rename = "loop")]
    repeat: bool,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    faults: Vec<Fault>,
    aside: Option<String>,
}

impl RawScript {
    fn into_script(self) -> Script {
        let turns = self.turns.into_iter().map(|turn| turn.into_turn(self.delay_ms)).collect();
        Script { turns, repeat: self.repeat, faults: self.faults, count: None, aside: self.aside }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTurn {
    #[serde(default)]
    thinking: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<RawCall>,
    #[serde(default)]
    stop: Stop,
    #[serde(default)]
    tokens: Tokens,
    error: Option<RawError>,
    fault: Option<Fault>,
    #[serde(default)]
    whole: bool,
    delay_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCall {
    name: String,
    arguments: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawError {
    status: u16,
    message: String,
    #[serde(default)]
    code: String,
    retry_after: Option<u64>,
}

impl RawTurn {
    fn into_turn(self, delay_ms: u64) -> Turn {
        let (fault, whole) = (self.fault, self.whole);
        let delay = Duration::from_millis(self.delay_ms.unwrap_or(delay_ms));
        Turn { fault, whole, delay, ..self.into_answer() }
    }

    fn into_answer(self) -> Turn {
        if let Some(RawError { status, message, code, retry_after }) = self.error {
            return Reply::Error { status, code, message, retry_after }.into();
        }
        let calls = self.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        let Self { thinking, text, stop, tokens, .. } = self;
        let answer = Answer { thinking, native: Vec::new(), text, calls, stop, tokens };
        Turn::computed(move |asked| {
            let mut answer = answer.clone();
            fill(&mut answer.text, asked);
            answer.calls.iter_mut().for_each(|(_, arguments)| fill_strings(arguments, asked));
            Reply::Answer(answer)
        })
    }
}

/// Replaces the marks of a text by values of the request.
fn fill(text: &mut String, asked: &RecordedRequest) {
    while let Some((before, rest)) = text.split_once("{{results:")
        && let Some((pattern, after)) = rest.split_once("}}")
    {
        let results = asked.last_result_text();
        let found = regex::Regex::new(pattern).ok().and_then(|pattern| Some(pattern.captures(&results)?[1].to_owned()));
        *text = format!("{before}{}{after}", found.unwrap_or_default());
    }
    let said = [
        ("{{results}}", asked.last_result_text()),
        ("{{user}}", asked.last_user_text()),
        ("{{tools}}", asked.tool_names().join(" ")),
    ];
    *text = said.iter().fold(std::mem::take(text), |text, (mark, said)| text.replace(mark, said));
}

fn fill_strings(value: &mut Value, asked: &RecordedRequest) {
    match value {
        Value::String(text) => fill(text, asked),
        Value::Array(items) => items.iter_mut().for_each(|item| fill_strings(item, asked)),
        Value::Object(members) => members.values_mut().for_each(|member| fill_strings(member, asked)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_filled_in_texts_and_arguments() {
        let text = r#"{"turns": [{"text": "{{tools}}: {{results:n=(.)}}", "calls": [{"name": "f", "arguments": {"a": ["{{results:h(.*)}}"]}}]}]}"#;
        let script = Script::from_json(text).expect("JSON");
        let body = serde_json::json!({
            "tools": [{"name": "f"}, {"name": "g"}],
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "n=5 h42"}]},
            ],
        });
        let asked =
            RecordedRequest { api: crate::model_server::WireApi::Anthropic, path: String::new(), body, tokens: 10 };
        let Ok(Reply::Answer(answer)) = script.turns[0].answer(&asked) else { panic!("an answer") };
        assert_eq!(answer.text, "f g: 5");
        assert_eq!(answer.calls[0].1, serde_json::json!({"a": ["42"]}));
    }

    #[test]
    fn faults_of_scripts_are_read() {
        let script = "faults: ['status:429:1']\ndelay_ms: 5\nturns:\n\
                      - {text: a, fault: cut_within:2, whole: true}\n- {text: b, delay_ms: 7}\n";
        let script = Script::from_yaml(script).expect("YAML");
        assert_eq!(script.faults, [Fault::Status(429, Some(1))]);
        let turns: Vec<_> = script.turns.iter().map(|turn| (turn.fault, turn.whole, turn.delay.as_millis())).collect();
        assert_eq!(turns, [(Some(Fault::CutWithin(2)), true, 5), (None, false, 7)]);
        let typo = Script::from_json(r#"{"turns": [{"text": "a", "fault": "cut"}]}"#);
        assert!(typo.expect_err("typo").contains("`cut`"));
    }
}
