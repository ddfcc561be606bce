//! The agent loop: a pure, serialisable state machine and the driver around it.
//!
//! [`RunState`] decides the next step without I/O. [`Driver`] executes it: it asks the model, runs calls through the
//! executor and saves the state after every step. [`plan_calls`] asks a model once and returns its calls as values.

pub mod agents;
mod child;
pub mod delegate;
pub mod driver;
pub mod extract;
mod final_report;
pub mod plan;
pub mod plan_writer;
pub mod report;
pub mod run;
pub mod tools;

pub use agents::{AGENTS, AgentProvider, AgentProviderOptions, BASE_PROMPT};
pub use delegate::{DelegateDocument, DelegateDocuments, LoadedDelegate, ModelDelegates};
pub use driver::{Driver, DriverError, PromptPreview, RunOptions, RunWatcher, Transcript};
pub use extract::ModelExtractor;
pub use plan::{PlannedCall, PlannedCalls, offer, plan_calls, read_calls};
pub use plan_writer::{correction_request, plan_request, read_plan, replan_request};
pub use report::{
    ChildEnd, FinalReport, Format, HeldCall, HeldCallDecision, ProducedFile, ReportConfig, ReportedCall, RunReport,
    RunResult, Status, UnfinishedChild,
};
pub use run::{
    AfterPlan, ClientRunOptions, CompactionCounts, CompactionState, ContextOptions, DEFAULT_PICK_SIZE, Dispatch,
    ExcludedCall, Grant, Limits, ResolvedTool, RunConfig, RunPlan, RunState, SessionNotice, Step, ToolBatch,
    TransitionError,
};
pub use tools::AgentTools;
