//! Where an MCP provider keeps what its server said and Toolwright does not interpret, so that a gateway
//! can say it again untouched.

/// Key in [`crate::ToolDefinition::meta`]: an object of the tool's own fields (`annotations`, `icons`,
/// `_meta`, later additions), as the server listed them.
pub const LISTED_FIELDS: &str = "mcp";

/// Key in [`crate::ToolOutput::extras`]: the whole result of a protocol's method that is no tool, as the source gave
/// it (see [`Provider::methods`](crate::catalogue::Provider::methods)).
pub const METHOD_RESULT: &str = "mcp_method_result";

/// Key in [`crate::ToolOutput::extras`]: an object of the result's fields beside `content`,
/// `structuredContent`, `isError` and `_meta`.
pub const RESULT_FIELDS: &str = "mcp_result";
