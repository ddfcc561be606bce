//! The requirements of a client's request: the tools that the client runs itself, and the form of the answer. The run
//! never executes calls of such tools; it is suspended until the client gives their results.

use serde::{Deserialize, Serialize};
use toolwright_core::canonical::ContentHash;
use toolwright_core::content::joined_text;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{CallResult, Message, OutputFormat, RawToolCall, RequestTool, ToolChoice};
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;

use super::turn_call::{CallStatus, ResolvedTool};
use super::{Phase, RunConfig, RunState, TransitionError};

/// The requirements of a client's request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientRunOptions {
    /// Tools that the client runs, under the client's names. They hide tools of the catalogue with the same names.
    pub tools: Vec<RequestTool>,
    /// Whether the model's first answer must call tools. Later answers are free, because a forced call would never end.
    pub tool_choice: ToolChoice,
    /// Whether one answer may contain several calls.
    pub parallel_calls: Option<bool>,
    /// The shape of the answer.
    pub output: Option<OutputFormat>,
}

impl ClientRunOptions {
    /// Returns whether there are no requirements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the client's tool of a written name.
    pub(crate) fn tool(&self, name: &str) -> Option<&RequestTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    pub(super) fn resolve(&self, call: &RawToolCall) -> Option<ResolvedTool> {
        let tool = self.tool(&call.name)?;
        Some(ResolvedTool { wire_name: tool.name.clone(), definition: ContentHash::of_value(&tool.parameters) })
    }

    /// Returns the tools of a request with the client's.
    #[must_use]
    pub fn with_tools(&self, tools: &[RequestTool]) -> Vec<RequestTool> {
        let others = tools.iter().filter(|tool| self.tool(&tool.name).is_none());
        others.chain(&self.tools).cloned().collect()
    }
}

impl RunState {
    /// Returns the calls that wait for the client's results, as the model wrote them.
    #[must_use]
    pub fn client_calls(&self) -> Vec<RawToolCall> {
        let Phase::Calls { calls } = &self.phase else { return Vec::new() };
        calls.iter().filter(|call| call.status == CallStatus::ForClient).map(|call| call.replay()).collect()
    }

    /// Takes the results of the calls that the client has run. A call without a result counts as failed; results of
    /// other calls are ignored.
    ///
    /// # Errors
    /// [`TransitionError`] unless calls wait for the client.
    pub fn answer_client(&mut self, results: Vec<CallResult>) -> Result<(), TransitionError> {
        let waiting = self.client_calls();
        if waiting.is_empty() {
            return Err(self.illegal("answer_client"));
        }
        let outcome = |call: RawToolCall| {
            let id = CallId::new(call.id.as_str());
            let Some(result) = results.iter().find(|result| result.call_id == call.id) else {
                return Outcome::failed(id, ToolError::new(ErrorKind::ExecutionError, "the client gave no result"));
            };
            let text = if result.is_error { joined_text(&result.content) } else { String::new() };
            let failed = Outcome::failed(id, ToolError::new(ErrorKind::ExecutionError, text));
            let content = result.content.clone();
            if result.is_error {
                Outcome { content, ..failed }
            } else {
                Outcome { ok: true, error: None, content, ..failed }
            }
        };
        self.on_tools(waiting.into_iter().map(outcome).collect())
    }

    /// Adds the client's messages, after the results of the turn's calls if it has some. The model answers them next.
    ///
    /// # Errors
    /// [`TransitionError`] if the run is over.
    pub fn add_messages(&mut self, messages: Vec<Message>) -> Result<(), TransitionError> {
        self.user_texts.extend(messages.iter().filter_map(Self::user_text));
        match self.phase {
            Phase::Calls { .. } => self.task.after_calls.extend(messages),
            Phase::Model { .. } => self.messages.extend(messages),
            Phase::Done { .. } => return Err(self.illegal("add_messages")),
        }
        Ok(())
    }

    /// Replaces the specification by that of the client's next request.
    pub fn replace_config(&mut self, config: RunConfig) {
        self.config = config;
    }
}
