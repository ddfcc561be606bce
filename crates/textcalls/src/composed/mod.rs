//! The composed transport: one JSON Schema in which a model writes its final output, its calls, or both. For models
//! with structured output but without native calls.
//!
//! An answer is `{"output": … | null, "calls": […]}`. A call is one closed object:
//! `{"_tool": name, "_reasoningForCall": why, …parameters, "_output"?: result}`. Three rules keep every tool
//! expressible:
//!
//! - A tool whose root schema is more than a list of properties has all its arguments under `_arguments`.
//! - A parameter that is called `_tool`, `_reasoningForCall`, `_arguments` or `_output`, with any number of underscores in
//!   front, is written with one more underscore.
//! - `_output` is only for latent tools, whose result the model writes itself; for other tools it is dropped, so that
//!   results cannot be invented.

mod answer;
mod conversation;
mod schema;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use toolwright_core::model::RequestTool;

pub use answer::{Composed, ComposedCall, Decoder, UnusableAnswer};
pub use conversation::{ComposedListener, ComposedTools};

/// A tool as the transport offers it.
#[derive(Debug, Clone, Copy)]
pub struct ComposedTool<'a> {
    /// Name, description and schema of the arguments. Every property is a parameter, even one with a reserved name.
    pub tool: &'a RequestTool,
    /// The schema of the result, for a latent tool: the model writes the result along with the call.
    pub latent: Option<&'a Value>,
}

/// The written form of a tool's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    /// The arguments are under `_arguments`.
    wrapped: bool,
    /// The model writes the result.
    latent: bool,
}

/// The schema of one request, and the reader of its answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Transport {
    schema: Value,
    forms: BTreeMap<String, Form>,
}

impl Transport {
    /// Builds the transport for `tools` and the schema of the `output`, which is text without one. Deferred tools are
    /// left out, because nothing could load them.
    ///
    /// The order of the tools is kept, and equal input gives equal bytes. References inside the given schemas point to
    /// copies under `$defs`; those to other documents do not change.
    #[must_use]
    pub fn new(output: Option<&Value>, tools: &[ComposedTool<'_>]) -> Self {
        let (schema, forms) = schema::compose(output, tools);
        Self { schema, forms }
    }

    /// The JSON Schema of the answer.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// A decoder for one streamed answer.
    #[must_use]
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(self)
    }

    /// Decodes a whole answer.
    ///
    /// # Errors
    /// [`UnusableAnswer`] if there is neither an output nor a call.
    pub fn decode(&self, text: &str) -> Result<Composed, UnusableAnswer> {
        let mut decoder = self.decoder();
        decoder.feed(text, &mut |_| {});
        decoder.finish()
    }

    /// Formats an answer as text, for a conversation that is sent again. Arguments that are not a JSON object, which no
    /// answer in this form has, become `{}`.
    #[must_use]
    pub fn encode(&self, answer: &Composed) -> String {
        answer::encode(self, answer).to_string()
    }

    fn form(&self, tool: &str) -> Form {
        self.forms.get(tool).copied().unwrap_or(Form { wrapped: false, latent: false })
    }
}

/// The tool's name.
const TOOL_KEY: &str = "_tool";
/// Why the model calls it.
const REASONING_KEY: &str = "_reasoningForCall";
/// Key of the arguments if they are not members themselves.
const ARGUMENTS_KEY: &str = "_arguments";
/// The result that the model writes itself.
const OUTPUT_KEY: &str = "_output";

/// A parameter's name as a member, with one more underscore if it could be a reserved one.
fn key_of_parameter(name: &str) -> Cow<'_, str> {
    if resembles_reserved(name) { Cow::Owned(format!("_{name}")) } else { Cow::Borrowed(name) }
}

/// The parameter's name of a member that is not reserved.
fn parameter_of_key(member: &str) -> &str {
    if resembles_reserved(member) { &member[1..] } else { member }
}

fn resembles_reserved(name: &str) -> bool {
    let bare = name.trim_start_matches('_');
    bare.len() < name.len()
        && [TOOL_KEY, REASONING_KEY, ARGUMENTS_KEY, OUTPUT_KEY].iter().any(|reserved| &reserved[1..] == bare)
}
