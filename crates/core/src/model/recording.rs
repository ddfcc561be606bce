//! Writes requests to models and their answers as lines of a file, in one form for transcripts of runs and for
//! recordings, so that both can be replayed.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ModelError, ModelErrorKind, ModelResponse, Usage};

/// What the id of a model begins with that is a recording: `replay:FILE`.
pub const REPLAY: &str = "replay:";
/// The longest line that is written or read, in bytes.
pub const MAX_RECORDED_LINE: usize = 8 << 20;
/// The largest file that is written or read, in bytes.
pub const MAX_RECORDING: u64 = 64 << 20;
/// The version of lines that is written. Members that a reader does not know are no new version.
pub const RECORDING_VERSION: u32 = 1;
/// Behind the id of a recording: only answers of the model that follows. See [`recorded_of`].
pub const RECORDED_OF: &str = "?model=";

/// Whether the model of this id is a recording.
#[must_use]
pub fn is_replay(model: &str) -> bool {
    model.starts_with(REPLAY)
}

/// The id of a recording that gives only what this model answered.
#[must_use]
pub fn recorded_of(recording: &str, model: &str) -> String {
    format!("{recording}{RECORDED_OF}{model}")
}

/// A recording has no answer to a request: the source of that [`ModelError`], by which it is told from an answer that
/// failed when it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request was not recorded")]
pub struct NotRecorded;

/// One line. Requests and answers are redacted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RecordedLine {
    /// A request with what became of it: `response` or `error`.
    Exchange {
        /// Absent for the first.
        #[serde(default = "first_version", skip_serializing_if = "is_first_version")]
        version: u32,
        /// The model that was asked, `provider/model`.
        model: String,
        /// A [`super::ModelRequest`].
        request: Value,
        /// Its answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response: Option<ModelResponse>,
        /// Why there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RecordedError>,
    },
    /// A request of a run, whose answer is the next line that is one.
    Request {
        /// `provider/model`.
        model: String,
        /// A [`super::ModelRequest`].
        request: Value,
    },
    /// The answer to the request before it.
    Response {
        /// The answer.
        response: ModelResponse,
    },
    /// Why the request before it has none.
    ModelError(RecordedError),
    /// Something else of a run.
    #[serde(other)]
    Other,
}

fn first_version() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_first_version(version: &u32) -> bool {
    *version == first_version()
}

/// A failed request: all of it that a caller can tell, and that is charged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedError {
    /// Kind.
    pub kind: ModelErrorKind,
    /// In words.
    pub message: String,
    /// What it used, as far as the provider said it.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub usage: Usage,
    /// What was complete when the answer broke off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<Box<ModelResponse>>,
}

fn is_nothing(usage: &Usage) -> bool {
    *usage == Usage::default()
}

impl RecordedError {
    /// What is recorded of a failure.
    #[must_use]
    pub fn of(error: &ModelError) -> Self {
        Self { kind: error.kind, message: error.message.clone(), usage: error.usage, partial: error.partial.clone() }
    }

    /// The failure again. Another try gives nothing else.
    #[must_use]
    pub fn error(&self) -> ModelError {
        ModelError {
            should_retry: Some(false),
            usage: self.usage,
            partial: self.partial.clone(),
            ..ModelError::new(self.kind, self.message.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_transcripts_and_recordings_are_read() {
        let response = json!({"text": "a", "reasoning": "", "calls": [], "stop": "end", "opaque": [],
            "usage": {"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0}});
        let (kind, usage) = (ModelErrorKind::RateLimit, Usage::default());
        let error = RecordedError { kind, message: "no".into(), usage, partial: None };
        let answer: ModelResponse = serde_json::from_value(response.clone()).expect("response");
        let (model, request) = ("p/m".to_owned(), json!({}));
        let failed = json!({"kind": "rate_limit", "message": "no"});
        for (line, expect) in [
            (
                json!({"type": "exchange", "model": "p/m", "request": {}, "response": response}),
                RecordedLine::Exchange {
                    version: RECORDING_VERSION,
                    model: model.clone(),
                    request: request.clone(),
                    response: Some(answer.clone()),
                    error: None,
                },
            ),
            (
                json!({"type": "exchange", "model": "p/m", "request": {}, "error": failed}),
                RecordedLine::Exchange {
                    version: RECORDING_VERSION,
                    model: model.clone(),
                    request: request.clone(),
                    response: None,
                    error: Some(error.clone()),
                },
            ),
            (
                json!({"type": "request", "turn": 1, "model": "p/m", "exposure": "direct", "request": {}}),
                RecordedLine::Request { model, request },
            ),
            (json!({"type": "response", "turn": 1, "response": response}), RecordedLine::Response { response: answer }),
            (
                json!({"type": "model_error", "turn": 1, "kind": "rate_limit", "message": "no"}),
                RecordedLine::ModelError(error),
            ),
            (json!({"type": "report", "response": 7}), RecordedLine::Other),
        ] {
            assert_eq!(serde_json::from_value::<RecordedLine>(line.clone()).expect("line"), expect, "{line}");
        }
    }
    #[test]
    fn recorded_failure_keeps_usage_and_partial_answer() {
        let usage = Usage { input_tokens: 7, output_tokens: 2, ..Usage::default() };
        let partial = ModelResponse { text: "half".into(), usage, ..ModelResponse::default() };
        let error = ModelError {
            usage,
            partial: Some(Box::new(partial.clone())),
            retry_after_ms: Some(5),
            ..ModelError::new(ModelErrorKind::BadResponse, "it broke off")
        };
        let line = RecordedLine::ModelError(RecordedError::of(&error));
        let written = serde_json::to_value(&line).expect("written");
        assert_eq!((&written["usage"]["input_tokens"], &written["partial"]["text"]), (&json!(7), &json!("half")));
        let RecordedLine::ModelError(read) = serde_json::from_value(written).expect("read") else {
            panic!("a failure")
        };
        let again = read.error();
        assert_eq!((again.kind, &*again.message, again.usage), (error.kind, "it broke off", usage));
        assert_eq!((again.partial.as_deref(), again.should_retry), (Some(&partial), Some(false)));
        // Lines that say no more than kind and words are those of old.
        let bare = RecordedError::of(&ModelError::new(ModelErrorKind::Auth, "no"));
        assert_eq!(serde_json::to_value(bare).expect("written"), json!({"kind": "auth", "message": "no"}));
    }
}
