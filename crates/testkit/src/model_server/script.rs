//! The script of model answers.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::RecordedRequest;
pub use super::fault::Fault;

/// An answer, in no API's form.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Thoughts, text and calls.
    Answer(Answer),
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

/// What a model says. It comes in this order: thoughts, text, calls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// What it thought, as the API shows it, with the signature that has to come back; empty for none. Chat
    /// Completions have no word for it: there it is the `reasoning_content` of compatible servers.
    pub thinking: String,
    /// What the provider's own tools did, before the text: blocks of Anthropic or items of OpenAI Responses, as the API has
    /// them. The other APIs leave them out.
    pub native: Vec<Value>,
    /// Text; empty for none. The words of a refusal, where the model refuses.
    pub text: String,
    /// Names and arguments. Over OpenAI Responses a name that no function has is a call of the tool search,
    /// where the request offers one to the client.
    pub calls: Vec<(String, Value)>,
    /// Why it stops.
    pub stop: Stop,
    /// What it used.
    pub tokens: Tokens,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// It is done, or wants its calls run.
    #[default]
    Done,
    /// The limit of tokens cut it.
    MaxTokens,
    /// The model refuses. Gemini has no word for it but that of its filter, Ollama none at all.
    Refusal,
    /// The provider's filter cut it. Anthropic's word is that of a refusal, Ollama has none.
    Filtered,
}

/// What an answer used, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tokens {
    /// Of the prompt, those of the cache included.
    pub input: u64,
    /// Of the prompt, read from the cache.
    pub cached: u64,
    /// Of the prompt, written to the cache; Anthropic alone tells.
    pub cache_written: u64,
    /// Of the answer, thoughts included.
    pub output: u64,
    /// Of the answer, thoughts.
    pub thinking: u64,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { input: 10, cached: 0, cache_written: 0, output: 5, thinking: 0 }
    }
}

impl Reply {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Answer(Answer { text: text.into(), ..Answer::default() })
    }

    /// Calls without text.
    pub fn calls<N: Into<String>>(calls: Vec<(N, Value)>) -> Self {
        Self::text_and_calls("", calls)
    }

    /// Text, then calls.
    pub fn text_and_calls<N: Into<String>>(text: impl Into<String>, calls: Vec<(N, Value)>) -> Self {
        Self::Answer(Answer {
            text: text.into(),
            calls: calls.into_iter().map(|(name, arguments)| (name.into(), arguments)).collect(),
            ..Answer::default()
        })
    }

    /// A failure with the usual code of its status.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        Self::Error { status, code: String::new(), message: message.into(), retry_after: None }
    }
}

type Make = Box<dyn Fn(&RecordedRequest) -> Reply + Send + Sync>;
type Expectation = Box<dyn Fn(&RecordedRequest) -> bool + Send + Sync>;
/// Counts the tokens of a request.
pub(super) type Count = Box<dyn Fn(&RecordedRequest) -> u64 + Send + Sync>;

/// One answer of the script, with what it expects of the request.
pub struct Turn {
    make: Make,
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
    /// Whatever `make` says to the request.
    pub fn computed(make: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), expectations: Vec::new(), fault: None, delay: Duration::ZERO, whole: false }
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

    /// What the provider's own tools did, then text and calls.
    pub fn native<N: Into<String>>(native: Vec<Value>, text: impl Into<String>, calls: Vec<(N, Value)>) -> Self {
        match Reply::text_and_calls(text, calls) {
            Reply::Answer(answer) => Reply::Answer(Answer { native, ..answer }).into(),
            error @ Reply::Error { .. } => error.into(),
        }
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
        holds: impl Fn(&RecordedRequest) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.expectations.push((what.into(), Box::new(holds)));
        self
    }

    /// Goes wrong while it is sent. An error has no faults.
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

    /// Is sent whole, though a stream is asked for, as some compatible servers do.
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

/// The turns, one a request.
#[derive(Default)]
pub struct Script {
    pub(super) turns: Vec<Turn>,
    pub(super) repeat: bool,
    pub(super) faults: Vec<Fault>,
    pub(super) count: Option<Count>,
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

    /// What goes wrong with the first answers, one each. Those that do not arrive take no turn of the script: the
    /// request after them is answered as the first would have been.
    #[must_use]
    pub fn with_faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.faults.extend(faults);
        self
    }

    /// Reports as the tokens of each request what `count` says, and not 10.
    #[must_use]
    pub fn counting(mut self, count: impl Fn(&RecordedRequest) -> u64 + Send + Sync + 'static) -> Self {
        self.count = Some(Box::new(count));
        self
    }

    /// Reads `{"turns": [{"text"?, "calls"?: [{"name", "arguments"}], "thinking"?, "stop"?, "tokens"?} | {"error":
    /// {"status", "message", "code"?, "retry_after"?}}], "loop"?, "delay_ms"?, "faults"?, "aside"?}`, where `stop` is a
    /// [`Stop`] and `tokens` are [`Tokens`]. A turn may have `fault`, `whole` and `delay_ms` of its own; faults are
    /// written as [`Fault`] says. In a text, and in the strings of arguments, `{{results}}` stands for the text of the
    /// last tool results, `{{results:REGEX}}` for what the first group of the regular expression matches there, and
    /// `{{user}}` for the text of the last user message, `{{tools}}` for the names of the tools offered. `aside` is for the
    /// clients of others: it answers requests that offer no tools, as coding agents send them to name a session, which
    /// take no turn; and no request is checked.
    ///
    /// # Errors
    /// Says what is wrong with the JSON.
    pub fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(WrittenScript::into_script).map_err(not_understood)
    }

    /// As [`Script::from_json`], from YAML.
    ///
    /// # Errors
    /// Says what is wrong with the YAML.
    pub fn from_yaml(text: &str) -> Result<Self, String> {
        // `yes` and `no` are texts, as wherever YAML is read here.
        let options = serde_saphyr::options! { strict_booleans: true };
        serde_saphyr::from_str_with_options(text, options).map(WrittenScript::into_script).map_err(not_understood)
    }
}

fn not_understood(error: impl fmt::Display) -> String {
    format!("the script is not understood: {error}")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenScript {
    turns: Vec<WrittenTurn>,
    #[serde(default, rename = "loop")]
    repeat: bool,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    faults: Vec<Fault>,
    aside: Option<String>,
}

impl WrittenScript {
    fn into_script(self) -> Script {
        let turns = self.turns.into_iter().map(|turn| turn.into_turn(self.delay_ms)).collect();
        Script { turns, repeat: self.repeat, faults: self.faults, count: None, aside: self.aside }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTurn {
    #[serde(default)]
    thinking: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<WrittenCall>,
    #[serde(default)]
    stop: Stop,
    #[serde(default)]
    tokens: Tokens,
    error: Option<WrittenError>,
    fault: Option<Fault>,
    #[serde(default)]
    whole: bool,
    delay_ms: Option<u64>,
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
    fn into_turn(self, delay_ms: u64) -> Turn {
        let (fault, whole) = (self.fault, self.whole);
        let delay = Duration::from_millis(self.delay_ms.unwrap_or(delay_ms));
        Turn { fault, whole, delay, ..self.into_answer() }
    }

    fn into_answer(self) -> Turn {
        if let Some(WrittenError { status, message, code, retry_after }) = self.error {
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

/// Puts what the request holds in place of the marks of a text.
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
