//! `agent__task_status`: the model reports the progress of the task.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::{Tool, ToolDefinition};

use super::{TASK_STATUS_ID, define};

/// The tool.
pub(super) struct TaskStatusTool;

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Stage {
    Starting,
    InProgress,
    Completed,
}

/// What the model says of its task, as far as it matters to the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskStatus {
    status: Stage,
    #[serde(default)]
    ready_for_final_report: bool,
    #[serde(default)]
    need_to_run_more_tools: bool,
}

impl TaskStatus {
    /// Whether the task is complete by all that was said: the next turn is to be the last.
    pub(crate) fn is_final(&self) -> bool {
        self.status == Stage::Completed && self.ready_for_final_report && !self.need_to_run_more_tools
    }

    fn answer(&self) -> &'static str {
        match self.status {
            Stage::Completed if self.is_final() => "Noted: the task is completed, and your next turn is the last.",
            Stage::Completed => {
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
        let shown = schema(&["status", "done", "pending", "now", "ready_for_final_report", "need_to_run_more_tools"]);
        let description = "Says how far the task is. Call it beside other tools, not instead of them. With status \
            completed, ready_for_final_report true and need_to_run_more_tools false, your next turn is the last.";
        define(TASK_STATUS_ID, description, shown, schema(&["status"]))
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
