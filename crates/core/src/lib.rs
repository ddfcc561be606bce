//! The pure core of Toolwright: definitions, names, catalogue snapshots, checks, policy and plans.
//!
//! This crate does no I/O, reads no clock and needs no async runtime. Every decision is a function of this crate; the
//! other crates supply inputs and act on outputs.
//!
//! Folders import only from those before them: [`base`], [`schema`], [`model`], [`definition`], [`output`], [`policy`],
//! [`event`], [`store`], [`catalogue`], [`call`] and [`agents`]. Modules that are used often also have a short path,
//! like [`json`], [`session`] and [`tool_id`].

pub mod agents;
pub mod base;
pub mod call;
pub mod catalogue;
pub mod definition;
pub mod event;
pub mod model;
pub mod output;
pub mod policy;
pub mod schema;
pub mod store;

#[doc(hidden)]
pub use catalogue::authoring::macro_support as __private;

pub use base::cancel::{Cancel, CancelCause};
pub use base::content::ContentBlock;
pub use base::error::{ErrorKind, ToolError};
pub use base::identity::session::{CallId, Principal, Session, SessionId};
pub use base::identity::tool_id::ToolId;
pub use base::identity::{name_table, session, taint, tool_id};
pub use base::json::canonical::{self, ContentHash};
pub use base::json::pointer;
pub use base::secret::Secret;
pub use base::{backoff, cancel, content, duration, error, identity, json, pattern, secret, setting, sse};
pub use call::plan::{self, Plan, plan};
pub use call::run_input::RunInput;
pub use call::variables::Variables;
pub use call::{
    Caller, Provenance, RawArguments, Rejection, ToolCall, ValidCall, arguments, check, indirect_call, model_repair,
    redact, run_input, variables,
};
pub use catalogue::context::{Clock, Redactor, Services, ToolContext};
pub use catalogue::llm::{define_llm_tool, define_template_tool, llm_definition};
#[cfg(test)]
use catalogue::tests as testing;
pub use catalogue::tool::{StaticProvider, Tool};
pub use catalogue::{
    Entry, Health, Listing, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool, Snapshot, authoring,
    client, context, llm, tool,
};
pub use definition::approval::{self, ApprovalDecision, ApprovalRequest, Approver};
pub use definition::sandbox::SandboxProfile;
pub use definition::{Effects, ToolDefinition, inbox, passthrough, sandbox};
pub use event::job::{JobRecord, JobScope, JobState, Jobs};
pub use event::operation::{CallOrigin, Lineage, Op, OpId, OpKind, TraceId};
pub use event::{Event, EventSink, job, operation, trigger};
pub use model::{ModelClient, ModelRequest, ModelResponse, embedding, exposure};
pub use output::outcome::{self, Outcome, ToolOutput};
pub use policy::{Policy, Profile, pins};
pub use store::trace;
