//! Names of the conventions, and values that they prescribe.

use std::borrow::Cow;

use serde::Serialize;
use toolwright_core::ErrorKind;
use toolwright_core::model::{REPLAY, StopReason};

pub(crate) const AGENT_NAME: &str = "gen_ai.agent.name";
pub(crate) const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub(crate) const CACHE_WRITTEN_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
pub(crate) const CONVERSATION: &str = "gen_ai.conversation.id";
pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub(crate) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(crate) const MCP_METHOD: &str = "mcp.method.name";
pub(crate) const MCP_SESSION: &str = "mcp.session.id";
pub(crate) const MCP_VERSION: &str = "mcp.protocol.version";
pub(crate) const OPERATION: &str = "gen_ai.operation.name";
pub(crate) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(crate) const PROVIDER: &str = "gen_ai.provider.name";
pub(crate) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(crate) const RPC_STATUS: &str = "rpc.response.status_code";
pub(crate) const TOKEN_TYPE: &str = "gen_ai.token.type";
pub(crate) const TOOL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
pub(crate) const TOOL_CALL: &str = "gen_ai.tool.call.id";
pub(crate) const TOOL_NAME: &str = "gen_ai.tool.name";
pub(crate) const TOOL_TYPE: &str = "gen_ai.tool.type";

/// An operation on a tool.
pub(crate) const EXECUTE_TOOL: &str = "execute_tool";
/// An operation on a model.
pub(crate) const CHAT: &str = "chat";
/// The run of an agent.
pub(crate) const INVOKE_AGENT: &str = "invoke_agent";
/// Tools that are run on this side of the model's API.
pub(crate) const FUNCTION: &str = "function";
/// How tools of MCP servers are called.
pub(crate) const TOOLS_CALL: &str = "tools/call";
/// An error of no known type.
const OTHER: &str = "_OTHER";

/// What an error of a tool is called: its kind. In MCP it is the peer's error code, where it gave one, and a result
/// with `isError` has a name of its own.
pub(crate) fn tool_error(kind: Option<ErrorKind>, code: Option<i64>, of_mcp: bool) -> Cow<'static, str> {
    match (kind, code) {
        (_, Some(code)) if of_mcp => code.to_string().into(),
        (Some(ErrorKind::ExecutionError), None) if of_mcp => "tool_error".into(),
        (kind, _) => kind.map_or(OTHER, ErrorKind::as_str).into(),
    }
}

/// `provider/model` as the conventions name both; the provider's own name where they know none.
pub(crate) fn provider_and_model(id: &str) -> (&str, &str) {
    if let Some(file) = id.strip_prefix(REPLAY) {
        return ("replay", file);
    }
    let (provider, model) = id.split_once('/').unwrap_or((OTHER, id));
    let provider = match provider {
        "azure" | "azure-openai" => "azure.ai.openai",
        "bedrock" | "aws-bedrock" => "aws.bedrock",
        "gemini" | "google" => "gcp.gemini",
        "mistral" | "mistralai" => "mistral_ai",
        "moonshot" | "moonshotai" => "moonshot_ai",
        "vertex" | "vertexai" => "gcp.vertex_ai",
        "watsonx" => "ibm.watsonx.ai",
        "xai" | "x-ai" => "x_ai",
        other => other,
    };
    (provider, model)
}

/// Why a model stopped, in the words of the conventions' messages.
pub(crate) fn finish_reason(stop: &StopReason) -> &str {
    match stop {
        StopReason::End | StopReason::StopSequence => "stop",
        StopReason::ToolCalls => "tool_call",
        StopReason::MaxTokens => "length",
        StopReason::Refusal => "content_filter",
        StopReason::Other(word) => word,
    }
}

/// The one word that a value is written as.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => OTHER.to_owned(),
    }
}
