//! Tools, their providers, the context of a running tool, and the immutable catalogue snapshot.

pub mod authoring;
pub mod client;
pub mod context;
pub mod declared;
mod entry;
pub mod llm;
mod provider;
mod registered;
mod snapshot;
#[cfg(test)]
pub(crate) mod tests;
pub mod tool;

pub use crate::definition::{CallScope, ProviderKind};
pub use crate::model::shown_tokens;
pub use entry::{ACTIVITY_ONLY, Entry, namespaces};
pub use provider::{
    CallLimits, ChangeNotifier, Health, ListKind, MAX_SKILL_DESCRIPTION, MAX_SKILL_NAME, MAX_SKILL_TEXT, NoticeSink,
    PromptPart, PromptSize, PromptSizeQuery, Provider, ProviderCall, ProviderError, SKILL_ID, Skill, SourceNotice,
    WithheldTool,
};
pub use registered::{DefinitionOrigin, RegisteredTool, RegistrationError, ToolOverride, foreign_ids};
pub use snapshot::{CatalogueIssue, Listing, ProviderStatus, Snapshot, UnapprovedTool};
