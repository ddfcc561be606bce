//! Secrets as the [credential store](super::CredentialStore), and nothing else, writes them.

use serde::Serializer;
use toolwright_core::Secret;

/// Writes a secret.
pub(crate) fn kept<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose())
}

/// Writes a secret, if there is one.
#[expect(clippy::ref_option, reason = "what serde calls a function with")]
pub(crate) fn kept_if_any<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(secret) => serializer.serialize_some(secret.expose()),
        None => serializer.serialize_none(),
    }
}
