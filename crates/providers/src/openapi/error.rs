//! What is wrong with a document as a whole.

use toolwright_net::NetError;

/// Why a document cannot be imported at all. What is wrong with one operation is among [`Import::refused`](super::Import).
#[derive(Debug, thiserror::Error)]
pub enum OpenApiError {
    /// It cannot be read.
    #[error("{path} cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Cause.
        #[source]
        error: std::io::Error,
    },
    /// It cannot be fetched.
    #[error("{url} cannot be fetched: {reason}")]
    Unfetchable {
        /// The address, without secrets.
        url: String,
        /// Why not.
        reason: String,
        /// The cause, where it is the network's.
        #[source]
        error: Option<NetError>,
    },
    /// It is neither JSON nor YAML.
    #[error("{0}")]
    Syntax(String),
    /// It is something else.
    #[error("it is no OpenAPI document: it has no `openapi` field with a version")]
    NotOpenApi,
    /// A version that is not known.
    #[error("OpenAPI {0} is not known; 3.0 to 3.2 are")]
    Version(String),
    /// Its content is another than the one that its owner approved.
    #[error("the document, or a file that it refers to, has changed since it was approved: `toolwright trust` asks")]
    NotApproved,
    /// A setting that cannot be meant.
    #[error("{field}: {reason}")]
    Setting {
        /// Its path in the entry.
        field: String,
        /// What is wrong.
        reason: String,
    },
}
