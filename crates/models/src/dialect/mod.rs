//! The view of tools that an API takes, and what the view loses (SPEC section 5).
//!
//! A definition's own schema is never touched: what a model answers is checked against that.

mod root;

use serde::Serialize;
use serde_json::Value;
use toolwright_core::model::ShownTool;

pub(crate) use root::retain_properties;

/// Rules about tool schemas that one or more APIs share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI, Chat Completions and Responses alike.
    OpenAi,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini with `parametersJsonSchema`.
    GeminiJsonSchema,
    /// Gemini with `parameters`, the subset of OpenAPI that function declarations began with.
    GeminiDeclaration,
    /// Ollama.
    Ollama,
}

/// Something that a schema says and its view does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Wire name of the tool.
    pub tool: String,
    /// JSON Pointer into the tool's own schema.
    pub path: String,
    /// The keyword that is lost, moved or changed.
    pub keyword: String,
    /// What became of it, and why.
    pub note: String,
}

/// A tool that cannot be shown to this API, and so is left out of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Quarantined {
    /// Wire name of the tool.
    pub tool: String,
    /// Why.
    pub reason: String,
}

/// One tool as an API takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolView {
    /// Wire name.
    pub name: String,
    /// Description.
    pub description: String,
    /// The API's view of the schema.
    pub parameters: Value,
    /// Whether the API is to hold the model to the schema while it writes.
    pub strict: bool,
    /// The one property that holds the arguments, where the schema's root had to be wrapped in an object.
    pub wrapped: Option<&'static str>,
}

/// The tools of a request as an API takes them, in the order they were given.
#[derive(Debug, Clone, PartialEq)]
pub struct Toolset {
    /// Whose rules were applied.
    pub dialect: Dialect,
    /// The tools that can be shown.
    pub tools: Vec<ToolView>,
    /// What their views lose.
    pub losses: Vec<Loss>,
    /// The tools that cannot be shown.
    pub quarantined: Vec<Quarantined>,
}

impl Toolset {
    /// The view of one tool, by wire name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ToolView> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

/// The view of `tools` under the rules of `dialect`. `strict` asks for strict decoding of the tools whose
/// author left it open.
#[must_use]
pub fn translate(dialect: Dialect, tools: &[ShownTool], strict: bool) -> Toolset {
    let _ = strict;
    let view = |tool: &ShownTool| {
        let mut parameters = root::object_view(&tool.parameters);
        if dialect == Dialect::Anthropic {
            retain_properties(&mut parameters, |name| {
                (1..=64).contains(&name.len())
                    && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
            });
        }
        ToolView {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters,
            strict: false,
            wrapped: None,
        }
    };
    Toolset { dialect, tools: tools.iter().map(view).collect(), losses: Vec::new(), quarantined: Vec::new() }
}
