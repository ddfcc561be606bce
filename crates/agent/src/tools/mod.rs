//! The agent's own tools: batch, final report, task status and hand-off. Executor and policy treat them like any other
//! tool; the state machine interprets their results.

mod batch;
mod final_report;
mod handoff;

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::agents::handoff::HANDOFF_ID;
use toolwright_core::catalogue::{CallScope, Provider, ProviderKind, RegistrationError};
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::{Effects, StaticProvider, Tool, ToolDefinition, ToolId};

use crate::report::ReportConfig;
use batch::BatchTool;
use final_report::FinalReportTool;
pub(crate) use handoff::{HandoffTool, agent_id};

pub use crate::report::FINAL_REPORT_ID;

/// Namespace of these tools, and name of their provider.
pub const NAMESPACE: &str = "agent";
/// Id of the tool that runs several calls.
pub const BATCH_ID: &str = "agent:batch@1.0.0";
/// Id of the tool that reports the progress of a task.
pub const TASK_STATUS_ID: &str = "agent:task_status@1.0.0";
/// Wire name of [`FINAL_REPORT_ID`].
pub(crate) const FINAL_REPORT: &str = "agent__final_report";

/// The tools that a run is shown. Every run can call all of them by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentTools {
    /// The required report of the run; if set, the final report tool is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportConfig>,
    /// Whether the task status is shown.
    pub task_status: bool,
    /// Whether the batch is shown.
    pub batch: bool,
    /// The agent that handed the request over and can get it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hands_back_to: Option<String>,
}

impl AgentTools {
    /// Returns whether the tool with this id is shown.
    #[must_use]
    pub fn shows(&self, id: &str) -> bool {
        match id {
            BATCH_ID => self.batch,
            FINAL_REPORT_ID => self.report.is_some(),
            TASK_STATUS_ID => self.task_status,
            // It exists only if it can be used.
            HANDOFF_ID => true,
            _ => false,
        }
    }
}

/// Returns the agent's own tools for a run that must end with this report, and may hand its request over.
#[expect(clippy::expect_used, reason = "what is validated of the definitions is constant, and every test registers it")]
pub(crate) fn run_tools(report: Option<&ReportConfig>, handoff: Option<HandoffTool>) -> StaticProvider {
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        // The calls of a batch have the effects, each under its own policy.
        Arc::new(BatchTool { effects: Effects::READ }),
        Arc::new(TaskStatusTool),
        Arc::new(FinalReportTool { config: report.cloned() }),
    ];
    tools.extend(handoff.map(|tool| Arc::new(tool) as Arc<dyn Tool>));
    StaticProvider::new(NAMESPACE, ProviderKind::Builtin, tools).expect("legal definitions")
}

/// Returns the batch alone, for callers other than agents. They see one call for many, so it declares the effects of
/// any tool.
///
/// # Errors
/// [`RegistrationError`] if its definition is invalid.
pub fn batch_provider() -> Result<Arc<dyn Provider>, RegistrationError> {
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(BatchTool { effects: Effects::UNKNOWN })];
    Ok(Arc::new(StaticProvider::new(NAMESPACE, ProviderKind::Builtin, tools)?))
}

/// Returns a definition: models see the schema `listed_schema`, and arguments are validated against `accepted_schema`.
#[expect(clippy::expect_used, reason = "the ids are constants, and every test parses them")]
fn define(id: &str, description: &str, listed_schema: Value, accepted_schema: Value) -> ToolDefinition {
    let mut definition =
        ToolDefinition::new(ToolId::parse(id).expect("a legal id"), description, Some(accepted_schema));
    definition.provider_schema = Some(listed_schema);
    definition.effects = Effects::READ;
    definition.strict = Some(false);
    definition
}

/// `agent__task_status`: the model reports the progress of the task.
struct TaskStatusTool;

/// The progress of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TaskStage {
    Starting,
    InProgress,
    Completed,
}

/// The fields of the model's report on its task that the run uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskStatus {
    status: TaskStage,
    #[serde(default)]
    ready_for_final_report: bool,
    #[serde(default)]
    need_to_run_more_tools: bool,
}

impl TaskStatus {
    /// Returns whether all fields say that the task is complete, so that the next turn is the last.
    pub(crate) fn is_final(&self) -> bool {
        self.status == TaskStage::Completed && self.ready_for_final_report && !self.need_to_run_more_tools
    }

    fn answer(&self) -> &'static str {
        match self.status {
            TaskStage::Completed if self.is_final() => "Noted: the task is completed, and your next turn is the last.",
            TaskStage::Completed => {
                "Noted, but the task goes on: `completed` needs ready_for_final_report true and need_to_run_more_tools false."
            }
            _ => "Noted.",
        }
    }
}

#[async_trait]
impl Tool for TaskStatusTool {
    fn definition(&self) -> ToolDefinition {
        let schema = |required: &[&str]| {
            json!({
                "type": "object",
                "properties": {
                    "status": {"type": "string", "enum": ["starting", "in-progress", "completed"]},
                    "done": {"type": "string", "description": "What has been completed"},
                    "pending": {"type": "string", "description": "What remains"},
                    "now": {"type": "string", "description": "The step at hand"},
                    "ready_for_final_report": {"type": "boolean"},
                    "need_to_run_more_tools": {"type": "boolean"},
                },
                "required": required,
            })
        };
        let listed_schema =
            schema(&["status", "done", "pending", "now", "ready_for_final_report", "need_to_run_more_tools"]);
        let description = "Says how far the task is. Call it beside other tools, not instead of them. With status \
            completed, ready_for_final_report true and need_to_run_more_tools false, your next turn is the last.";
        define(TASK_STATUS_ID, description, listed_schema, schema(&["status"]))
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let status: TaskStatus = serde_json::from_value(arguments.clone()).map_err(|error| {
            ToolError::new(ErrorKind::InvalidParameters, format!("the arguments do not fit: {error}"))
        })?;
        Ok(ToolOutput { structured: Some(arguments), ..ToolOutput::text(status.answer()) })
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::final_report::tests::report_config;

    #[test]
    fn the_definitions_register_for_every_report() {
        for format in ["", "text", "markdown", "json", "tty", "slack", "schema"] {
            let provider = run_tools(report_config(format).as_ref(), None);
            let ids: Vec<_> = provider.tools().iter().map(|tool| tool.definition().id.as_str()).collect();
            assert_eq!(ids, [BATCH_ID, TASK_STATUS_ID, FINAL_REPORT_ID]);
        }
        assert!(batch_provider().is_ok());
        let shown = run_tools(report_config("schema").as_ref(), None).tools()[2].definition().shown_schema();
        assert_eq!(shown["properties"]["content_json"]["properties"]["s"]["$ref"], "#/$defs/s");
        assert_eq!(shown["$defs"]["s"]["type"], "string");
        let inward = ReportConfig::by_schema(json!({"properties": {"a": {"$ref": "#"}}})).expect("schema");
        let shown = run_tools(Some(&inward), None).tools()[2].definition().shown_schema();
        assert!(shown["properties"]["content_json"]["description"].is_string(), "{shown}");
        assert!(ReportConfig::by_schema(json!({"type": "nonsense"})).is_err());
    }
}
