//! Holds the basic types of all crates: identities, JSON, errors, cancellation, contents of results, durations, pauses
//! between attempts, event streams, name patterns, secrets.

pub mod backoff;
pub mod cancel;
pub mod content;
pub mod duration;
pub mod error;
pub mod identity;
pub mod json;
pub mod pattern;
pub mod secret;
pub mod setting;
pub mod sse;
