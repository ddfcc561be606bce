//! Shapes of answers that an API refuses to demand of a model: it is asked in words instead.
//!
//! Anthropic's structured outputs are for Claude 4.5 and newer, and for schemas of which a grammar can be compiled
//! (platform.claude.com/docs/en/build-with-claude/structured-outputs): anything else is HTTP 400, for which nothing is
//! billed. Neither can be told beforehand.

use std::borrow::Cow;

use serde_json::json;
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelRequest, OutputFormat};

use crate::encoder::with_instruction;
use crate::known::Known;

/// Words of a refusal that is about the demanded shape.
const OF_SHAPE: [&str; 4] = ["output_config", "output_format", "grammar", "structured output"];
/// Words of one that is about this schema, and not about the model.
const OF_SCHEMA: [&str; 2] = ["grammar", "schema:"];

/// What was refused.
#[derive(Debug, Default)]
pub(crate) struct RefusedShapes(Known);

impl RefusedShapes {
    /// The request, in words where its shape is known to be refused.
    pub(crate) fn around<'a>(&self, model: &str, request: Cow<'a, ModelRequest>) -> Cow<'a, ModelRequest> {
        let Some(output) = &request.output else { return request };
        if !self.0.has(model) && !self.0.has(&of_schema(model, output)) {
            return request;
        }
        let system = with_instruction(&request.system, output);
        Cow::Owned(ModelRequest { system, output: None, ..request.into_owned() })
    }

    /// A request that demanded a shape has failed. If that was why, the error says that another try may help: it will
    /// not demand it.
    pub(crate) fn learn(&self, model: &str, request: &ModelRequest, error: &mut ModelError) {
        let Some(output) = &request.output else { return };
        let words = error.message.to_ascii_lowercase();
        let said = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
        // The effort stands beside the shape, in `output_config`.
        if error.kind != ModelErrorKind::Invalid || !said(&OF_SHAPE) || words.contains("effort") {
            return;
        }
        let name = if said(&OF_SCHEMA) { of_schema(model, output) } else { model.to_owned() };
        // Whoever asked at the same time hears the same.
        self.0.note(&name);
        error.should_retry = Some(true);
    }
}

fn of_schema(model: &str, output: &OutputFormat) -> String {
    format!("{model} {}", ContentHash::of_value(&json!(output.schema)))
}
