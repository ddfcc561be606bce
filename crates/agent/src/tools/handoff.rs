//! `router__handoff-to`: hands the user's request to another agent, whose report is the answer of the run.
//!
//! The new agent replaces the previous one: it runs with its own tools among those of the previous agent's starter, and
//! within the same policy, limits and budget.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::agents::handoff::{HANDED_BACK, HANDOFF_ID, Handoff};
use toolwright_core::agents::{HandoffDestination, History, Router};
use toolwright_core::approval::DecisionPending;
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::{Outcome, ToolOutput};
use toolwright_core::session::{CallId, Session};
use toolwright_core::{ContentBlock, Tool, ToolDefinition};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::{HandoffSource, NestedContext};

use super::{NAMESPACE, define};
use crate::report::{FinalReport, Format, Status};

/// Id of the tool that summarises a conversation.
const SUMMARIZE: &str = "llm:summarize@1.0.0";
/// Characters of a summary.
const SUMMARY: usize = 4000;
/// The most bytes of an answer that is passed on whole.
const MAX_ANSWER: usize = 1 << 20;

/// The tool.
pub(crate) struct HandoffTool {
    router: Router,
    /// The agent that the request may be handed back to.
    back: Option<String>,
    description: String,
}

impl HandoffTool {
    /// Creates the tool of an agent with these destinations; `None` without any.
    pub(crate) fn new(router: &Router, back: Option<&str>) -> Option<Self> {
        if router.is_empty() && back.is_none() {
            return None;
        }
        let mut description = "Hands the user's request to another agent, which answers the user in your place. You \
            do nothing more then."
            .to_owned();
        for HandoffDestination { agent, description: about, .. } in &router.destinations {
            description.push_str(&format!("\n- {agent}: {about}"));
        }
        if let Some(back) = back {
            description.push_str(&format!("\n- {back}: hands the request back; say why in `message`"));
        }
        Some(Self { router: router.clone(), back: back.map(str::to_owned), description })
    }

    async fn hand_off(
        &self,
        to: &HandoffDestination,
        message: &str,
        context: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let found = NestedContext::of(context).and_then(|nested| Some((nested, nested.run.handoff.clone()?)));
        let Some((nested, terms)) = found else {
            return Err(ToolError::new(ErrorKind::InternalError, "a request cannot be handed over from here"));
        };
        if terms.snapshot.get(&agent_id(&to.agent)).is_none() {
            let message = format!(
                "the request was not handed over: the agent `{}` is not there any more; answer the user yourself",
                to.agent
            );
            return Err(ToolError::new(ErrorKind::ExecutionError, message));
        }
        let from = nested.run.session.agent.as_deref().unwrap_or("agent");
        let handed_over = HandoffSource { by: from.into(), may_return: to.may_return };
        let run = RunContext {
            snapshot: Arc::clone(&terms.snapshot),
            handed_over: Some(handed_over),
            max_output: Some(MAX_ANSWER),
            ..nested.run.clone()
        };
        let call = |name: String, arguments: Value| {
            ToolCall::new(CallId::new(format!("{}.{name}", context.call_id)), name, RawArguments::Value(arguments))
        };
        let summary = match to.history {
            History::Summary if terms.snapshot.get(SUMMARIZE).is_some() => {
                let arguments = json!({"content": terms.conversation.record, "max_length": SUMMARY});
                let outcomes = nested.executor.run_calls(vec![call(SUMMARIZE.to_owned(), arguments)], &run).await;
                outcomes.into_iter().next().and_then(|outcome| summary(&outcome))
            }
            _ => None,
        };
        let handoff = Handoff { from, message, history: to.history, may_return: to.may_return };
        let task = handoff.task(&terms.conversation, summary.as_deref());
        let reason = if message.is_empty() { format!("{from} hands the request over") } else { message.to_owned() };
        let call = call(agent_id(&to.agent), json!({"reason": reason, "task": task}));
        let outcomes = nested.executor.run_calls(vec![call], &run).await;
        match outcomes.into_iter().next() {
            Some(outcome) => answer(to, outcome),
            None => Err(ToolError::new(ErrorKind::InternalError, "the agent gave nothing")),
        }
    }
}

/// Returns the result of the destination: its report, which becomes the run's; the request, handed back; or why it did
/// not run.
fn answer(to: &HandoffDestination, outcome: Outcome) -> Result<ToolOutput, ToolError> {
    let Outcome { pending, error, content, structured, extras, .. } = outcome;
    if let Some(request) = pending {
        return Err(
            ToolError::new(ErrorKind::Denied, "a person has not decided yet").with_source(DecisionPending(request))
        );
    }
    // The blocks after the answer are notices.
    let text = content.first().and_then(ContentBlock::as_text).unwrap_or_default().to_owned();
    if to.may_return && extras.contains_key(HANDED_BACK) {
        let agent = &to.agent;
        return Ok(ToolOutput::text(format!(
            "{agent} hands the request back: {text}\nAnswer it yourself, or hand it to another agent."
        )));
    }
    let Some(status) = extras.get("status").and_then(Value::as_str) else {
        // The destination has not run.
        let error = error.unwrap_or_else(|| ToolError::new(ErrorKind::ExecutionError, "it did not run"));
        if error.cancel_cause().is_some() {
            return Err(error);
        }
        let message = format!("the request was not handed over: {}", error.message());
        return Err(ToolError::new(error.kind(), message));
    };
    let status = match status {
        "success" => Status::Success,
        "partial" => Status::Partial,
        _ => Status::Failure,
    };
    let report = FinalReport {
        status,
        format: if structured.is_some() { Format::Json } else { Format::Markdown },
        content: structured.is_none().then_some(text),
        content_json: structured,
        metadata: Map::new(),
        warnings: Vec::new(),
    };
    let structured = serde_json::to_value(&report).ok();
    Ok(ToolOutput { structured, ..ToolOutput::text(format!("{} has answered the user.", to.agent)) })
}

fn summary(outcome: &Outcome) -> Option<String> {
    let summary = outcome.structured.as_ref().filter(|_| outcome.ok)?.get("summary")?.as_str()?;
    Some(summary.to_owned())
}

/// Returns the id of an agent's tool.
pub(crate) fn agent_id(agent: &str) -> String {
    format!("{NAMESPACE}:{agent}@1.0.0")
}

#[async_trait]
impl Tool for HandoffTool {
    fn definition(&self) -> ToolDefinition {
        let agents: Vec<&str> =
            self.router.destinations.iter().map(|to| to.agent.as_str()).chain(self.back.as_deref()).collect();
        let schema = json!({
            "type": "object",
            "properties": {
                "agent": {"type": "string", "enum": agents},
                "message": {"type": "string", "description": "What that agent should know besides the conversation"},
            },
            "required": ["agent"],
        });
        let mut definition = define(HANDOFF_ID, &self.description, schema.clone(), schema);
        definition.strict = None;
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let text = |key: &str| arguments.get(key).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
        let (agent, message) = (text("agent"), text("message"));
        if self.back.as_deref() == Some(&*agent) {
            let report = FinalReport {
                status: Status::Partial,
                format: Format::Text,
                content: Some(if message.is_empty() { "it is not for me".to_owned() } else { message }),
                content_json: None,
                metadata: [(HANDED_BACK.to_owned(), json!(true))].into_iter().collect(),
                warnings: Vec::new(),
            };
            let structured = serde_json::to_value(&report).ok();
            return Ok(ToolOutput { structured, ..ToolOutput::text(format!("{agent} has the request again.")) });
        }
        match self.router.destination(&agent) {
            Some(to) => self.hand_off(to, &message, context).await,
            None => Err(ToolError::new(ErrorKind::InvalidParameters, format!("there is no destination `{agent}`"))),
        }
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }

    fn awaits_others(&self) -> bool {
        true
    }

    fn resumes(&self) -> bool {
        true
    }
}
