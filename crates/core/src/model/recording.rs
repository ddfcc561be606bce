//! Requests to models and their answers as lines of a file: what a run's transcript and a recording have in common, so
//! that both can be played.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ModelErrorKind, ModelResponse};

/// What the id of a model begins with that is a recording: `replay:FILE`.
pub const REPLAY: &str = "replay:";
/// The longest line that is written or read, in bytes.
pub const MAX_RECORDED_LINE: usize = 8 << 20;
/// The largest file that is written or read, in bytes.
pub const MAX_RECORDING: u64 = 64 << 20;

/// Whether the model of this id is a recording.
#[must_use]
pub fn is_replay(model: &str) -> bool {
    model.starts_with(REPLAY)
}

/// One line. Requests and answers are redacted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RecordedLine {
    /// A request with what became of it: `response` or `error`.
    Exchange {
        /// `provider/model`.
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

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    /// Kind.
    pub kind: ModelErrorKind,
    /// In words.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_transcripts_and_recordings_are_read() {
        let response = json!({"text": "a", "reasoning": "", "calls": [], "stop": "end", "opaque": [],
            "usage": {"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0}});
        let error = RecordedError { kind: ModelErrorKind::RateLimit, message: "no".into() };
        let answer: ModelResponse = serde_json::from_value(response.clone()).expect("response");
        let (model, request) = ("p/m".to_owned(), json!({}));
        let failed = json!({"kind": "rate_limit", "message": "no"});
        for (line, expect) in [
            (
                json!({"type": "exchange", "model": "p/m", "request": {}, "response": response}),
                RecordedLine::Exchange {
                    model: model.clone(),
                    request: request.clone(),
                    response: Some(answer.clone()),
                    error: None,
                },
            ),
            (
                json!({"type": "exchange", "model": "p/m", "request": {}, "error": failed}),
                RecordedLine::Exchange {
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
}
