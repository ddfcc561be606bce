//! Manuals of tools, and which of them a session has read: some tools demand it before their first call.

use crate::catalogue::Entry;
use crate::error::{ErrorKind, ToolError};
use crate::json::canonical::ContentHash;
use crate::session::SessionId;

/// The tool that shows a manual.
pub const INFO_ID: &str = "job:info@1.0.0";

/// What the sessions have read. A manual is named by its tool's contract: a changed one is to be read again.
pub trait Manuals: Send + Sync {
    /// A session reads a manual.
    fn read(&self, _session: &SessionId, _definition: ContentHash) {}
    /// Whether it has read it. Where that is not kept, every manual counts as read.
    fn was_read(&self, _session: &SessionId, _definition: ContentHash) -> bool {
        true
    }
}

/// Nothing is kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoManuals;

impl Manuals for NoManuals {}

/// A tool that is not to be called before its manual was read; the message has the remedy.
#[must_use]
pub fn unread(entry: &Entry, info: &Entry) -> ToolError {
    let (name, info) = (&entry.wire_name, &info.wire_name);
    let message = format!(
        "the manual of {name} must be read before its first call: call {info} with {{\"name\": \"{name}\"}}, then call {name} again"
    );
    ToolError::new(ErrorKind::NotPermitted, message)
}
