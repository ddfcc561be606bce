//! Tools made by `#[tool]`, run through the real executor. Everything is named by way of the facade: that is
//! all that a user of the library depends on.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod definitions;
mod runs;
