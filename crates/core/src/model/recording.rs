//! Writes model requests and answers as lines of a file. Transcripts of runs and recordings share the format,
//! so that both can be replayed.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ModelError, ModelErrorKind, ModelResponse, Usage};

/// Prefix of the model id of a recording: `replay:FILE`.
pub const REPLAY: &str = "replay:";
/// The longest line that is written or read, in bytes.
pub const MAX_RECORDED_LINE: usize = 8 << 20;
/// The largest file that is written or read, in bytes.
pub const MAX_RECORDING: u64 = 64 << 20;
/// Version of the written lines. New members do not change the version.
pub const RECORDING_VERSION: u32 = 1;
/// Suffix of a recording's id: only answers of the following model. See [`recorded_of`].
pub const RECORDED_OF: &str = "?model=";

/// Whether this model id is a recording.
#[must_use]
pub fn is_replay(model: &str) -> bool {
    model.starts_with(REPLAY)
}

/// Returns the id of a recording limited to the answers of this model.
#[must_use]
pub fn recorded_of(recording: &str, model: &str) -> String {
    format!("{recording}{RECORDED_OF}{model}")
}

/// Source of a [`ModelError`]: a recording has no answer to the request. It distinguishes this from a recorded failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request was not recorded")]
pub struct NotRecorded;

/// A line of a recording. Requests and answers are redacted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RecordedLine {
    /// A request with its result: `response` or `error`.
    Exchange {
        /// Absent for the first.
        #[serde(default = "first_version", skip_serializing_if = "is_first_version")]
        version: u32,
        /// The model asked, `provider/model`.
        model: String,
        /// A [`super::ModelRequest`].
        request: Value,
        /// Its answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response: Option<ModelResponse>,
        /// The recorded failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RecordedError>,
    },
    /// A request of a run; the next answer line belongs to it.
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
    /// The recorded failure of the preceding request.
    ModelError(RecordedError),
    /// Another line of a run.
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

/// A failed request: everything that matters to a caller or is charged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedError {
    /// Kind.
    pub kind: ModelErrorKind,
    /// The message.
    pub message: String,
    /// Usage, as far as reported.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub usage: Usage,
    /// The complete part of a broken answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<Box<ModelResponse>>,
}

fn is_nothing(usage: &Usage) -> bool {
    *usage == Usage::default()
}

impl RecordedError {
    /// Records a failure.
    #[must_use]
    pub fn of(error: &ModelError) -> Self {
        Self { kind: error.kind, message: error.message.clone(), usage: error.usage, partial: error.partial.clone() }
    }

    /// Recreates the failure, as one that must not be retried.
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
        // Lines with only kind and message are in the old form.
        let bare = RecordedError::of(&ModelError::new(ModelErrorKind::Auth, "no"));
        assert_eq!(serde_json::to_value(bare).expect("written"), json!({"kind": "auth", "message": "no"}));
    }
}
