//! Remote catalogues: declared tools that their publisher has signed, fetched over HTTPS.
//!
//! A catalogue is a JSON object:
//!
//! ```json
//! {
//!   "format": "toolwright-catalogue/1", "namespace": "acme", "version": 7,
//!   "issued": 1767225600, "expires": 1798761600,
//!   "tools": [{"id": "acme:status@1.0.0", "kind": "rest", "rest": {"description": "…", "url": "https://…"}}],
//!   "signatures": [{"key": "ed25519:…", "signature": "…"}]
//! }
//! ```
//!
//! Each signature is Ed25519 (RFC 8032) over the canonical JSON (RFC 8785) of the object without `signatures`. Times
//! are seconds since the epoch. `version` only grows: a catalogue is refused if it is older than the last accepted one,
//! or has the same version with other content, as long as the same keys are pinned and [`forget`] is not called. The
//! last accepted document is stored, and used while the source cannot be reached, until it expires.

mod config;
mod document;
mod provider;
mod tool;

pub use config::CatalogueConfig;
pub use document::{Document, FORMAT, Refusal, SeenVersion, Verified, VerifyOptions, sign, verify};
pub use document::{KeyError, PublicKey, SigningKey};
pub use provider::{CatalogueProvider, forget};
pub use provider::{FetchError, fetch};
pub use tool::{Grants, RefusedTool, check_tools};
