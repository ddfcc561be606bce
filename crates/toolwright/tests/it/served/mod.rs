//! The gateway of a program: its APIs, and the tokens of its users.

mod facade_answers;
mod facade_responses;
pub(crate) mod facades;
mod serving;
mod two_tokens;
