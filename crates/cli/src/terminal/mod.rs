//! The terminal: output, questions, logs and signals.

pub(crate) mod console;
pub(crate) mod logging;
pub(crate) mod markdown;
pub(crate) mod person;
pub(crate) mod progress;
pub(crate) mod screen;
pub(crate) mod table;
