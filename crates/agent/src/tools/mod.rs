//! The agent's own tools, namespace `agent`: batch, final report and task status. The executor and the policy treat
//! them like any other tool. The state machine in [`crate::run`] decides what an accepted call means for its run.

mod batch;
pub(crate) mod final_report;
mod share;
mod task_status;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::arguments::WHOLE_ITEMS;
use toolwright_core::catalogue::{Provider, ProviderKind, RegistrationError};
use toolwright_core::{Effects, StaticProvider, Tool, ToolDefinition, ToolId};

use batch::Batch;
use final_report::FinalReportTool;
pub use final_report::{FinalReport, Format, ReportSpec};
pub(crate) use task_status::TaskStatus;
use task_status::TaskStatusTool;

/// Namespace of these tools, and name of their provider.
pub const NAMESPACE: &str = "agent";
/// Id of the tool that runs several calls.
pub const BATCH_ID: &str = "agent:batch@1.0.0";
/// Id of the tool that ends a run.
pub const FINAL_REPORT_ID: &str = "agent:final_report@1.0.0";
/// Id of the tool that says how far a task is.
pub const TASK_STATUS_ID: &str = "agent:task_status@1.0.0";
/// Wire name of [`FINAL_REPORT_ID`].
pub(crate) const FINAL_REPORT: &str = "agent__final_report";

/// Which of these tools a run is shown. All of them can be called in every run: a model may know them by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentTools {
    /// What the run is to end with; the final report is shown where this is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportSpec>,
    /// Whether the status of the task is shown.
    pub task_status: bool,
    /// Whether the batch is shown.
    pub batch: bool,
}

impl AgentTools {
    /// Whether the tool of this id is shown.
    #[must_use]
    pub fn shows(&self, id: &str) -> bool {
        match id {
            BATCH_ID => self.batch,
            FINAL_REPORT_ID => self.report.is_some(),
            TASK_STATUS_ID => self.task_status,
            _ => false,
        }
    }
}

/// The tools of a run that is to end with what `report` says.
#[expect(clippy::expect_used, reason = "what is validated of the definitions is constant, and every test registers it")]
pub(crate) fn of_run(report: Option<&ReportSpec>) -> StaticProvider {
    let tools: Vec<Arc<dyn Tool>> = vec![
        // Whatever a batch does, a call of its own does, under its own policy.
        Arc::new(Batch { effects: Effects::READ }),
        Arc::new(TaskStatusTool),
        Arc::new(FinalReportTool { spec: report.cloned() }),
    ];
    StaticProvider::new(NAMESPACE, ProviderKind::Builtin, tools).expect("legal definitions")
}

/// The batch alone, for callers that are no agents. They see one call where there are many, so its effects are
/// whatever a tool may do.
///
/// # Errors
/// [`RegistrationError`] for a definition of ours that breaks the rules.
pub fn batch_provider() -> Result<Arc<dyn Provider>, RegistrationError> {
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(Batch { effects: Effects::UNKNOWN })];
    Ok(Arc::new(StaticProvider::new(NAMESPACE, ProviderKind::Builtin, tools)?))
}

/// A definition: `shown` is what models see, `taken` what is validated.
#[expect(clippy::expect_used, reason = "the ids are constants, and every test parses them")]
fn define(id: &str, description: &str, shown: Value, taken: Value) -> ToolDefinition {
    let mut definition = ToolDefinition::new(ToolId::parse(id).expect("a legal id"), description, Some(taken));
    definition.provider_schema = Some(shown);
    definition.effects = Effects::READ;
    definition.strict = Some(false);
    definition
}

/// Marks the items of a tool's array arguments as standing for themselves.
fn whole_items(definition: &mut ToolDefinition) {
    definition.capabilities.insert(WHOLE_ITEMS.into(), json!(true));
}

#[cfg(test)]
mod tests;
