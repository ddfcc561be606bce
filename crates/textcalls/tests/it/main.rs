//! The text formats, read and written, against cases, goldens and arbitrary text.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod read;
mod write;
