//! REST tools: one HTTP request each. `request` describes it, for a configured entry (`entry`, with templates over the
//! call's arguments) or an imported operation ([`crate::openapi`]); `provider` makes the calls.

mod config;
mod credential;
mod entry;
mod provider;
mod reply;
mod request;

use toolwright_core::catalogue::RegistrationError;

pub use config::{QueryValue, ResponseFormat, RestMethod, RestToolConfig};
pub(crate) use credential::{Credential, TokenSource};
pub(crate) use entry::FRAMING;
pub(crate) use provider::HttpTool;
pub(crate) use provider::{MAX_BYTES, RETRIES, compile};
pub use provider::{RestOptions, RestProvider};
pub(crate) use reply::ResponseReading;
pub use reply::Selection;
pub(crate) use request::body::{BodyTemplate, JsonTemplate};
pub(crate) use request::encoded_values::{CookieStyle, Explode, PathStyle, ValueEncoding};
pub(crate) use request::payload::{FieldWriting, Kinds, PartContent, PartList, PartWriting, Payload, PayloadKind};
pub(crate) use request::query::Reserved;
pub use request::query::Style;
pub(crate) use request::template::{Need, Parameter, Segment, Template};
pub(crate) use request::xml::{XmlBody, XmlList, XmlNode, XmlPlace, XmlSchema, is_name as is_xml_name};
pub(crate) use request::{CookiePart, HeaderPart, Pair, PathPart, RequestTemplate};

/// The reason why a REST tool cannot be created. Reported when the provider is built, never at a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestError {
    /// A field of the entry is invalid.
    #[error("restTools.{tool}.{field}: {reason}")]
    Field {
        /// Name of the tool.
        tool: String,
        /// Path of the field inside the entry.
        field: String,
        /// The error, with a remedy.
        reason: String,
    },
    /// Two names result in the same id.
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
        /// The violated rule.
        error: RegistrationError,
    },
}

/// An error of one field, before it is known which tool has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldError {
    pub(super) field: String,
    pub(super) reason: String,
}

impl FieldError {
    pub(super) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    pub(super) fn of_tool(self, tool: &str) -> RestError {
        RestError::Field { tool: tool.to_owned(), field: self.field, reason: self.reason }
    }
}
