//! Providers, registration, and the immutable snapshot that everything reads.

mod entry;
mod list_kind;
mod provider;
mod registered;
mod snapshot;

pub use crate::definition::{CallScope, ProviderKind};
pub use entry::Entry;
pub use list_kind::ListKind;
pub use provider::{
    CallLimits, ChangeNotifier, Health, NoticeSink, PromptQuestion, PromptSize, Provider, ProviderCall, ProviderError,
    SourceNotice,
};
pub use registered::{Origin, RegisteredTool, RegistrationError, ToolOverride, foreign_ids};
pub use snapshot::{CatalogueIssue, Listing, ProviderStatus, Snapshot, Unapproved};
