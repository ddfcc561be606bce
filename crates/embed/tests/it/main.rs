//! Directories of tiny models, whole and damaged, and a real one where there is one.

#![expect(clippy::unwrap_used, reason = "tests")]

mod damaged;
mod model;
mod real;
mod tiny;
