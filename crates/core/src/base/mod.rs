//! What all else is built on: errors, cancellation, contents of results, durations, name patterns, secrets.

pub mod cancel;
pub mod content;
pub mod duration;
pub mod error;
pub mod pattern;
pub mod secret;
pub mod setting;
