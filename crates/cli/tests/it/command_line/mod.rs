//! The command line itself: help, prompts, the terminal, and the documents made of it.

pub(crate) mod cli;
mod prompts;
mod reference;
pub(crate) mod terminal;
pub(crate) mod width;
mod words;
