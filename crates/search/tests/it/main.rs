//! Selection against real files.
#![cfg(feature = "embeddings")]
#![expect(clippy::unwrap_used, reason = "a test stops at its first surprise")]

mod embed;
