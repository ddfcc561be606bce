//! What is wrong with a configured REST tool.

use toolwright_core::catalogue::RegistrationError;

/// Why a REST tool cannot be made. Found when the provider is built, never at a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestError {
    /// A field of the entry is wrong.
    #[error("restTools.{tool}.{field}: {reason}")]
    Field {
        /// Name of the tool.
        tool: String,
        /// Path of the field inside the entry.
        field: String,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// Two names give the same id.
    #[error("restTools.{second} gets the same id as restTools.{first} ({id}): rename one of them")]
    Collision {
        /// The earlier name.
        first: String,
        /// The later name.
        second: String,
        /// The id of both.
        id: String,
    },
    /// The definition breaks a registration rule.
    #[error("restTools.{tool}: {error}")]
    Registration {
        /// Name of the tool.
        tool: String,
        /// The rule.
        error: RegistrationError,
    },
}

/// A complaint about one field, before it is known whose field it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) field: String,
    pub(super) reason: String,
}

impl Complaint {
    pub(super) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    pub(super) fn of_tool(self, tool: &str) -> RestError {
        RestError::Field { tool: tool.to_owned(), field: self.field, reason: self.reason }
    }
}
