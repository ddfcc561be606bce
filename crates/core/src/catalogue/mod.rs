//! Tools, their providers, the context of a running tool, and the immutable catalogue snapshot.

pub mod authoring;
pub mod client;
pub mod context;
pub mod declared;
mod entry;
pub mod llm;
pub mod prompt_part;
mod provider;
mod registered;
pub mod roots;
mod snapshot;
#[cfg(test)]
pub(crate) mod testing;
pub mod tool;

pub use crate::definition::{CallScope, ProviderKind};
pub use crate::model::shown_tokens;
pub use entry::{ACTIVITY_ONLY, Entry, namespaces};
pub use prompt_part::{PromptPart, Skill};
pub use provider::{
    CallLimits, ChangeNotifier, Health, ListKind, NoticeSink, PromptSize, PromptSizeQuery, Provider, ProviderCall,
    ProviderError, SourceNotice, WithheldTool,
};
pub use registered::{DefinitionOrigin, RegisteredTool, RegistrationError, ToolOverride, foreign_ids};
pub use snapshot::{CatalogueIssue, Listing, ProviderStatus, Snapshot, UnapprovedTool};
