//! Holds what a client's request asks of a run: the tools that the client runs itself, and the form of the answer. The
//! run never executes calls of such tools: it is suspended until the client gives their results.

use serde::{Deserialize, Serialize};
use toolwright_core::canonical::ContentHash;
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{CallResult, Message, OutputFormat, ShownTool, ToolChoice, WrittenCall};
use toolwright_core::outcome::Outcome;
use toolwright_core::session::CallId;

use super::turn_call::{CallStatus, Resolved};
use super::{Phase, RunConfig, RunState, TransitionError};

/// What a client's request asks of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientRunOptions {
    /// Tools that the client runs, under the names that it gave them. They hide tools of the catalogue with these names.
    pub tools: Vec<ShownTool>,
    /// Whether to call tools, in the first answer of the model: a forced call would never end otherwise.
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls.
    pub parallel_calls: Option<bool>,
    /// The shape of the answer.
    pub output: Option<OutputFormat>,
}

impl ClientRunOptions {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The tool of the client that a written name is.
    pub(crate) fn tool(&self, name: &str) -> Option<&ShownTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    pub(super) fn resolve(&self, call: &WrittenCall) -> Option<Resolved> {
        let tool = self.tool(&call.name)?;
        Some(Resolved { wire_name: tool.name.clone(), definition: ContentHash::of_value(&tool.parameters) })
    }

    /// The tools of a request with those of the client.
    #[must_use]
    pub fn beside(&self, tools: &[ShownTool]) -> Vec<ShownTool> {
        let others = tools.iter().filter(|tool| self.tool(&tool.name).is_none());
        others.chain(&self.tools).cloned().collect()
    }
}

impl RunState {
    /// The calls that wait for results of the client, as the model wrote them.
    #[must_use]
    pub fn client_calls(&self) -> Vec<WrittenCall> {
        let Phase::Calls { calls } = &self.phase else { return Vec::new() };
        calls.iter().filter(|call| call.status == CallStatus::ForClient).map(|call| call.replay()).collect()
    }

    /// Takes the results of the calls that the client has run, and what the user says after them. A call without a result
    /// has failed; results of other calls are left out.
    ///
    /// # Errors
    /// [`TransitionError`] unless such calls wait.
    pub fn answer_client(&mut self, results: Vec<CallResult>, more: Vec<ContentBlock>) -> Result<(), TransitionError> {
        let waiting = self.client_calls();
        if waiting.is_empty() {
            return Err(self.illegal("answer_client"));
        }
        let outcome = |call: WrittenCall| {
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
        self.on_tools(waiting.into_iter().map(outcome).collect())?;
        self.add(more);
        Ok(())
    }

    /// Adds words of the user, if the model is asked next.
    fn add(&mut self, content: Vec<ContentBlock>) {
        if !content.is_empty() && self.waits_for_model() {
            self.user_texts.push(joined_text(&content));
            self.messages.push(Message::User { content });
        }
    }

    /// Goes on with another specification: of the next request of a client.
    pub fn respecify(&mut self, spec: RunConfig) {
        self.spec = spec;
    }
}
