//! Tools written in Rust, and their provider.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use crate::catalogue::context::{TokenCounter, ToolContext};
use crate::catalogue::{
    CallScope, Health, PromptPart, PromptSize, PromptSizeQuery, Provider, ProviderCall, ProviderError, ProviderKind,
    RegisteredTool, RegistrationError,
};
use crate::definition::ToolDefinition;
use crate::definition::llm::LlmDefinition;
use crate::error::{ErrorKind, ToolError};
use crate::identity::session::Session;
use crate::identity::tool_id::ToolId;
use crate::output::outcome::ToolOutput;
use crate::store::FileUse;

/// A tool implemented in Rust.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Returns its definition. Called once, at registration.
    fn definition(&self) -> ToolDefinition;

    /// Runs with validated arguments.
    ///
    /// # Errors
    /// [`ToolError`]; for a failure that the model should read and act on, prefer
    /// [`ToolOutput::failure`] or `ErrorKind::ExecutionError`.
    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError>;

    /// Returns the resources that a call with these arguments would touch, for policy. By default they are unknown.
    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Anywhere
    }

    /// Returns the files that a call with these arguments reads and writes, so that taint follows values through files.
    /// May access the file system, but not read contents. None by default.
    fn files(&self, _arguments: &Value, _session: &Session) -> FileUse {
        FileUse::default()
    }

    /// Returns the changes that a call with these arguments would make, as a unified diff for the approver. Reads only,
    /// and blocks. `None` if unknown.
    fn changes(&self, _arguments: &Value, _session: &Session) -> Option<String> {
        None
    }

    /// Whether it makes or awaits other calls. It then holds no queue slot or lock while it runs, which
    /// those calls may need, and its context allows it to make them.
    fn awaits_others(&self) -> bool {
        false
    }

    /// Whether an interrupted call resumes when it is made again under the same id; see
    /// [`Provider::resumes`].
    fn resumes(&self) -> bool {
        false
    }

    /// Its definition, if a model answers it: the executor then chooses models, and a run is
    /// one attempt.
    fn llm(&self) -> Option<Arc<LlmDefinition>> {
        None
    }

    /// Returns the size of its request to `model` in this mode, if known. Models with a smaller context window
    /// are not tried.
    fn prompt_size(
        &self,
        _arguments: &Value,
        _model: &str,
        _mode: Option<&str>,
        _tokens: &dyn TokenCounter,
    ) -> PromptSize {
        PromptSize::default()
    }

    /// Its part of the system prompts of runs that may use it; none by default.
    fn prompt_part(&self) -> Option<PromptPart> {
        None
    }
}

/// A provider of Rust tools, fixed at construction.
pub struct StaticProvider {
    name: String,
    kind: ProviderKind,
    tools: Vec<Arc<RegisteredTool>>,
    by_id: HashMap<ToolId, Arc<dyn Tool>>,
}

impl StaticProvider {
    /// Registers `tools` under the provider `name`.
    ///
    /// # Errors
    /// [`RegistrationError`] for a tool that breaks the registration rules; then no tool is registered.
    pub fn new(
        name: impl Into<String>,
        kind: ProviderKind,
        tools: Vec<Arc<dyn Tool>>,
    ) -> Result<Self, RegistrationError> {
        Self::adjusted(name, kind, tools, |_| {})
    }

    /// Like [`StaticProvider::new`], with definitions changed by `adjust`.
    ///
    /// # Errors
    /// As [`StaticProvider::new`].
    pub fn adjusted(
        name: impl Into<String>,
        kind: ProviderKind,
        tools: Vec<Arc<dyn Tool>>,
        adjust: impl Fn(&mut ToolDefinition),
    ) -> Result<Self, RegistrationError> {
        let mut registered = Vec::with_capacity(tools.len());
        let mut by_id = HashMap::with_capacity(tools.len());
        for tool in tools {
            let mut definition = tool.definition();
            adjust(&mut definition);
            let entry = RegisteredTool::own(definition)?;
            by_id.insert(entry.definition().id.clone(), tool);
            registered.push(entry);
        }
        Ok(Self { name: name.into(), kind, tools: registered, by_id })
    }

    /// Its tools, in the order in which they were given.
    #[must_use]
    pub fn tools(&self) -> &[Arc<RegisteredTool>] {
        &self.tools
    }
}

#[async_trait]
impl Provider for StaticProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> ProviderKind {
        self.kind
    }

    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError> {
        Ok(self.tools.clone())
    }

    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        match self.by_id.get(call.tool) {
            Some(tool) => tool.run(call.arguments, context).await,
            None => Err(ToolError::new(
                ErrorKind::InternalError,
                format!("provider {} lost its tool {}", self.name, call.tool),
            )),
        }
    }

    fn scope(&self, tool: &ToolId, arguments: &Value, session: &Session) -> CallScope {
        self.by_id.get(tool).map_or(CallScope::Anywhere, |tool| tool.scope(arguments, session))
    }

    fn files(&self, tool: &ToolId, arguments: &Value, session: &Session) -> FileUse {
        self.by_id.get(tool).map_or_else(FileUse::default, |tool| tool.files(arguments, session))
    }

    fn changes(&self, tool: &ToolId, arguments: &Value, session: &Session) -> Option<String> {
        self.by_id.get(tool)?.changes(arguments, session)
    }

    fn awaits_others(&self, tool: &ToolId) -> bool {
        self.by_id.get(tool).is_some_and(|tool| tool.awaits_others())
    }

    fn resumes(&self, tool: &ToolId) -> bool {
        self.by_id.get(tool).is_some_and(|tool| tool.resumes())
    }

    fn llm(&self, tool: &ToolId) -> Option<Arc<LlmDefinition>> {
        self.by_id.get(tool)?.llm()
    }

    fn prompt_size(&self, tool: &ToolId, query: PromptSizeQuery<'_>) -> PromptSize {
        let PromptSizeQuery { arguments, model, mode, tokens } = query;
        self.by_id.get(tool).map(|tool| tool.prompt_size(arguments, model, mode, tokens)).unwrap_or_default()
    }

    fn prompt_part(&self, tool: &ToolId) -> Option<PromptPart> {
        self.by_id.get(tool)?.prompt_part()
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::context::{Clock, Services};
    use crate::identity::session::{CallId, Principal, SessionId};
    use futures_util::FutureExt as _;
    use serde_json::json;

    struct FixedAnswer(&'static str);

    #[async_trait]
    impl Tool for FixedAnswer {
        fn definition(&self) -> ToolDefinition {
            crate::testing::definition(self.0)
        }
        async fn run(&self, _arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
            Ok(ToolOutput::text(self.0))
        }
        fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
            if self.0.starts_with("a:") { CallScope::Workspace } else { CallScope::Anywhere }
        }
    }

    struct FixedClock;
    impl Clock for FixedClock {
        fn now(&self) -> std::time::Instant {
            std::time::Instant::now()
        }
        fn system_time(&self) -> std::time::SystemTime {
            std::time::SystemTime::UNIX_EPOCH
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the provider itself is tested")]
    fn equal_names_in_two_namespaces_differ() {
        let ids = ["a:read@1.0.0", "b:read@1.0.0", "b:read@2.0.0"];
        let tools = ids.map(|id| Arc::new(FixedAnswer(id)) as Arc<dyn Tool>).to_vec();
        let provider = StaticProvider::new("p", ProviderKind::Native, tools).expect("registers");
        let session =
            Arc::new(Session { id: SessionId::new("s"), principal: Principal::owner(), root: "/".into(), agent: None });
        let services = Arc::new(Services::none(Arc::new(FixedClock)));
        let context = ToolContext::detached(CallId::new("c"), Arc::clone(&session), services);
        for id in ids {
            let tool = ToolId::parse(id).expect("id");
            let source_hash = crate::testing::definition(id).contract_hash();
            let call =
                ProviderCall { tool: &tool, raw_name: "read", source_hash, arguments: json!({}), idempotency_key: "k" };
            let output = provider.call(call, &context).now_or_never().expect("ready").expect("runs");
            assert_eq!(output.content[0].as_text(), Some(id));
            assert_eq!(provider.scope(&tool, &json!({}), &session) == CallScope::Workspace, id.starts_with("a:"));
        }
    }
}
