//! Names and values that the semantic conventions define.

use toolwright_core::ErrorKind;
use toolwright_core::model::{ModelErrorKind, REPLAY, StopReason};
use toolwright_core::operation::CallOrigin;

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
pub(crate) const PROMPT_NAME: &str = "gen_ai.prompt.name";
pub(crate) const PROVIDER: &str = "gen_ai.provider.name";
pub(crate) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(crate) const RESOURCE_URI: &str = "mcp.resource.uri";
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
/// Tools that the client runs.
pub(crate) const FUNCTION: &str = "function";
/// MCP method that calls a tool.
pub(crate) const TOOLS_CALL: &str = "tools/call";
/// An error of no known type.
const OTHER: &str = "_OTHER";

/// The error type of a tool: its kind.
pub(crate) fn tool_error(kind: Option<ErrorKind>) -> &'static str {
    kind.map_or(OTHER, ErrorKind::as_str)
}

/// Error type of an MCP request without a peer's error code. A result with `isError` has its own type.
pub(crate) fn request_error(kind: Option<ErrorKind>) -> &'static str {
    match kind {
        Some(ErrorKind::ExecutionError) => "tool_error",
        kind => tool_error(kind),
    }
}

/// Splits `provider/model` and maps the provider to its name in the conventions, if it has one.
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

/// Why a model stopped, in the conventions' terms.
pub(crate) fn finish_reason(stop: &StopReason) -> &str {
    match stop {
        StopReason::End | StopReason::StopSequence(_) => "stop",
        StopReason::ToolCalls => "tool_call",
        StopReason::MaxTokens => "length",
        StopReason::Refusal => "content_filter",
        StopReason::Other(word) => word,
    }
}

/// The error type of a model request: its kind.
pub(crate) fn model_error(kind: Option<ModelErrorKind>) -> &'static str {
    kind.map_or(OTHER, ModelErrorKind::as_str)
}

/// The origin of a call, as the ledger writes it.
pub(crate) fn origin(origin: CallOrigin) -> &'static str {
    match origin {
        CallOrigin::Owner => "owner",
        CallOrigin::Agent => "agent",
        CallOrigin::Gateway => "gateway",
        CallOrigin::Job => "job",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_values_match_the_serialised_names() {
        for of in [CallOrigin::Owner, CallOrigin::Agent, CallOrigin::Gateway, CallOrigin::Job] {
            assert_eq!(serde_json::to_value(of).ok(), Some(origin(of).into()));
        }
        use ModelErrorKind as Kind;
        for kind in [
            Kind::Auth,
            Kind::RateLimit,
            Kind::Quota,
            Kind::ContextOverflow,
            Kind::ContentFilter,
            Kind::Unavailable,
            Kind::Invalid,
            Kind::BadResponse,
            Kind::Canceled,
            Kind::Unsupported,
        ] {
            assert_eq!(serde_json::to_value(kind).ok(), Some(model_error(Some(kind)).into()));
        }
        assert_eq!(model_error(None), OTHER);
    }
}
